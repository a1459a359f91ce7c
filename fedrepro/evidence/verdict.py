"""What measured values say about a paper's claim.

A claim is a list of comparisons. Each has one number per seed (a difference of methods, a slope, a quotient) and a
region in which the claim puts their mean, which is judged by a 95% interval:

holds     The interval lies inside the region. A claim holds if every comparison does, each on its own at 5%: an
          intersection-union test, which needs no correction.
opposite  The interval lies outside, and still at 5% after Holm's correction over all comparisons of the claim.
          One such comparison is enough for the claim.
open      Anything else.

A claim holds in part if all comparisons that were made hold, but the paper's table makes more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.stats import t as student

from fedrepro.evidence.claims import Claim
from fedrepro.evidence.comparisons import Cells, Comparison, select
from fedrepro.evidence.measures import Measure
from fedrepro.evidence.statements import Number, Reported, Statement, Untestable
from fedrepro.evidence.statistics import LEVEL, MOST_SEEDS, Estimate, decide, distances, estimate, seeds_needed

NOT_RUN = "not run yet"
MARKS = {
    "holds": "✓",
    "holds in part": "✓",
    "opposite": "✗",
    "undecided": "?",
    "one seed": "?",
    "not testable": "–",
    NOT_RUN: "…",
}
LATER = "runs are still missing"
Untrained = Sequence[tuple[dict[str, str], str]]


@dataclass(frozen=True)
class Effect:
    """One comparison: its mean over seeds, the half-width of its interval, and the claimed region."""

    what: str
    mean: float
    half: float | None  # None with one seed
    low: float
    high: float
    bound: str  # "at least" or "at most" if runs missed their target; "about" if tests were rounds apart
    df: float | None  # None if nothing was estimated
    p: float | None  # that the mean lies outside the region, on its own, two-sided
    p_opposite: float | None  # that it lies inside, after Holm's correction over the claim
    state: str  # holds, open, opposite
    seeds: int
    seeds_needed: int | None  # to decide it with the same mean and spread
    unit: str


@dataclass(frozen=True)
class Verdict:
    state: str  # a key of MARKS
    scale: str
    effects: tuple[Effect, ...] = ()
    why: str = ""  # why it cannot be tested
    on_paper: int = 0  # comparisons that the paper's whole table makes; 0: not counted

    @property
    def word(self) -> str:
        return word(self.state, self.scale)

    @property
    def counts(self) -> str:
        """6 of 8 hold, 2 open"""
        found = [effect.state for effect in self.effects]
        parts = [f"{found.count(s)} {s}" for s in ("open", "opposite") if s in found]
        holding = found.count("holds")
        counts = ", ".join([f"{holding} of {len(found)} hold{'s' * (len(found) == 1)}", *parts])
        return counts + (f" (the paper's table has {self.on_paper})" if self.on_paper > len(found) else "")

    @property
    def seeds_needed(self) -> int | None:
        """Enough to decide all open comparisons that lean towards the claim, or one that leans against it."""
        undecided = [effect for effect in self.effects if effect.state == "open"]
        known = [(e.seeds_needed, e.low < e.mean < e.high) for e in undecided if e.seeds_needed]
        if against := [needed for needed, towards in known if not towards]:
            return min(against)
        return max(needed for needed, _ in known) if known and len(known) == len(undecided) else None

    @property
    def reason(self) -> str:
        """In one line: why it cannot be tested, or how many comparisons hold and what would decide it."""
        if self.state in ("not testable", NOT_RUN):
            return self.why
        if self.why:
            return f"{self.counts}; the rest is not testable here: {self.why}"
        if self.state == "one seed":
            return f"{self.counts}; one seed shows no spread: two may decide, three are better"
        if self.state != "undecided":
            return self.counts
        missed = ("at least", "at most")
        if any(np.isnan(e.mean) or e.bound in missed for e in self.effects if e.state == "open"):
            return f"{self.counts}; targets were missed"
        if any(e.bound and not e.seeds_needed for e in self.effects if e.state == "open"):
            return f"{self.counts}; targets were reached too close together for the rounds that were tested"
        needed = self.seeds_needed
        decide = f"about {needed} seeds would decide" if needed else f"even {MOST_SEEDS} seeds would not decide"
        return f"{self.counts}; {decide}"


def word(state: str, scale: str) -> str:
    """The words of a verdict; below paper scale they never sound like a verdict on the paper itself."""
    found = {"holds": "reproduced", "holds in part": "reproduced in part", "opposite": "contradicted"}
    if state in found:
        return found[state] if scale == "paper" else f"{state} at {scale} scale"
    return {"one seed": "undecided (one seed)", "not testable": "not testable here"}.get(state, state)


def claimed(effect: Effect, times: float = 1.0, unit: str = "") -> str:
    """` (claimed: above 1 points)`; empty if only the sign is claimed."""
    low, high, unit = effect.low * times, effect.high * times, f" {unit}" if unit else ""
    if effect.high == np.inf:
        return "" if effect.low == 0 else f" (claimed: above {low:.4g}{unit})"
    if effect.low == -np.inf:
        return f" (claimed: below {high:.4g}{unit})"
    if effect.low == -effect.high:
        if high < 1e-5:  # room for rounding
            return " (claimed: no difference)"
        return f" (claimed: within ±{high:.4g}{unit})"
    return f" (claimed: {low:.4g} to {high:.4g}{unit})"


def judge(
    claim: Claim,
    values: pd.DataFrame,
    scale: str,
    axes: dict[str, list[str]],
    measures: dict[str, Measure],
    reported: Reported = (),
    untrained: Untrained = (),
    paper_cells: Sequence[dict[str, str]] = (),
    planned: Sequence[dict[str, str]] = (),
) -> Verdict:
    """`values`: measure, the axes' labels, seed, value (NaN if a target was missed) and, for targets, `limit`: what had
    been spent when the run stopped. `untrained`: panels in which accuracy cannot be judged yet, and why. `paper_cells`:
    the labels of every cell of the paper's table, to say how much of the claim was judged; `planned`: those of this
    scale, trained or not.

    A claim on several measures, or in several blocks, is one claim with the comparisons of all of them."""
    for statement in claim.statements:
        if isinstance(statement, Untestable):
            return Verdict("not testable", scale, why=statement.why)
        if isinstance(statement, Number) and not statement.any_scale and scale != "paper":
            return Verdict("not testable", scale, why="an absolute number, judged at paper scale only")
    parts = parts_of(claim, values, axes, measures, reported, untrained)
    on_paper = sum(_count(p.statement, p.measure, paper_cells, reported) for p in parts) if paper_cells else 0
    several = len({part.measure.name for part in parts}) > 1
    estimates, why = [], []
    for part in parts:
        why += part.untrained
        if part.cells is not None:
            if not part.made:
                later = planned and _count(part.statement, part.measure, planned, reported)
                why += [LATER if later else f"the {scale} scale does not have these cells"]
            name = f"[{part.measure.name}] " if several else ""
            found = estimate(part.made, part.cells, part.measure)
            estimates += [replace(one, what=name + one.what) for one in found]
    if not estimates:
        reason = "; ".join(dict.fromkeys(why))
        return Verdict(NOT_RUN if LATER in reason else "not testable", scale, why=reason)
    effects = _effects(estimates)
    state = _most(effects) if claim.most else _conclusion(effects)
    if state == "holds" and why:
        state = "undecided"
    elif state == "holds" and on_paper > len(effects):
        state = "holds in part"
    return Verdict(state, scale, effects, "; ".join(dict.fromkeys(why)), on_paper)


@dataclass(frozen=True)
class Part:
    """One statement of a claim by one measure: the comparisons that it makes, in the order of a verdict's effects."""

    statement: Statement
    measure: Measure
    cells: Cells | None  # None if all of them are in untrained panels
    made: list[Comparison]
    untrained: list[str]  # why some cells are left out


def parts_of(
    claim: Claim,
    values: pd.DataFrame,
    axes: dict[str, list[str]],
    measures: dict[str, Measure],
    reported: Reported = (),
    untrained: Untrained = (),
) -> list[Part]:
    """What a claim compares in these values; the arguments are those of `judge`."""
    parts = []
    for statement, measure in [(s, measures[name]) for s in claim.statements for name in s.measure]:
        known, why = _trained(values.loc[values["measure"] == measure.name], statement, measure, untrained)
        cells = Cells(known, axes) if not why or len(select(known, statement.where)) else None
        made = statement.comparisons(measure, cells, reported) if cells else ()
        made = [one for one in made if cells and cells.paired(one.used).size]
        parts.append(Part(statement, measure, cells, made, why))
    return parts


def _count(statement: Statement, measure: Measure, labels: Sequence[dict[str, str]], reported: Reported) -> int:
    """How many comparisons a statement makes on cells with these labels."""
    table = pd.DataFrame(labels).assign(seed=0, value=1.0)
    axes = {axis: list(dict.fromkeys(cell[axis] for cell in labels)) for axis in labels[0]}
    return len(list(statement.comparisons(measure, Cells(table, axes), reported)))


def _trained(
    values: pd.DataFrame, statement: Statement, measure: Measure, untrained: Untrained
) -> tuple[pd.DataFrame, list[str]]:
    """The values outside these panels, and why a statement cannot use the others."""
    why = []
    for panel, reason in untrained if measure.learned else ():
        inside = select(values, panel)
        why += [reason] if len(select(inside, statement.where)) else []
        values = values.drop(inside.index)
    return values, why


def _conclusion(effects: tuple[Effect, ...]) -> str:
    states = {effect.state for effect in effects}
    if "opposite" in states:
        return "opposite"
    if states == {"holds"}:
        return "holds"
    alone = all(effect.half is None and effect.seeds == 1 for effect in effects if effect.state == "open")
    return "one seed" if alone else "undecided"


def _most(effects: tuple[Effect, ...]) -> str:
    """A claim about most cases: more than half of them hold, or are opposite. By a partial conjunction test (Benjamini
    and Heller, Biometrics 2008): of n comparisons at least k hold if n - k + 1 times the k-th smallest p is within 5%.
    """
    size = len(effects)
    needed = size // 2 + 1
    p = sorted(1.0 if effect.p is None or effect.state != "holds" else effect.p for effect in effects)
    if (size - needed + 1) * p[needed - 1] <= LEVEL:
        return "holds"
    if sum(effect.state == "opposite" for effect in effects) >= needed:
        return "opposite"
    state = _conclusion(effects)
    return state if state == "one seed" else "undecided"


def _effects(estimates: list[Estimate]) -> tuple[Effect, ...]:
    """All comparisons of a claim, decided together."""
    least, most, error, df, low, high = (
        np.array([getattr(e, name) for e in estimates]) for name in ("least", "most", "error", "df", "low", "high")
    )
    p, p_opposite, states = decide(least, most, error, df, low, high)
    half = student.isf(LEVEL / 2, df) * error
    inside, outside = distances(least, most, low, high)
    return tuple(
        Effect(
            what=e.what,
            mean=e.mean,
            half=_finite(half[i]),
            low=e.low,
            high=e.high,
            bound=e.bound,
            df=_finite(e.df),
            p=_finite(p[i]),
            p_opposite=_finite(p_opposite[i]),
            state=str(states[i]),
            seeds=e.seeds,
            seeds_needed=seeds_needed(inside[i], outside[i], e, len(estimates)) if states[i] == "open" else None,
            unit=e.unit,
        )
        for i, e in enumerate(estimates)
    )


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
