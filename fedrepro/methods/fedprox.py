from dataclasses import dataclass

import torch

from fedrepro.methods.base import FedAvg, Local, hp


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedProx (Li et al., MLSys 2020, Algorithm 2): a proximal term, and partial work by limited devices."""

    mu: float = hp(0.01)
    partial: bool = hp(False)  # limited devices run 1..E epochs, drawn each round

    def steps(self, k: Local) -> int:
        full = super().steps(k)
        if not (self.partial and k.limited):
            return full
        epochs = -(-full // k.epoch_steps)
        drawn = int(torch.randint(1, epochs + 1, (), generator=k.rng("partial work")))
        return min(full, drawn * k.epoch_steps)

    def correct(self, k: Local) -> None:
        super().correct(k)
        k.grads.add_(k.params - k.start, alpha=self.mu)  # gradient of mu/2 ||w - w^t||^2
