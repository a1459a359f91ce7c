"""What measured values say about a paper's claim.

A claim is a list of comparisons. Each has one number per seed (a difference of methods, a slope, a quotient) and a
region in which the claim puts their mean, which is judged by a 95% interval:

holds     The interval lies inside the region. A claim holds if every comparison does, each on its own at 5%: an
          intersection-union test, which needs no correction.
opposite  The interval lies outside, and still at 5% after Holm's correction over all comparisons of the claim.
          One such comparison is enough for the claim.
open      Anything else.

A claim holds in part if all comparisons that were made hold, but some of those that the paper's table makes were not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import pandas as pd

from fedrepro.evidence.claims import Claim
from fedrepro.evidence.comparisons import Cells, Comparison, select
from fedrepro.evidence.measures import Measure
from fedrepro.evidence.statements import Number, Reported, Statement, Untestable
from fedrepro.evidence.statistics import LEVEL, Estimate, decide, distances, estimate, seeds_needed
from fedrepro.evidence.verdict import NOT_RUN, Effect, Verdict

LATER = "runs are still missing"
FEWER = "averages lack cells that are still to be run"
CASES = "other cases are still to be run"
Used = frozenset[tuple[str, ...]]  # the labels of the cells that a comparison uses


@dataclass(frozen=True)
class Measured:
    """What a study knows when claims are judged."""

    values: pd.DataFrame  # measure, the axes' labels, seed, value (NaN: target missed), limit (the least it can be)
    scale: str
    axes: dict[str, list[str]]
    measures: dict[str, Measure]
    reported: Reported = ()
    untrained: Sequence[tuple[dict[str, str], str]] = ()  # panels where accuracy cannot be judged yet, and why
    paper_cells: Sequence[dict[str, str]] = ()  # labels of the paper's table, to say how much of a claim was judged
    planned: Sequence[dict[str, str]] = ()  # labels at this scale, trained or not
    readings: str = ""  # the axis with two readings of the paper, of which its authors had one


def judge(claim: Claim, known: Measured) -> Verdict:
    """A claim on several measures, or in several blocks, is one claim with the comparisons of all of them."""
    for statement in claim.statements:
        if isinstance(statement, Untestable):
            return Verdict("not testable", known.scale, why=statement.why)
        if isinstance(statement, Number) and not statement.any_scale and known.scale != "paper":
            return Verdict("not testable", known.scale, why="an absolute number, judged at paper scale only")
    parts = parts_of(claim, known)
    planned, whole = ([compared(p, at, known.reported) for p in parts] for at in (known.planned, known.paper_cells))
    estimates, why = _estimates(parts, planned, known.scale)
    if not estimates:
        return Verdict(NOT_RUN if LATER in why else "not testable", known.scale, why=why)
    here, whole = (list(chain.from_iterable(lists)) for lists in (planned, whole))
    made = [(part.cells, one.used) for part in parts if part.cells is not None for one in part.made]
    used = [cells.named(which) for cells, which in made]
    effects = tuple(  # averages over too few cells say nothing against the claim
        replace(effect, state="open") if effect.state == "opposite" and _lacks_cells(cells, here) else effect
        for effect, cells in zip(_effects(estimates), used, strict=True)
    )
    groups = [" ".join(cells.labels_on(known.readings, which)) for cells, which in made]
    later = _readings(here, known) - set(groups)
    state, depends = _concluded(claim, effects, groups, later, len(here))
    if state == "holds" and why:
        state = "undecided"
    elif state == "holds" and any(not any(cells <= one for one in used) for cells in whole):
        state = "holds in part"
    rest = [f"the rest is not testable here: {why}"] if why else []
    lacking = [FEWER] if any(_lacks_cells(cells, here) for cells in used) else []
    if claim.most and state == "undecided" and len(effects) < len(here):
        lacking.append(CASES)
    return Verdict(state, known.scale, effects, "; ".join([*depends, *rest, *lacking]), len(whole))


def _estimates(parts: "list[Part]", planned: list[list[Used]], scale: str) -> tuple[list[Estimate], str]:
    """Every comparison, and why some cannot be made."""
    several = len({part.measure.name for part in parts}) > 1
    estimates, why = [], []
    for part, later in zip(parts, planned, strict=True):
        why += part.untrained
        if part.cells is not None:
            if not part.made:
                why += [LATER if later else f"the {scale} scale does not have these cells"]
            name = f"[{part.measure.name}] " if several else ""
            found = estimate(part.made, part.cells, part.measure)
            estimates += [replace(one, what=name + one.what) for one in found]
    return estimates, "; ".join(dict.fromkeys(why))


def _lacks_cells(used: Used, all_: list[Used]) -> bool:
    """Whether a comparison is one of these with some of its cells left out."""
    return used not in all_ and any(used < other for other in all_)


def _readings(made: list[Used], known: Measured) -> set[str]:
    """The readings of the paper with which these comparisons are made; none if there is only one."""
    if not known.readings or not known.planned:
        return set()
    at = list(known.planned[0]).index(known.readings)
    return {found.pop() for used in made if len(found := {labels[at] for labels in used}) == 1}


def _concluded(
    claim: Claim, effects: tuple[Effect, ...], readings: list[str], later: set[str], planned: int
) -> tuple[str, list[str]]:
    """The state of a claim; opposite only if it is so under each reading of the paper, also those still to be run.
    `planned`: the comparisons that this scale makes once everything is trained."""
    conclude = _most if claim.most else _conclusion
    groups = {name: tuple(e for e, own in zip(effects, readings, strict=True) if own == name) for name in readings}
    each = planned // max(len(groups) + len(later), 1)
    states = {name: conclude(group, each) for name, group in groups.items()} | dict.fromkeys(sorted(later), LATER)
    if "opposite" not in states.values() or len(set(states.values())) == 1:
        return conclude(effects, planned), []
    words = [f"{state} with {name}" for name, state in states.items()]
    more = [
        Verdict(states[name], "", group).would_decide for name, group in groups.items() if states[name] == "undecided"
    ]
    return "undecided", [f"it depends on the reading: {', '.join(words)}", *more]


@dataclass(frozen=True)
class Part:
    """One statement of a claim by one measure: the comparisons that it makes, in the order of a verdict's effects."""

    statement: Statement
    measure: Measure
    cells: Cells | None  # None if all of them are in untrained panels
    made: list[Comparison]
    untrained: list[str]  # why some cells are left out


def parts_of(claim: Claim, known: Measured) -> list[Part]:
    """What a claim compares in these values."""
    parts = []
    for statement, measure in [(s, known.measures[name]) for s in claim.statements for name in s.measure]:
        values, why = _trained(known, statement, measure)
        cells = Cells(values, known.axes) if not why or len(select(values, statement.where)) else None
        made = statement.comparisons(measure, cells, known.reported) if cells else ()
        made = [one for one in made if cells and cells.paired(one.used).size]
        parts.append(Part(statement, measure, cells, made, why))
    return parts


def compared(part: Part, labels: Sequence[dict[str, str]], reported: Reported) -> list[Used]:
    """The cells of every comparison that a statement would make on cells with these labels."""
    if not labels:
        return []
    table = pd.DataFrame(labels).assign(seed=0, value=1.0)
    cells = Cells(table, {axis: list(dict.fromkeys(cell[axis] for cell in labels)) for axis in labels[0]})
    return [cells.named(one.used) for one in part.statement.comparisons(part.measure, cells, reported)]


def _trained(known: Measured, statement: Statement, measure: Measure) -> tuple[pd.DataFrame, list[str]]:
    """The values outside untrained panels, and why a statement cannot use the others."""
    values, why = known.values.loc[known.values["measure"] == measure.name], []
    for panel, reason in known.untrained if measure.learned else ():
        inside = select(values, panel)
        why += [reason] if len(select(inside, statement.where)) else []
        values = values.drop(inside.index)
    return values, why


def _conclusion(effects: tuple[Effect, ...], _: int = 0) -> str:
    states = {effect.state for effect in effects}
    if "opposite" in states:
        return "opposite"
    if states == {"holds"}:
        return "holds"
    alone = all(effect.half is None and effect.seeds == 1 for effect in effects if effect.state == "open")
    return "one seed" if alone else "undecided"


def _most(effects: tuple[Effect, ...], planned: int) -> str:
    """A claim about most cases: more than half of those made hold, or more than half of those planned are opposite.
    By a partial conjunction test (Benjamini and Heller, Biometrics 2008): of n comparisons at least k hold if n - k + 1
    times the k-th smallest p is within 5%."""
    size = len(effects)
    needed = size // 2 + 1
    p = sorted(1.0 if effect.p is None or effect.state != "holds" else effect.p for effect in effects)
    if (size - needed + 1) * p[needed - 1] <= LEVEL:
        return "holds"
    if sum(effect.state == "opposite" for effect in effects) > max(planned, size) / 2:
        return "opposite"
    state = _conclusion(effects)
    return state if state == "one seed" else "undecided"


def _effects(estimates: list[Estimate]) -> tuple[Effect, ...]:
    """All comparisons of a claim, decided together."""
    least, most, error, df, low, high = (
        np.array([getattr(e, name) for e in estimates]) for name in ("least", "most", "error", "df", "low", "high")
    )
    p, p_opposite, states = decide(least, most, error, df, low, high)
    inside, outside = distances(least, most, low, high)
    return tuple(
        Effect(
            what=e.what,
            mean=e.mean,
            half=_finite(e.half),
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
