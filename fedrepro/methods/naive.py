from collections.abc import Callable
from dataclasses import dataclass

from fedrepro.methods.base import FedAvg, Round, State, Upload


@dataclass(frozen=True)
class Naive(FedAvg):
    """Naive FL (Li, Mahmoodi and Lam, arXiv 2302.10757, Section V): FedAvg without limited devices and late updates.

    The paper does not say what becomes of late updates here; this is our default. A round without updates
    keeps the model (erratum AM-08).
    """

    replaces = frozenset({"aggregate"})
    averages_late = False

    def invite(self, drawn: list[int], limited: Callable[[int], bool]) -> list[int]:
        return [cid for cid in super().invite(drawn, limited) if not limited(cid)]

    def aggregate(self, server: State, uploads: list[Upload], r: Round) -> State:
        return super().aggregate(server, [u for u in uploads if u.round == r.t], r)
