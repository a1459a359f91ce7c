"""The evidence list: its order, its budget, and that nothing is trained twice, not even from the record alone."""

import contextlib
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import time

import pytest

from fedrepro.errors import BadInput
from fedrepro.evidence import campaign, spec, tune
from fedrepro.evidence.campaign import Item
from fedrepro.evidence.table import Table
from fedrepro.simulation import progress
from fedrepro.simulation.run import Run

TABLE = "fedbr/table2_temperature"
ITEM = {"table": TABLE, "scale": "smoke", "seeds": [0, 1], "minutes": 1, "decides": "nothing"}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Results and runs of our own; specs and notebooks are the real ones."""
    monkeypatch.setenv("FEDREPRO_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("FEDREPRO_STORE", str(tmp_path / "runs"))
    monkeypatch.setattr(campaign, "load", lambda: [Item(**ITEM)])
    return tmp_path


def test_all_cells_of_one_seed_before_the_next():
    runs = Item(**{**ITEM, "seeds": [0, 1, 2]}).runs()
    assert [run.seed for run in runs] == sorted(run.seed for run in runs)
    assert len({run.id for run in runs}) == 3 * sum(run.seed == 0 for run in runs)


def test_only_the_methods_of_its_cells_are_tuned(tmp_path, monkeypatch):
    monkeypatch.setattr(Table, "tuned_file", lambda table, scale: tmp_path / f"{scale}.csv")  # nothing is chosen yet
    cells = {"dataset": "CIFAR-10", "method": ["FedAvg", "DFL"]}
    item = Item(**{**ITEM, "table": "dfl/table3_noniid", "scale": "cpu", "cells": cells})
    assert {(pilot.data, pilot.method) for pilot in item.pilots()} == {("cifar10", "fedavg"), ("cifar10", "dfl")}


def test_a_later_table_takes_what_an_earlier_one_tuned(tmp_path, monkeypatch):
    def keep(table, scale, pilots, store):
        lines = [{"data": p.data, "method": p.method, "setting": '{"lr": 0.3}', "chosen": "yes"} for p in pilots]
        tune.write(table.tuned_file(scale), lines)

    swept = []
    monkeypatch.setattr(Table, "tuned_file", lambda table, scale: tmp_path / f"{scale}.csv")
    monkeypatch.setattr(tune, "keep", keep)
    monkeypatch.setattr(campaign, "_sweep", lambda todo, *_: swept.append({id_: one.run for id_, one in todo.items()}))
    figures = ("fedbr/fig3_convergence", "fedbr/fig5_6_resources")
    items = [Item(**{**ITEM, "table": figure, "scale": "cpu"}) for figure in figures]
    assert "fig5_6" in campaign.status(items, tmp_path, 2)
    campaign.train(items, tmp_path, 2)
    pilots, runs = swept
    assert {run.lr for run in runs.values()} == {0.3} and set(runs) == {r.id for item in items for r in item.runs()}
    assert not pilots.keys() & runs.keys() and len(pilots) == 5 * 6


def test_the_choice_for_a_method_is_written_once_its_pilots_are_done(tmp_path, monkeypatch):
    """Killed before the last method's last pilot: on another machine only that method is tuned again."""
    monkeypatch.setattr(Table, "tuned_file", lambda table, scale: tmp_path / f"{scale}.csv")
    monkeypatch.setattr(tune, "read_result", lambda folder: (None, [{"round": 1, "accuracy": 0.5}]))
    methods = ["FedAvg", "DFL"]
    given = {**ITEM, "table": "dfl/table3_noniid", "scale": "cpu", "cells": {"dataset": "CIFAR-10", "method": methods}}
    pilots = [pilot.run for pilot in Item(**given).pilots()]

    def sweep(runs, store, workers, progress):
        for run in runs:
            if run.id == pilots[-1].id:
                raise KeyboardInterrupt
            (store / run.id).mkdir(parents=True)
            (store / run.id / "result.json").touch()
            progress(run)

    monkeypatch.setattr(campaign, "sweep", sweep)
    with pytest.raises(KeyboardInterrupt):
        campaign.train([Item(**given)], tmp_path / "runs", 1)
    left = Item(**given).pilots()
    assert 0 < len(left) < len(pilots) and {pilot.method for pilot in left} == {pilots[-1].method}


def test_a_method_whose_grid_has_changed_is_tuned_again(tmp_path, monkeypatch):
    item = Item(**{**ITEM, "table": "fedmlb/table1_server_optimizers", "scale": "cpu", "cells": {}})
    table = spec.find(item.table)
    monkeypatch.setattr(Table, "tuned_file", lambda table, scale: tmp_path / f"{scale}.csv")
    pilots = tune.pilots(table, "cpu")
    lines = [{"data": p.data, "method": p.method, "setting": json.dumps(p.setting)} for p in pilots]
    tune.write(tmp_path / "cpu.csv", lines)
    assert not item.pilots()
    other = [line for line in lines if line["method"] != "feddyn"]
    tune.write(tmp_path / "cpu.csv", [{**line, "setting": '{"lr": 9.0}'} for line in lines if line not in other][:6])
    assert {pilot.method for pilot in item.pilots()} == {"feddyn"} and len(item.pilots()) == 6


def test_progress_counts_what_runs_cost_and_not_their_rounds(tmp_path, capsys, monkeypatch):
    """One of the two quick rounds is done, and the slow run of 18 minutes has not begun."""
    monkeypatch.setattr(progress, "PRINT_EVERY", 0)
    quick, slow = Run(data="digits", rounds=2, seed=1), Run(data="digits", rounds=2, seed=2)
    started = time.monotonic()
    with progress.progress([quick, slow], tmp_path, {quick.id: 2, slow.id: 18}):
        time.sleep(1)
        (tmp_path / quick.id).mkdir()
        (tmp_path / quick.id / "rounds.csv").write_text("round\n1\n")
        time.sleep(1.5)
    longest = time.monotonic() - started
    line, *_ = capsys.readouterr().out.splitlines()  # after two seconds or more
    (left,) = re.fullmatch(r"  1/20 CPU min, about ([\d.]+) min left", line).groups()
    assert 19 * 2 / 60 - 0.05 <= float(left) <= 19 * longest / 60 + 0.05


def test_a_run_of_two_tables_is_counted_once(tmp_path):
    item = Item(**{**ITEM, "minutes": 60})
    one, two = (campaign.status([item] * n, tmp_path, 1).splitlines() for n in (1, 2))
    assert one[2] == two[3] == f"{len(item.runs())}.0 CPU hours left, {len(item.runs())}.0 on 1 workers"


def test_a_spent_budget_resumes_and_the_record_alone_is_enough(home, capsys, monkeypatch):
    name, finished = campaign._name, []

    def third_is_the_last(run):
        """Time is up, however quick the machine is."""
        finished.append(run.id)
        if len(finished) == 3:
            signal.raise_signal(signal.SIGALRM)
        return name(run)

    monkeypatch.setattr(campaign, "_name", third_is_the_last)
    assert campaign.main("1h", False, 1) == 0
    printed = capsys.readouterr().out
    assert "the budget is spent; the same command resumes" in printed
    runs = {run.id for run in Item(**ITEM).runs()}
    before = {path.parent.name: path.stat().st_mtime_ns for path in home.glob("runs/*/result.json")}
    assert set(before) == set(finished)
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


def campaign_in_a_process() -> multiprocessing.Process:
    """A fork of this process, with a group of its own, so that its workers can be killed with it."""

    def work():
        os.setsid()
        sys.exit(campaign.main(None, False, 2))

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    return child


def test_killed_and_moved_to_an_empty_store_nothing_recorded_is_trained_again(home, monkeypatch):
    """Five kills at random moments; after each one the store is lost, as on another machine."""
    monkeypatch.setattr(campaign.driver, "execute", lambda *given: None)
    draw, recorded, written = random.Random(16), home / "results/smoke/fedbr/runs.json", {}
    for _ in range(5):
        child, wanted = campaign_in_a_process(), len(written) + draw.randint(0, 1)
        while len(json.loads(recorded.read_text()) if recorded.exists() else {}) < wanted and child.is_alive():
            time.sleep(0.05)
        time.sleep(draw.uniform(0.1, 2))
        with contextlib.suppress(ProcessLookupError):  # on a quick machine it may be done
            os.killpg(child.pid, signal.SIGKILL)
        child.join()
        again = set(written) & {path.parent.name for path in home.glob("runs/*/result.json")}
        assert not again, "trained again though recorded"
        found = json.loads(recorded.read_text()) if recorded.exists() else {}
        assert written.items() <= found.items()  # nothing recorded is lost or changed
        written = found
        shutil.rmtree(home / "runs", ignore_errors=True)
    assert written  # some kills came after a run was recorded
    child = campaign_in_a_process()
    child.join(120)
    assert child.exitcode == 0
    assert not set(written) & {path.parent.name for path in home.glob("runs/*/result.json")}
    assert set(json.loads(recorded.read_text())) == {run.id for run in Item(**ITEM).runs()}


def test_every_begun_seed_is_written(home, monkeypatch):
    """What is trained goes to the record, complete or not: a store may be lost with its machine."""
    item, key = Item(**ITEM), (TABLE, "smoke")
    runs = {seed: [run.id for run in item.runs() if run.seed == seed] for seed in (0, 1)}
    for done, wanted in (([], {}), (runs[0][:1], {key: [0]}), ([*runs[0], runs[1][0]], {key: [0, 1]})):
        monkeypatch.setattr(campaign, "is_done", lambda item, run, store, done=done: run.id in done)
        assert campaign._tables([item], home) == wanted


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
        ("item = 3", "item: 3 is not valid; allowed: a list"),
        ('[[item]]\ntable = "x"\nwhat = 1', "item x.what: is not a key"),
        ('[[item]]\ntable = "x"', "item x.scale: is missing"),
    ],
)
def test_bad_lists(tmp_path, text, message):
    (tmp_path / "evidence.toml").write_text(text)
    with pytest.raises(BadInput, match=message):
        campaign.load(tmp_path / "evidence.toml")


def test_the_committed_list_names_cells_that_exist():
    for item in campaign.load():
        assert item.runs()
        assert len(item.seeds) in (1, 3, 5)  # two decide nothing; one is enough where no seed changes a measure
    with pytest.raises(BadInput, match="no cell at scale smoke has"):
        Item(**{**ITEM, "cells": {"delta": "9"}}).plan  # noqa: B018
