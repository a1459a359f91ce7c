from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from fedrepro.methods.base import FedAvg, Local, Message, Net, Round, State, Upload, Weights
from fedrepro.simulation.tree import Tree


@dataclass(frozen=True)
class FedBN(FedAvg):
    """FedBN (Li et al., ICLR 2021, Algorithm 1): FedAvg, except that every client keeps its own BatchNorm.

    Neither BatchNorm's weights nor its statistics are sent. With BatchNorm there is no global model to test: the
    run's accuracy is the participants' mean. Without BatchNorm this is FedAvg.
    """

    def server_init(self, model: Net) -> State:
        return {**super().server_init(model), "fedbn/private": normal(model)}

    def broadcast(self, server: State, cid: int, r: Round) -> Message:
        message = super().broadcast(server, cid, r)
        private = server["fedbn/private"]
        return {**message, "w": message["w"].without(private), "b": Tree()}

    def receive(self, k: Local, message: Message) -> None:
        own = k.client.get("fedbn/own") or dict(zip(("w", "b"), k.initial(), strict=True))
        private = own["w"].pick(normal(k.model))
        super().receive(k, {**message, "w": Tree({**message["w"], **private}), "b": own["b"]})

    def finish(self, k: Local) -> tuple[Message, State]:
        sent, kept = super().finish(k)
        private = normal(k.model)
        if private:
            kept = {**kept, "fedbn/own": {"w": sent["w"].pick(private), "b": sent["b"]}}
        return {**sent, "w": sent["w"].without(private), "b": Tree()}, kept

    def aggregate(self, server: State, uploads: list[Upload], r: Round) -> State:
        new = super().aggregate(server, uploads, r)
        return {**new, "w": Tree({**server["w"], **new["w"]}), "b": server["b"]}

    def trained_model(self, sent: Message, kept: State) -> Weights:
        return with_own(super().trained_model(sent, kept), kept)

    def personal(self, server: State, client: State, cid: int) -> Weights:
        return with_own(super().personal(server, client, cid), client)

    def tested(self, server: State, client: Callable[[int], State], r: Round) -> list[Weights]:
        if not server["fedbn/private"]:
            return super().tested(server, client, r)
        return [] if r.run.personal else [self.personal(server, client(cid), cid) for cid in r.participants]


def with_own(model: Weights, client: State) -> Weights:
    """The model with the client's BatchNorm, if it has one."""
    own = client.get("fedbn/own")
    return (Tree({**model[0], **own["w"]}), own["b"]) if own else model


def normal(model: nn.Module) -> list[str]:
    """The parameters of BatchNorm."""
    norms = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)]
    return [f"{name}.{key}" for name, module in norms for key, _ in module.named_parameters()]
