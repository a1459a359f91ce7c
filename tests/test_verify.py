"""Committed results follow from their record, and a record from training: whatever is changed is found and named."""

import gzip
import json
import os
import shutil
import subprocess
import sys

import pandas as pd
import pytest

from fedrepro import record
from fedrepro.cli import main
from fedrepro.record import ROUNDS, RUNS
from fedrepro.report import Study
from fedrepro.verify import _compare_in_kind

TABLE = "table2_temperature"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The smoke record of FedBR's Table II, two seeds."""
    home = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDREPRO_RESULTS", str(home / "results"))
        patch.setenv("FEDREPRO_STORE", str(home / "runs"))
        study = Study(f"fedbr/{TABLE}", "smoke", seeds=2, workers=1).run()
        study.save()
        record.write(study.folder, study.store)
    return home


@pytest.fixture
def folder(made, tmp_path):
    shutil.copytree(made / "results", tmp_path / "results")
    return tmp_path / "results/smoke/fedbr"


def verify(folder, capsys, sample=0):
    code = main(["verify", str(folder), "--sample", str(sample), "--seed", "1", "--workers", "1"])
    return code, capsys.readouterr().out


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_two_smoke_runs_repeat(folder, capsys):
    code, out = verify(folder.parents[1], capsys, sample=2)
    assert code == 0
    assert "every cell of its CSV files follows from the record" in out
    assert out.count("the same digest") == 2
    assert out.endswith("verified: nothing differs\n")


@pytest.mark.parametrize("suffix", ["", "_values", "_verdicts"])
def test_every_cell_counts(folder, capsys, suffix):
    """Each cell of a row, changed alone, is named with file, row and column."""
    path = folder / f"{TABLE}{suffix}.csv"
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    for column in table:
        changed = table.copy()
        changed.loc[1, column] += "1"
        changed.to_csv(path, index=False)
        code, out = verify(folder, capsys)
        assert code == 1
        assert f"{path.name}: row 3, column {column}: {changed.loc[1, column]!r}, the record gives" in out


def test_a_row_too_few_and_a_file_too_few(folder, capsys):
    values = folder / f"{TABLE}_values.csv"
    lines = values.read_text().splitlines(keepends=True)
    values.write_text("".join(lines[:-1]))
    (folder / f"{TABLE}_verdicts.csv").unlink()
    code, out = verify(folder, capsys)
    assert code == 1
    assert f"{values.name}: {len(lines) - 2} rows, the record gives {len(lines) - 1}" in out
    assert f"{TABLE}_verdicts.csv is missing" in out


def test_a_record_changed_with_its_tables_is_found_by_training(folder, capsys):
    """Whoever changes a round and makes every table anew from it passes the first check and fails the second."""
    known = record.Record(folder)
    for rows in known.rounds.values():
        rows[1]["accuracy"] = 0.987
        rows[-1]["accuracy"] = 0.999
    study = Study(f"fedbr/{TABLE}", "smoke", seeds=2)
    study.folder, study.rows_of = folder, known.rounds.__getitem__
    study.save()
    text = record._csv(known.rounds).encode()
    (folder / ROUNDS).write_bytes(gzip.compress(text))
    assert verify(folder, capsys)[0] == 0
    code, out = verify(folder, capsys, sample=1)
    assert code == 1
    assert "DIFFERS first in round 2: accuracy recorded 0.987, now 0." in out


def test_a_changed_digest_is_found_by_training(folder, capsys):
    runs = json.loads((folder / RUNS).read_text())
    for run in runs.values():
        run["digest"] = "0" * 64
    (folder / RUNS).write_text(json.dumps(runs))
    code, out = verify(folder, capsys, sample=1)
    assert code == 1
    assert "every recorded round is the same" in out
    assert "digest recorded 0000000000000000, now" in out


def test_a_changed_description_is_found(folder, capsys):
    run = next(iter(json.loads((folder / RUNS).read_text())))
    edit(folder / RUNS, '"lr": 0.', '"lr": 1.')
    code, out = verify(folder, capsys, sample=0)
    assert code == 1
    assert f"{RUNS}: run {run}: its description is that of run" in out


def test_a_record_without_rounds_says_what_that_means(folder, capsys):
    (folder / ROUNDS).unlink()
    code, out = verify(folder, capsys, sample=1)
    assert code == 1
    assert f"{ROUNDS} is missing" in out
    assert out.count("the same digest") == 1


def test_a_record_outlives_the_store(folder, tmp_path):
    before = (folder / RUNS).read_bytes(), (folder / ROUNDS).read_bytes()
    record.write(folder, tmp_path / "empty")
    assert ((folder / RUNS).read_bytes(), (folder / ROUNDS).read_bytes()) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["verify", "nowhere"], "results: 'nowhere' is not valid"),
        (["verify", "{}", "--sample", "-1"], "sample: -1 is not valid"),
        (["verify", "{}", "--seed", "x"], "seed: 'x' is not valid"),
        (["verify", "{}", "--workers", "0"], "workers: 0 is not valid"),
    ],
)
def test_bad_words(folder, capsys, words, message):
    assert main([word.format(folder) for word in words]) == 2
    assert message in capsys.readouterr().err


def test_a_damaged_record_is_said_in_one_line(folder, capsys):
    (folder / ROUNDS).write_bytes((folder / ROUNDS).read_bytes()[:100])
    assert main(["verify", str(folder)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{ROUNDS} cannot be read" in line


@pytest.mark.parametrize("pinned", ["ATEN_CPU_CAPABILITY=default", "DNNL_MAX_CPU_ISA=SSE41"])
def test_another_instruction_set_is_said_and_compared_in_kind(folder, pinned):
    name, value = pinned.split("=")
    command = [sys.executable, "-m", "fedrepro.cli", "verify", str(folder), "--sample", "1", "--workers", "1"]
    done = subprocess.run(command, env={**os.environ, name: value}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "instruction set was " in done.stdout
    assert "the same results within 0.5 points, other instruction set or torch" in done.stdout


def test_another_accuracy_is_found_on_any_instruction_set():
    row = {"round": 1, "accuracy": 0.5, "bytes_up": 8}
    assert _compare_in_kind([row], [{**row, "accuracy": 0.504}]) is None
    assert "mean accuracy by 1.00 points" in _compare_in_kind([row], [{**row, "accuracy": 0.51}])
    assert "bytes_up of the first round" in _compare_in_kind([row], [{**row, "bytes_up": 9}])
    assert "other rounds or columns from round 2" in _compare_in_kind([row, {**row, "round": 2}], [row])
