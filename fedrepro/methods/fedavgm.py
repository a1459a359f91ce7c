from dataclasses import dataclass

from fedrepro.methods.base import FedAvg, Round, State, Upload, hp


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """FedAvgM (Hsu et al., 2019): momentum on the server. BatchNorm statistics are plainly averaged."""

    beta: float = hp(0.9, high=1)
    eta_g: float = hp(1.0)
    replaces = frozenset({"aggregate"})

    def aggregate(self, server: State, uploads: list[Upload], r: Round) -> State:
        new = super().aggregate(server, uploads, r)
        if not uploads:
            return new
        v = server["w"] - new["w"]  # Delta, the pseudo-gradient
        if old := server.get("fedavgm/v"):
            v.add_(old, alpha=self.beta)  # v <- beta v + Delta
        return {**new, "w": server["w"] - v * self.eta_g, "fedavgm/v": v}
