"""The evidence list: its order, its budget, and that nothing is trained twice, not even from the record alone."""

import shutil

import pytest

from fedrepro.errors import BadInput
from fedrepro.evidence import campaign
from fedrepro.evidence.campaign import Item

TABLE = "fedbr/table2_temperature"
ITEM = {"table": TABLE, "scale": "smoke", "seeds": [0, 1], "minutes": 1, "decides": "nothing", "tier": 1}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Results and runs of our own; specs and notebooks are the real ones."""
    monkeypatch.setenv("FEDREPRO_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("FEDREPRO_STORE", str(tmp_path / "runs"))
    monkeypatch.setattr(campaign, "load", lambda: [Item(**ITEM)])
    return tmp_path


def test_first_seeds_come_before_second_ones_and_tiers_before_seeds():
    a, b = Item(**ITEM), Item(**{**ITEM, "seeds": [0, 1, 2]})
    later = Item(**{**ITEM, "tier": 2, "seeds": [5]})
    order = [(item is later, item is b, seed) for item, seed in campaign.ordered([later, a, b])]
    assert order == [
        (False, False, 0), (False, True, 0), (False, False, 1), (False, True, 1), (False, True, 2), (True, False, 5),
    ]  # fmt: skip


def test_a_spent_budget_resumes_and_the_record_alone_is_enough(home, capsys, monkeypatch):
    assert campaign.main("1s", False, 1) in (0, 1)  # whatever was done by then
    said = capsys.readouterr().out
    assert "the budget is spent; the same command resumes" in said
    runs = {run.id for run in Item(**ITEM).runs()}
    before = {path.parent.name: path.stat().st_mtime_ns for path in home.glob("runs/*/result.json")}
    assert campaign.main(None, False, 1) == 0
    for run, written in before.items():
        assert (home / "runs" / run / "result.json").stat().st_mtime_ns == written  # not trained twice
    folder = home / "results/smoke/fedbr"
    assert (folder / "table2_temperature_values.csv").exists() and (folder / "manifest.json").exists()
    shutil.rmtree(home / "runs")  # another machine: only what is committed
    monkeypatch.setattr(campaign, "sweep", lambda *args, **options: pytest.fail("trained what the record has"))
    capsys.readouterr()
    assert campaign.main(None, False, 1) == 0
    assert f"{len(runs)}/{len(runs)}" in capsys.readouterr().out
    assert not list(home.glob("runs/*"))


def test_status_says_what_is_left(home, capsys):
    assert campaign.main(None, True, 2) == 0
    out = capsys.readouterr().out
    assert f"the next hour works on {TABLE} at smoke scale: nothing" in out
    assert not (home / "runs").exists()


@pytest.mark.parametrize("budget", ["soon", "0m", "150", "-1h"])
def test_bad_budgets(home, budget):
    with pytest.raises(BadInput, match=r"budget: .* is not valid; allowed: a time such as 150m"):
        campaign.main(budget, False, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("item = 3", "must hold a list"),
        ('[[item]]\ntable = "x"\nwhat = 1', "'what' is not valid"),
        ('[[item]]\ntable = "x"', "decides, minutes, scale, seeds, tier is missing"),
    ],
)
def test_bad_lists(tmp_path, text, message):
    (tmp_path / "evidence.toml").write_text(text)
    with pytest.raises(BadInput, match=message):
        campaign.load(tmp_path / "evidence.toml")


def test_the_committed_list_names_cells_that_exist():
    for item in campaign.load():
        assert item.runs()
        assert len(item.seeds) >= 3 or item.cells.get("method") == "FD"  # two seeds decide nothing
    with pytest.raises(BadInput, match="no cell at scale smoke has"):
        Item(**{**ITEM, "cells": {"delta": "9"}}).study  # noqa: B018
