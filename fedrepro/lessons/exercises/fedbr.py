"""Checks of the exercises in notebooks/fedbr/method.ipynb."""

from collections.abc import Callable
from math import log, sqrt
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fedrepro.lessons.exercises import Wrong, call, exercise, expect
from fedrepro.methods import Round, Upload
from fedrepro.methods.fedbr import FedBR, FedBR_Ran, paper_traffic, upper_bounds
from fedrepro.simulation.run import Run
from fedrepro.simulation.tree import Tree

EMPTY = "your answer is still empty"


@exercise
def sent_blocks(answer: Callable[[int, int], list[int]]) -> str:
    """Exercise 1, against what the library's server puts into its message."""
    for M in (4, 6):
        model: Any = SimpleNamespace(block_params={f"b{m}": [f"b{m}"] for m in range(1, M + 1)})
        server = {"w": Tree({f"b{m}": torch.zeros(1) for m in range(1, M + 1)}), "b": Tree()}
        server |= FedBR_Ran().server_init(model)
        for alpha in range(1, M + 1):
            message = FedBR_Ran().broadcast(server | {"fedbr/sent": {0: alpha}}, 0, Round(2, Run(), [0]))
            expected = sorted(int(name[1:]) for name in message["w"])
            given = call(answer, alpha, M, empty=EMPTY)
            try:
                given = sorted(map(int, given))
            except (TypeError, ValueError):
                raise Wrong(f"expected a list of block numbers; got {given!r}") from None
            slips = {
                tuple(range(1, alpha + 1)): "these are the first blocks; FedBR sends the last",
                tuple(m - 1 for m in expected): "you counted the blocks from 0; the paper counts from 1",
                tuple(range(1, M - alpha + 1)): "these are the blocks that the client keeps",
            }
            if given != expected:
                why = slips.get(tuple(given), f"got {given}, expected {expected}")
                raise Wrong(f"{alpha} of {M} blocks: {why}")
    return "The client's own blocks go below them."


@exercise
def mean_traffic(answer: Callable[[int, int, int], float]) -> str:
    """Exercise 2, against the mean of the library's costs over the rounds that repeat."""
    for alpha, M, tau in (1, 6, 1), (3, 6, 1), (2, 5, 4), (4, 6, 3):
        cycle = [M] + [alpha] * tau
        expected = sum(paper_traffic(sent, M) for sent in cycle) / len(cycle)
        down, printed, exchanged = expected - 1, 1 / tau + (1 - 1 / tau) * alpha / M, (tau + alpha / M) / (tau + 1)
        slips = {
            down: "this is the way down only; each client also sends its whole model up in every round",
            1 + printed: (
                "this is Eq. (4) as printed, with the whole model every tau rounds; it is sent every tau+1 (FB-02)"
            ),
            1 + alpha / M: "this is a partial round; every (tau+1)-th round the whole model comes down",
            2 * down: "the way up is always a whole model, however few blocks came down",
            1 + exchanged: "you took tau whole models and one partial one; it is the other way round",
        }
        expect(call(answer, alpha, M, tau), expected, f"mean_traffic({alpha}, {M}, {tau})", slips)
    return "With tau = 1 and half of the blocks: 1.75 models per round where FedAvg sends 2."


@exercise
def decision(answer: Callable[[list[float], list[int], int], int]) -> str:
    """Exercise 3, against the library's bounds, on random states and on ties."""
    M, draw = 6, torch.Generator().manual_seed(1)
    states = [([0.0] * 5, [0] * 5, 2), ([0.0, 0.0, 0.3, 0.0, 0.3], [2] * 5, 9)]
    for t in [*range(1, 9)] * 20 + [*range(9, 99)]:  # t or t + 1 makes a difference only early
        p = (0.3 * torch.randn(M - 1, generator=draw, dtype=torch.float64)).tolist()
        states.append((p, torch.randint(0, 6, (M - 1,), generator=draw).tolist(), t))
    wrong: dict[str, bool] = dict.fromkeys(SLIPS, True)
    first, arms = "", range(1, M)
    for p, n, t in states:
        V = upper_bounds(dict(zip(arms, p, strict=True)), dict(zip(arms, n, strict=True)), t, M)
        expected = min(m for m, value in V.items() if value == max(V.values()))
        given = call(answer, p, n, t, empty=EMPTY)
        if isinstance(given, bool) or not isinstance(given, int):
            raise Wrong(f"expected a whole number of blocks; got a {type(given).__name__}")
        for why, slip in SLIPS.items():
            wrong[why] &= slip(p, n, t) == given
        if given != expected and not first:
            state = f"for p = {[round(v, 2) for v in p]}, n = {n}, t = {t}"
            first = f"{state} you chose {given}; V is highest at {expected}"
    if first:
        raise Wrong(next((why for why, always in wrong.items() if always), first))
    return "The same decision as the library's in every state, ties included."


def _pick(p: list[float], bonus: list[float], last: bool = False) -> int:
    V = [gain + more for gain, more in zip(p, bonus, strict=True)]
    return max(m for m, v in enumerate(V, 1) if v == max(V)) if last else V.index(max(V)) + 1


def _bonus(n: list[int], t: float) -> list[float]:
    return [sqrt(log(t + 1)) / (tried + 1) for tried in n]


SLIPS: dict[str, Callable[[list[float], list[int], int], int]] = {
    "you counted from 0: the first arm is one block": lambda p, n, t: _pick(p, _bonus(n, t)) - 1,
    "on a tie take the fewest blocks": lambda p, n, t: _pick(p, _bonus(n, t), last=True),
    "you only looked at p; Eq. (24) adds a bonus for arms that were seldom tried": lambda p, n, t: _pick(p, [0.0] * 5),
    "you only looked at the bonus; Eq. (24) adds p": lambda p, n, t: _pick([0.0] * 5, _bonus(n, t)),
    "n + 1 stands outside of the root in Eq. (24); your bonus is that of UCB1": lambda p, n, t: _pick(
        p, [sqrt(log(t + 1) / (tried + 1)) for tried in n]
    ),
    "the logarithm is of t + 1, not of t": lambda p, n, t: _pick(p, _bonus(n, t - 1)),
    "the root over the logarithm is missing": lambda p, n, t: _pick(p, [log(t + 1) / (tried + 1) for tried in n]),
}


@exercise
def rewards(answer: Callable[..., list[float]]) -> str:
    """Exercise 4, against what the library's server learns from the same uploads with lambda = 1 in Eq. (23)."""
    draw = torch.Generator().manual_seed(2)
    count = 4
    models = torch.randn(count, 12, generator=draw, dtype=torch.float64) * torch.tensor([[1.0], [2.0], [0.5], [1.5]])
    x = models.mean(0)  # Eq. (2)
    before, now, t_b, t_c = torch.rand(4, count, generator=draw, dtype=torch.float64).tolist()
    uploads = [
        Upload(k, 1, {"w": Tree(x=models[k]), "b": Tree(), "fedbr/alpha": 1, "fedbr/zeta": now[k]}, 2, t_c[k], t_b[k])
        for k in range(count)
    ]
    server = {"w": Tree(x=x), "b": Tree(), "fedbr/blocks": [[], []], "fedbr/p": {}, "fedbr/n": {}}
    server |= {"fedbr/zeta": dict(enumerate(before))}
    learned = FedBR(ema=1.0).aggregate(server, uploads, Round(2, Run(), list(range(count))))["fedbr/p"]
    square, plain = (models - x).square().sum(1), (models - x).norm(dim=1)
    fell, seconds = torch.tensor(before) - torch.tensor(now), torch.tensor(t_b) + torch.tensor(t_c)
    time = _shares(torch.tensor(t_b)) + _shares(torch.tensor(t_c))
    slips = {
        _shares(plain) * fell / time.exp(): "Eq. (19) has squared distances",
        -_shares(square) * fell / time.exp(): "Δζ is the loss before minus the loss now: a loss that fell is good",
        _shares(square) * fell / time: "you divided by the times; Eq. (21) divides by e to the power of their sum",
        _shares(square) * fell * time.exp(): "you multiplied by e^(t_c + t_b); Eq. (21) divides by it",
        square * fell / time.exp(): "you used the distances as they are; Eq. (19) divides by their sum",
        _shares(square) * fell / seconds.exp(): "you used the seconds as they are; Eq. (20) divides them by their sums",
        _shares(square) * fell: "the time is missing, Eqs. (20) and (21)",
    }
    given = call(answer, x, list(models), before, now, t_b, t_c)
    expect(given, [learned[k][1] for k in range(count)], "your list of rewards", slips)
    return "These are the numbers the library's server learns from."


def _shares(values: Tensor) -> Tensor:
    return values / values.sum()
