"""The regime gate: nothing about accuracy is judged before a table's reference method is trained.

Trained means (a) its accuracy is at least a stated share of what the same network reaches by central training on the
pooled data with the same recipe, and (b) its curve is flat: over the last third of the rounds it rose by no more than a
stated part of its accuracy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedrepro.checks import number
from fedrepro.evidence.schema import AxisName, Label
from fedrepro.simulation.run import Run

RECIPE = ("data", "model", "batch", "lr", "momentum", "weight_decay", "clip", "augment", "share", "seed")


@dataclass(frozen=True)
class Rule:
    """`[gate]` of a table: its reference cell in every panel, and when that counts as trained."""

    reference: dict[AxisName, Label]
    run: dict[str, Any] = field(default_factory=dict)  # fields of Run that make this cell the reference
    share: float = 0.7  # of the central accuracy
    rise: float = 0.05  # over the last third, as a part of the final accuracy
    epochs: int = 30  # of central training

    def __post_init__(self):
        for key, kind, low, high in (("share", float, 0, 1), ("rise", float, 0, 1), ("epochs", int, 1, 10**6)):
            number(key, getattr(self, key), kind, low, high)

    def is_reference(self, labels: dict[str, str]) -> bool:
        return self.reference.items() <= labels.items()

    @property
    def name(self) -> str:
        return self.run.get("method") or " ".join(self.reference.values())


@dataclass(frozen=True)
class Gate:
    """One panel of a table: how well its reference is trained."""

    panel: dict[str, str]
    rule: Rule
    accuracy: float  # the reference's, over the last sixth of its rounds
    rise: float  # since the end of the second third, as a part of `accuracy`
    central: float
    run: str  # id of the central run

    @property
    def passed(self) -> bool:
        return self.accuracy >= self.rule.share * self.central and self.rise <= self.rule.rise

    @property
    def words(self) -> str:
        """`trained (0.47 of 0.61, flat)`, or what is missing."""
        state = "trained" if self.passed else "not trained yet"
        slope = "still rising" if self.rise > self.rule.rise else "flat"
        return f"{state} ({self.accuracy:.2f} of {self.central:.2f}, {slope})"


def central(run: Run, epochs: int) -> Run:
    """The same network and recipe on all clients' data in one place; a round is an epoch."""
    recipe = {name: getattr(run, name) for name in RECIPE}
    pool = run.samples and run.samples * run.clients
    return Run(**recipe, clients=1, per_round=1, samples=pool, rounds=epochs, epochs=1)


def judge(panel: dict[str, str], rule: Rule, reference: Sequence[list[dict]], pooled: list[dict], run: str) -> Gate:
    """From the rows of the reference's runs, one list per seed, and of the central run."""
    end, before = (np.mean([_window(rows, *third) for rows in reference]) for third in ((5 / 6, 1), (1 / 2, 2 / 3)))
    reached = max(row["accuracy"] for row in pooled if row["accuracy"] == row["accuracy"])
    return Gate(panel, rule, float(end), float((end - before) / end), reached, run)


def _window(rows: list[dict], start: float, end: float) -> float:
    """Mean accuracy over the tests between two fractions of the run; if there is none, the last test before."""
    tests = [(row["round"] / len(rows), row["accuracy"]) for row in rows if row["accuracy"] == row["accuracy"]]
    inside = [accuracy for at, accuracy in tests if start < at <= end]
    return float(np.mean(inside or [accuracy for at, accuracy in tests if at <= end][-1:] or [tests[0][1]]))
