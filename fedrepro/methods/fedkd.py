from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from fedrepro.methods.base import FedAvg, Local, hp


@dataclass(frozen=True)
class FedKD(FedAvg):
    """FedAvg+KD (Hinton et al. 2015, as FedMLB's Table 2 uses it): distillation from the received global model.

    Not the FedKD of Wu et al. 2022. FedMLB states neither lam nor temperature. BatchNorm statistics are averaged;
    the frozen teacher uses the batch's and does not change its own.
    """

    lam: float = hp(1.0)
    temperature: float = hp(1.0, low=1e-6)

    def loss(self, k: Local, x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        target = k.teacher("fedkd", k.start, k.start_buffers)(x)
        kl = distillation(target, out, self.temperature)
        return super().loss(k, x, y, out) + self.lam * self.temperature**2 * kl


def distillation(target: Tensor, out: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(softmax(target / T) || softmax(out / T)), the mean over the batch."""
    p, q = F.log_softmax(target / temperature, 1), F.log_softmax(out / temperature, 1)
    return F.kl_div(q, p, reduction="batchmean", log_target=True)
