"""From a claim to its comparisons: numbers that every seed gives, and the region in which the claim puts their mean."""

import itertools
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

DIRECTIONS = {"rises": {"low": 0.0, "high": np.inf}, "falls": {"low": -np.inf, "high": 0.0}}
EQUAL = 1e-12  # of the numbers: they differ by rounding alone


class Cells:
    """The values of one measure: `places` with a label on every axis, `y` and `limit` of shape (seeds, places)."""

    def __init__(self, values: pd.DataFrame, axes: dict[str, list[str]]):
        self.axes, names = axes, list(axes)
        self.places = values[names].drop_duplicates().reset_index(drop=True)
        place = values.groupby(names, sort=False).ngroup()
        seeds, seed = np.unique(values["seed"], return_inverse=True)
        self.y, self.limit = np.full((2, len(seeds), len(self.places)), np.nan)
        self.y[seed, place] = values["value"]
        if "limit" in values:
            self.limit[seed, place] = values["limit"]

    def _numbered(self, axes: list[str]) -> np.ndarray:
        """The places by their labels on these axes, numbered."""
        return self.places.groupby(axes, sort=False).ngroup().to_numpy() if axes else np.zeros(len(self.places), int)

    @cached_property
    def layouts(self) -> list[tuple[tuple[str, ...], np.ndarray]]:
        """For every set of axes, the fewest first and then those with most labels: the place (-1: none) by their labels
        and by those of all other axes."""
        varied, made = [axis for axis in self.axes if self.places[axis].nunique() > 1], []
        for size in range(1, len(varied) + 1):
            for chosen in itertools.combinations(varied, size):
                others = [axis for axis in varied if axis not in chosen]
                rows, columns = self._numbered(list(chosen)), self._numbered(others)
                at = np.full((rows.max() + 1, columns.max() + 1), -1)
                at[rows, columns] = range(len(rows))
                made.append((chosen, at))
        return sorted(made, key=lambda layout: (len(layout[0]), -len(layout[1])))

    def mean(self, labels: dict, among: pd.DataFrame | None = None) -> np.ndarray | None:
        """Weights of the mean over the places with these labels; None if there are none."""
        found = select(self.places if among is None else among, labels).index
        return _weights({i: 1 / len(found) for i in found}, len(self.places)) if len(found) else None


def select(table: pd.DataFrame, labels: dict) -> pd.DataFrame:
    """The rows at these places of the table; a list of labels means any of them."""
    for axis, label in labels.items():
        table = table[table[axis].isin([str(v) for v in (label if isinstance(label, list) else [label])])]
    return table


def _weights(by_place: dict[int, float], size: int) -> np.ndarray:
    weights = np.zeros(size)
    for place, weight in by_place.items():
        weights[place] += weight
    return weights


@dataclass
class Comparison:
    """`numbers`, one for each seed, and where the claim puts their mean."""

    what: str
    numbers: np.ndarray
    used: np.ndarray  # which cells
    weights: np.ndarray | None  # that make the numbers; None if they are no weighted sum
    low: float = 0.0
    high: float = np.inf
    unit: str | None = None  # another than the measure's


def _linear(cells: Cells, what: str, weights: np.ndarray, **region) -> Comparison:
    used = weights != 0
    numbers = cells.y[:, used] @ weights[used]
    numbers[np.abs(numbers) < EQUAL * np.abs(cells.y[:, used] * weights[used]).max(axis=1)] = 0.0  # rounding
    return Comparison(what.strip(), numbers, used, weights, **region)


def _panels(claim: dict, cells: Cells, axis: str):
    """For every combination of the other axes: its name, and place by label on `axis`, in the axis's order."""
    places = select(cells.places, claim.get("where", {}))
    others = [a for a in cells.axes if a != axis and places[a].nunique() > 1]
    for key, group in places.groupby(others, sort=False) if others else [((), places)]:
        at = dict(zip(group[axis], group.index, strict=True))
        yield " ".join(map(str, key)), {label: at[label] for label in cells.axes[axis] if label in at}


def _best(claim, cells, sign, _):
    made, winner = [], str(claim["winner"])
    for place, at in _panels(claim, cells, claim["axis"]):
        baselines = [str(b) for b in claim.get("among", [label for label in at if label != winner])]
        for baseline in baselines if winner in at else []:
            if baseline in at:
                weights = _weights({at[winner]: sign, at[baseline]: -sign}, len(cells.places))
                made.append(_linear(cells, f"{place} {_minus(winner, baseline, sign)}", weights))
    return made


def _near(claim, cells, sign, _):
    """The signed difference stays within the margin: two one-sided tests."""
    margin = claim["margin"]
    return [replace(c, low=-margin, high=margin) for c in _best(claim, cells, 1.0, _)]


def _sum(claim, cells, sign, _):
    made, parts = [], [str(part) for part in claim["parts"]]
    for place, at in _panels(claim, cells, claim["axis"]):
        if {claim["total"], *parts} <= set(at):
            weights = _weights({at[claim["total"]]: 1.0}, len(cells.places))
            for part in parts:
                weights[at[part]] -= 1.0
            what = f"{place} {claim['total']} − {' − '.join(parts)}"
            made.append(_linear(cells, what, weights, low=-claim["margin"], high=claim["margin"]))
    return made


def _each(claim: dict, cells: Cells):
    """Name and places of every combination of labels on the axes named by `each`; all of them without any."""
    places, each = select(cells.places, claim.get("where", {})), claim.get("each", [])
    for key, group in places.groupby(each, sort=False) if each else [((), places)]:
        yield _name(dict(zip(each, key, strict=True))), group


def _compare(claim, cells, sign, _):
    """Every pair at every place on the axes named by `each`; over the other axes cells are averaged.

    `margin`: the worse one may be better by so much, which is how "gains little" is said. A pair's `by`: the better one
    must be better by so much. Its `most`: each label on that axis is compared, and most of them must be better."""
    made = []
    for place, group in _each(claim, cells):
        for pair in claim["pairs"]:
            better, most = pair["better"], pair.get("most")
            sides = [cells.mean({**better, most: one} if most else better, group) for one in better.get(most, [None])]
            worse = cells.mean(pair["worse"], group)
            sides = [sign * (side - worse) for side in sides if side is not None and worse is not None]
            what = f"{place} {pair.get('what') or _minus(_name(better), _name(pair['worse']), sign)}"
            low = pair.get("by", 0.0) - claim.get("margin", 0.0)
            gaps = [_linear(cells, what, weights, low=low) for weights in sides]
            made += [_majority(gaps)] if most and gaps else gaps
    return made


def _majority(gaps: list[Comparison]) -> Comparison:
    """Per seed, what most of the gaps reach at least; a target that was missed counts as the smallest."""
    ordered = np.sort(-np.stack([gap.numbers for gap in gaps]), axis=0)  # NaN comes last
    used = np.any([gap.used for gap in gaps], axis=0)
    return replace(gaps[0], numbers=-ordered[len(gaps) // 2], used=used, weights=None)


def _trend(claim, cells, sign, _):
    made, axis = [], claim["axis"]
    for place, at in _panels(claim, cells, axis):
        if len(at) > 1:
            weights = _weights(dict(zip(at.values(), _slope(at), strict=True)), len(cells.places))
            region = DIRECTIONS[claim["direction"]]
            made.append(_linear(cells, f"{place} slope over {axis}", weights, unit="", **region))
    return made


def _gap_trend(claim, cells, sign, _):
    """The lead of one place over another (with `relative` their quotient), followed along an axis; every label of a
    list in `over` is a comparison of its own."""
    axis, where, made = claim["axis"], claim.get("where", {}), []
    here = dict(_panels({"where": where | claim["of"]}, cells, axis))
    for over in _one_by_one(claim["over"]):
        there = dict(_panels({"where": where | over}, cells, axis))
        for place in [place for place in here if place in there]:
            both = [label for label in here[place] if label in there[place]]
            a, b = ([side[place][label] for label in both] for side in (here, there))
            if len(both) < 2:
                continue
            if claim.get("relative"):
                what = f"{place} slope of {_name(claim['of'])} / {_name(over)} over {axis}".strip()
                used = np.isin(np.arange(len(cells.places)), a + b)
                quotients = cells.y[:, a] / cells.y[:, b]
                numbers = (quotients - quotients[:, :1]) @ _slope(both)  # exactly zero if they are equal
                made.append(Comparison(what, numbers, used, None, unit="", **DIRECTIONS[claim["direction"]]))
            else:
                what = f"{place} slope of the lead of {_name(claim['of'])} over {_name(over)} over {axis}"
                weights = np.zeros(len(cells.places))
                weights[a], weights[b] = sign * _slope(both), -sign * _slope(both)
                made.append(_linear(cells, what, weights, unit="", **DIRECTIONS[claim["direction"]]))
    return made


def _one_by_one(labels: dict) -> list[dict]:
    lists = [label if isinstance(label, list) else [label] for label in labels.values()]
    return [dict(zip(labels, chosen, strict=True)) for chosen in itertools.product(*lists)]


def _slope(labels) -> np.ndarray:
    """Weights of the least-squares slope over the labels' numbers, or over their places in the order."""
    try:
        x = np.array([float(label) for label in labels])
    except ValueError:
        x = np.arange(len(labels), dtype=float)
    x -= x.mean()
    return x / (x @ x)


def _ratio(claim, cells, sign, _):
    """The quotient of two places stays within the tolerance of the claimed one."""
    places = select(cells.places, claim.get("where", {}))
    a, b = cells.mean(claim["of"], places), cells.mean(claim["over"], places)
    if a is None or b is None:
        return []
    numbers = cells.y[:, a > 0].mean(axis=1) / cells.y[:, b > 0].mean(axis=1)
    low, high = claim["ratio"] - claim["tolerance"], claim["ratio"] + claim["tolerance"]
    what = f"{_name(claim['of'])} / {_name(claim['over'])}"
    return [Comparison(what, numbers, a + b > 0, None, low, high, unit="")]


def _saving(claim, cells, sign, _):
    """The winner saves the claimed share of another's cost, 1 − own / other, within the tolerance; a single number is
    claimed of the mean over all others."""
    made, winner, tolerance = [], str(claim["winner"]), claim["tolerance"]
    for place, at in _panels(claim, cells, claim["axis"]):
        others = [label for label in at if label != winner]
        claimed = claim["saving"] if isinstance(claim["saving"], dict) else {"mean of the others": claim["saving"]}
        for name, share in claimed.items() if winner in at else []:
            costs = [at[label] for label in (others if name == "mean of the others" else [name]) if label in at]
            if costs:
                numbers = (1 - cells.y[:, [at[winner]]] / cells.y[:, costs]).mean(axis=1)
                used = np.isin(np.arange(len(cells.places)), [at[winner], *costs])
                what = f"{place} saved by {winner} of {name}".strip()
                made.append(Comparison(what, numbers, used, None, share - tolerance, share + tolerance, unit=""))
    return made


def _above(claim, cells, sign, _):
    """The value itself is above a number (below it, for a cost)."""
    places = select(cells.places, claim.get("where", {}))
    varied = [axis for axis in cells.axes if places[axis].nunique() > 1]
    region = {"low": claim["than"]} if sign > 0 else {"low": -np.inf, "high": claim["than"]}
    return [_linear(cells, " ".join(places.loc[i, varied]) or claim["measure"], _weights({i: 1.0}, len(cells.places)),
                    **region) for i in places.index]  # fmt: skip


def _absolute(claim, cells, sign, reported):
    """The measured value is within the tolerance of the paper's, at every place on the axes named by `each`."""
    made, tolerance = [], claim["tolerance"]
    tolerance = tolerance[claim["measure"]] if isinstance(tolerance, dict) else tolerance
    for place, group in _each(claim, cells):
        for row in reported:
            labels = {k: v for k, v in row.items() if k in cells.axes}
            weights = cells.mean(labels, group)
            if row["measure"] == claim["measure"] and not row["censored"] and weights is not None:
                low, high = row["value"] - tolerance, row["value"] + tolerance
                made.append(_linear(cells, f"{place} {_name(labels)}", weights, low=low, high=high))
    return made


def _minus(better: str, worse: str, sign: float) -> str:
    """The difference that is positive where the claim holds: of costs, the other one's minus the winner's."""
    return f"{better} − {worse}" if sign > 0 else f"{worse} − {better}"


def _name(labels: dict) -> str:
    return " ".join(f"{k}={v}" if str(v).replace(".", "").isdigit() else str(v) for k, v in labels.items())


KINDS = {
    "best": _best,
    "near": _near,
    "compare": _compare,
    "trend": _trend,
    "gap_trend": _gap_trend,
    "ratio": _ratio,
    "saving": _saving,
    "sum": _sum,
    "absolute": _absolute,
    "above": _above,
}
