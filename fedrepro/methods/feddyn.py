from collections.abc import Callable
from dataclasses import dataclass

from fedrepro.errors import bad
from fedrepro.methods.base import FedAvg, Local, Message, Round, Run, State, Upload, Weights, hp


@dataclass(frozen=True)
class FedDyn(FedAvg):
    """FedDyn (Acar et al., ICLR 2021, Algorithm 1). BatchNorm statistics are averaged.

    The server sends the cloud model w; the authors' code reports the mean of the participants' models.
    """

    alpha: float = hp(0.1)
    report: str = hp("mean", choices=("mean", "cloud"))  # which of the two is tested
    replaces = frozenset({"aggregate"})
    plain = ("w",)

    def check(self, run: Run) -> None:
        super().check(run)
        if self.alpha == 0:
            raise bad("hp.alpha (feddyn)", self.alpha, "a number above 0 (the server divides by it)")

    def client_init(self, k: Local) -> State:
        return {**super().client_init(k), "feddyn/g": k.params.zeros()}

    def correct(self, k: Local) -> None:
        super().correct(k)
        # gradient of -<g_k, theta> + alpha/2 ||theta - w||^2
        k.grads.add_(k.client["feddyn/g"], alpha=-1).add_(k.params - k.start, alpha=self.alpha)

    def finish(self, k: Local) -> tuple[Message, State]:
        sent, kept = super().finish(k)
        g = kept["feddyn/g"] - (k.params - k.start) * self.alpha
        return sent, {**kept, "feddyn/g": g}

    def aggregate(self, server: State, uploads: list[Upload], r: Round) -> State:
        new = super().aggregate(server, uploads, r)
        if not uploads:
            return new
        thetas = r.mean(uploads, "w", plain=True)  # the paper's plain mean over the participants
        share = len(uploads) / r.run.clients
        h = (thetas - server["w"]) * (-self.alpha * share)  # h <- h - alpha/N sum (theta_k - w)
        if old := server.get("feddyn/h"):
            h.add_(old)
        return {**new, "w": thetas - h / self.alpha, "feddyn/h": h}

    def tested(self, server: State, client: Callable[[int], State], r: Round) -> list[Weights]:
        models, h = super().tested(server, client, r), server.get("feddyn/h")
        if self.report == "cloud" or h is None:
            return models
        return [(w + h / self.alpha, b) for w, b in models]  # the mean of which w was made
