from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from fedrepro.methods.base import FedAvg, Local, hp


@dataclass(frozen=True)
class FitNet(FedAvg):
    """FedAvg+FitNet (Romero et al., ICLR 2015, as FedMLB's Table 2 uses it): the global model's features as hints.

    Every block but the last gives one, its mean squared difference; the shapes agree, so that no regressor is needed.
    FedMLB states neither lam, here 1, nor the layers. BatchNorm statistics are averaged; the frozen teacher uses the
    batch's and does not change its own.
    """

    lam: float = hp(1.0)

    def loss(self, k: Local, x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        hints: list[Tensor] = []
        k.teacher("fitnet", k.start, k.start_buffers)(x, taps=hints)
        distance = sum(F.mse_loss(a, hint) for a, hint in zip(k.taps[:-1], hints[:-1], strict=True))  # m = 1..M-1
        return super().loss(k, x, y, out) + self.lam * distance
