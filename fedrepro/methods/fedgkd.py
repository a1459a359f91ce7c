from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from fedrepro.methods.base import FedAvg, Local, Message, Round, State, Upload, hp
from fedrepro.methods.fedkd import distillation
from fedrepro.simulation.tree import mean


@dataclass(frozen=True)
class FedGKD(FedAvg):
    """FedGKD (Yao et al. 2021): distillation from the mean of the last `buffer` global models.

    As in the authors' code, the initial model is not a teacher: the first round is FedAvg's. From the second on, the
    mean travels beside w, 1.5 times FedAvg's bytes (ML-13); with buffer 1 it is w, and nothing is added. BatchNorm
    statistics are averaged over clients; the frozen teacher uses the batch's, so that those of past models are neither
    kept nor sent.
    """

    gamma: float = hp(0.2)
    buffer: int = hp(5, low=1, high=1000)

    def _models(self) -> list[str]:
        """Where the server keeps the last global models, the newest first."""
        return ["w", *(f"fedgkd/w-{age}" for age in range(1, self.buffer))]

    def plan(self, server: State, r: Round) -> State:
        server = super().plan(server, r)
        if self.buffer == 1 or r.t == 1:
            return server
        return {**server, "fedgkd/teacher": mean([server[key] for key in self._models() if key in server])}

    def broadcast(self, server: State, cid: int, r: Round) -> Message:
        message, teacher = super().broadcast(server, cid, r), server.get("fedgkd/teacher")
        return message if teacher is None else {**message, "fedgkd/teacher": teacher}

    def receive(self, k: Local, message: Message) -> None:
        super().receive(k, message)
        k.scratch["fedgkd/teacher"] = message.get("fedgkd/teacher", k.start)

    def loss(self, k: Local, x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        main = super().loss(k, x, y, out)
        if k.t == 1:
            return main
        target = k.teacher("fedgkd", k.scratch["fedgkd/teacher"], k.start_buffers)(x)
        return main + self.gamma / 2 * distillation(target, out)

    def aggregate(self, server: State, uploads: list[Upload], r: Round) -> State:
        if r.t > 1:  # before that, w is the initial model
            older = {old: server[new] for new, old in pairwise(self._models()) if new in server}
            server = {**server, **older, "fedgkd/teacher": None}
        return super().aggregate(server, uploads, r)
