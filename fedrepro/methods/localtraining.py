from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from fedrepro.errors import bad
from fedrepro.methods.base import FedAvg, Local, Message, Round, Run, State, Upload, Weights


@dataclass(frozen=True)
class LocalTraining(FedAvg):
    """Local training: every client continues with its own model on its own data; nothing is sent.

    Clients start from one model that the seed gives to all and keep weights and BatchNorm statistics. There is no
    global model: the run's accuracy is the mean over the round's participants' own models, and the weights of its
    result stay the initial ones.
    """

    model_keys: ClassVar = ("own/w", "own/b")  # of the client's state
    sends: ClassVar[tuple[str, ...]] = ()  # which of "w" and "b" a method of this kind sends
    whole = ("w", "b")  # of those, the server keeps one per client

    def check(self, run: Run) -> None:
        super().check(run)
        if "+" in run.method:
            part = next(part for part in type(self).__bases__ if issubclass(part, LocalTraining))
            raise bad("method", run.method, f"{part.title()} alone: its clients do not share one model")

    def broadcast(self, server: State, cid: int, r: Round) -> Message:
        return {}

    def receive(self, k: Local, message: Message) -> None:
        if "w" in message:  # a model that the server mixed for this client
            return super().receive(k, message)
        k.load(*(self.trained_model({}, k.client) if k.client else k.initial()))

    def finish(self, k: Local) -> tuple[Message, State]:
        trained, kept = super().finish(k)
        sent = {key: trained[key] for key in self.sends}
        return sent, {**kept, **dict(zip(self.model_keys, (trained["w"], trained["b"]), strict=True))}

    def aggregate(self, server: State, uploads: list[Upload], r: Round) -> State:
        for u in uploads:
            r.per_client.put(u.cid, {key: u.sent[key] for key in self.sends}, r.t)
        return server

    def trained_model(self, sent: Message, kept: State) -> Weights:
        w, b = self.model_keys
        return kept[w], kept[b]

    def personal(self, server: State, client: State, cid: int) -> Weights:
        return self.trained_model({}, client) if client else super().personal(server, client, cid)

    def tested(self, server: State, client: Callable[[int], State], r: Round) -> list[Weights]:
        return [] if r.run.personal else [self.personal(server, client(cid), cid) for cid in r.participants]
