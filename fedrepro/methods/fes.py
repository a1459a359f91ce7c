from dataclasses import dataclass

from fedrepro.methods.base import FedAvg, Local, Message, State


@dataclass(frozen=True)
class FES(FedAvg):
    """FES (Li, Mahmoodi and Lam, arXiv 2302.10757, Eqs. 2 and 3): limited devices train the classifier only.

    The classifier is the fully connected layers. A limited device still uploads the whole [w^f, w^c_i], as the
    paper says, and the ledger counts it. Normalisation belongs to the extractor: its weights are frozen too, and
    a limited device normalises by its batches, as in any training, but uploads the statistics it received.
    """

    def trained(self, k: Local) -> list[str] | None:
        return k.model.classifier if k.limited else super().trained(k)  # w^c; Alg. 1, line 13 (erratum AM-03)

    def finish(self, k: Local) -> tuple[Message, State]:
        if k.limited:
            k.buffers.copy_(k.start_buffers)
        return super().finish(k)
