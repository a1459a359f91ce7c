from dataclasses import dataclass

from fedrepro.methods.base import FedAvg, Local, Message, Net, Round, State, Upload, hp
from fedrepro.simulation.local import values_of


@dataclass(frozen=True)
class Scaffold(FedAvg):
    """SCAFFOLD (Karimireddy et al., ICML 2020, Algorithm 1, option II). BatchNorm statistics are averaged.

    Control variates travel beside the weights, so that a round sends twice FedAvg's bytes.
    """

    eta_g: float = hp(1.0)
    replaces = frozenset({"aggregate"})
    plain = ("w", "scaffold/change")

    def server_init(self, model: Net) -> State:
        return {**super().server_init(model), "scaffold/c": values_of(model)[0].zeros()}

    def broadcast(self, server: State, cid: int, r: Round) -> Message:
        return {**super().broadcast(server, cid, r), "scaffold/c": server["scaffold/c"]}

    def receive(self, k: Local, message: Message) -> None:
        super().receive(k, message)
        k.scratch["scaffold/c"] = message["scaffold/c"]

    def client_init(self, k: Local) -> State:
        return {**super().client_init(k), "scaffold/c": k.params.zeros()}

    def correct(self, k: Local) -> None:
        super().correct(k)
        if "scaffold/drift" not in k.scratch:
            k.scratch["scaffold/drift"] = k.scratch["scaffold/c"] - k.client["scaffold/c"]
        k.grads.add_(k.scratch["scaffold/drift"])  # g - c_i + c

    def finish(self, k: Local) -> tuple[Message, State]:
        sent, kept = super().finish(k)
        moved = (k.start - k.params) / (k.steps * k.lr)
        change = moved - k.scratch["scaffold/c"]  # c_i+ - c_i, with c_i+ = c_i - c + (x - y) / (K eta_l)
        return {**sent, "scaffold/change": change}, {**kept, "scaffold/c": kept["scaffold/c"] + change}

    def aggregate(self, server: State, uploads: list[Upload], r: Round) -> State:
        new = super().aggregate(server, uploads, r)
        if not uploads:
            return new
        w = server["w"].lerp(r.mean(uploads, "w", plain=True), self.eta_g)  # x + eta_g mean(y - x)
        share = len(uploads) / r.run.clients
        c = server["scaffold/c"] + r.mean(uploads, "scaffold/change", plain=True) * share
        return {**new, "w": w, "scaffold/c": c}
