from dataclasses import dataclass

import torch
from torch import Tensor

from fedrepro.methods.base import FedAvg, Local, hp
from fedrepro.methods.fedkd import distillation


@dataclass(frozen=True)
class FedNTD(FedAvg):
    """FedNTD, first called FedLS-NTD (Lee et al., NeurIPS 2022): distillation of the classes that are not true.

    The global side is detached. temperature^2 factors the term; the authors' code exists with and without it, and was
    run at temperature 1. BatchNorm statistics are averaged; the frozen teacher uses the batch's and does not change
    its own.
    """

    beta: float = hp(1.0)
    temperature: float = hp(1.0, low=1e-6)

    def loss(self, k: Local, x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        target = k.teacher("fedntd", k.start, k.start_buffers)(x)
        kl = distillation(not_true(target, y), not_true(out, y), self.temperature)
        return super().loss(k, x, y, out) + self.beta * self.temperature**2 * kl


def not_true(z: Tensor, y: Tensor) -> Tensor:
    """The logits of the C-1 classes other than y, in order."""
    others = torch.arange(z.shape[1] - 1, device=z.device)
    return z.gather(1, others + (others >= y[:, None]))
