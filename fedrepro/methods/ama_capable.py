from dataclasses import dataclass

from fedrepro.methods.ama import AMA
from fedrepro.methods.base import Net, Round, State, Upload
from fedrepro.methods.fes import FES
from fedrepro.simulation.fleet import Fleet
from fedrepro.simulation.tree import Tree


@dataclass(frozen=True)
class AMA_Capable(FES, AMA):
    """AMA-FES whose extractor is averaged over capable devices only: ours, it departs from the paper's Eqs. (5), (6).

    A limited device uploads the extractor it received, which in Eq. (5) holds the mean back by that device's share of
    the data. Here it has no say on the extractor and its BatchNorm statistics; where no capable device takes part,
    both stay. Without limited devices this is ama+fes.
    """

    whole = ("w", "b")  # averaged twice, over all and over capable devices

    def server_init(self, model: Net) -> State:
        return {**super().server_init(model), "ama_capable/classifier": list(model.classifier)}

    def aggregate(self, server: State, uploads: list[Upload], r: Round) -> State:
        limited = Fleet(r.run).limited
        new = super().aggregate(server, uploads, r)
        capable = super().aggregate(server, [u for u in uploads if not limited(u.cid)], r)
        extractor = capable["w"].without(server["ama_capable/classifier"])
        return {**new, "w": Tree({**new["w"], **extractor}), "b": capable["b"]}
