"""The kinds of measure, each with the options it takes: from the rounds of one run to one number."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pandas as pd

from fedrepro.errors import BadInput
from fedrepro.evidence.schema import Place, Tagged, matches
from fedrepro.simulation import metrics

NAN = float("nan")
LEARNED = ("accuracy", "ema_accuracy", "personal_accuracy", "loss")  # columns that say how well something is trained


@dataclass(frozen=True, kw_only=True)
class Measure(Tagged):
    """`[[measure]]`"""

    name: str
    column: str  # of a run's rounds
    unit: str = ""
    times: float = 1.0
    better: Literal["higher", "lower"] = "higher"
    seedless: bool | Place = False  # the same with every seed: everywhere, or at these labels

    def value(self, rounds: pd.DataFrame, labels: dict[str, str]) -> float:
        """The number of a run at these labels; NaN where a target was missed or a budget is below one round."""
        raise NotImplementedError

    def limit(self, rounds: pd.DataFrame) -> float:
        """What a run had spent on the way to a target when it stopped."""
        return NAN

    @property
    def learned(self) -> bool:
        """Whether it says how well, or how soon, something is trained."""
        return self.column in LEARNED

    @property
    def sign(self) -> float:
        return -1.0 if self.better == "lower" else 1.0


class Final(Measure, kind="final"):
    def value(self, rounds: pd.DataFrame, labels: dict[str, str]) -> float:
        return _last(_column(rounds, self.column)) * self.times


class Total(Final, kind="total"):
    """Of a column that adds up, such as bytes."""


class Best(Measure, kind="best"):
    def value(self, rounds: pd.DataFrame, labels: dict[str, str]) -> float:
        return float(np.nanmax(_column(rounds, self.column))) * self.times


@dataclass(frozen=True, kw_only=True)
class Mean(Measure, kind="mean"):
    window: int | None = None  # of the last rounds; of all without it

    def value(self, rounds: pd.DataFrame, labels: dict[str, str]) -> float:
        return float(_tail(rounds, self.column, self.window).mean()) * self.times


@dataclass(frozen=True, kw_only=True)
class Stability(Measure, kind="stability"):
    window: int

    def value(self, rounds: pd.DataFrame, labels: dict[str, str]) -> float:
        return metrics.stability(_tail(rounds, self.column, self.window)) * self.times


@dataclass(frozen=True, kw_only=True)
class AtRound(Measure, kind="at_round"):
    round: int

    def value(self, rounds: pd.DataFrame, labels: dict[str, str]) -> float:
        return _last(_column(rounds, self.column)[_column(rounds, "round") <= self.round]) * self.times


@dataclass(frozen=True, kw_only=True)
class Gain(AtRound, kind="gain"):
    """From that round to the last."""

    def value(self, rounds: pd.DataFrame, labels: dict[str, str]) -> float:
        return _last(_column(rounds, self.column)) * self.times - super().value(rounds, labels)


@dataclass(frozen=True)
class Target:
    """The accuracy to reach at some cells."""

    where: Place
    target: float


@dataclass(frozen=True, kw_only=True)
class ToTarget(Measure, kind="to_target"):
    target: float = NAN
    targets: list[Target] = field(default_factory=list)  # the first that applies goes before `target`
    of: str = "accuracy"

    def __post_init__(self):
        if self.target != self.target and not self.targets:
            raise BadInput("target: is missing")

    def target_at(self, labels: dict[str, str]) -> float:
        return next((case.target for case in self.targets if matches(case.where, labels)), self.target)

    def value(self, rounds: pd.DataFrame, labels: dict[str, str]) -> float:
        reached = _column(rounds, self.of) >= self.target_at(labels)
        return float(_column(rounds, self.column)[reached][0]) * self.times if reached.any() else NAN

    def limit(self, rounds: pd.DataFrame) -> float:
        return _last(_column(rounds, self.column)) * self.times

    @property
    def learned(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class WithinBudget(Measure, kind="within_budget"):
    spend: str
    budget: float

    def value(self, rounds: pd.DataFrame, labels: dict[str, str]) -> float:
        inside = _column(rounds, self.column)[_column(rounds, self.spend) * self.times <= self.budget]
        return float(np.max(_known(inside))) if len(_known(inside)) else NAN


def _column(rounds: pd.DataFrame, name: str) -> np.ndarray:
    return np.asarray(rounds[name], float)


def _known(values: np.ndarray) -> np.ndarray:
    """Without the rounds that were not tested."""
    return values[~np.isnan(values)]


def _last(values: np.ndarray) -> float:
    return float(_known(values)[-1])


def _tail(rounds: pd.DataFrame, column: str, window: int | None) -> np.ndarray:
    count = _column(rounds, "round")
    return _known(_column(rounds, column)[count > count.max() - (len(count) if window is None else window)])
