"""The papers' measures of a run, from its accuracies (fractions, one per round)."""

from itertools import pairwise

import numpy as np

from fedrepro.errors import bad

EQUAL = 1e-12  # relative: smaller differences are rounding


def ema(values, momentum: float = 0.9) -> np.ndarray:
    """a_t = momentum a_{t-1} + (1 - momentum) value_t, started with the first value (FedMLB, erratum ML-18).

    One value per round, NaN where the model was not tested: after n rounds the momentum is momentum^n, as if the rounds
    since the last test had all had the new value, so that the average has the same memory, in rounds, however often one
    tests. It is NaN where the value is."""
    smooth = np.array(values, dtype=float)
    tested = np.flatnonzero(~np.isnan(smooth))
    for before, now in pairwise(tested):
        smooth[now] = smooth[before] + (1 - momentum ** (now - before)) * (smooth[now] - smooth[before])
    return smooth


def rounds_to_target(values, target: float) -> int | None:
    """The first round, counted from 1, that reaches the target; None if none does."""
    reached = np.flatnonzero(np.asarray(values, dtype=float) >= target)
    return int(reached[0]) + 1 if len(reached) else None


def format_rounds(value: int | None, limit: int) -> str:
    """The papers' notation: "1000+" for a target not reached in 1000 rounds."""
    return f"{limit}+" if value is None else str(value)


def stability(values, last: int = 50) -> float:
    """AMA: population variance of the last accuracies, in percent^2 (erratum AM-11); lower is more stable."""
    tail = _some(values)[-last:]
    return float(np.var(100 * tail))


def mean_interval(values, level: float = 0.95) -> tuple[float, float | None]:
    """Mean over seeds and the half-width of its Student t interval; None with one seed."""
    values = _some(values)
    if len(values) == 1:
        return float(values[0]), None
    from scipy.stats import t

    equal = np.ptp(values) <= EQUAL * np.abs(values).max()
    error = 0.0 if equal else values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean()), float(t.ppf((1 + level) / 2, len(values) - 1) * error)


def _some(values) -> np.ndarray:
    values = np.asarray(values, dtype=float)
    if not len(values):
        raise bad("values", [], "at least one value")
    return values
