"""Checks of the exercises in notebooks/kapc/method.ipynb."""

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from fedrepro.lessons.exercises import Wrong, call, exercise, expect, same
from fedrepro.methods.base import Round
from fedrepro.methods.kapc import normalise, step, write_back
from fedrepro.methods.kapc_bls import KAPC_BLS, walk
from fedrepro.methods.mixtures import gram
from fedrepro.simulation.ledger import count
from fedrepro.simulation.run import Run
from fedrepro.simulation.tree import Tree

LAM, BETA = 0.3, 0.2


@exercise
def download(answer: Callable) -> str:
    """download(own, sizes, mu): bytes that Algorithm 3 sends to one client, against the library's own message."""
    sizes, mu = [400, 80, 1200, 40], 0.5
    for own in ([0.2, 0.4, 0.6, 0.9], [0.2, 0.5, 0.1, 0.5], [0.9, 0.8, 0.7, 0.6]):
        expected = _sent(own, sizes, mu)
        what = f"download({own}, {sizes}, {mu})"
        slips = {
            sum(sizes) - expected: f"{what}: those are the bytes that stay on the server",
            sum(s for s, r in zip(sizes, own, strict=True) if r <= mu): f"{what}: Algorithm 3 also withholds r_ii = μ",
            sum(r < mu for r in own): f"{what}: that is the number of layers, not of bytes",
        }
        expect(call(answer, own, sizes, mu, what="download"), expected, what, slips)
    return "The library's message has as many bytes."


def _sent(own: list[float], sizes: list[int], mu: float) -> int:
    layers = [[str(i)] for i in range(len(sizes))]
    s = Tree((name, torch.zeros(size // 4, dtype=torch.float32)) for (name,), size in zip(layers, sizes, strict=True))
    scratch = {"kapc/slice": torch.tensor(own).view(-1, 1, 1), "kapc/s": {0: s}}
    r = Round(1, Run(method="kapc_bls"), participants=[0], scratch=scratch)
    return count(KAPC_BLS(mu=mu).broadcast({"kapc/layers": layers}, 0, r))[0]


@exercise
def own_share(answer: Callable) -> str:
    """own_share(clients, per_round, visit): r_ii at that visit if no partner is ever met twice and nothing is
    learned, against the library's lines 6 and 12 of Algorithm 5."""
    for clients, per_round, visit in ((100, 10, 1), (100, 10, 2), (60, 6, 3), (100, 10, 4)):
        *_, expected, later = _own_shares(clients, per_round, visit + 1)
        what = f"own_share({clients}, {per_round}, {visit})"
        kept = f"{what}: that is the rule that keeps the mass (KA-15); the printed one lets it grow"
        slips = {1 / per_round: kept, later: f"{what}: that is the next visit"}
        expect(call(answer, clients, per_round, visit, what="own_share"), expected, what, slips)
    return f"After four visits out of 100 clients: {expected:.3f}, and nothing was learned."


def _own_shares(clients: int, per_round: int, visits: int) -> list[float]:
    matrix, shares = torch.full((clients, clients), 1 / clients, dtype=torch.float64), []
    for v in range(visits):
        partners = range(1 + v * (per_round - 1), 1 + (v + 1) * (per_round - 1))
        chosen = torch.tensor([0, *partners])
        part = normalise(matrix[chosen][:, chosen])
        write_back(matrix, chosen, part, "printed")
        shares.append(float(part[0, 0]))
    return shares


@exercise
def norm_slope(answer: Callable) -> str:
    """norm_slope(r, w, i, lam, beta): the slope of (11) in r_i with the norm itself as f_s, against autograd."""
    for n, i in ((4, 0), (5, 3)):
        w, r = _clients(n, 30), normalise(_clients(n, n).abs())[i].requires_grad_()
        away = r @ w - w[i]
        even = BETA / 2 * (r - 1 / n).square().sum()
        (expected,) = torch.autograd.grad(LAM * away.norm() + even, r, retain_graph=True)
        (squared,) = torch.autograd.grad(LAM * away.square().sum() + even, r, retain_graph=True)
        (unpulled,) = torch.autograd.grad(LAM * away.norm(), r)
        given = call(answer, r.detach(), w, i, LAM, BETA, what="norm_slope")
        slips = {
            squared: "this is the slope of the squared norm: the norm's is that divided by 2 ‖s − w_i‖",
            unpulled: "the pull towards 1/N, β (r − 1/N), is missing",
        }
        expect(given, expected, "the slope", slips)
    return "Autograd finds the same slope."


@exercise
def resting_point(answer: Callable) -> str:
    """resting_point(w, lam, beta): the rows that one step of Eq. (12) leaves as they are."""
    w = _clients(5, 12)
    given = call(answer, w, LAM, BETA, what="resting_point")
    even, eye = torch.full((5, 5), 0.2, dtype=torch.float64), torch.eye(5, dtype=torch.float64)
    expect(given, even, "R", tolerance=torch.inf)
    rows = torch.as_tensor(given).detach().double()
    if same(rows, eye):
        raise Wrong("with R = 1 only the first term of (11) is at rest: β pulls towards 1/N")
    if same(rows, even):
        raise Wrong("with R = 1/N only the second term of (11) is at rest: λ pulls towards the client itself")
    if (moved := _moved(rows, w)) > 1e-6:
        hint = "; its transpose is: which index is the client?" if _moved(rows.T, w) < 1e-6 else ""
        raise Wrong(f"a step of Eq. (12) with η_r = 1 still moves R by up to {moved:.3g}{hint}")
    return "A step of Eq. (12) leaves it where it is."


def _moved(rows: Tensor, w: Tensor) -> float:
    return float((step(rows, gram(w), LAM, BETA, rate=1.0) - rows).abs().max())


@exercise
def search(answer: Callable) -> str:
    """search(omega, holds): Algorithm 4 with its branches exchanged, against the library for every criterion of up to
    five layers."""
    for layers in range(2, 6):
        for criterion in itertools.product((True, False), repeat=layers):
            holds = [False, *criterion]  # holds[0] is never asked for
            for omega in range(1, layers + 1):
                expected, printed = walk(omega, holds, exchanged=True), walk(omega, holds, exchanged=False)
                what = f"search({omega}, {holds})"
                given = call(answer, omega, holds, what=what, empty="search returns nothing yet")
                if not same(given, expected):
                    kind = " (so the printed branches go)" if same(given, printed) else ""
                    where = [o for o in range(1, layers + 1) if holds[o]] or "no Ω"
                    step = f"from Ω = {omega} you go to {given}{kind}, expected {expected}"
                    raise Wrong(f"L = {layers}, (29) holds at {where}: {step}")
    return "The same Ω as the library's for every criterion of up to five layers."


def _clients(n: int, d: int) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
