from dataclasses import dataclass

import torch

from fedrepro import models
from fedrepro.errors import bad
from fedrepro.methods.base import FedAvg, Local, Round, State, hp
from fedrepro.methods.dfl import divergence, merge, soft_targets
from fedrepro.simulation.rng import derive
from fedrepro.simulation.tree import Tree


@dataclass(frozen=True)
class FD(FedAvg):
    """FD (Jeong et al. 2018): federated distillation. Only label-wise mean outputs travel, never a weight.

    Tables average softmax outputs (erratum DF-08) in float64 (DF-09). Client i gets, per label, the plain mean over
    the last tables to arrive from the other clients that have the label; what nobody else has is not distilled.
    Every client keeps its own model, weights and BatchNorm statistics, and starts from one that the seed gives to
    all. The run's accuracy is the mean over the round's participants of their models', on the whole test set (DF-19);
    the weights of its result stay the initial ones.
    """

    gamma: float = hp(1.0)

    def check(self, run) -> None:
        super().check(run)
        if "+" in run.method:
            raise bad("method", run.method, "fd alone: it exchanges no weights, which other methods need")

    def server_init(self, model) -> State:
        classes = len(model.get_parameter(model.head[0]))
        nothing = torch.zeros(classes, classes, dtype=torch.float64)  # the table of a client that knows no label
        return {**super().server_init(model), "fd/nothing": nothing, "fd/tables": Tree()}

    def broadcast(self, server, cid, r):
        others = [table for key, table in server["fd/tables"].items() if key != str(cid)]
        return {"fd/table": merge(server["fd/nothing"], others, [1] * len(others))}

    def receive(self, k: Local, message) -> None:
        own = (k.client["fd/w"], k.client["fd/b"]) if k.client else initial(k)
        k.load(*own)
        k.scratch["fd/table"] = message["fd/table"].to(k.worker.device, torch.get_default_dtype())

    def loss(self, k: Local, x, y, out):
        ce = super().loss(k, x, y, out)
        return ce + self.gamma * divergence(k.scratch["fd/table"], y, out) if self.gamma else ce

    def finish(self, k: Local):
        own, kept = super().finish(k)
        return {"fd/table": soft_targets(k)}, {**kept, "fd/w": own["w"], "fd/b": own["b"]}

    def aggregate(self, server, uploads, r: Round) -> State:
        new = {str(u.cid): u.sent["fd/table"] for u in uploads}
        return {**server, "fd/tables": Tree({**server["fd/tables"], **new})}

    def tested(self, server, client, r: Round):
        return [self.personal(server, client(cid), cid) for cid in r.participants]

    def personal(self, server, client, cid):
        return (client["fd/w"], client["fd/b"]) if client else super().personal(server, client, cid)


def initial(k: Local) -> tuple[Tree, Tree]:
    """The initial model, made by the client from the run's seed as the server made it: it is not sent."""
    data = k.worker.data
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(k.run.seed, "model"))
        model = models.build(k.run.model, classes=data.classes, channels=data.channels, size=data.size)
    return Tree((name, p.detach()) for name, p in model.named_parameters()), Tree(model.named_buffers())
