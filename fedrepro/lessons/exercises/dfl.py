"""Checks of the exercises in notebooks/dfl/method.ipynb."""

from types import SimpleNamespace
from typing import Any

import torch

from fedrepro.lessons.exercises import Wrong, call, exercise, expect, same
from fedrepro.methods.base import Round
from fedrepro.methods.dfl import DFL
from fedrepro.methods.dfl import merge as merged
from fedrepro.methods.fd import FD
from fedrepro.simulation.rng import stream
from fedrepro.simulation.run import Run
from fedrepro.simulation.tree import Tree


@exercise
def first_round(function) -> str:
    """The first round in which Eq. (10) equals the threshold, by trying all of them with the library's ratio."""
    for R, T in ((100, 0.6), (10, 0.6), (10, 0.7), (30, 0.9), (7, 0.0), (8, 0.99)):
        wanted = next(r for r in range(1, R + 1) if DFL(threshold=T).rho(r, R) == T)
        what = f"first_round({R}, {T})"
        late = f"{what} is one round late; is that rounding, or did you count ρ < T instead of ρ = T?"
        early = f"{what} is one round early; rounds count from 1, and (1 - T) R is rounded up"
        slips = {wanted + 1: late, 0: early, wanted - 1: early}
        expect(call(function, R, T, what="first_round"), wanted, what, slips)
    return "With T = 0.6 the last 60% of the rounds have the same ratio."


@exercise
def label_means(function) -> str:
    draw = stream(0, "exercise")
    for classes, y in ((4, [0, 1, 1, 2, 3, 3, 3]), (5, [4, 0, 4, 2])):  # the second lacks labels 1 and 3
        y = torch.tensor(y)
        p = torch.softmax(torch.randn(len(y), classes, generator=draw, dtype=torch.float64), 1)
        sums = torch.stack([p[y == c].sum(0) for c in range(classes)])
        wanted = sums / y.bincount(minlength=classes).clamp(min=1)[:, None]
        given = call(function, p.clone(), y.clone(), what="label_means")
        if torch.is_tensor(given) and not same(given, wanted) and same(torch.nan_to_num(given), wanted):
            raise Wrong("the row of a label without images is 0/0; it must be zeros")
        slips = {
            sums: "these are sums; divide row c by the number of images of label c",
            sums / len(y): "you divided by the number of all images; divide row c by the number with label c",
            wanted.T: "this is the table transposed: rows are true labels, columns predictions",
        }
        expect(given, wanted, "your table", slips)
    return "The library adds the rows with index_add_, which needs no one-hot matrix."


@exercise
def merge(function) -> str:
    draw = stream(1, "exercise")
    drawn = torch.softmax(torch.randn(4, 5, 5, generator=draw, dtype=torch.float64), 2)
    old, tables, sizes = drawn[0], drawn[1:], [100.0, 50.0, 10.0]
    tables[0, 1] = tables[1, 1] = tables[2, 2] = 0  # label 1: only the third device has it; label 2: the first two
    tables[:, 4] = 0  # nobody has label 4
    wanted = merged(old, list(tables), sizes)
    given = call(function, old.clone(), list(tables.clone()), list(sizes), what="merge")
    if torch.is_tensor(given) and given.shape == old.shape and not same(given, wanted):
        equal = merged(old, list(tables), [1, 1, 1])
        mean = torch.tensordot(torch.tensor(sizes).double(), tables, 1) / sum(sizes)
        slips = {
            mean: "you averaged over all devices; a row needs only those that have the label (erratum DF-07)",
            equal: "you gave all devices the same weight; Eq. (6) weights device k by |D_k|",
            wanted: "all rows are right but that of a label which nobody has: it must stay as it was in `old`",
        }
        for value, why in slips.items():
            if same(given[:4], value[:4]):
                raise Wrong(why)
    expect(given, wanted, "the merged table")
    return "The rows add up to one again, whoever is missing."


@exercise
def softened(function) -> str:
    """By the gradient: in the logits it is (p - q) / n, so that q is right if and only if the gradient is."""
    draw = stream(2, "exercise")
    table = torch.softmax(torch.randn(6, 6, generator=draw, dtype=torch.float64), 1)
    y, rho = torch.tensor([0, 5, 2, 2]), 0.7
    z = torch.randn(4, 6, generator=draw, dtype=torch.float64, requires_grad=True)
    k: Any = SimpleNamespace(scratch={"dfl/y": table, "dfl/rho": rho})  # all that Eq. (7) reads of a visit
    (gradient,) = torch.autograd.grad(DFL().loss(k, z, y, z), z)
    wanted = torch.softmax(z, 1) - len(y) * gradient
    given, hard = call(function, table.clone(), y.clone(), rho, what="softened"), torch.eye(6)[y]
    slips = {
        (1 - rho) * hard + rho * table[y]: "the two shares are swapped: ρ belongs to the hard label",
        rho * hard + (1 - rho) * table[:, y].T: "you took columns of the table; what is taught about label y is row y",
    }
    if torch.is_tensor(given) and given.shape == z.shape and not same(given.sum(1), torch.ones(4)):
        slips[given] = "each row must add up to one: it mixes two distributions with shares ρ and 1 - ρ"
    expect(given, wanted, "your label", slips)
    return "Its gradient is that of Eq. (7): soft targets are label smoothing, learned by the federation."


@exercise
def from_others(function) -> str:
    draw = stream(3, "exercise")
    drawn = torch.softmax(torch.randn(4, 4, 4, generator=draw, dtype=torch.float64), 2)
    tables = dict(zip((7, 2, 5, 4), drawn, strict=True))
    tables[7][0] = tables[5][0] = 0  # label 0 is missing at two devices
    tables[2][3] = tables[5][3] = tables[4][3] = 0  # label 3: only device 7 has it
    server = {"fd/nothing": torch.zeros(4, 4).double(), "fd/tables": Tree({str(k): t for k, t in tables.items()})}
    everyone = merged(server["fd/nothing"], list(tables.values()), [1] * 4)
    for i in tables:
        wanted = FD().broadcast(server, i, Round(1, Run(method="fd"), list(tables)))["fd/table"]
        given = call(function, {k: table.clone() for k, table in tables.items()}, i, what="from_others")
        others = torch.stack([table for k, table in tables.items() if k != i])
        slips = {
            everyone: f"device {i} hears its own opinion too; leave its table out",
            others.mean(0): "you divided by the number of other devices; count only those that have the label",
        }
        expect(given, wanted, f"the table for device {i}", slips)
    return "This is all that FD sends: a table of C x C numbers, and no weights."
