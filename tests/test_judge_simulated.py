"""How often verdicts are wrong and how often they find a true effect, in studies made from random numbers.

A study has panels of five methods whose first one is claimed to be the best; residuals have standard deviation 1, and
seeds shift whole panels. The numbers go through the judge's own arithmetic, 2,000 studies at once.
"""

import numpy as np
import pandas as pd
import pytest
from test_verdict import BEST, claim_of, measure_of

from fedrepro.evidence.judge import Measured, judge
from fedrepro.evidence.statistics import decide, pooled

DRAWS = 2000
METHODS = ["A", "B", "C", "D", "E"]


def simulate(panels, seeds, effect=0.0, spreads=(1, 1, 1, 1, 1), draws=DRAWS):
    """(draws, panels, methods, seeds); every panel has a scale and seed effects of its own."""
    rng = np.random.default_rng(panels * 100 + seeds)
    y = rng.standard_normal((draws, panels, len(spreads), seeds)) * np.array(spreads)[:, None]
    y[:, :, 0] += effect
    y += 2 * rng.standard_normal((draws, panels, 1, seeds))
    return y * np.exp(np.linspace(-1, 1, panels))[:, None, None] if panels > 1 else y


def states(y, low=0.0, high=np.inf, baselines=None):
    """(draws, comparisons): the first method against the others, in each panel."""
    parts = []
    for baseline in range(1, (baselines or y.shape[-2] - 1) + 1):
        contrast = np.zeros(y.shape[-2])
        contrast[[0, baseline]] = np.sqrt([0.5, 0.5]) * [1, -1]
        mean, error, df = pooled(y, contrast)
        parts.append((mean * np.sqrt(2), error * np.sqrt(2), df))
    mean, error, df = (np.concatenate(numbers, -1) for numbers in zip(*parts, strict=True))
    return decide(mean, mean, error, df, low, high)[2]


def holds(found):
    return (found == "holds").all(-1).mean()


def opposite(found):
    return (found == "opposite").any(-1).mean()


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_without_any_effect(seeds):
    assert opposite(states(simulate(8, seeds))) <= 0.05  # 32 comparisons
    assert opposite(states(simulate(1, seeds))) <= 0.05  # 4
    assert holds(states(simulate(1, seeds), baselines=1)) <= 0.05  # one, in a panel of five methods
    assert holds(states(simulate(1, seeds, spreads=(1, 1)))) <= 0.05  # one, in a panel of its own


MIXTURES = [
    (1,) * 5,
    (1,) * 9,
    (3, 1, 1, 1, 1),
    (1, 3, 1, 1, 1),
    (3, 3, 1, 1, 1),
    (1, 1, 1, 1, 10),
    (1, 1, 1, 1, 1, 1, 1, 3, 8),
    (0.2, 0.2, 1, 1, 8),
    (0.3, 0.3, 1, 1, 1, 1, 1, 1, 8),
    (1, 1, 2, 2, 4, 4, 8),
    (3, 1, 1, 1, 1, 1, 1, 1, 8),
]


@pytest.mark.parametrize("spreads", MIXTURES, ids=str)
def test_unequal_spreads(spreads):
    """The first two methods are compared. Their own variance would be wrong in 5% of all studies, with half the power
    at three seeds; in a single panel a spread three times that of the others is noticed too rarely to reach that."""
    effect = 3 * np.sqrt((spreads[0] ** 2 + spreads[1] ** 2) / 2)
    for panels, seeds, wrong in [(1, 2, 0.175), (1, 3, 0.145), (2, 3, 0.12), (8, 3, 0.08), (1, 5, 0.11), (8, 5, 0.06)]:
        null = states(simulate(panels, seeds, spreads=spreads), baselines=1)[:, 0]
        assert (null != "open").mean() <= wrong
        y = simulate(panels, seeds, effect, spreads)
        alone = states(y[:, :, :2], baselines=1)[:, 0] == "holds"  # two methods: their own variance
        assert (states(y, baselines=1)[:, 0] == "holds").mean() > alone.mean() - 0.28


def test_a_wild_method_does_not_drown_the_others():
    """One method spreads eight times as much as eight others, which are compared with each other."""
    calm, wild = (simulate(1, 3, 3.0, spreads) for spreads in ((1,) * 8, (1,) * 8 + (8,)))
    power = [(states(y, baselines=1) == "holds").mean() for y in (calm, wild)]
    assert power[0] > 0.7
    assert power[1] > power[0] - 0.05


def test_power(capsys):
    lines = ["true effect (SD)      1     2     3"]
    for seeds in (3, 5):
        for name, sign, of, baselines in (
            ("holds, 1 comparison", 1, holds, 1),
            ("holds, best of five", 1, holds, 4),
            ("opposite, best of five", -1, opposite, 4),
        ):
            power = [of(states(simulate(1, seeds, sign * effect), baselines=baselines)) for effect in (1, 2, 3)]
            lines.append(f"{seeds} seeds, {name:24}" + "".join(f"{p:6.2f}" for p in power))
            assert power[0] < power[1] < power[2]
            assert power[2] > {3: 0.45, 5: 0.85}[seeds]
    with capsys.disabled():
        print("\n" + "\n".join(lines))


def test_pooling_pays():
    """Two methods alone have 2 degrees of freedom with three seeds; among five they have 8."""
    alone, among = (holds(states(simulate(1, 3, 3.0, spreads), baselines=1)) for spreads in ((1, 1), (1,) * 5))
    assert among > alone + 0.2


@pytest.mark.parametrize("seeds", [3, 5])
def test_near(seeds, capsys):
    """On the border of the margin it is neither near nor far; inside, noise alone never speaks against the claim."""
    for margin in (1, 3):
        border = states(simulate(1, seeds, effect=margin), -margin, margin, baselines=1)
        assert holds(border) <= 0.05
        assert opposite(border) <= 0.05
        assert opposite(states(simulate(8, seeds), -margin, margin)) <= 0.05
    power = [holds(states(simulate(1, seeds), -m, m, baselines=1)) for m in (1, 2, 3, 4)]
    far = [opposite(states(simulate(1, seeds, effect=m + 1), -1, 1, baselines=1)) for m in (1, 2, 3)]
    assert power == sorted(power)
    assert far[-1] > 0.5
    with capsys.disabled():
        print(f"\n{seeds} seeds, equal, margin 1, 2, 3, 4 SD: near", *(f"{p:.2f}" for p in power))
        print(f"{seeds} seeds, margin 1 SD, true difference 2, 3, 4 SD: far", *(f"{p:.2f}" for p in far))


def test_the_judge_is_that_arithmetic():
    """The same numbers as a table of values: the same states, in the same order."""
    y = simulate(3, 3, effect=1.5, spreads=(1, 1, 1, 1, 6), draws=20)
    axes = {"level": ["1", "2", "3"], "method": METHODS}
    claim, measures = claim_of(BEST), {"m": measure_of()}
    expected = states(y).reshape(20, 4, 3)
    for draw in range(20):
        rows = [
            {"level": level, "method": method, "seed": seed, "value": value}
            for level, panel in zip(axes["level"], y[draw], strict=True)
            for method, numbers in zip(METHODS, panel, strict=True)
            for seed, value in enumerate(numbers)
        ]
        effects = judge(claim, Measured(pd.DataFrame(rows).assign(measure="m"), "cpu", axes, measures)).effects
        assert [effect.state for effect in effects] == expected[draw].T.ravel().tolist()


@pytest.mark.parametrize("limit", [900, 1000, 1100])
def test_missed_targets_without_any_effect(limit):
    """Rounds to a target around 1000, for both methods alike, cut off where the run ends."""
    rng = np.random.default_rng(limit)
    claim, found = claim_of(BEST), []
    measures = {"m": measure_of(column="round", kind="to_target", target=0.5, better="lower")}
    for _ in range(300):
        rounds = rng.normal(1000, 100, (2, 3))
        kept = np.where(rounds <= limit, rounds, np.nan)
        rows = [{"method": "AB"[i], "seed": s, "value": kept[i, s]} for i, s in np.ndindex(2, 3)]
        table = pd.DataFrame(rows).assign(measure="m", limit=lambda t: t["value"].fillna(limit))
        found.append(judge(claim, Measured(table, "cpu", {"method": ["A", "B"]}, measures)).state)
    assert found.count("holds") <= 0.05 * len(found)
    assert found.count("opposite") <= 0.05 * len(found)


@pytest.mark.parametrize("apart", [1, 5, 20])
def test_targets_between_tests_without_any_effect(apart):
    """The same, tested every so many rounds: reached for certain only at a test, and after the test before it."""
    rng = np.random.default_rng(apart)
    claim, found = claim_of(BEST), []
    measures = {"m": measure_of(column="round", kind="to_target", target=0.5, better="lower")}
    for _ in range(300):
        reached = np.ceil(np.ceil(rng.normal(100, 3, (2, 3))) / apart) * apart
        rows = [{"method": "AB"[i], "seed": s, "value": reached[i, s]} for i, s in np.ndindex(2, 3)]
        table = pd.DataFrame(rows).assign(measure="m", limit=lambda t: t["value"] - apart + 1)
        found.append(judge(claim, Measured(table, "cpu", {"method": ["A", "B"]}, measures)).state)
    assert found.count("holds") <= 0.05 * len(found)
    assert found.count("opposite") <= 0.05 * len(found)
