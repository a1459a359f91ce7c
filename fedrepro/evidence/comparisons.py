"""The cells of a table, and comparisons of them: numbers that every seed gives, and where a claim puts their mean."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from fedrepro.evidence.schema import Place

EQUAL = 1e-12  # of the numbers: they differ by rounding alone


class Cells:
    """The values of one measure: `places` with a label on every axis, `y` and `limit` of shape (seeds, places)."""

    def __init__(self, values: pd.DataFrame, axes: dict[str, list[str]]):
        self.axes, names = axes, list(axes)
        self.places = pd.DataFrame(values[names].drop_duplicates()).reset_index(drop=True)
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
        varied, made = self.varied(self.places), []
        for size in range(1, len(varied) + 1):
            for chosen in itertools.combinations(varied, size):
                others = [axis for axis in varied if axis not in chosen]
                rows, columns = self._numbered(list(chosen)), self._numbered(others)
                at = np.full((rows.max() + 1, columns.max() + 1), -1)
                at[rows, columns] = range(len(rows))
                made.append((chosen, at))
        return sorted(made, key=lambda layout: (len(layout[0]), -len(layout[1])))

    def at(self, where: Place) -> pd.DataFrame:
        return select(self.places, where)

    def varied(self, places: pd.DataFrame) -> list[str]:
        """The axes on which these places differ."""
        return [axis for axis in self.axes if len(set(places[axis])) > 1]

    def mean(self, where: Place, among: pd.DataFrame | None = None) -> np.ndarray | None:
        """Weights of the mean over the places there; None if there are none."""
        there = np.ones(len(self.places), bool)
        for axis, labels in where.items():
            known = self._having[axis]
            there &= np.any([known[label] for label in labels if label in known], axis=0)
        if among is not None:
            there &= np.isin(np.arange(len(there)), among.index)
        found = np.flatnonzero(there)
        return self.weights({int(i): 1 / len(found) for i in found}) if len(found) else None

    @cached_property
    def _having(self) -> dict[str, dict[str, np.ndarray]]:
        """axis -> label -> which places have it"""
        columns = {axis: self.places[axis].to_numpy() for axis in self.axes}
        return {axis: {label: column == label for label in dict.fromkeys(column)} for axis, column in columns.items()}

    def weights(self, by_place: Mapping[int, float]) -> np.ndarray:
        weights = np.zeros(len(self.places))
        for place, weight in by_place.items():
            weights[place] += weight
        return weights

    def total(self, weights: np.ndarray) -> np.ndarray:
        """What these weights add up to, one number per seed; missed targets elsewhere do not matter."""
        return self.y[:, weights != 0] @ weights[weights != 0]

    def panels(self, where: Place, axis: str) -> Iterator[tuple[str, dict[str, int]]]:
        """For every combination of the other axes: its name, and place by label on `axis`, in the axis's order."""
        places = self.at(where)
        for key, group in _groups(places, [other for other in self.varied(places) if other != axis]):
            at = dict(zip(group[axis], group.index, strict=True))
            yield " ".join(key), {label: at[label] for label in self.axes[axis] if label in at}

    def each(self, where: Place, axes: Sequence[str]) -> Iterator[tuple[str, pd.DataFrame]]:
        """Name and places of every combination of labels on these axes; all of them without any axis."""
        places = self.at(where)
        for key, group in _groups(places, list(axes)):
            yield name_of({axis: (label,) for axis, label in zip(axes, key, strict=True)}), group


def select(table: pd.DataFrame, where: Mapping[str, str | Sequence[object]]) -> pd.DataFrame:
    """The rows that have this label, or one of these, on each axis."""
    for axis, labels in where.items():
        table = table.loc[table[axis].isin([labels] if isinstance(labels, str) else list(labels))]
    return table


def _groups(places: pd.DataFrame, axes: list[str]) -> Iterator[tuple[tuple[str, ...], pd.DataFrame]]:
    groups: Any = places.groupby(axes, sort=False) if axes else [((), places)]
    yield from groups


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


def linear(cells: Cells, what: str, weights: np.ndarray, **region) -> Comparison:
    """A weighted sum of cells."""
    used = weights != 0
    numbers = cells.total(weights)
    numbers[np.abs(numbers) < EQUAL * np.abs(cells.y[:, used] * weights[used]).max(axis=1)] = 0.0  # rounding
    return Comparison(what.strip(), numbers, used, weights, **region)


def nonlinear(cells: Cells, what: str, numbers: np.ndarray, places: Iterable[int], **region) -> Comparison:
    """Numbers without a unit that are made of these places, and not as a weighted sum."""
    used = np.isin(np.arange(len(cells.places)), list(places))
    return Comparison(what.strip(), numbers, used, None, unit="", **region)


def slope(labels: Iterable[str]) -> np.ndarray:
    """Weights of the least-squares slope over the labels' numbers, or over their places in the order."""
    labels = list(labels)
    try:
        x = np.array([float(label) for label in labels])
    except ValueError:
        x = np.arange(len(labels), dtype=float)
    x -= x.mean()
    return x / (x @ x)


def around(value: float, margin: float) -> dict[str, float]:
    """The region of a claim: a number, within a margin."""
    return {"low": value - margin, "high": value + margin}


def minus(better: str, worse: str, sign: float) -> str:
    """The difference that is positive where the claim holds: of costs, the other one's minus the winner's."""
    return f"{better} − {worse}" if sign > 0 else f"{worse} − {better}"


def name_of(where: Mapping[str, Sequence[str]]) -> str:
    """FedAvg delta=1"""
    named = {axis: ", ".join(labels) for axis, labels in where.items()}
    return " ".join(f"{axis}={name}" if name.replace(".", "").isdigit() else name for axis, name in named.items())
