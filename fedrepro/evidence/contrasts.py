"""The cells behind each effect of a verdict, ours and the paper's.

The forest plot, the matrix of methods and the notes need more than a verdict's numbers and words: the cells of each
comparison with their weights, the runs of these cells, and the same difference in the paper's numbers.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import pandas as pd

from fedrepro.evidence import judge, measures, statements, verdict
from fedrepro.evidence.claims import Claim
from fedrepro.evidence.comparisons import Comparison
from fedrepro.evidence.judge import Part
from fedrepro.evidence.measures import Measure
from fedrepro.evidence.study import Plan, Study
from fedrepro.evidence.verdict import Effect

LEVELS = (measures.Final, measures.Best, measures.Mean, measures.AtRound, measures.WithinBudget)  # an accuracy itself
Labels = tuple[tuple[str, str], ...]  # of a cell: (axis, label) for every axis


@dataclass(frozen=True)
class Contrast:
    """One comparison: its cells with their weights (NaN if it is not a weighted sum), and the effect if measured."""

    claim: Claim
    statement: statements.Statement
    measure: Measure
    weights: Mapping[Labels, float]
    what: str
    unit: str | None  # of the comparison; None: the measure's
    number: float  # the mean over seeds
    effect: Effect | None = None

    @cached_property
    def key(self) -> tuple:
        """Two contrasts with the same key compare the same cells in the same way."""
        return self.claim.id, self.statement.kind, self.cells

    @cached_property
    def cells(self) -> tuple:
        """What is compared, regardless of the claim: the measure, and the cells with their weights."""
        return self.measure.name, *sorted((labels, f"{weight:.9g}") for labels, weight in self.weights.items())

    @property
    def sides(self) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
        """The cells with positive weights, and those with negative ones."""
        plus, minus = ([dict(at) for at, w in self.weights.items() if w * sign > 0] for sign in (1, -1))
        return plus, minus

    @property
    def is_main(self) -> bool:
        """Whether it compares accuracies."""
        return type(self.statement) in (statements.Best, statements.Compare) and is_accuracy(self.measure)

    def shown(self, value: float, half: float | None = None) -> str:
        """A value of this comparison with its sign, if it is a difference, interval and unit: `+1.8 ± 0.5 points`."""
        times, unit = self.display
        sign = "" if self.is_level else "+"
        return f"{with_interval(times * value, half and times * half, sign)} {unit}".strip()

    @property
    def numbers(self) -> str:
        """`+1.8 ± 0.5 points (claimed: above 1 points)`"""
        assert self.effect is not None
        if math.isnan(self.effect.mean):
            return "target not reached"
        region = verdict.claimed(self.effect, *self.display).replace("-", "−")
        return f"{self.effect.bound} {self.shown(self.effect.mean, self.effect.half)}{region}".strip()

    @property
    def is_level(self) -> bool:
        """Whether it is the value of one cell, not a difference."""
        level = isinstance(self.statement, statements.Above | statements.Absolute)
        return level and not isinstance(self.measure, measures.Gain)

    @property
    def display(self) -> tuple[float, str]:
        """The factor and unit to show it in."""
        times, unit = displayed(self.measure)
        if unit == "%" and not self.is_level:
            unit = "points"
        if isinstance(self.statement, statements.Saving):
            return 100.0, "%"
        if isinstance(self.statement, statements.Trend):
            relative = isinstance(self.statement, statements.GapTrend) and self.statement.relative
            times, unit = (1.0, "") if relative else (times, unit)
            return times, f"{unit} per {self.statement.axis}".strip()
        return (times, unit) if self.unit is None else (1.0, self.unit)


def is_accuracy(measure: Measure) -> bool:
    """Whether its values are accuracies, as fractions."""
    kinds = isinstance(measure, LEVELS) and not isinstance(measure, measures.Gain)
    return kinds and measure.column in measures.ACCURACIES and not measure.unit


def value_text(measure: Measure, value: float, half: float | None = None) -> str:
    """A measured or reported number for readers: `47.1 ± 0.3%`."""
    times, unit = displayed(measure)
    space = "" if unit in ("", "%") else " "
    return f"{with_interval(times * value, half and times * half)}{space}{unit}"


def displayed(measure: Measure) -> tuple[float, str]:
    """The factor and unit to show its values in."""
    return (100.0, "%") if is_accuracy(measure) else (1.0, measure.unit)


def with_interval(value: float, half: float | None, sign: str = "") -> str:
    """`+1.83 ± 0.54`: two digits of the half-width, as many decimals of the value; without it, three or four digits."""
    if not half or not math.isfinite(half):
        return f"{value:{sign}{',.0f' if abs(value) >= 1000 else '.3g' if sign else '.4g'}}".replace("-", "−")
    decimals = min(max(1 - math.floor(math.log10(half)), 0), 6)
    return f"{value:{sign}.{decimals}f} ± {half:.{decimals}f}".replace("-", "−")


def measured(study: Study, claim: Claim, trained: bool = True) -> list[Contrast]:
    """Every effect of a claim's verdict; with `trained=False` also those of panels that are not trained yet."""
    known = study.measured if trained else replace(study.measured, untrained=())
    judged = (one for own, one in study.verdicts if own.id == claim.id)
    found = next(judged) if trained else judge.judge(claim, known)
    if not found.effects:
        return []
    made = [(part, one) for part in judge.parts_of(claim, known) for one in part.made]
    return [_contrast(claim, *one, effect) for one, effect in zip(made, found.effects, strict=True)]


def planned(plan: Plan, claim: Claim) -> list[Contrast]:
    """What a claim would compare if every cell of the plan were measured; the numbers mean nothing."""
    labels = [cell.labels for cell in plan.cells]
    rows = [{**at, "measure": name, "seed": 0, "value": 1.0} for name in plan.measures for at in labels]
    return _of_values(plan, claim, pd.DataFrame(rows))


def reported(plan: Plan, claim: Claim) -> list[Contrast]:
    """The same comparisons with the paper's numbers, where it prints one for every cell of the comparison."""
    rows, printed = [], plan.table.reported_rows()
    for cell in plan.cells:
        for row in printed:
            if not row["censored"] and all(row.get(axis, label) == label for axis, label in cell.labels.items()):
                rows.append({**cell.labels, "measure": row["measure"], "seed": 0, "value": row["value"]})
    return _of_values(plan, claim, pd.DataFrame(rows)) if rows else []


def _of_values(plan: Plan, claim: Claim, values: pd.DataFrame) -> list[Contrast]:
    if any(isinstance(statement, statements.Untestable) for statement in claim.statements):
        return []
    values = values.drop_duplicates([*plan.axes, "measure"])
    known = judge.Measured(values, plan.scale, plan.axes, plan.measures, plan.table.reported_rows())
    parts = judge.parts_of(claim, known)
    return [_contrast(claim, part, one) for part in parts for one in part.made]


def _contrast(claim: Claim, part: Part, made: Comparison, effect: Effect | None = None) -> Contrast:
    assert part.cells is not None
    weights = {}
    for i in made.used.nonzero()[0].tolist():
        labels = tuple((axis, str(part.cells.labels.loc[i, axis])) for axis in part.cells.axes)
        weights[labels] = math.nan if made.weights is None else float(made.weights[i])
    number = float(made.numbers.mean()) if effect is None else effect.mean
    return Contrast(claim, part.statement, part.measure, weights, made.what, made.unit, number, effect)


def runs_of(study: Study, contrast: Contrast) -> list[str]:
    """The ids of the runs behind a comparison."""
    taken = [cell for cell in study.cells if tuple(cell.labels.items()) in contrast.weights]
    paired = [seed for seed in study.seeds if all(study.source.has(cell.run(seed)) for cell in taken)]
    return [cell.run(seed).id for cell in taken for seed in paired]
