"""Tuning: the same number of pilots for all, on a separate seed and images, resumable, never on test images."""

import csv
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from fedrepro import Run, data, train
from fedrepro.errors import BadInput
from fedrepro.evidence import spec, tune
from fedrepro.evidence.sections import Axis

TABLE = "fedbr/fig3_convergence"
TUNE = {"grid": {"lr": [0.02, 0.05]}, "grids": {"fedprox": {"lr": [0.05], "hp.mu": [0.01, 1.0]}}, "length": 0.5}
DIGITS = dict(data="digits", split="dirichlet:0.3", clients=8, per_round=3, model="lenet", epochs=1, batch=40)


@pytest.fixture
def table(tmp_path, monkeypatch):
    """FedBR's Fig. 3 with a [tune], its cpu scale made small enough to train; tuned/ goes to a folder of ours."""
    small = search_of(tmp_path / "fig3.toml", TUNE, rounds=6)
    monkeypatch.setattr(spec, "find", lambda name: small)
    monkeypatch.setattr(spec, "HOME", tmp_path)
    return small


def search_of(path, tune, **fields):
    """FedAvg and FedProx on the digits, tuned so."""
    content = spec.content_of(spec.REPRODUCE / f"{TABLE}.toml")
    run = {**content["run"], **DIGITS, "bandwidth": [1, 1], **fields}
    prox = {"method": "fedprox", "hp": {"mu": 0.1}}
    axes = {"method": {"choices": {"FedAvg": {"method": "fedavg"}, "FedProx": prox}}}
    scales = {scale: {"run": DIGITS if scale == "cpu" else {}} for scale in spec.SCALES}
    changes = {"run": run, "axis": axes, "scale": scales, "tune": tune, "override": [], "reported": [], "claim": []}
    return spec.build(path, {**content, **changes})


def test_every_method_gets_the_same_number_of_pilots(table):
    search = tune.pilots(table, "cpu")
    assert [(p.method, p.setting) for p in search] == [
        ("fedavg", {"lr": 0.02}), ("fedavg", {"lr": 0.05}),
        ("fedprox", {"lr": 0.05, "hp.mu": 0.01}), ("fedprox", {"lr": 0.05, "hp.mu": 1.0}),
    ]  # fmt: skip
    for pilot in search:
        assert (pilot.run.seed, pilot.run.holdout, pilot.run.rounds) == (1000, 0.1, 3)
    assert search[2].run.hp["mu"] == 0.01


def test_the_choice_is_the_best_validation_score_and_reaches_every_cell(table, tmp_path, capsys):
    assert tune.main(TABLE, "cpu", 1, tmp_path / "runs") == 0
    with open(table.tuned_file("cpu"), newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 4
    for method in ("fedavg", "fedprox"):
        mine = [line for line in lines if line["method"] == method]
        best = max(mine, key=lambda line: float(line["score"]))
        assert [line["chosen"] for line in mine] == ["yes" if line is best else "" for line in mine]
        cell = next(cell for cell in table.cells("cpu") if cell.fields["method"] == method)
        setting = json.loads(best["setting"])
        assert cell.run(0).lr == setting["lr"]
        assert cell.run(0).hp.get("mu") == setting.get("hp.mu")
    assert "at the border of its grid: lr" in capsys.readouterr().out
    untuned = [cell.run(0) for cell in table.cells("paper")]
    assert untuned == [cell.run(0) for cell in table.cells("paper", tuned=False)]


def test_an_axis_that_sweeps_a_knob_keeps_its_values(table):
    table.axis["rate"] = Axis(field="lr", values=[0.3, 0.4])
    table.tuned_file("cpu").parent.mkdir()
    tune.write(table.tuned_file("cpu"), [dict(zip(tune.COLUMNS, ("digits", "fedprox", '{"lr": 9, "hp.mu": 7}', "0.5",
                                                                 "yes", "", "x"), strict=True))])  # fmt: skip
    prox = [cell for cell in table.cells("cpu") if cell.fields["method"] == "fedprox"]
    assert [(cell.fields["lr"], cell.fields["hp"]["mu"]) for cell in prox] == [(0.3, 7), (0.4, 7)]


def test_a_table_says_which_knobs_its_overrides_vary():
    """KAPC's Fig. 6 varies lambda and beta by overrides; a tuned lambda must not reach it."""
    figure = spec.find("kapc/fig6_lambda_beta")
    assert {"hp.lam", "hp.beta"} <= figure._swept


def test_test_images_are_never_read(small, monkeypatch):
    """With every test image and label replaced by noise a held-out run is the same, bit by bit."""
    run = small(holdout=0.2, method="fedmlb")
    before = train(run, workers=1)
    real = data.load(run.data)
    noise = dataclasses.replace(real, test_x=255 - real.test_x.flip(0), test_y=(real.test_y + 3) % 10)
    monkeypatch.setattr(data, "load", lambda name: noise)
    assert train(run, workers=1).rows[-1]["accuracy"] == before.rows[-1]["accuracy"]
    assert train(run, workers=1).digest == before.digest
    assert train(small(), workers=1).rows[-1]["accuracy"] != before.rows[-1]["accuracy"]


def test_held_out_images_are_not_trained_on():
    real = data.load("digits")
    split = real.held_out(0.25, seed=3)
    assert len(split.test_y) == round(0.25 * len(real.train_y))
    assert len(split.test_y) + len(split.train_y) == len(real.train_y)
    both = torch.cat([split.train_x, split.test_x]).flatten(1)
    assert torch.equal(both.sort(0).values, real.train_x.flatten(1).sort(0).values)
    assert not torch.equal(split.test_x, real.held_out(0.25, seed=4).test_x)


SEARCH = """
import pathlib, sys
sys.path.insert(0, {tests!r})
from test_tune import TABLE, TUNE, search_of
from fedrepro.evidence import spec, tune
home = pathlib.Path({home!r})
small = search_of(home / "fig3.toml", {{**TUNE, "length": 1.0}}, rounds=12)
spec.find, spec.HOME = (lambda name: small), home
print("ready", flush=True)
sys.exit(tune.main(TABLE, "cpu", 2, home / "runs"))
"""


def search(home, kill_after=None):
    script = SEARCH.format(tests=os.path.dirname(__file__), home=str(home))
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout.readline().strip() == "ready"
    if kill_after is not None:
        time.sleep(kill_after)
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return process.returncode


def test_killed_and_resumed_it_chooses_the_same(tmp_path):
    for place in ("whole", "killed"):
        (tmp_path / place).mkdir()
    assert search(tmp_path / "whole") == 0
    kills = [search(tmp_path / "killed", kill_after=0.3 * n) for n in (1, 2)]
    assert -signal.SIGKILL in kills
    assert search(tmp_path / "killed") == 0
    texts = [(tmp_path / place / "tuned/cpu.csv").read_text() for place in ("whole", "killed")]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": {"lr": []}}, "tune.grid: has no point to try"),
        ({"grid": {"rate": [1.0]}}, "tune: run field: 'rate' is not valid"),
        ({"grid": {"hp.nu": [1.0]}}, "hp.nu: fedavg has no hyperparameter 'nu'"),
        ({"grid": {"lr": [0.1, 0.2]}, "grids": {"moon": {"lr": [0.1]}}}, "tune.grids.moon: tries 1 settings"),
        ({"grid": {"lr": [0.1]}, "seed": 1}, "tune.seed: 1 is a seed that verdicts use"),
        ({"grid": {"lr": [0.1]}, "where": {"method": "FedSGD"}}, "tune.where: method = 'FedSGD' is not a label"),
        ({"grid": {"lr": [0.1]}, "holdout": 0.9}, "holdout: 0.9 is not valid"),
    ],
)
def test_bad_searches_are_refused_in_one_line(change, message):
    path = spec.REPRODUCE / f"{TABLE}.toml"
    with pytest.raises(BadInput, match=r"fig3_convergence\.toml") as error:
        spec.build(path, {**spec.content_of(path), "tune": change})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_table_without_a_search_and_a_scale_that_has_none(table, tmp_path, monkeypatch):
    with pytest.raises(BadInput, match="scale: 'paper' is not valid"):
        tune.main(TABLE, "paper", 1, tmp_path)
    monkeypatch.setattr(spec, "find", lambda name: dataclasses.replace(table, tune=None))
    with pytest.raises(BadInput, match=r"has no \[tune\]"):
        tune.main(TABLE, "cpu", 1, tmp_path)


def test_holdout_is_left_out_of_other_runs_ids():
    assert "holdout" not in Run().described
