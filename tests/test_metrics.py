from types import SimpleNamespace

import numpy as np
import pytest

from fedrepro.errors import BadInput
from fedrepro.evidence import figures
from fedrepro.simulation import metrics
from fedrepro.simulation.result import Result
from fedrepro.simulation.tree import Tree


def test_ema_by_hand():
    assert metrics.ema([0.0, 1.0, 0.0], 0.9) == pytest.approx([0, 0.1, 0.09])
    assert metrics.ema([0.3, 0.8], 0.0) == pytest.approx([0.3, 0.8])
    assert len(metrics.ema([])) == 0


def test_i71_ema_of_a_constant_is_the_constant():
    assert (metrics.ema([0.1] * 100) == 0.1).all()


def test_ema_has_the_same_memory_however_often_one_tests():
    """Not tested in rounds 2 and 4: 0.81 of 0, then of 0.19; the rounds before a test count as that test."""
    gap = np.nan
    assert metrics.ema([0, gap, 1, gap, 0], 0.9) == pytest.approx([0, gap, 0.19, gap, 0.1539], nan_ok=True)
    assert metrics.ema([gap, 0.4, gap], 0.9) == pytest.approx([gap, 0.4, gap], nan_ok=True)
    values = np.random.default_rng(1).random(200)
    sparse = np.where(np.random.default_rng(2).random(200) < 0.3, values, gap)
    sparse[-1] = values[-1]
    tested = ~np.isnan(sparse)
    filled = sparse[[next(t for t in range(i, 200) if tested[t]) for i in range(200)]]
    assert metrics.ema(sparse)[tested] == pytest.approx(metrics.ema(filled)[tested], abs=1e-12)


def test_one_moving_average():
    """The engine's and the report's are the same numbers, also when only every second round is tested."""
    from fedrepro import train
    from fedrepro.evidence.study import Plan, Study

    run = Plan("fedmlb/table7_loss_weights", "smoke").runs()[0]
    result = train(run, workers=1)
    accuracy = [row["accuracy"] for row in result.rows]
    result.rows[0]["accuracy"] = result.rows[2]["accuracy"] = np.nan
    source = SimpleNamespace(has=lambda other: other.id == run.id, rows=lambda run: result.rows)
    study = Study("fedmlb/table7_loss_weights", "smoke", source=source)
    expected = [np.nan, accuracy[1], np.nan, 0.81 * accuracy[1] + 0.19 * accuracy[3]]
    for table in (result.rounds, study.rounds):
        assert table["ema_accuracy"].tolist() == pytest.approx(expected, nan_ok=True)


def test_ema_leaves_its_input_alone():
    values = np.array([0.0, 1.0])
    metrics.ema(values)
    assert values.tolist() == [0, 1]


def test_i73_best_is_never_below_the_last(small):
    rows = [{"accuracy": value} for value in (0.2, 0.5, np.nan, 0.4, 0.6, 0.1)]
    best = Result(small(), rows, Tree(), Tree(), {}).rounds["best_accuracy"]
    assert best.tolist() == pytest.approx([0.2, 0.5, np.nan, 0.5, 0.6, 0.6], abs=0, nan_ok=True)


def test_rounds_to_target_counts_from_one():
    values = [0.2, 0.5, 0.4, 0.6]
    assert [metrics.rounds_to_target(values, t) for t in (0.1, 0.5, 0.55, 0.7)] == [1, 2, 4, None]


def test_i70_rounds_to_target_agrees_with_the_curve():
    curve = metrics.ema(np.random.default_rng(0).random(1000) * np.linspace(0, 1, 1000))
    targets = np.linspace(0, 0.6, 50)
    rounds = [metrics.rounds_to_target(curve, t) or 1001 for t in targets]
    assert rounds == sorted(rounds)
    assert all(r <= 500 for r, t in zip(rounds, targets, strict=True) if curve[499] >= t)


def test_format_rounds():
    assert metrics.format_rounds(None, 1000) == "1000+"
    assert metrics.format_rounds(524, 1000) == "524"


def test_stability_is_the_population_variance_in_squared_percent():
    assert metrics.stability([0.8, 0.9]) == pytest.approx(25)  # mean 85, deviations of 5
    assert metrics.stability([0.0] * 10 + [0.8, 0.9], last=2) == pytest.approx(25)


def test_i72_stability_of_a_constant_is_zero_and_quadratic():
    values = np.linspace(0.5, 0.9, 60)
    assert metrics.stability([0.7] * 60) == pytest.approx(0, abs=1e-20)
    assert metrics.stability(100 * values) == pytest.approx(1e4 * metrics.stability(values))


def test_mean_interval_by_hand():
    # s = 1, n = 3, t(0.975, 2) = 4.302653: half-width 4.302653 / sqrt(3)
    assert metrics.mean_interval([1, 2, 3]) == pytest.approx((2, 2.484138))
    assert metrics.mean_interval([0.5]) == (0.5, None)
    assert metrics.mean_interval([2, 2]) == (2, 0)
    assert metrics.mean_interval([0.1 + 0.2, 0.3, 0.3])[1] == 0  # rounding is no spread


def test_no_values():
    for function in (metrics.stability, metrics.mean_interval):
        with pytest.raises(BadInput, match="at least one value"):
            function([])


def test_whiskers_of_what_is_never_negative_start_at_zero():
    """Three seeds: mean 1, half = t(0.975, 2) s / sqrt(3) = 4.303 (1.732 / 1.732)."""
    assert figures.interval([0.0, 0.0, 3.0]) == (0.0, pytest.approx(5.303, abs=1e-3))
    assert figures.interval([-1.0, -1.0, 2.0]) == (pytest.approx(-4.303, abs=1e-3), pytest.approx(4.303, abs=1e-3))
    assert figures.interval([4.0]) == (4.0, 4.0)
    assert figures.interval([1.0, 4.0]) == (1.0, 4.0)  # the range
