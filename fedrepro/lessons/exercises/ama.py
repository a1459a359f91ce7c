"""Checks of the exercises in notebooks/ama/method.ipynb."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from fedrepro.errors import BadInput
from fedrepro.lessons.exercises import Wrong, call, exercise, expect, same
from fedrepro.methods import Round, Upload, build
from fedrepro.methods.ama import mixing
from fedrepro.simulation.fleet import Fleet
from fedrepro.simulation.rng import stream
from fedrepro.simulation.run import Run
from fedrepro.simulation.tree import Tree


@exercise
def largest_eta(function) -> str:
    """The library refuses a run whose alpha exceeds 1: what is wanted is accepted, one per cent more is not."""
    for alpha0, rounds in ((0.1, 200), (0.1, 300), (0.5, 4)):
        wanted = (1 - alpha0) / rounds
        assert _accepted(alpha0, wanted, rounds) and not _accepted(alpha0, 1.01 * wanted, rounds)
        what = f"largest_eta({alpha0}, {rounds})"
        late = f"{what}: rounds count from 1, so the last α is α₀ + η · {rounds}, which passes 1"
        slips = {1 / rounds: f"{what} forgets that α starts at α₀", (1 - alpha0) / (rounds - 1): late}
        expect(call(function, alpha0, rounds, what="largest_eta"), wanted, what, slips, tolerance=1e-9)
    return "The library refuses a run with a larger one."


def _accepted(alpha0: float, eta: float, rounds: int) -> bool:
    try:
        Run(method="ama", hp={"alpha0": alpha0, "eta": eta}, rounds=rounds)
    except BadInput:
        return False
    return True


@exercise
def takeover(function) -> str:
    """By the library's own weights: add updates until their gammas exceed alpha."""
    for s, b in ((1, 0.6), (1, 1.0), (2, 0.6), (3, 0.6), (5, 0.2)):
        n = 1
        while sum((weights := mixing(0.5, [s] * n, b))[2]) <= weights[0] + 1e-12:
            n += 1
        given, what = call(function, s, b, what="takeover"), f"takeover({s}, {b})"
        if isinstance(given, float) and not given.is_integer():
            raise Wrong(f"{what} is not a whole number of updates")
        few = f"{what} is one too few: together they must exceed α, not only come near it or reach it"
        expect(given, n, what, {n - 1: few, n + 1: f"{what} is one too many"})
    return "Two updates that are one round late already outweigh the old model, at the paper's b = 0.6."


@exercise
def fes_step(function) -> str:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        extractor = nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Identity(), nn.Conv2d(2, 2, 3), nn.ReLU(), nn.Identity()
        before = nn.Sequential(*extractor, nn.Flatten(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3))
    x, y, lr = torch.randn(5, 1, 6, 6, generator=stream(0, "exercise")), torch.tensor([0, 2, 1, 1, 0]), 0.5
    parameters = list(before.parameters())
    gradients = torch.autograd.grad(F.cross_entropy(before(x), y), parameters)
    model = copy.deepcopy(before)
    call(function, model, x, y, lr, what="fes_step")
    moved = [not torch.equal(new, old) for new, old in zip(model.parameters(), parameters, strict=True)]
    if not any(moved):
        raise Wrong("no weight has changed: change the model in place")
    if all(moved[:4]) and not any(moved[4:]):
        raise Wrong("you trained the extractor and froze the classifier; line 13 has a misprint (erratum AM-03)")
    if any(moved[:4]):
        raise Wrong("the extractor has changed; a limited device must leave model[:6] as it received it")
    for new, old, gradient in list(zip(model.parameters(), parameters, gradients, strict=True))[4:]:
        uphill = "that is a step uphill: the gradient must be subtracted"
        slips = {old + lr * gradient: uphill, old - gradient: "the learning rate is missing"}
        expect(new, old - lr * gradient, "the classifier after the step", slips, tolerance=1e-5)
    return "Its gradient never had to go through the convolutions."


@exercise
def noise_left(function) -> str:
    """The newest round enters w_t with 1 - alpha, the one before with (1 - alpha) alpha, ...: the squares, added up."""
    for alpha in (0.0, 0.1, 0.6, 0.85):
        wanted = sum(((1 - alpha) * alpha**age) ** 2 for age in range(2000))
        what = f"noise_left({alpha})"
        slips = {
            (1 - alpha) ** 2: f"{what} counts the newest round only; the old model carries the noise of earlier ones",
            ((1 - alpha) / (1 + alpha)) ** 0.5: f"{what} is the standard deviation; the variance is asked for",
            1 - alpha: f"{what} mixes variances with weights α and 1 - α; they go with the squares of the weights",
        }
        expect(call(function, alpha, what="noise_left"), wanted, what, slips, tolerance=1e-9)
    return "At α = 0.6 a quarter is left, at 0.85 a twelfth: whatever the method trains on."


@exercise
def aggregate(function) -> str:
    """Against AMA_Capable of the library with alpha = 0, for rounds with some, all and no limited devices."""
    run = Run(method="ama_capable", hp={"alpha0": 0.0, "eta": 0.0}, clients=8, per_round=4, limited=0.5)
    fleet, method, draw = Fleet(run), build(run.method, **run.hp), stream(4, "exercise")
    slow = [i for i in range(8) if fleet.limited(i)]
    able = [i for i in range(8) if not fleet.limited(i)]
    for chosen in (slow[:2] + able[:2], able, slow):
        old = torch.randn(3, generator=draw).double(), torch.randn(2, generator=draw).double()
        drawn, uploads = [], []
        for n, i in enumerate(chosen, start=1):
            f = old[0] if i in slow else torch.randn(3, generator=draw).double()
            c = torch.randn(2, generator=draw).double()
            drawn.append((10 * n, i in slow, f, c))
            uploads.append(Upload(i, 10 * n, {"w": Tree(f=f, c=c), "b": Tree()}, 1))
        server = {"w": Tree(f=old[0], c=old[1]), "b": Tree(), "ama_capable/classifier": ["c"]}
        wanted = method.aggregate(server, uploads, Round(1, run, chosen))["w"]
        given = call(function, old, list(drawn), what="aggregate", empty="aggregate returns nothing yet")
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise Wrong("return a pair: the extractor and the classifier")
        everyone = sum((n * f for n, _, f, _ in drawn), torch.zeros(3).double()) / sum(n for n, *_ in drawn)
        held = "limited devices count in your extractor: they send back the old one and hold the mean back"
        if chosen == slow and not same(given[0], wanted["f"]):
            raise Wrong("in a round without any capable device the old extractor must stay")
        expect(given[0], wanted["f"], "the extractor", {everyone: held})
        expect(given[1], wanted["c"], "the classifier")
    return "The library calls it ama_capable; where nobody is limited it is FedAvg."
