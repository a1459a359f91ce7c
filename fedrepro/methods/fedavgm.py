from dataclasses import dataclass

from fedrepro.methods.base import FedAvg, Net, Round, State, Upload, hp


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """FedAvgM (Hsu et al., 2019): momentum on the server. BatchNorm statistics are plainly averaged."""

    beta: float = hp(0.9, high=1)
    eta_g: float = hp(1.0)
    replaces = frozenset({"aggregate"})

    def server_init(self, model: Net) -> State:
        return {**super().server_init(model), "fedavgm/v": None}

    def aggregate(self, server: State, uploads: list[Upload], r: Round) -> State:
        new = super().aggregate(server, uploads, r)
        if not uploads:
            return new
        v = server["w"] - new["w"]  # Delta, the pseudo-gradient
        if server["fedavgm/v"] is not None:
            v.add_(server["fedavgm/v"], alpha=self.beta)  # v <- beta v + Delta
        return {**new, "w": server["w"] - v * self.eta_g, "fedavgm/v": v}
