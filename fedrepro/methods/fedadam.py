from dataclasses import dataclass

from fedrepro.methods.base import FedAvg, Round, State, Upload, hp


@dataclass(frozen=True)
class FedAdam(FedAvg):
    """FedAdam (Reddi et al., ICLR 2021, Algorithm 2), without bias correction; v starts at tau^2.

    BatchNorm statistics are plainly averaged.
    """

    eta_g: float = hp(0.01)
    beta1: float = hp(0.9, high=1)
    beta2: float = hp(0.99, high=1)
    tau: float = hp(1e-3)
    replaces = frozenset({"aggregate"})

    def aggregate(self, server: State, uploads: list[Upload], r: Round) -> State:
        new = super().aggregate(server, uploads, r)
        if not uploads:
            return new
        delta = new["w"] - server["w"]
        m, v = server.get("fedadam/m") or delta.zeros(), server.get("fedadam/v") or delta.zeros() + self.tau**2
        m = m * self.beta1 + delta * (1 - self.beta1)
        v = v * self.beta2 + delta * delta * (1 - self.beta2)
        w = server["w"] + m / (v.sqrt() + self.tau) * self.eta_g
        return {**new, "w": w, "fedadam/m": m, "fedadam/v": v}
