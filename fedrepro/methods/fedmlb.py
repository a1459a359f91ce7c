from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrepro import models
from fedrepro.errors import bad
from fedrepro.methods.base import FedAvg, Local, Run, hp


@dataclass(frozen=True)
class FedMLB(FedAvg):
    """FedMLB (Kim et al., ICML 2022, Algorithm 1): hybrid paths of local blocks followed by frozen global ones.

    Gradients flow through both arguments of the KL term, and no temperature^2 factors it (errata ML-08, ML-09).
    Frozen blocks use batch statistics and keep their buffers; hybrid passes leave the local model's as they are
    (FB-24).
    """

    lambda1: float = hp(1.0)
    lambda2: float = hp(1.0)
    temperature: float = hp(1.0, low=1e-6)
    paths: str = hp("all")  # or the chosen ones, as "1,2,4": path m leaves the local model after block m
    divisor: str = hp("M-1", choices=("M-1", "chosen"))  # of the paths' summed losses, also if few are chosen (ML-10)
    direction: str = hp("l2g", choices=("l2g", "g2l"))  # local blocks first, or global ones first (Table 4)

    def check(self, run: Run) -> None:
        super().check(run)
        if self.paths == "all":
            return
        last = count_blocks(run.model) - 1
        chosen = self.paths.split(",")
        if len(set(chosen)) < len(chosen) or not set(chosen) <= {str(m) for m in range(1, last + 1)}:
            raise bad(f"hp.paths ({run.method})", self.paths, f'"all", or different numbers of 1..{last} as "1,2"')

    def loss(self, k: Local, x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        main = super().loss(k, x, y, out)  # Eq. (5)
        every = range(1, len(k.model.blocks))
        paths = every if self.paths == "all" else [int(m) for m in self.paths.split(",")]
        share = len(paths) / max(len(every), 1) if self.divisor == "M-1" else 1.0  # Eqs. (6), (7): sums over M-1
        hybrid = local_to_global if self.direction == "l2g" else global_to_local
        lambda1, lambda2 = share * self.lambda1, share * self.lambda2
        return main + hybrid_loss(k, x, y, out, paths, lambda1, lambda2, self.temperature, hybrid)


def local_to_global(k: Local, x: Tensor, paths: Sequence[int]) -> list[Tensor]:
    """Eq. (4): the local blocks 1..m, computed once by the main path, then the frozen blocks m+1..M."""
    frozen = k.teacher("fedmlb", k.start, k.start_buffers)
    return [frozen(k.taps[m - 1], start=m) for m in paths]


def global_to_local(k: Local, x: Tensor, paths: Sequence[int]) -> list[Tensor]:
    """Table 4: the frozen blocks 1..m, then the local blocks m+1..M, on copies of their BatchNorm statistics."""
    taps: list[Tensor] = []
    k.teacher("fedmlb", k.start, k.start_buffers)(x, taps=taps)
    spare = k.buffers.clone()
    return [torch.func.functional_call(k.model, spare, (taps[m - 1],), {"start": m}) for m in paths]


def hybrid_loss(k, x, y, out, paths, lambda1, lambda2, temperature, hybrid=local_to_global) -> Tensor | float:
    """lambda1 times the hybrid paths' cross-entropy plus lambda2 times KL(hybrid || main), means over the paths."""
    if not len(paths) or lambda1 == lambda2 == 0:
        return 0.0
    z = torch.cat(hybrid(k, x, paths))
    ce = F.cross_entropy(z, y.repeat(len(paths)))  # Eq. (6)
    q_main = F.log_softmax(out / temperature, 1).repeat(len(paths), 1)
    q_hybrid = F.log_softmax(z / temperature, 1)
    kl = F.kl_div(q_main, q_hybrid, reduction="batchmean", log_target=True)  # Eq. (7)
    return lambda1 * ce + lambda2 * kl  # Eq. (8)


@cache
def count_blocks(model: str) -> int:
    """M; it does not depend on the data."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        return len(models.build(model, classes=10, channels=3, size=32).blocks)
