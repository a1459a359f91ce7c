from dataclasses import dataclass

from fedrepro.methods.base import FedAvg, Local, Message, Net, Round, State, Upload, Weights, hp
from fedrepro.simulation.tree import Tree


@dataclass(frozen=True)
class FedBABU(FedAvg):
    """FedBABU (Oh et al., ICLR 2022, Algorithm 1): the body is trained and averaged under a random, fixed head.

    The head is the last layer; the seed gives it to all, so that it is never sent. For a personal test the head is
    tuned on the client's data for 5 epochs, their fine-tuning, after the visit's training, and used for nothing else.
    BatchNorm statistics are averaged.
    """

    tune: int = hp(5)  # epochs

    def server_init(self, model: Net) -> State:
        return {**super().server_init(model), "fedbabu/head": list(model.head)}

    def broadcast(self, server: State, cid: int, r: Round) -> Message:
        message = super().broadcast(server, cid, r)
        return {**message, "w": message["w"].without(server["fedbabu/head"])}

    def receive(self, k: Local, message: Message) -> None:
        head = k.client.get("fedbabu/fixed") or k.initial()[0].pick(k.model.head)
        super().receive(k, {**message, "w": Tree({**message["w"], **head})})

    def client_init(self, k: Local) -> State:
        return {**super().client_init(k), "fedbabu/fixed": k.start.pick(k.model.head)}

    def trained(self, k: Local) -> list[str]:
        names = super().trained(k)
        return [name for name in (k.params if names is None else names) if name not in k.model.head]

    def finish(self, k: Local) -> tuple[Message, State]:
        sent, kept = super().finish(k)
        if k.run.personal and self.tune:
            k.steps = self.tune * k.epoch_steps
            k.worker.fit(k, k.model.head)
            kept = {**kept, "fedbabu/tuned": k.params.pick(k.model.head).clone()}
        return {**sent, "w": sent["w"].without(k.model.head)}, kept

    def aggregate(self, server: State, uploads: list[Upload], r: Round) -> State:
        new = super().aggregate(server, uploads, r)
        return {**new, "w": Tree({**server["w"], **new["w"]})}

    def trained_model(self, sent: Message, kept: State) -> Weights:
        w, b = super().trained_model(sent, kept)
        return Tree({**w, **kept.get("fedbabu/tuned", kept["fedbabu/fixed"])}), b

    def personal(self, server: State, client: State, cid: int) -> Weights:
        w, b = super().personal(server, client, cid)
        return Tree({**w, **client.get("fedbabu/tuned", {})}), b
