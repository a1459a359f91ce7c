"""What measured values say about a paper's claim.

A claim is a list of comparisons. Each is a number that every seed gives (a difference of methods, a slope, a quotient),
and a region in which the claim puts its mean, which is judged by a 95% interval:

holds     The interval lies inside the region. A claim holds if every comparison does, each on its own at 5%: an
          intersection-union test, which needs no correction.
opposite  The interval lies outside, and still at 5% after Holm's correction over all comparisons of the claim.
          One such comparison is enough for the claim.
open      Anything else.

Seeds are blocks. Where a comparison is a contrast of cells, its variance is the residual of cells + seeds, pooled over
all cells of its panel, with (cells - 1)(seeds - 1) degrees of freedom. Where the spreads clearly differ, it is its own
variance over seeds, with seeds - 1: where that is larger than the variance of the panel's other contrasts at 10%, or
smaller at 1%, by an F test over all panels in which the claim makes this comparison.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.stats import f as fisher
from scipy.stats import t as student

from fedrepro.evidence.comparisons import EQUAL, KINDS, Cells, Comparison, select
from fedrepro.evidence.spec import measures_of

LEVEL = 0.05
WIDER, NARROWER = 0.10, 0.01  # where the F test says that a comparison's own spread is not that of its panel
MOST_SEEDS = 100  # more would be no advice
MARKS = {"holds": "✓", "opposite": "✗", "undecided": "?", "one seed": "?", "not testable": "–"}
LEARNED = ("accuracy", "ema_accuracy", "personal_accuracy", "loss")  # columns that say how well something is trained


@dataclass(frozen=True)
class Effect:
    """One comparison: its mean over seeds, the half-width of its interval, and the region that the claim names."""

    what: str
    mean: float
    half: float | None  # None with one seed
    low: float
    high: float
    bound: str  # "at least", "at most": of a difference in which runs missed their target
    df: float | None  # None where nothing was estimated
    p: float | None  # that the mean lies outside the region, on its own, two-sided
    p_opposite: float | None  # that it lies inside, after Holm's correction over the claim
    state: str  # holds, open, opposite
    seeds: int
    seeds_needed: int | None  # that would decide it, were mean and spread to stay
    unit: str


@dataclass(frozen=True)
class Verdict:
    state: str  # a key of MARKS
    scale: str
    effects: tuple[Effect, ...] = ()
    why: str = ""  # it cannot be tested
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
        return counts + (f" (the paper's table makes {self.on_paper})" if self.on_paper > len(found) else "")

    @property
    def seeds_needed(self) -> int | None:
        """All open comparisons that lean towards the claim have to be decided, or one that leans against it."""
        open_ = [effect for effect in self.effects if effect.state == "open"]
        against = [e.seeds_needed for e in open_ if e.seeds_needed and not e.low < e.mean < e.high]
        if against:
            return min(against)
        return max(e.seeds_needed for e in open_) if all(e.seeds_needed for e in open_) else None

    @property
    def reason(self) -> str:
        """One line: why it cannot be tested, or how many comparisons hold and what would decide it."""
        if self.state == "not testable":
            return self.why
        if self.why:
            return f"{self.counts}; the rest is not testable here: {self.why}"
        if self.state == "one seed":
            return f"{self.counts}; one seed shows no spread: two may decide, three are better"
        if self.state != "undecided":
            return self.counts
        if any(np.isnan(effect.mean) or effect.bound for effect in self.effects if effect.state == "open"):
            return f"{self.counts}; targets were missed"
        needed = self.seeds_needed
        decide = f"about {needed} seeds would decide" if needed else f"even {MOST_SEEDS} seeds would not decide"
        return f"{self.counts}; {decide}"


def word(state: str, scale: str) -> str:
    """How a verdict reads: below paper scale never like one on the paper."""
    if scale == "paper" and state in ("holds", "opposite"):
        return {"holds": "reproduced", "opposite": "contradicted"}[state]
    if state in ("holds", "opposite"):
        return f"{state} at {scale} scale"
    return {"one seed": "undecided (one seed)", "not testable": "not testable here"}.get(state, state)


def text(effect: Effect) -> str:
    """FedBR − FedMLB: -0.0361 ± 0.0133"""
    if np.isnan(effect.mean):
        return f"{effect.what}: target not reached"
    number = f"{effect.mean:+.3g}" + ("" if effect.half is None else f" ± {effect.half:.3g}")
    unit = f" {effect.unit}" if effect.unit else ""
    return f"{effect.what}: {effect.bound} {number}{unit}{_claimed(effect)}".replace(":  ", ": ")


def _claimed(effect: Effect) -> str:
    if effect.high == np.inf:
        return "" if effect.low == 0 else f" (claimed: above {effect.low:.4g})"
    if effect.low == -np.inf:
        return f" (claimed: below {effect.high:.4g})"
    if effect.low == -effect.high:
        return f" (claimed: within ±{effect.high:.4g})"
    return f" (claimed: {effect.low:.4g} to {effect.high:.4g})"


def learned(measure: dict) -> bool:
    """Whether a measure says how well, or how soon, something is trained."""
    return measure["column"] in LEARNED or measure["kind"] == "to_target"


def judge(
    claim: dict,
    values: pd.DataFrame,
    scale: str,
    axes: dict[str, list[str]],
    measures: dict[str, dict],
    reported=(),
    untrained: Sequence[tuple[dict[str, str], str]] = (),
    paper_cells: Sequence[dict[str, str]] = (),
) -> Verdict:
    """`values`: measure, the axes' labels, seed, value (NaN where a target was missed) and, of a target, `limit`, what
    was spent when the run stopped. `untrained`: panels in which nothing that is learned can be judged yet, and why.
    `paper_cells`: the labels of every cell of the paper's table, to say how much of the claim was judged.

    A claim on several measures, or in several blocks, is one claim with the comparisons of all of them."""
    if claim["kind"] == "untestable":
        return Verdict("not testable", scale, why=claim["why"])
    blocks = [claim, *claim.get("also", [])]
    if (
        any(block["kind"] in ("absolute", "saving") and not block.get("any_scale") for block in blocks)
        and scale != "paper"
    ):
        return Verdict("not testable", scale, why="an absolute number, judged at paper scale only")
    parts = [{**block, "measure": name} for block in blocks for name in measures_of(block)]
    on_paper = sum(_count(part, paper_cells, reported) for part in parts) if paper_cells else 0
    several = len({part["measure"] for part in parts}) > 1
    estimates, why = [], []
    for part in parts:
        name, measure = part["measure"], measures[part["measure"]]
        known, where = values[values["measure"] == name], part.get("where", {})
        if learned(measure):
            known, reasons = _trained(known, where, untrained)
            why += reasons
            if reasons and select(known, where).empty:
                continue
        cells = Cells(known, axes)
        made = KINDS[part["kind"]](part, cells, -1.0 if measure.get("better") == "lower" else 1.0, reported)
        if not made:
            why.append(f"the {scale} scale does not have these cells")
        for estimate in _estimates(made, cells, measure):
            estimates.append(replace(estimate, what=f"[{name}] {estimate.what}") if several else estimate)
    if not estimates:
        return Verdict("not testable", scale, why="; ".join(dict.fromkeys(why)))
    effects = _effects(estimates)
    state = _most(effects) if claim.get("most") else _conclusion(effects)
    state = "undecided" if why and state == "holds" else state
    return Verdict(state, scale, effects, "; ".join(dict.fromkeys(why)), on_paper)


def _count(part: dict, places: Sequence[dict[str, str]], reported) -> int:
    """How many comparisons a claim makes on these cells."""
    table = pd.DataFrame(places).assign(seed=0, value=1.0)
    axes = {axis: list(dict.fromkeys(place[axis] for place in places)) for axis in places[0]}
    return len(KINDS[part["kind"]](part, Cells(table, axes), 1.0, reported))


def _trained(values: pd.DataFrame, where: dict, untrained) -> tuple[pd.DataFrame, list[str]]:
    """The values outside of these panels, and why a claim on the cells `where` has to do without the others."""
    why = []
    for panel, reason in untrained:
        inside = select(values, panel)
        why += [reason] if len(select(inside, where)) else []
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


@dataclass(frozen=True)
class Estimate:
    """The mean of a comparison over seeds and how well it is known."""

    what: str
    mean: float
    error: float  # standard error; NaN where it is not known
    df: float
    low: float
    high: float
    bound: str
    seeds: int
    unit: str


def _estimates(made: list[Comparison], cells: Cells, measure: dict) -> list[Estimate]:
    seeds, size = len(cells.y), len(made)
    fixed = np.array([_seedless(c, cells, measure) for c in made], bool)
    bounded = [_bounded(c, cells) for c in made]
    mean = np.array([numbers.mean() for numbers, _ in bounded])
    error, df = np.where(fixed, 0.0, np.full(size, np.nan)), np.where(fixed, np.inf, np.full(size, np.nan))
    stacks: dict[tuple, list] = {}
    for i in np.flatnonzero(~fixed & ~np.isnan(mean)) if seeds > 1 else []:
        numbers, bound = bounded[i]
        error[i], df[i] = np.sqrt(_variance(numbers) / seeds), seeds - 1
        if not bound and (found := _panel(made[i].weights, cells)):
            labels, direction, panel = found
            stacks.setdefault((labels, tuple(direction.round(9))), []).append((i, direction, panel))
    for members in stacks.values():
        at, directions, panels = zip(*members, strict=True)
        _, error[list(at)], df[list(at)] = pooled(np.stack(panels), directions[0])
    if seeds < 3:
        error[(error == 0) & ~fixed] = np.nan  # two equal numbers may be chance
    return [
        Estimate(c.what, float(mean[i]), error[i], df[i], c.low, c.high, bounded[i][1], seeds,
                 measure.get("unit", "") if c.unit is None else c.unit)
        for i, c in enumerate(made)
    ]  # fmt: skip


def _effects(estimates: list[Estimate]) -> tuple[Effect, ...]:
    """All comparisons of a claim, decided together."""
    mean, error, df, low, high, bound = (
        np.array([getattr(e, name) for e in estimates]) for name in ("mean", "error", "df", "low", "high", "bound")
    )
    p, p_opposite, states = decide(mean, error, df, low, high, bound)
    half, distances = student.isf(LEVEL / 2, df) * error, _distances(mean, low, high, bound)
    return tuple(
        Effect(
            what=e.what,
            mean=e.mean,
            half=_number(half[i]),
            low=e.low,
            high=e.high,
            bound=e.bound,
            df=_number(e.df),
            p=_number(p[i]),
            p_opposite=_number(p_opposite[i]),
            state=str(states[i]),
            seeds=e.seeds,
            seeds_needed=_seeds_needed(*(d[i] for d in distances), e, len(estimates)) if states[i] == "open" else None,
            unit=e.unit,
        )
        for i, e in enumerate(estimates)
    )


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _seedless(c: Comparison, cells: Cells, measure: dict) -> bool:
    """Declared so for every cell of it, and so it is."""
    where = measure.get("seedless", False)
    places = select(cells.places, where).index if isinstance(where, dict) else cells.places.index if where else []
    return set(np.flatnonzero(c.used)) <= set(places) and (len(c.numbers) == 1 or _variance(c.numbers) == 0)


def _bounded(c: Comparison, cells: Cells) -> tuple[np.ndarray, str]:
    """A run that missed its target counts with what it had spent when it stopped. Where only one side missed, that
    bounds the difference on the side where it matters; where both did, nothing is known (NaN)."""
    missed = np.isnan(cells.y) & c.used
    if not missed.any() or c.weights is None:
        return c.numbers, ""
    sides = set(np.sign(c.weights[missed.any(axis=0)]))
    if len(sides) > 1:
        return c.numbers, ""
    spent = np.where(missed, cells.limit, cells.y)[:, c.used]
    return spent @ c.weights[c.used], "at least" if sides == {1.0} else "at most"


def _panel(weights: np.ndarray | None, cells: Cells) -> tuple[tuple, np.ndarray, np.ndarray] | None:
    """The panel in which a comparison is a contrast: labels, unit contrast, numbers (labels, seeds) that it weighs.

    The fewest axes, then those with most labels, along which the weights sum to zero, by the same pattern at each place
    of the other axes that they touch; over those places the panel is summed as the weights say."""
    if weights is None:
        return None
    for chosen, at in cells.layouts:
        table = np.where(at >= 0, weights[at], 0.0)
        pattern = table[:, np.abs(table).sum(axis=0).argmax()]
        share = pattern @ table / (pattern @ pattern)
        if abs(pattern.sum()) > 1e-9 * np.abs(pattern).max() or not np.allclose(np.outer(pattern, share), table):
            continue
        share[np.abs(share) < 1e-9 * np.abs(share).max()] = 0.0
        touched = at[:, share != 0]
        whole = (touched >= 0).all(axis=1) & ~np.isnan(cells.y[:, touched]).any(axis=(0, 2))
        summed = np.einsum("srp,p->rs", cells.y[:, touched[whole]], share[share != 0])
        size = np.sqrt(pattern @ pattern)
        labels = (chosen, tuple(map(tuple, cells.places.loc[touched[whole, 0], list(chosen)].to_numpy())))
        return labels, pattern[whole] / size, summed * size
    return None


def _variance(numbers: np.ndarray) -> np.ndarray:
    """Over seeds; 0 where they differ by rounding alone."""
    equal = np.ptp(numbers, axis=-1) <= EQUAL * np.abs(numbers).max(axis=-1)
    return np.where(equal, 0.0, numbers.var(axis=-1, ddof=1))


def pooled(panels: np.ndarray, contrast: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(..., panels, labels, seeds) -> mean of the unit contrast over the labels, its standard error and the error's
    degrees of freedom, each (..., panels)."""
    labels, seeds = panels.shape[-2:]
    numbers = np.einsum("...ls,l->...s", panels, contrast)
    residual = panels - panels.mean(-1, keepdims=True) - panels.mean(-2, keepdims=True)
    residual = residual + panels.mean((-1, -2), keepdims=True)
    residual[np.abs(residual) < EQUAL * np.abs(panels).max((-1, -2), keepdims=True)] = 0.0
    df, rest_df = (labels - 1) * (seeds - 1), (labels - 2) * (seeds - 1)
    total, own = (residual**2).sum((-1, -2)), _variance(np.einsum("...ls,l->...s", residual, contrast))
    variance = total / df
    apart = np.zeros(own.shape, bool)
    if rest_df:  # what the contrast takes of the residual is independent of the rest
        rest = np.maximum(total - own * (seeds - 1), 0) / rest_df
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.nansum(own / variance, -1) / np.nansum(rest / variance, -1)
        known = panels.shape[-3] * (seeds - 1), panels.shape[-3] * rest_df
        wider, narrower = fisher.sf(ratio, *known) < WIDER, fisher.cdf(ratio, *known) < NARROWER
        apart = (wider | narrower)[..., None] & (own > 0)
    variance, df = np.where(apart, own, variance), np.where(apart, seeds - 1, df)
    return numbers.mean(-1), np.sqrt(variance / seeds), df


def _distances(mean, low, high, bounds):
    """How far inside the claimed region, and how far outside, a mean lies; of a bound only what it proves."""
    least, most = bounds == "at least", bounds == "at most"
    above, below = mean - low, high - mean  # where both are positive it is inside
    proven_above, proven_below = ~(most & np.isfinite(low)), ~(least & np.isfinite(high))
    inside = np.where(proven_above & proven_below, np.minimum(above, below), -np.inf)
    outside = np.maximum(np.where(least, -np.inf, -above), np.where(most, -np.inf, -below))
    return inside, outside


def decide(mean, se, df, low, high, bounds=""):
    """Arrays (..., comparisons of one claim) -> p of each on its own, p of the opposite after Holm, state."""
    p, p_opposite = (_two_sided(distance, se, df) for distance in _distances(mean, low, high, bounds))
    order = np.argsort(p_opposite, -1)
    steps = np.take_along_axis(np.nan_to_num(p_opposite, nan=1.0), order, -1) * (p.shape[-1] - np.arange(p.shape[-1]))
    adjusted = np.empty_like(steps)
    np.put_along_axis(adjusted, order, np.minimum(np.maximum.accumulate(steps, -1), 1.0), -1)
    adjusted = np.where(np.isnan(p_opposite), np.nan, adjusted)
    return p, adjusted, np.select([p <= LEVEL, adjusted <= LEVEL], ["holds", "opposite"], "open")


def _two_sided(distance, se, df):
    """The p of a distance from a border, NaN where the error is not known; on the border itself 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(distance == 0, 0.0, distance / se)
    return np.minimum(2 * student.sf(ratio, df), 1.0)


def _seeds_needed(inside: float, outside: float, e: Estimate, comparisons: int) -> int | None:
    """The fewest seeds that would decide the same mean and spread; against the claim, at the first step of Holm."""
    distance, level = (inside, LEVEL) if inside > 0 else (outside, LEVEL / comparisons)
    if not e.error > 0 or not distance > 0:
        return None
    more = np.arange(e.seeds + 1, MOST_SEEDS + 1)
    p = _two_sided(distance, e.error * np.sqrt(e.seeds / more), e.df * (more - 1) / (e.seeds - 1))
    return int(more[p <= level][0]) if (p <= level).any() else None
