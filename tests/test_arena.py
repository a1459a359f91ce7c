"""The arena's front and ranking, by hand."""

import numpy as np
import pytest

import results
from fedrepro.evidence import spec
from fedrepro.evidence.extras.arena import APART, STEP, front, side_by_side, spread_out
from fedrepro.evidence.ranking import in_words, ranking
from fedrepro.evidence.record import Record
from fedrepro.evidence.study import Study
from fedrepro.evidence.table import Table
from fedrepro.evidence.tune import COLUMNS

LEVELS = {"fedavg": 0.50, "scaffold": 0.60, "fedprox": 0.40}


@pytest.fixture(scope="module")
def source(smoke):
    return results.Made(Record(smoke / "results/smoke/fedbr"), lambda run: LEVELS.get(run.method, 0.5005))


@pytest.mark.parametrize("seeds", [3, 1])
def test_ranking_compares_with_the_reference_seed_by_seed(source, seeds):
    study = Study("arena/global_model", "cpu", seeds, source)
    table = ranking(study, "accuracy", costs=["traffic"]).set_index("method")
    assert table.index[0] == "SCAFFOLD" and table.index[-1] == "FedProx"
    assert set(table.index) == set(study.axes["method"])
    decided = ["better", "worse", "undecided"] if seeds == 3 else ["one seed"] * 3
    assert list(table.loc[["SCAFFOLD", "FedProx", "MOON"], "which is"]) == decided
    columns = ["points ahead of FedAvg", "which is", "traffic, times FedAvg's"]
    assert list(table.loc["FedAvg", columns]) == ["", "", "1.00"]
    assert in_words(study, "accuracy").startswith(f"{decided[0]}{' than FedAvg: SCAFFOLD;' * (seeds == 3)}")
    values = study.of("accuracy").pivot(index="method", columns="seed", values="value")
    ahead = 100 * (values.loc["SCAFFOLD"] - values.loc["FedAvg"]).mean()
    assert float(table.loc["SCAFFOLD", "points ahead of FedAvg"].split()[0]) == pytest.approx(ahead, abs=0.05)


def test_without_its_reference_nothing_is_compared(source, monkeypatch):
    monkeypatch.setattr(source, "has", lambda run: run.method != "fedavg" or run.clients == 1)
    assert list(ranking(Study("arena/global_model", "cpu", 3, source), "accuracy")) == ["method", "accuracy"]


def test_ranking_says_what_each_method_was_tuned_to(source, monkeypatch):
    lines = [
        ("cifar10", "fedprox", '{"lr": 0.1, "hp.mu": 0.01}', "0.5", "yes", "hp.mu", "0"),
        ("cifar10", "fedprox", '{"lr": 0.2, "hp.mu": 0.01}', "0.4", "", "", "1"),
        ("cifar10", "moon", '{"lr": 0.05}', "0.5", "yes", "", "2"),
        ("mnist", "scaffold", '{"lr": 0.05}', "0.5", "yes", "", "3"),
    ]
    monkeypatch.setattr(Table, "tuning_rows", lambda *_: [dict(zip(COLUMNS, line, strict=True)) for line in lines])
    study = Study("arena/global_model", "cpu", 3, source)
    assert study.cells[0].run(0).lr == 0.05 and {cell.run(0).lr for cell in study.cells} == {0.05, 0.1}
    table = ranking(study, "accuracy").set_index("method")["tuned to"]
    assert dict(table[table != ""]) == {"FedProx": "lr = 0.1, mu = 0.01 (border)", "MOON": "lr = 0.05"}


def test_front_by_hand():
    points = {"cheap": (1, 0.5), "dominated": (2, 0.4), "better": (2, 0.6), "equal": (3, 0.6), "best": (4, 0.9)}
    assert front(points) == ["cheap", "better", "best"]
    assert front({"a": (1, 0.5), "b": (1, 0.7)}) == ["b"]


def test_points_of_the_same_cost_stand_side_by_side():
    drawn = side_by_side({"worse": (50, 0.4), "best": (50.5, 0.6), "between": (50, 0.5), "dear": (100, 0.7)})
    assert {name: gain for name, (_, gain) in drawn.items()} == {"worse": 0.4, "best": 0.6, "between": 0.5, "dear": 0.7}
    shifts = {"worse": 50 - 100 * STEP, "between": 50, "best": 50.5 + 100 * STEP, "dear": 100}
    assert {name: at for name, (at, _) in drawn.items()} == pytest.approx(shifts)


def test_names_are_apart_and_inside():
    heights = spread_out([0.2, 0.2, 0.21, 0.9, 0.99, 0.99])
    assert all(gap >= APART - 1e-12 for gap in np.diff(heights))
    assert heights[0] == 0.2 and heights[-1] <= 1


def test_every_method_of_the_arena_gets_as_many_pilots():
    for table in spec.tables("arena"):
        assert {len(table.tune.settings(method)) for method in table.tune.grids} == {6}
        assert not table.claims()
