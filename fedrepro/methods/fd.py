from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedrepro.methods.base import Local, Message, Net, Round, State, Upload, Weights, hp
from fedrepro.methods.dfl import divergence, merge, soft_targets
from fedrepro.methods.localtraining import LocalTraining
from fedrepro.simulation.tree import Tree


@dataclass(frozen=True)
class FD(LocalTraining):
    """FD (Jeong et al. 2018): federated distillation. Only label-wise mean outputs travel, never a weight.

    Tables average softmax outputs (erratum DF-08) in float64 (DF-09). Client i gets, per label, the plain mean over
    the last tables to arrive from the other clients that have the label; a label that no other client has is not
    distilled. Every client trains a model of its own, as in local training, but the run's accuracy is the mean over the
    round's participants on the whole test set (DF-19).
    """

    gamma: float = hp(1.0)
    model_keys: ClassVar = ("fd/w", "fd/b")

    def server_init(self, model: Net) -> State:
        classes = len(model.get_parameter(model.head[0]))
        nothing = torch.zeros(classes, classes, dtype=torch.float64)  # the table of a client that knows no label
        return {**super().server_init(model), "fd/nothing": nothing, "fd/tables": Tree()}

    def broadcast(self, server: State, cid: int, r: Round) -> Message:
        others = [table for key, table in server["fd/tables"].items() if key != str(cid)]
        return {"fd/table": merge(server["fd/nothing"], others, [1] * len(others))}

    def receive(self, k: Local, message: Message) -> None:
        super().receive(k, message)
        k.scratch["fd/table"] = message["fd/table"].to(k.worker.device, torch.get_default_dtype())

    def loss(self, k: Local, x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        ce = super().loss(k, x, y, out)
        return ce + self.gamma * divergence(k.scratch["fd/table"], y, out) if self.gamma else ce

    def finish(self, k: Local) -> tuple[Message, State]:
        sent, kept = super().finish(k)
        return {**sent, "fd/table": soft_targets(k)}, kept

    def aggregate(self, server: State, uploads: list[Upload], r: Round) -> State:
        new = {str(u.cid): u.sent["fd/table"] for u in uploads}
        return {**server, "fd/tables": Tree({**server["fd/tables"], **new})}

    def tested(self, server: State, client: Callable[[int], State], r: Round) -> list[Weights]:
        return [self.personal(server, client(cid), cid) for cid in r.participants]
