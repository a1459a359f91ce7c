"""The cells of a table and comparisons of them: one number per seed, and where a claim puts their mean."""

import copy
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from fedrepro.evidence.schema import Selection
from fedrepro.simulation.metrics import EQUAL


class Cells:
    """The values of one measure: the `labels` of each cell; `y`, `limit` and whether there is a run, `there`, of shape
    (seeds, cells)."""

    def __init__(self, values: pd.DataFrame, axes: dict[str, list[str]]):
        self.axes, names = axes, list(axes)
        self.labels = pd.DataFrame(values[names].drop_duplicates()).reset_index(drop=True)
        cell = values.groupby(names, sort=False).ngroup()
        seeds, seed = np.unique(values["seed"], return_inverse=True)
        self.y, self.limit = np.full((2, len(seeds), len(self.labels)), np.nan)
        self.y[seed, cell] = values["value"]
        self.there = np.zeros(self.y.shape, bool)
        self.there[seed, cell] = True
        if "limit" in values:
            self.limit[seed, cell] = values["limit"]

    def named(self, used: np.ndarray) -> frozenset[tuple[str, ...]]:
        """The labels of these cells."""
        return frozenset(map(tuple, self.labels.to_numpy()[used]))

    def labels_on(self, axis: str, used: np.ndarray) -> list[str]:
        """The labels that these cells have on an axis; none if there is no such axis."""
        return list(dict.fromkeys(self.labels.loc[used, axis])) if axis in self.axes else []

    def paired(self, used: np.ndarray) -> np.ndarray:
        """The seeds with which all these cells were run."""
        return np.flatnonzero(self.there[:, used].all(axis=1))

    def with_seeds(self, seeds: Sequence[int]) -> "Cells":
        """The same cells with only these seeds, given by position."""
        part, at = copy.copy(self), list(seeds)
        part.y, part.limit, part.there = self.y[at], self.limit[at], self.there[at]
        return part

    def _numbered(self, axes: list[str]) -> np.ndarray:
        """For each cell, the number of its combination of labels on these axes."""
        return self.labels.groupby(axes, sort=False).ngroup().to_numpy() if axes else np.zeros(len(self.labels), int)

    @cached_property
    def layouts(self) -> list[tuple[tuple[str, ...], np.ndarray]]:
        """For every set of axes, smallest sets first, then those with most labels: the cells (-1: none) by labels on
        these axes (rows) and on all others (columns)."""
        varied, made = self.varied(self.labels), []
        for size in range(1, len(varied) + 1):
            for chosen in itertools.combinations(varied, size):
                others = [axis for axis in varied if axis not in chosen]
                rows, columns = self._numbered(list(chosen)), self._numbered(others)
                at = np.full((rows.max() + 1, columns.max() + 1), -1)
                at[rows, columns] = range(len(rows))
                made.append((chosen, at))
        return sorted(made, key=lambda layout: (len(layout[0]), -len(layout[1])))

    def at(self, where: Selection) -> pd.DataFrame:
        return select(self.labels, where)

    def varied(self, cells: pd.DataFrame) -> list[str]:
        """The axes on which these cells differ."""
        return [axis for axis in self.axes if len(set(cells[axis])) > 1]

    def mean(self, where: Selection, among: pd.DataFrame | None = None) -> np.ndarray | None:
        """Weights of the mean over the selected cells; None if there are none."""
        there = np.ones(len(self.labels), bool)
        for axis, labels in where.items():
            known = self._having[axis]
            there &= np.any([known[label] for label in labels if label in known], axis=0)
        if among is not None:
            there &= np.isin(np.arange(len(there)), among.index)
        found = np.flatnonzero(there)
        return self.weights({int(i): 1 / len(found) for i in found}) if len(found) else None

    @cached_property
    def _having(self) -> dict[str, dict[str, np.ndarray]]:
        """axis -> label -> which cells have it"""
        columns = {axis: self.labels[axis].to_numpy() for axis in self.axes}
        return {axis: {label: column == label for label in dict.fromkeys(column)} for axis, column in columns.items()}

    def weights(self, by_cell: Mapping[int, float]) -> np.ndarray:
        weights = np.zeros(len(self.labels))
        weights[list(by_cell)] = list(by_cell.values())
        return weights

    def total(self, weights: np.ndarray) -> np.ndarray:
        """The weighted sum of cells, one number per seed; missed targets in other cells do not matter."""
        return self.y[:, weights != 0] @ weights[weights != 0]

    def panels(self, where: Selection, axis: str) -> Iterator[tuple[str, dict[str, int]]]:
        """For every combination of the other axes: its name, and the cells by label on `axis`, in the axis's order."""
        cells = self.at(where)
        for key, group in _groups(cells, [other for other in self.varied(cells) if other != axis]):
            at = dict(zip(group[axis], group.index, strict=True))
            yield " ".join(key), {label: at[label] for label in self.axes[axis] if label in at}

    def each(self, where: Selection, axes: Sequence[str]) -> Iterator[tuple[str, pd.DataFrame]]:
        """The name and cells of every combination of labels on these axes; without axes, all cells."""
        for key, group in _groups(self.at(where), list(axes)):
            yield name_of({axis: (label,) for axis, label in zip(axes, key, strict=True)}), group


def select(table: pd.DataFrame, where: Mapping[str, str | Sequence[object]]) -> pd.DataFrame:
    """The rows that have this label, or one of these, on each axis."""
    for axis, labels in where.items():
        table = table.loc[table[axis].isin([labels] if isinstance(labels, str) else list(labels))]
    return table


def _groups(cells: pd.DataFrame, axes: list[str]) -> Iterator[tuple[tuple[str, ...], pd.DataFrame]]:
    groups: Any = cells.groupby(axes, sort=False) if axes else [((), cells)]
    yield from groups


@dataclass
class Comparison:
    """`numbers`, one for each seed, and where the claim puts their mean."""

    what: str
    numbers: np.ndarray
    used: np.ndarray  # which cells
    weights: np.ndarray | None  # of the cells; None if the numbers are not a weighted sum
    low: float = 0.0
    high: float = np.inf
    unit: str | None = None  # if it differs from the measure's


def linear(cells: Cells, what: str, weights: np.ndarray, **region) -> Comparison:
    """A weighted sum of cells."""
    used = weights != 0
    numbers = cells.total(weights)
    numbers[np.abs(numbers) < EQUAL * np.abs(cells.y[:, used] * weights[used]).max(axis=1)] = 0.0  # rounding
    return Comparison(what.strip(), numbers, used, weights, **region)


def nonlinear(cells: Cells, what: str, numbers: np.ndarray, used: Iterable[int], **region) -> Comparison:
    """Numbers without a unit that are computed from these cells, but not as a weighted sum."""
    mask = np.isin(np.arange(len(cells.labels)), list(used))
    return Comparison(what.strip(), numbers, mask, None, unit="", **region)


def slope(labels: Iterable[str]) -> np.ndarray:
    """Weights of the least-squares slope over the labels as numbers, or over their positions."""
    labels = list(labels)
    try:
        x = np.array([float(label) for label in labels])
    except ValueError:
        x = np.arange(len(labels), dtype=float)
    x -= x.mean()
    return x / (x @ x)


def around(value: float, margin: float) -> dict[str, float]:
    """The region of a claim: a number plus or minus a margin."""
    return {"low": value - margin, "high": value + margin}


def minus(better: str, worse: str, sign: float) -> str:
    """The name of the difference that is positive if the claim holds: for costs, worse minus better."""
    return f"{better} − {worse}" if sign > 0 else f"{worse} − {better}"


def name_of(where: Mapping[str, Sequence[str]]) -> str:
    """FedAvg delta=1"""
    named = {axis: ", ".join(labels) for axis, labels in where.items()}
    return " ".join(f"{axis}={name}" if name.replace(".", "").isdigit() else name for axis, name in named.items())
