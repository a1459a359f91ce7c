"""The kinds of measure, each with the options it takes: from the rounds of one run to one number."""

import re
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pandas as pd

from fedrepro.checks import choose
from fedrepro.errors import BadInput, bad
from fedrepro.evidence.schema import Selection, Tagged, matches
from fedrepro.simulation import metrics
from fedrepro.simulation.run import Run
from fedrepro.simulation.units import UNITS

NAN = float("nan")
ACCURACIES = ("accuracy", "ema_accuracy", "personal_accuracy")
LEARNED = (*ACCURACIES, "loss")  # columns that depend on training
COUNTED = {"flops", "client_flops", "server_flops"}  # columns that need a run's costs, which take seconds to count


class Measure(Tagged):
    """`[[measure]]`"""

    name: str
    column: str  # of a run's rounds
    unit: str = ""  # one of simulation/units.py, which has the factors
    better: Literal["higher", "lower"] = "higher"
    seedless: bool | Selection = False  # the same with every seed: everywhere, or for these cells

    def __post_init__(self):
        choose("unit", self.unit, UNITS)

    def value(self, rounds: pd.DataFrame, labels: dict[str, str]) -> float:
        """The number of a run with these labels; NaN if a target was missed or the budget is below one round."""
        raise NotImplementedError

    def limit(self, rounds: pd.DataFrame, labels: dict[str, str]) -> float:
        """The least that the number can be, if the measure has a target: what had been spent after the first round that
        was not tested before the target was reached, or when the run stopped without reaching it."""
        return NAN

    @property
    def learned(self) -> bool:
        """Whether it depends on how well, or how fast, training goes."""
        return self.column in LEARNED

    @property
    def times(self) -> float:
        return UNITS[self.unit]

    @property
    def sign(self) -> float:
        return -1.0 if self.better == "lower" else 1.0


class Final(Measure, kind="final"):
    def value(self, rounds: pd.DataFrame, labels: dict[str, str]) -> float:
        return _last(_column(rounds, self.column)) * self.times


class Total(Final, kind="total"):
    """For cumulative columns such as bytes."""


class Best(Measure, kind="best"):
    def value(self, rounds: pd.DataFrame, labels: dict[str, str]) -> float:
        return float(np.nanmax(_column(rounds, self.column))) * self.times


class Mean(Measure, kind="mean"):
    window: int | None = None  # number of last rounds; default: all
    first: int | None = None  # number of first rounds; default: all

    def value(self, rounds: pd.DataFrame, labels: dict[str, str]) -> float:
        early = rounds if self.first is None else rounds.loc[rounds["round"] <= self.first]
        return float(_tail(early, self.column, self.window).mean()) * self.times


class Stability(Measure, kind="stability"):
    window: int

    def value(self, rounds: pd.DataFrame, labels: dict[str, str]) -> float:
        return metrics.stability(_tail(rounds, self.column, self.window)) * self.times


class AtRound(Measure, kind="at_round"):
    round: int

    def value(self, rounds: pd.DataFrame, labels: dict[str, str]) -> float:
        return _last(_column(rounds, self.column)[_column(rounds, "round") <= self.round]) * self.times


class Gain(AtRound, kind="gain"):
    """From that round to the last."""

    def value(self, rounds: pd.DataFrame, labels: dict[str, str]) -> float:
        return _last(_column(rounds, self.column)) * self.times - super().value(rounds, labels)


class Drop(Gain, kind="drop"):
    """From that round to the last, downwards."""

    def value(self, rounds: pd.DataFrame, labels: dict[str, str]) -> float:
        return -super().value(rounds, labels)


@dataclass(frozen=True)
class Target:
    """The accuracy to reach at some cells."""

    where: Selection
    target: float


class ToTarget(Measure, kind="to_target"):
    target: float = NAN
    targets: list[Target] = field(default_factory=list)  # the first that applies overrides `target`
    of: str = "accuracy"

    def __post_init__(self):
        super().__post_init__()
        if self.target != self.target and not self.targets:
            raise BadInput("target: is missing")

    def target_at(self, labels: dict[str, str]) -> float:
        return next((case.target for case in self.targets if matches(case.where, labels)), self.target)

    def _reached(self, rounds: pd.DataFrame, labels: dict[str, str]) -> np.ndarray:
        """The numbers of the rows whose tests reach the target."""
        return np.flatnonzero(_column(rounds, self.of) >= self.target_at(labels))

    def value(self, rounds: pd.DataFrame, labels: dict[str, str]) -> float:
        reached = self._reached(rounds, labels)
        return float(_column(rounds, self.column)[reached[0]]) * self.times if len(reached) else NAN

    def limit(self, rounds: pd.DataFrame, labels: dict[str, str]) -> float:
        reached, spent = self._reached(rounds, labels), _column(rounds, self.column)
        if not len(reached):
            return _last(spent) * self.times
        tests = np.flatnonzero(~np.isnan(_column(rounds, self.of)))
        return float(spent[max(tests[tests < reached[0]], default=-1) + 1]) * self.times

    @property
    def learned(self) -> bool:
        return True


class WithinBudget(Measure, kind="within_budget"):
    spend: str  # the column that is limited
    budget: str  # with its unit: "50 GiB"

    def __post_init__(self):
        super().__post_init__()
        if not re.fullmatch(r"[0-9.]+ \w+", self.budget) or self.budget.split()[1] not in UNITS:
            raise bad("budget", self.budget, f"a number and a unit of {', '.join(filter(None, UNITS))}")

    def value(self, rounds: pd.DataFrame, labels: dict[str, str]) -> float:
        amount, unit = self.budget.split()
        inside = _column(rounds, self.column)[_column(rounds, self.spend) * UNITS[unit] <= float(amount)]
        return float(np.max(_known(inside))) if len(_known(inside)) else NAN


def _column(rounds: pd.DataFrame, name: str) -> np.ndarray:
    return np.asarray(rounds[name], float)


def _known(values: np.ndarray) -> np.ndarray:
    """The values of tested rounds."""
    return values[~np.isnan(values)]


def _last(values: np.ndarray) -> float:
    return float(_known(values)[-1])


def _tail(rounds: pd.DataFrame, column: str, window: int | None) -> np.ndarray:
    count = _column(rounds, "round")
    return _known(_column(rounds, column)[count > count.max() - (len(count) if window is None else window)])


def with_sums(table: pd.DataFrame, run: Run, costs: dict[str, int] | None) -> pd.DataFrame:
    """A run's rounds with the derived columns that measures need: cumulative traffic, smoothed accuracy, costs."""
    table = table.assign(bytes=(table["bytes_down"] + table["bytes_up"]).cumsum())
    table["paper_bytes"] = table["paper_bytes"].cumsum() if "paper_bytes" in table else table["bytes"]
    table["ema_accuracy"] = metrics.ema(table["accuracy"])
    if costs:
        table["flops"] = costs["visit_flops"] * run.per_round * table["round"]
        table["client_flops"] = costs["client_flops"] * run.per_round
        table["server_flops"] = costs["server_flops"]
    if "time_up" in table:
        table["link_time"] = table["time_up"] + table["time_down"]
    if "link_time" in table and "client_cpu_time" in table:
        table["round_time"] = table["link_time"] + table["client_cpu_time"] + table["server_cpu_time"]
    return table
