"""Checks of the exercises in notebooks/fedmlb/method.ipynb."""

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrepro import models
from fedrepro.lessons.exercises import Wrong, call, exercise, expect
from fedrepro.methods import fedmlb
from fedrepro.models import Net
from fedrepro.simulation.client import freeze
from fedrepro.simulation.tree import Tree

NETWORKS = ("lenet", "small")  # of five and six blocks


@exercise
def block_runs(answer: Callable[[int], int]) -> str:
    """Exercise 1, against the blocks that the library runs, counted."""
    for name in NETWORKS:
        k, x, y = _client(name)
        M, runs = len(k.model.blocks), []
        for model in (k.model, k.frozen):
            for block in model.blocks.values():
                block.register_forward_hook(lambda *_, runs=runs: runs.append(1))
        fedmlb.FedMLB().loss(k, x, y, k.model(x, taps=k.taps))
        slips: dict[float, str] = {
            M * M: "you ran the local blocks again for every path; path m starts from a^m, which is already there",
            M * (M - 1) // 2: "these are the hybrid paths; the main path runs M blocks too",
            M * (M + 1) // 2 + M: "there are M-1 hybrid paths; path M would be the main path again",
        }
        expect(call(answer, M), len(runs), f"block_runs({M})", slips)
    return "M + M(M-1)/2: for M = 6 that is 21 blocks forward where FedAvg runs 6."


@exercise
def hybrid_cross_entropy(answer: Callable[[list[Tensor], Tensor], Tensor]) -> str:
    """Exercise 2, against Eq. (6) written out image by image."""
    z, _, y = _logits()
    log_q = [path - path.logsumexp(1, keepdim=True) for path in z]
    each = torch.stack([torch.stack([-path[i, int(c)] for i, c in enumerate(y)]).mean() for path in log_q])
    total, paths = each.sum().item(), len(z)
    twice = torch.stack([F.cross_entropy(path.softmax(1), y) for path in z]).mean().item()
    slips = {
        total: "you summed over the paths; Eq. (6) divides by M-1, their number",
        total / (paths + 1): "you averaged over M paths, Eq. (6) divides by M-1",
        total / (paths - 1): "you divided by one path too few: z_H has M-1 entries already",
        twice: "F.cross_entropy takes logits; you gave it probabilities",
    }
    expect(call(answer, z, y), total / paths, "the loss", slips)
    return "Every path counts 1/(M-1)."


@exercise
def hybrid_kl(answer: Callable[[list[Tensor], Tensor, float], Tensor]) -> str:
    """Exercise 3, value and gradients, against Eq. (7) written out from its definition."""
    z, main, _ = _logits()
    for temperature in (1.0, 2.5):
        given = call(answer, z, main, temperature)
        p, q = [(path / temperature).softmax(1) for path in z], (main / temperature).softmax(1)
        expected = torch.stack([(path * (path / q).log()).sum(1).mean() for path in p]).mean()
        swapped = torch.stack([(q * (q / path).log()).sum(1).mean() for path in p]).mean()
        value, paths = expected.item(), len(z)
        slips = {
            swapped.item(): "this is KL(main || hybrid), Eq. (7) has KL(hybrid || main); F.kl_div(a, b) is KL(b || a)",
            value * temperature**2: "you multiplied by temperature²; Eq. (7) has no such factor (ML-08)",
            value * paths: "you summed over the paths; Eq. (7) divides by M-1",
            value * paths / (paths + 1): "you averaged over M paths, Eq. (7) divides by M-1",
            value / q.shape[1]: 'you divided by the classes as well; use reduction="batchmean"',
        }
        expect(given, expected, f"the loss at temperature {temperature:g}", slips)
        _expect_gradients(given, expected, {"main": [main], "hybrid": z})
    return "Value and gradients agree with the definition."


@exercise
def global_to_local(answer: Callable[[Net, Net, Tensor], list[Tensor]]) -> str:
    """Exercise 4, against the library's own paths."""
    for name in NETWORKS:
        k, x, _ = _client(name)
        M = len(k.model.blocks)
        expected = fedmlb.global_to_local(k, x, range(1, M))
        given = call(answer, k.model, k.frozen, x, empty="your answer is still empty")
        if not isinstance(given, list | tuple):
            raise Wrong(f"expected a list of logits, one entry per path; got a {type(given).__name__}")
        if len(given) != M - 1:
            raise Wrong(f"expected {M - 1} paths for M = {M} blocks; got {len(given)}")
        k.model(x, taps=k.taps)
        other = fedmlb.local_to_global(k, x, range(1, M))
        for m, (mine, wanted, reverse) in enumerate(zip(given, expected, other, strict=True), start=1):
            swapped = f"path {m} has the local blocks first; Table 4 wants the global blocks 1..m first"
            expect(mine, wanted, f"path {m}", {reverse: swapped}, tolerance=1e-5)
            if not mine.requires_grad:
                raise Wrong(f"path {m} has no gradient: the local blocks must be outside of torch.no_grad()")
    return "Now path m teaches the local blocks m+1..M."


def _expect_gradients(given: Tensor, expected: Tensor, inputs: dict[str, list[Tensor]]) -> None:
    for name, tensors in inputs.items():
        wanted = torch.autograd.grad(expected, tensors, retain_graph=True)
        if not isinstance(given, Tensor) or not given.requires_grad:
            raise Wrong("the value is right, but it has no gradient; return a tensor that was computed without detach")
        got = torch.autograd.grad(given, tensors, retain_graph=True, allow_unused=True)
        if any(g is None for g in got):
            raise Wrong(f"the value is right, but no gradient reaches the {name} logits: do not detach them (ML-09)")
        expect(torch.stack(got), torch.stack(wanted), f"the value is right, but the {name} logits' gradient")


def _logits() -> tuple[list[Tensor], Tensor, Tensor]:
    """Four hybrid paths, a main path and labels of six images, in double precision."""
    draw = torch.Generator().manual_seed(0)
    z = torch.randn(5, 6, 10, generator=draw, dtype=torch.float64)
    *hybrid, main = (2 * path for path in z)
    return [path.requires_grad_() for path in hybrid], main.requires_grad_(), torch.arange(6) % 4


def _client(name: str) -> tuple[Any, Tensor, Tensor]:
    """What the library's functions read of a visit (a whole Local needs data): its model has left the global one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = models.build(name, classes=10, channels=1, size=16).train()
        frozen = freeze(copy.deepcopy(model))
        with torch.no_grad():
            for p in model.parameters():
                p += 0.1 * torch.randn_like(p)
        x, y = torch.randn(4, 1, 16, 16), torch.arange(4)
    k = SimpleNamespace(model=model, buffers=Tree(model.named_buffers()), start=Tree(), start_buffers=Tree(), taps=[])
    k.frozen, k.teacher = frozen, lambda *_: frozen
    return k, x, y
