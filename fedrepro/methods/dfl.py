from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrepro.methods.base import FedAvg, Local, Message, Net, Round, State, Upload, hp

BATCH = 500  # samples in one pass of `soft_targets`


@dataclass(frozen=True)
class DFL(FedAvg):
    """DFL (Liu et al., IEEE IoT J. 2023, Algorithms 1, 2): global soft targets, one row per label, beside the weights.

    r is the round, not the epoch (erratum DF-01); the targets start uniform (DF-03), average softmax outputs
    (DF-08), each row over the devices that have the label (DF-07), and travel in float64 (DF-09).
    BatchNorm statistics are averaged.
    """

    threshold: float = hp(0.6, high=1.0)  # T of the strategy "threshold"
    strategy: str = hp("threshold", choices=("threshold", "dynamic", "fixed"))  # DFL-DRwT, DFL-DRw/T, DFL-FR
    ratio: float = hp(0.6, high=1.0)  # rho of the strategy "fixed"

    def rho(self, r: int, rounds: int) -> float:
        """The share of the hard labels; (R - r) / R is 1 - r/R, rounded once, so that it meets T exactly."""
        if self.strategy == "fixed":
            return self.ratio
        return max((rounds - r) / rounds, self.threshold if self.strategy == "threshold" else 0.0)  # Eq. (10)

    def server_init(self, model: Net) -> State:
        classes = len(model.get_parameter(model.head[0]))
        uniform = torch.full((classes, classes), 1 / classes, dtype=torch.float64)
        return {**super().server_init(model), "dfl/y": uniform}

    def broadcast(self, server: State, cid: int, r: Round) -> Message:
        return {**super().broadcast(server, cid, r), "dfl/y": server["dfl/y"]}

    def receive(self, k: Local, message: Message) -> None:
        super().receive(k, message)
        k.scratch["dfl/y"] = message["dfl/y"].to(k.worker.device, torch.get_default_dtype())
        k.scratch["dfl/rho"] = self.rho(k.t, k.run.rounds)

    def loss(self, k: Local, x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        ce, rho = super().loss(k, x, y, out), k.scratch["dfl/rho"]
        if rho == 1:
            return ce
        return rho * ce + (1 - rho) * divergence(k.scratch["dfl/y"], y, out)  # Eq. (7)

    def finish(self, k: Local) -> tuple[Message, State]:
        sent, kept = super().finish(k)
        return {**sent, "dfl/y": self.label_wise_average(k)}, kept

    def label_wise_average(self, k: Local) -> Tensor:
        return soft_targets(k)

    def aggregate(self, server: State, uploads: list[Upload], r: Round) -> State:
        new = super().aggregate(server, uploads, r)  # Eq. (5)
        tables, sizes = [u.sent["dfl/y"] for u in uploads], [u.n for u in uploads]
        return {**new, "dfl/y": merge(server["dfl/y"], tables, sizes)}


def divergence(table: Tensor, y: Tensor, out: Tensor) -> Tensor:
    """KL(table[y] || softmax(out)), mean over the batch; a label whose row is zero adds nothing."""
    return F.kl_div(F.log_softmax(out, 1), table[y], reduction="batchmean")


def _softmax(out: Tensor) -> Tensor:
    return F.softmax(out, 1)


@torch.no_grad()
def soft_targets(k: Local, prediction: Callable[[Tensor], Tensor] = _softmax) -> Tensor:
    """LabelWiseAverage of Algorithm 2: row c is the mean prediction, from logits, over the client's samples of label c.

    The trained model in evaluation mode, on images that are not augmented. The row of a label the client does not
    have is zero, which no mean of distributions is.
    """
    data, model = k.worker.data, k.model.eval()
    rows = k.worker.parts[k.cid]
    sums = torch.zeros(data.classes, data.classes, dtype=torch.float64, device=k.worker.device)
    for batch in rows.split(BATCH):
        out = model(data.batch(data.train_x.index_select(0, batch)).to(k.worker.device))
        sums.index_add_(0, data.train_y[batch].to(k.worker.device), prediction(out.double()))
    model.train()
    counts = torch.bincount(data.train_y[rows], minlength=data.classes).to(k.worker.device)
    return sums / counts.clamp(min=1)[:, None]


def merge(old: Tensor, tables: list[Tensor], weights: Sequence[float]) -> Tensor:
    """Eq. (6), each row over the tables that have the label; a row that none has stays `old` (DF-07)."""
    total, share = torch.zeros_like(old), torch.zeros_like(old[:, :1])
    for table, weight in zip(tables, weights, strict=True):
        table = table.to(old.device)
        total += weight * table
        share += weight * table.any(1, keepdim=True)
    return torch.where(share > 0, total / share, old)
