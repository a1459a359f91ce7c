"""Checks of the exercises in notebooks/fedbr/method.ipynb."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

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
    given, expected, arms = [], [], range(1, M)
    for p, n, t in states:
        V = upper_bounds(dict(zip(arms, p, strict=True)), dict(zip(arms, n, strict=True)), t, M)
        expected.append(max(V, key=V.__getitem__))
        given.append(call(answer, p, n, t, empty=EMPTY))
        if type(given[-1]) is not int:
            raise Wrong(f"expected a whole number of blocks; got a {type(given[-1]).__name__}")
    for why, slip in _slips(states).items():
        if given == slip.tolist() != expected:
            raise Wrong(why)
    for (p, n, t), mine, best in zip(states, given, expected, strict=True):
        if mine != best:
            state = f"for p = {[round(v, 2) for v in p]}, n = {n}, t = {t}"
            raise Wrong(f"{state} you chose {mine}; V is highest at {best}")
    return "The same decision as the library's in every state, ties included."


def _slips(states: list[tuple[list[float], list[int], int]]) -> dict[str, np.ndarray]:
    """What common mistakes decide in each state; argmax counts from 0 and takes the first of equal values."""
    p, n, t = (np.array(part).reshape(len(states), -1) for part in zip(*states, strict=True))
    log = np.log(t + 1)
    bonus = np.sqrt(log) / (n + 1)
    wrong = {
        "you only looked at p; Eq. (24) adds a bonus for arms that were seldom tried": p,
        "you only looked at the bonus; Eq. (24) adds p": bonus,
        "n + 1 stands outside of the root in Eq. (24); your bonus is that of UCB1": p + np.sqrt(log / (n + 1)),
        "the logarithm is of t + 1, not of t": p + np.sqrt(np.log(t)) / (n + 1),
        "the root over the logarithm is missing": p + log / (n + 1),
    }
    return {
        "you counted from 0: the first arm is one block": (p + bonus).argmax(1),
        "on a tie take the fewest blocks": 5 - (p + bonus)[:, ::-1].argmax(1),
        **{why: V.argmax(1) + 1 for why, V in wrong.items()},
    }


@exercise
def rewards(answer: Callable[..., list[float]]) -> str:
    """Exercise 4, against what the library's server learns from the same uploads with lambda = 1 in Eq. (23)."""
    draw = torch.Generator().manual_seed(2)
    count = 4
    models = torch.randn(count, 12, generator=draw, dtype=torch.float64) * torch.tensor([[1.0], [2.0], [0.5], [1.5]])
    x = models.mean(0)  # Eq. (2)
    drawn = torch.rand(4, count, generator=draw, dtype=torch.float64)
    before, now, t_b, t_c = drawn.tolist()
    uploads = [
        Upload(k, 1, {"w": Tree(x=models[k]), "b": Tree(), "fedbr/alpha": 1, "fedbr/zeta": now[k]}, 2, t_c[k], t_b[k])
        for k in range(count)
    ]
    server = {"w": Tree(x=x), "b": Tree(), "fedbr/blocks": [[], []], "fedbr/p": {}, "fedbr/n": {}}
    server |= {"fedbr/zeta": dict(enumerate(before))}
    learned = FedBR(ema=1.0).aggregate(server, uploads, Round(2, Run(), list(range(count))))["fedbr/p"]
    square, plain = (models - x).square().sum(1), (models - x).norm(dim=1)
    d, fell, seconds = square / square.sum(), drawn[0] - drawn[1], drawn[2:]
    time = (seconds / seconds.sum(1, keepdim=True)).sum(0)
    slips = {
        plain / plain.sum() * fell / time.exp(): "Eq. (19) has squared distances",
        -d * fell / time.exp(): "Δζ is the loss before minus the loss now: a loss that fell is good",
        d * fell / time: "you divided by the times; Eq. (21) divides by e to the power of their sum",
        d * fell * time.exp(): "you multiplied by e^(t_c + t_b); Eq. (21) divides by it",
        square * fell / time.exp(): "you used the distances as they are; Eq. (19) divides by their sum",
        d * fell / seconds.sum(0).exp(): "you used the seconds as they are; Eq. (20) divides them by their sums",
        d * fell: "the time is missing, Eqs. (20) and (21)",
    }
    given = call(answer, x, list(models), before, now, t_b, t_c)
    expect(given, [learned[k][1] for k in range(count)], "your list of rewards", slips)
    return "These are the numbers the library's server learns from."
