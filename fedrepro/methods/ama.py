from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

from fedrepro.errors import bad
from fedrepro.methods.base import FedAvg, Round, Run, State, Upload, hp
from fedrepro.simulation.tree import mean


@dataclass(frozen=True)
class AMA(FedAvg):
    """AMA (Li, Mahmoodi and Lam, arXiv 2302.10757, Algorithm 1): the mean is mixed with the old model and late updates.

    |D| of Eqs. (5) and (6) is the data of the clients on time, so that the weights add to one (erratum AM-02).
    If no client is on time, their share stays with the old model (AM-07). A late update counts once, regardless of
    its client's data. BatchNorm statistics are mixed with the same weights.
    """

    alpha0: float = hp(0.1, high=1)
    eta: float = hp(0.0025)  # 2.5e-3, not 2.5 / e^3 (AM-04)
    b: float = hp(0.6, high=1)
    replaces = frozenset({"aggregate"})
    averages_late = False  # they count separately

    def check(self, run: Run) -> None:
        super().check(run)
        if self.alpha0 + self.eta * run.rounds > 1 + 1e-9:
            most = f"{(1 - self.alpha0) / run.rounds:.12g}"
            raise bad(f"hp.eta ({run.method})", self.eta, f"0 to {most}: alpha0 + eta * rounds must not pass 1")

    def old(self, t: int) -> float:
        """The weight of all that is old in round t: Eq. (5)'s alpha."""
        return min(self.alpha0 + self.eta * t, 1.0)

    def aggregate(self, server: State, uploads: list[Upload], r: Round) -> State:
        now, late = [u for u in uploads if u.round == r.t], [u for u in uploads if u.round < r.t]
        alpha, beta, gammas = mixing(self.old(r.t), [r.t - u.round for u in late], self.b)
        used = [i for i, gamma in enumerate(gammas) if gamma]  # without those of weight 0, FedAvg stays exact
        new = super().aggregate(server, now, r)  # sum_i |d_i|/|D| w_ti, or w_{t-1} if no client is on time
        for key in ("w", "b"):  # Eq. (6), as (1 - beta) (the mean of what is old) + beta (the mean of what is new)
            past = server[key]
            if used:
                past = mean([past, *(late[i].sent[key] for i in used)], [alpha, *(gammas[i] for i in used)])
            new = {**new, key: past.lerp(new[key], beta)}
        return new


def mixing(old: float, staleness: Sequence[int], b: float) -> tuple[float, float, list[float]]:
    """alpha, beta and the gamma of each late update: Eqs. (7)-(11), with old = alpha0 + eta t."""
    raw, a = [b * (1 - sigma(s)) for s in staleness], 1 - sigma(1)  # Eq. (9)
    total = a + sum(raw)
    return a / total * old, 1 - old, [g / total * old for g in raw]  # Eqs. (10), (8), (11)


def sigma(s: int) -> float:
    return 1 / (1 + exp(-s))
