"""What a claim can state: one class per kind of `[[claim]]`, with its keys and the comparisons it makes."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from fedrepro.errors import BadInput
from fedrepro.evidence.comparisons import Cells, Comparison, around, linear, minus, name_of, nonlinear, slope
from fedrepro.evidence.measures import Measure
from fedrepro.evidence.schema import AxisName, Label, MeasureName, Selection, Tagged

DIRECTIONS = {"rises": {"low": 0.0, "high": np.inf}, "falls": {"low": -np.inf, "high": 0.0}}
Reported = Sequence[dict[str, Any]]  # the paper's numbers, as spec.Table.reported_rows gives them


class Statement(Tagged):
    """One block `[[claim]]`; those with the same id make one claim, which holds if all of them do."""

    id: str
    measure: tuple[MeasureName, ...]  # each of them judges it
    where: Selection = field(default_factory=dict)  # the cells it is about
    most: bool = False  # it is enough that more than half of the claim's comparisons hold
    says: str = ""  # in the paper's words, in the first block of a claim
    source: str = ""  # where the paper says so
    note: str = ""  # how it is judged, if the kind does not make that clear

    def comparisons(self, measure: Measure, cells: Cells, reported: Reported) -> Iterator[Comparison]:
        raise NotImplementedError


class Number(Statement):
    """About a number, which the paper measured at its own scale."""

    any_scale: bool = False  # it does not depend on the scale


class Best(Statement, kind="best"):
    """In every panel the winner beats each other label on the axis."""

    axis: AxisName
    winner: Label
    among: tuple[Label, ...] = ()  # the labels to beat; default: all others

    def comparisons(self, measure: Measure, cells: Cells, reported: Reported) -> Iterator[Comparison]:
        return self._differences(cells, measure.sign)

    def _differences(self, cells: Cells, sign: float) -> Iterator[Comparison]:
        for panel, at in cells.panels(self.where, self.axis):
            for other in self.among or [label for label in at if label != self.winner]:
                if self.winner in at and other in at:
                    weights = cells.weights({at[self.winner]: sign, at[other]: -sign})
                    yield linear(cells, f"{panel} {minus(self.winner, other, sign)}", weights)


class Near(Best, kind="near"):
    """The signed difference stays within the margin: two one-sided tests."""

    margin: float

    def comparisons(self, measure: Measure, cells: Cells, reported: Reported) -> Iterator[Comparison]:
        return (replace(found, **around(0.0, self.margin)) for found in self._differences(cells, 1.0))


class Sum(Statement, kind="sum"):
    """One label's value is the sum of others', within the margin."""

    axis: AxisName
    total: Label
    parts: tuple[Label, ...]
    margin: float

    def comparisons(self, measure: Measure, cells: Cells, reported: Reported) -> Iterator[Comparison]:
        for panel, at in cells.panels(self.where, self.axis):
            if {self.total, *self.parts} <= set(at):
                weights = cells.weights({at[self.total]: 1.0})
                for part in self.parts:
                    weights[at[part]] -= 1.0
                what = f"{panel} {self.total} − {' − '.join(self.parts)}"
                yield linear(cells, what, weights, **around(0.0, self.margin))


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two selections of cells; over several labels cells are averaged."""

    better: Selection
    worse: Selection
    where: Selection = field(default_factory=dict)  # for both
    each: AxisName | None = None  # one pair per label on this axis, on one side or on both in parallel
    most: AxisName | None = None  # compares each label on this axis; most must be better
    by: float = 0.0  # by at least this much
    what: str = ""  # its name, instead of the labels

    def __post_init__(self):
        if self.most and len(self.better.get(self.most, ())) < 2:
            raise BadInput(f"most: {self.most!r} has no list of labels in better")
        sizes = {len(side.get(self.each or "", ())) for side in (self.better, self.worse)}
        if self.each and (0 in sizes or (len(sizes) == 2 and 1 not in sizes)):
            raise BadInput(f"each: {self.each!r} needs labels in better and worse, equally many or one")

    def one_by_one(self) -> "list[Pair]":
        if not self.each:
            return [self]
        better, worse = self.better[self.each], self.worse[self.each]
        size = max(len(better), len(worse))
        pairs = zip(better * (size // len(better)), worse * (size // len(worse)), strict=True)
        return [
            replace(self, each=None, better={**self.better, self.each: (a,)}, worse={**self.worse, self.each: (b,)})
            for a, b in pairs
        ]

    def sides(self) -> list[Selection]:
        """What is better: one selection, or one per label of the axis `most`."""
        most = self.most
        return [{**self.better, most: (label,)} for label in self.better[most]] if most else [self.better]


class Compare(Statement, kind="compare"):
    """Every pair at every combination of labels on the axes in `each`; over the other axes cells are averaged."""

    pairs: list[Pair]
    each: list[AxisName] = field(default_factory=list)
    margin: float = 0.0  # by which the worse one may be better: "gains little"

    def comparisons(self, measure: Measure, cells: Cells, reported: Reported) -> Iterator[Comparison]:
        for panel, group in cells.each(self.where, self.each):
            for pair in itertools.chain.from_iterable(pair.one_by_one() for pair in self.pairs):
                worse = cells.mean(pair.where | pair.worse, group)
                sides = [cells.mean(pair.where | side, group) for side in pair.sides()]
                sides = [measure.sign * (side - worse) for side in sides if side is not None and worse is not None]
                what = f"{panel} {pair.what or minus(name_of(pair.better), name_of(pair.worse), measure.sign)}"
                gaps = [linear(cells, what, weights, low=pair.by - self.margin) for weights in sides]
                yield from [_majority(gaps)] if pair.most and gaps else gaps


def _majority(gaps: list[Comparison]) -> Comparison:
    """Per seed, the value that most of the gaps reach; a missed target counts as the smallest."""
    ordered = np.sort(-np.stack([gap.numbers for gap in gaps]), axis=0)  # NaN comes last
    used = np.any([gap.used for gap in gaps], axis=0)
    return replace(gaps[0], numbers=-ordered[len(gaps) // 2], used=used, weights=None)


class Trend(Statement, kind="trend"):
    """In every panel the value rises or falls along the axis."""

    axis: AxisName
    direction: Literal["rises", "falls"]

    def comparisons(self, measure: Measure, cells: Cells, reported: Reported) -> Iterator[Comparison]:
        for panel, at in cells.panels(self.where, self.axis):
            if len(at) > 1:
                weights = cells.weights(dict(zip(at.values(), slope(at), strict=True)))
                what = f"{panel} slope over {self.axis}"
                yield linear(cells, what, weights, unit="", **DIRECTIONS[self.direction])


class GapTrend(Trend, kind="gap_trend"):
    """The lead of one selection over another (with `relative`, their quotient) rises or falls along the axis."""

    of: Selection  # several labels are averaged
    over: Selection  # every label is a comparison of its own
    relative: bool = False

    def comparisons(self, measure: Measure, cells: Cells, reported: Reported) -> Iterator[Comparison]:
        own, region = name_of(self.of), DIRECTIONS[self.direction]
        others = [axis for axis in cells.varied(cells.at(self.where)) if axis not in {self.axis, *self.of, *self.over}]
        for labels in itertools.product(*self.over.values()):
            over: Selection = {axis: (label,) for axis, label in zip(self.over, labels, strict=True)}
            for panel, group in cells.each(self.where, others):
                sides = self._sides(cells, group, over)
                if len(sides) > 1 and self.relative:
                    what = f"{panel} slope of {own} / {name_of(over)} over {self.axis}"
                    quotients = np.stack([cells.total(a) / cells.total(b) for a, b in sides.values()], axis=1)
                    numbers = (quotients - quotients[:, :1]) @ slope(sides)  # exactly zero if they are equal
                    used = np.flatnonzero(sum(a + b for a, b in sides.values()))
                    yield nonlinear(cells, what, numbers, used, **region)
                elif len(sides) > 1:
                    what = f"{panel} slope of the lead of {own} over {name_of(over)} over {self.axis}"
                    leads = zip(slope(sides), sides.values(), strict=True)
                    weights = sum(measure.sign * rise * (a - b) for rise, (a, b) in leads)
                    yield linear(cells, what, np.asarray(weights), unit="", **region)

    def _sides(self, cells: Cells, group: pd.DataFrame, over: Selection) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """label on the axis -> the weights of both selections, where both exist"""
        found = {}
        for label in cells.axes[self.axis]:
            a, b = (cells.mean({**side, self.axis: (label,)}, group) for side in (self.of, over))
            if a is not None and b is not None:
                found[label] = a, b
        return found


class Ratio(Statement, kind="ratio"):
    """The quotient of two selections is the claimed one, within the tolerance."""

    of: Selection
    over: Selection
    ratio: float
    tolerance: float

    def comparisons(self, measure: Measure, cells: Cells, reported: Reported) -> Iterator[Comparison]:
        a, b = (cells.mean(side, cells.at(self.where)) for side in (self.of, self.over))
        if a is not None and b is not None:
            numbers = cells.y[:, a > 0].mean(axis=1) / cells.y[:, b > 0].mean(axis=1)
            what, region = f"{name_of(self.of)} / {name_of(self.over)}", around(self.ratio, self.tolerance)
            yield nonlinear(cells, what, numbers, np.flatnonzero(a + b), **region)


class Lead(Number, kind="lead"):
    """One selection is ahead of another by the claimed difference, within the tolerance, at every combination of labels
    on the axes in `each`; over the other axes cells are averaged."""

    of: Selection
    over: Selection
    lead: float
    tolerance: float
    each: list[AxisName] = field(default_factory=list)

    def comparisons(self, measure: Measure, cells: Cells, reported: Reported) -> Iterator[Comparison]:
        for panel, group in cells.each(self.where, self.each):
            a, b = (cells.mean(side, group) for side in (self.of, self.over))
            if a is not None and b is not None:
                what = f"{panel} {minus(name_of(self.of), name_of(self.over), measure.sign)}"
                yield linear(cells, what, measure.sign * (a - b), **around(self.lead, self.tolerance))


class Saving(Number, kind="saving"):
    """The winner saves the claimed share of another's cost, 1 - own / other, within the tolerance."""

    axis: AxisName
    winner: Label
    saving: float | dict[Label, float]  # one number for the mean over all others, or one per label
    tolerance: float

    def comparisons(self, measure: Measure, cells: Cells, reported: Reported) -> Iterator[Comparison]:
        for panel, at in cells.panels(self.where, self.axis):
            for name, share, others in self._claimed(at) if self.winner in at else []:
                costs = [at[label] for label in others if label in at]
                if costs:
                    numbers = (1 - cells.y[:, [at[self.winner]]] / cells.y[:, costs]).mean(axis=1)
                    what, region = f"{panel} saved by {self.winner} of {name}", around(share, self.tolerance)
                    yield nonlinear(cells, what, numbers, [at[self.winner], *costs], **region)

    def _claimed(self, labels) -> list[tuple[str, float, list[str]]]:
        """Saved compared with whom: a name, the claimed share, the labels."""
        if isinstance(self.saving, dict):
            return [(label, share, [label]) for label, share in self.saving.items()]
        return [("mean of the others", self.saving, [label for label in labels if label != self.winner])]


class Above(Statement, kind="above"):
    """The value itself is above a number (below it, for a cost)."""

    than: float

    def comparisons(self, measure: Measure, cells: Cells, reported: Reported) -> Iterator[Comparison]:
        found = cells.at(self.where)
        region = {"low": self.than} if measure.sign > 0 else {"low": -np.inf, "high": self.than}
        for i in found.index:
            name = " ".join(found.loc[i, cells.varied(found)]) or measure.name
            yield linear(cells, name, cells.weights({i: 1.0}), **region)


class Absolute(Number, kind="absolute"):
    """The value is the paper's, within the tolerance, at every combination of labels on the axes in `each`."""

    tolerance: float | dict[MeasureName, float]
    each: list[AxisName] = field(default_factory=list)

    def comparisons(self, measure: Measure, cells: Cells, reported: Reported) -> Iterator[Comparison]:
        tolerance = self.tolerance[measure.name] if isinstance(self.tolerance, dict) else self.tolerance
        for panel, group in cells.each(self.where, self.each):
            for row in reported:
                where: Selection = {axis: (row[axis],) for axis in row if axis in cells.axes}
                weights = cells.mean(where, group)
                if row["measure"] == measure.name and not row["censored"] and weights is not None:
                    what, region = f"{panel} {name_of(where)}", around(row["value"], tolerance)
                    yield linear(cells, what, weights, **region)


class Untestable(Statement, kind="untestable"):
    """No experiment here can test it."""

    why: str
    measure: tuple[MeasureName, ...] = ()
