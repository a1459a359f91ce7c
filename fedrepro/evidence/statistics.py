"""How well a comparison is known from its seeds, and what that decides.

Seeds are blocks. If a comparison is a contrast of cells, its variance is the residual of cells + seeds, pooled over the
cells of its panel, with (cells - 1)(seeds - 1) degrees of freedom. Spreads may differ, so two F tests come first, each
over all panels in which the claim makes this comparison. A cell that the comparison does not use is left out if it
spreads more than the others, the widest first, at 5% shared among the cells. If the comparison's own variance over
seeds is larger than that of the other contrasts at 10%, or smaller at 2%, it is used instead, with seeds - 1 degrees.
The levels balance power and false verdicts over many mixtures of spreads in simulated studies
(tests/test_judge_simulated.py); no measured number was looked at.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import f as fisher
from scipy.stats import t as student

from fedrepro.evidence.comparisons import Cells, Comparison
from fedrepro.evidence.measures import Measure
from fedrepro.simulation.metrics import EQUAL

LEVEL = 0.05
WILD = 0.05  # level of the F test: does a cell spread more than the rest of its panel?
WIDER, NARROWER = 0.10, 0.02  # does a comparison's own spread differ from its panel's?
MOST_SEEDS = 100  # advice to run more would be useless


@dataclass(frozen=True)
class Estimate:
    """The mean of a comparison over seeds, and its uncertainty."""

    what: str
    mean: float
    least: float  # that the mean can be: targets were missed, or reached between two tests
    most: float
    error: float  # standard error; NaN if unknown
    df: float
    low: float
    high: float
    seeds: int
    unit: str

    @property
    def half(self) -> float:
        """The half-width of its 95% interval; NaN if unknown."""
        return float(student.isf(LEVEL / 2, self.df) * self.error)

    @property
    def bound(self) -> str:
        """How the mean is to be read."""
        if np.isnan(self.mean) or self.least == self.most:
            return ""
        return "at least" if self.most == np.inf else "at most" if self.least == -np.inf else "about"


def estimate(made: list[Comparison], cells: Cells, measure: Measure) -> list[Estimate]:
    """Every comparison of one measure, each from the seeds with which all its cells were run."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, comparison in enumerate(made):
        groups.setdefault(tuple(cells.paired(comparison.used)), []).append(i)
    found = {}
    for seeds, at in groups.items():
        part = [replace(made[i], numbers=made[i].numbers[list(seeds)]) for i in at]
        found |= dict(zip(at, _estimate(part, cells.with_seeds(seeds), measure), strict=True))
    return [found[i] for i in range(len(made))]


def _estimate(made: list[Comparison], cells: Cells, measure: Measure) -> list[Estimate]:
    """The same where all comparisons have all seeds."""
    seeds = len(cells.y)
    fixed = np.array([_is_seedless(comparison, cells, measure) for comparison in made], bool)
    ranges = [_range(comparison, cells) for comparison in made]
    mean, least, most = (np.array([found[i].mean() for found in ranges]) for i in range(3))
    error = np.where(fixed, 0.0, np.nan)
    df = np.where(fixed, np.inf, np.nan)
    stacks: dict[tuple, list] = {}
    for i in np.flatnonzero(~fixed & ~np.isnan(mean)) if seeds > 1 else []:
        error[i], df[i] = np.sqrt(_variance(ranges[i][0]) / seeds), seeds - 1
        if np.isfinite(most[i] - least[i]) and (found := _panel(made[i].weights, cells)):
            labels, direction, panel = found
            stacks.setdefault((labels, tuple(direction.round(9))), []).append((i, direction, panel))
    for members in stacks.values():
        at, directions, panels = zip(*members, strict=True)
        _, error[list(at)], df[list(at)] = pooled(np.stack(panels), directions[0])
    if seeds < 3:
        error[(error == 0) & ~fixed] = np.nan  # two equal numbers may be chance
    units = [measure.unit if comparison.unit is None else comparison.unit for comparison in made]
    return [
        Estimate(c.what, float(mean[i]), least[i], most[i], error[i], df[i], c.low, c.high, seeds, units[i])
        for i, c in enumerate(made)
    ]


def _is_seedless(c: Comparison, cells: Cells, measure: Measure) -> bool:
    """Whether all its cells are declared seedless, and its numbers agree."""
    where = measure.seedless
    seedless = cells.at(where).index if isinstance(where, dict) else cells.labels.index if where else []
    return set(np.flatnonzero(c.used)) <= set(seedless) and (len(c.numbers) == 1 or _variance(c.numbers) == 0)


def _range(c: Comparison, cells: Cells) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per seed the number, the least and the most that it can be. A run that missed its target counts with what it had
    spent when it stopped, but may need any amount; a target that was reached may have been reached at any round since
    the test before. If runs on both sides missed theirs, nothing is known (NaN)."""
    if c.weights is None:
        return c.numbers, c.numbers, c.numbers
    weights, y, limit = c.weights[c.used], cells.y[:, c.used], cells.limit[:, c.used]
    missed, more, less = np.isnan(y), weights > 0, weights < 0
    higher, lower = np.where(missed, np.inf, 0.0), np.nan_to_num(y - limit)  # how far each run's number may be off
    below = lower[:, more] @ weights[more] - higher[:, less] @ weights[less]
    above = higher[:, more] @ weights[more] - lower[:, less] @ weights[less]
    one_side = missed.any() and not (missed[:, more].any() and missed[:, less].any())
    numbers = np.where(missed, limit, y) @ weights if one_side else c.numbers
    return numbers, numbers - below, numbers + above


def _panel(weights: np.ndarray | None, cells: Cells) -> tuple[tuple, np.ndarray, np.ndarray] | None:
    """The panel in which a comparison is a contrast: labels, unit contrast, numbers (labels, seeds) that it weighs.

    The smallest set of axes, then the one with most labels, along which the weights sum to zero, with the same pattern
    at every combination of the other axes that they touch; over those the panel is summed by the weights."""
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
        labels = (chosen, tuple(map(tuple, cells.labels.loc[touched[whole, 0], list(chosen)].to_numpy())))
        return labels, pattern[whole] / size, summed * size
    return None


def _variance(numbers: np.ndarray, scale: np.ndarray | float = 0.0) -> np.ndarray:
    """Over seeds; 0 if they differ only by rounding, of themselves or of numbers of this scale."""
    equal = np.ptp(numbers, axis=-1) <= EQUAL * np.maximum(np.abs(numbers).max(axis=-1), scale)
    return np.where(equal, 0.0, numbers.var(axis=-1, ddof=1))


def pooled(panels: np.ndarray, contrast: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(..., panels, labels, seeds) -> mean of the unit contrast over the labels, its standard error and the error's
    degrees of freedom, each (..., panels)."""
    seeds = panels.shape[-1]
    numbers = np.einsum("...ls,l->...s", panels, contrast)
    kept = _alike(panels, contrast != 0)
    residual, labels = _residual(panels, kept), kept.sum(-1)
    total, own = (residual**2).sum((-1, -2)), _variance(numbers, np.abs(panels).max((-1, -2)))
    df = np.broadcast_to(((labels - 1) * (seeds - 1))[..., None], own.shape)
    ratio, *known = _f_ratio(own * (seeds - 1), total, labels, seeds)  # the rest is independent of the contrast
    differs = (fisher.sf(ratio, *known) < WIDER) | (fisher.cdf(ratio, *known) < NARROWER)
    apart = differs[..., None] & (own > 0)
    return numbers.mean(-1), np.sqrt(np.where(apart, own, total / df) / seeds), np.where(apart, seeds - 1, df)


def _alike(panels: np.ndarray, used: np.ndarray) -> np.ndarray:
    """(..., labels): those that the contrast uses, and the others that do not spread more than the rest."""
    kept = np.ones((*panels.shape[:-3], len(used)), bool)
    while True:
        squares, labels = (_residual(panels, kept) ** 2).sum(-1), kept.sum(-1, keepdims=True)
        against_others = squares * (labels / np.maximum(labels - 1, 1))[..., None, :]
        ratio, *known = _f_ratio(
            against_others.swapaxes(-1, -2), squares.sum(-1)[..., None, :], labels, panels.shape[-1]
        )
        ratio = np.where(kept & ~used, ratio, 0.0)
        widest = np.eye(len(used), dtype=bool)[ratio.argmax(-1)]
        wild = widest & (fisher.sf(ratio, *known) < WILD / labels)
        if not wild.any():
            return kept
        kept &= ~wild


def _residual(panels: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """What neither labels nor seeds explain, of the kept labels; 0 elsewhere."""
    by_seed = np.einsum("...pls,...l->...ps", panels, kept / kept.sum(-1, keepdims=True))
    residual = panels - by_seed[..., None, :]
    residual = (residual - residual.mean(-1, keepdims=True)) * kept[..., None, :, None]
    residual[np.abs(residual) < EQUAL * np.abs(panels).max((-1, -2), keepdims=True)] = 0.0
    return residual


def _f_ratio(part, total, labels, seeds):
    """Sums of squares (..., panels), of one contrast and of all -> the contrast's variance over that of the rest, and
    the degrees of freedom of both. Panels count alike, whatever their scale; 1 if there is no rest."""
    varies = total > 0
    panels = np.maximum(varies.sum(-1), 1)
    share = (part / np.where(varies, total, 1.0)).sum(-1) / panels
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(labels > 2, share * (labels - 2) / np.maximum(1 - share, 0), 1.0)
    return ratio, panels * (seeds - 1), panels * np.maximum(labels - 2, 1) * (seeds - 1)


def distances(least, most, low, high):
    """How far inside and how far outside the claimed region a mean between `least` and `most` lies for certain."""
    with np.errstate(invalid="ignore"):
        gaps = (low, least - low), (high, high - most)
        above, below = (np.where(np.isinf(edge), np.inf, gap) for edge, gap in gaps)
    return np.minimum(above, below), np.maximum(low - most, least - high)


def decide(least, most, se, df, low, high):
    """Arrays (..., comparisons of one claim) -> each one's own p, its p of the opposite after Holm, its state."""
    p, p_opposite = (_two_sided(distance, se, df) for distance in distances(least, most, low, high))
    order = np.argsort(p_opposite, -1)
    steps = np.take_along_axis(np.nan_to_num(p_opposite, nan=1.0), order, -1) * (p.shape[-1] - np.arange(p.shape[-1]))
    adjusted = np.empty_like(steps)
    np.put_along_axis(adjusted, order, np.minimum(np.maximum.accumulate(steps, -1), 1.0), -1)
    adjusted = np.where(np.isnan(p_opposite), np.nan, adjusted)
    return p, adjusted, np.select([p <= LEVEL, adjusted <= LEVEL], ["holds", "opposite"], "open")


def better_or_worse(mean, se, df) -> list[str]:
    """Differences that are made together: which are clearly above zero, or below, after Holm's correction."""
    regions = ((-np.inf, 0.0), (0.0, np.inf))
    better, worse = (decide(mean, mean, se, df, *region)[2] == "opposite" for region in regions)
    return np.select([better, worse], ["better", "worse"], "undecided").tolist()


def _two_sided(distance, se, df):
    """The p-value of a distance from the region's edge: NaN where the error is not known, 1 on the edge itself."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(distance == 0, 0.0, distance / se)
    return np.minimum(2 * student.sf(ratio, df), 1.0)


def seeds_needed(inside: float, outside: float, e: Estimate, comparisons: int) -> int | None:
    """The fewest seeds that would decide it with the same mean and spread; against the claim, at Holm's first step."""
    distance, level = (inside, LEVEL) if inside > 0 else (outside, LEVEL / comparisons)
    if not e.error > 0 or not distance > 0:
        return None
    more = np.arange(e.seeds + 1, MOST_SEEDS + 1)
    p = _two_sided(distance, e.error * np.sqrt(e.seeds / more), e.df * (more - 1) / (e.seeds - 1))
    return int(more[p <= level][0]) if (p <= level).any() else None
