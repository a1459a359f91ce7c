"""Committed results follow from their record, and a record from training: every change is found and reported."""

import gzip
import json
import os
import shutil
import subprocess
import sys

import pandas as pd
import pytest

import results
from fedrepro.cli import main
from fedrepro.errors import BadInput
from fedrepro.evidence import record
from fedrepro.evidence.record import MANIFEST, README, ROUNDS, RUNS, Record
from fedrepro.evidence.verify import Check, _compare_in_kind
from fedrepro.simulation import cost
from fedrepro.simulation.run import Run
from fedrepro.simulation.store import checksum, rounds_digest, write_json

TABLE = "table4_5_interval"
FILES = (".csv", "_values.csv", "_verdicts.csv", "_effects.csv", ".png", ".svg", ".ipynb")


@pytest.fixture
def folder(smoke, tmp_path):
    shutil.copytree(smoke / "results", tmp_path / "results")
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
    assert "every file is there, every cell of its CSV files follows from the record" in out
    assert out.count("the same digest") == 2
    assert out.endswith("verified: nothing differs\n")


@pytest.mark.parametrize("suffix", ["", "_values", "_verdicts", "_effects"])
def test_every_cell_counts(folder, suffix):
    """Each cell of a row, changed alone, is named with file, row and column."""
    path = folder / f"{TABLE}{suffix}.csv"
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    check = Check(Record(folder))
    assert not [*check.findings()]
    for column in table:
        changed = table.copy()
        changed.loc[1, column] += "1"
        changed.to_csv(path, index=False)
        (found,) = check.findings()
        assert found.startswith(f"{path.name}: row 3, column {column}: {changed.loc[1, column]!r}, the record gives")


def test_a_row_too_few_and_a_file_too_few(folder, capsys):
    values = folder / f"{TABLE}_values.csv"
    lines = values.read_text().splitlines(keepends=True)
    values.write_text("".join(lines[:-1]))
    (folder / f"{TABLE}_verdicts.csv").unlink()
    code, out = verify(folder, capsys)
    assert code == 1
    assert f"{values.name}: {len(lines) - 2} rows, the record gives {len(lines) - 1}" in out
    assert f"{TABLE}_verdicts.csv is missing" in out


def forge(folder, change):
    """Change the rows of every run, then make digests, tables, README and manifest again from them."""
    known = record.Record(folder)
    for run_id, rows in known.rounds.items():
        for row in rows:
            change(row)
        known.runs[run_id]["rounds_digest"] = rounds_digest(rows)
        known.runs[run_id]["checksum"] = checksum(known.runs[run_id])
    write_json(folder / RUNS, known.runs)
    (folder / ROUNDS).write_bytes(gzip.compress(record.as_csv(known.rounds).encode()))
    results.rewrite(folder)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda row: row.update(accuracy=0.987), "round 2: accuracy recorded 0.987, now 0."),
        (lambda row: row.update(server_bytes=7), "round 1: server_bytes recorded 7, now "),
        (lambda row: row.pop("server_bytes"), "round 1: server_bytes recorded None, now "),
        (lambda row: row.update(more=7), "round 1: more recorded 7, now None"),
    ],
)
def test_a_record_changed_with_its_tables_is_found_by_training(folder, capsys, change, found):
    """Whoever changes rounds and makes everything again from them passes the first check and fails the second."""
    forge(folder, lambda row: change(row) if row["round"] == 2 or "round 1" in found else None)
    assert verify(folder, capsys)[0] == 0
    code, out = verify(folder, capsys, sample=1)
    assert code == 1
    assert f"DIFFERS first in {found}" in out


def test_clocks_may_differ(folder, capsys):
    forge(folder, lambda row: row.update(wall_time=7.0))
    assert verify(folder, capsys, sample=1)[0] == 0


def test_a_round_changed_alone_is_found_without_training(folder, capsys):
    """Even a clock: what is recorded of a run has a checksum over all of its rows."""
    known = record.Record(folder)
    run_id, rows = next(iter(known.rounds.items()))
    rows[0]["wall_time"] += 1.0
    (folder / ROUNDS).write_bytes(gzip.compress(record.as_csv(known.rounds).encode()))
    code, out = verify(folder, capsys)
    assert code == 1
    assert f"run {run_id}: its rows in {ROUNDS} are not those that were recorded" in out


@pytest.mark.parametrize("name", [RUNS, ROUNDS, MANIFEST, README, *(f"{TABLE}{suffix}" for suffix in FILES)])
def test_a_deleted_file_is_found(folder, capsys, name):
    (folder / name).unlink()
    code, out = verify(folder, capsys)
    assert code == 1
    assert f"{name} is missing" in out


def test_a_deleted_table_is_found_and_one_that_was_never_made_is_listed(folder, capsys):
    code, out = verify(folder.parents[1], capsys)
    assert code == 0
    assert "not measured at this scale: fig3_convergence, fig4_gmbs_vs_random" in out
    assert "smoke: not measured at this scale: ama, arena, dfl, fedmlb, kapc" in out
    for path in folder.glob(f"{TABLE}*"):
        path.unlink()
    code, out = verify(folder.parents[1], capsys)
    assert code == 1
    assert f"{TABLE}: its files are missing" in out


@pytest.mark.parametrize("name", [RUNS, ROUNDS, *(f"{TABLE}{suffix}" for suffix in (".png", ".svg", ".ipynb"))])
def test_a_changed_file_is_found(folder, capsys, name):
    content = bytearray((folder / name).read_bytes())
    content += b" " if name != ROUNDS else gzip.compress(b"")
    (folder / name).write_bytes(content)
    code, out = verify(folder, capsys)
    assert code == 1
    assert f"{name} does not have the checksum of {MANIFEST}" in out


def test_files_and_runs_that_no_table_has_are_found(folder, capsys):
    (folder / "table9_values.csv").write_text("run,seed\n")
    (folder / f"{TABLE}_more.csv").write_text("a\n1\n")
    code, out = verify(folder, capsys)
    assert code == 1
    assert "table9_values.csv belongs to no table of fedbr" in out
    assert f"{TABLE}_more.csv belongs to no table of fedbr" in out
    manifest = json.loads((folder / MANIFEST).read_text())
    dropped = manifest["tables"][TABLE].pop()
    (folder / MANIFEST).write_text(json.dumps(manifest))
    found = verify(folder, capsys)[1]
    assert f"{RUNS}: run {dropped} belongs to no table here" in found
    assert f"{TABLE}_values.csv: " in found


def test_a_table_and_a_run_that_the_record_lacks_are_found(folder, capsys):
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["tables"] |= {TABLE: [*manifest["tables"][TABLE], "0123456789abcdef"], "table9": []}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    code, out = verify(folder, capsys)
    assert code == 1
    assert f"{TABLE}: the record lacks its run 0123456789abcdef" in out
    assert "table9: its files are missing" in out


def test_what_has_no_record_is_named_and_counted(folder, capsys):
    (folder.parents[1] / "bench").mkdir()
    (folder.parents[1] / "bench/bench.json").write_text("{}")
    (folder.parents[1] / "fedbr.md").write_text("a note, made by the report")
    (folder.parents[1] / "reduced/fedbr").mkdir(parents=True)
    (folder.parents[1] / f"reduced/fedbr/{TABLE}_verdicts.csv").write_text("claim\n")
    code, out = verify(folder.parents[1], capsys)
    assert code == 0
    for name in ("bench", "reduced/fedbr"):
        assert f"{folder.parents[1] / name}: not checked: 1 file without a record" in out
    assert out.endswith("verified: nothing differs; 2 folders could not be checked\n")


def test_an_inner_id_is_checked(folder, capsys):
    run_id = next(iter(json.loads((folder / RUNS).read_text())))
    edit(folder / RUNS, f'"id": "{run_id}"', '"id": "0123456789abcdef"')
    code, out = verify(folder, capsys)
    assert code == 1
    assert f"{RUNS}: run {run_id}: its id says 0123456789abcdef" in out


def test_costs_are_counted_once_and_again_when_trained(tmp_path, capsys, monkeypatch):
    """The record keeps them, so that verify counts none; a run trained again is also counted again."""
    folder = results.make(tmp_path, "fedmlb/fig4_compute", seeds=1)
    monkeypatch.setattr(record, "round_costs", lambda run: pytest.fail("counted again"))
    assert verify(folder, capsys)[0] == 0
    runs = json.loads((folder / RUNS).read_text())
    run = next(iter(runs.values()))
    assert run["costs"] == cost.round_costs(Run.from_dict(run["run"]))
    for run in runs.values():
        run["costs"]["client_flops"] += 1
    write_json(folder / RUNS, runs)
    results.rewrite(folder)
    assert verify(folder, capsys)[0] == 0
    code, out = verify(folder, capsys, sample=1)
    assert code == 1
    assert "DIFFERS: costs recorded" in out
    for run in runs.values():
        del run["costs"]
    write_json(folder / RUNS, runs)
    assert main(["verify", str(folder)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "its costs are missing" in line


def test_a_changed_digest_is_found_by_training(folder, capsys):
    runs = json.loads((folder / RUNS).read_text())
    for run in runs.values():
        run["digest"] = "0" * 64
        run["checksum"] = checksum(run)
    write_json(folder / RUNS, runs)
    results.rewrite(folder)
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


@pytest.mark.parametrize("files", [0, 1, 2])
def test_a_writer_killed_after_some_files_leaves_no_run_without_its_rows(folder, monkeypatch, files):
    known = Record(folder)
    runs, rounds, tables = known.runs, known.rounds, known.manifest["tables"]
    first = next(iter(runs))
    record.write(folder, {first: runs[first]}, {first: rounds[first]}, tables)  # a second run is to join it

    left = [...] * files

    def killed_later(write):
        def one_file(*given):
            if not left:
                raise KeyboardInterrupt
            left.pop()
            write(*given)

        return one_file

    for name in ("write_json", "write_atomically"):
        monkeypatch.setattr(record, name, killed_later(getattr(record, name)))
    with pytest.raises(KeyboardInterrupt):
        record.write(folder, runs, rounds, tables)
    assert {first} <= set(Record(folder).runs) <= set(Record(folder).rounds)


def test_a_record_outlives_the_store(folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    results.rewrite(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["verify", "nowhere"], "results: 'nowhere' is not valid"),
        (["verify", "{}", "--sample", "-1"], "sample: -1 is not valid"),
        (["verify", "{}", "--seed", "x"], "seed: 'x' is not valid"),
        (["verify", "{}", "--workers", "0"], "workers: 0 is not valid"),
    ],
)
def test_bad_arguments(folder, capsys, words, message):
    assert main([word.format(folder) for word in words]) == 2
    assert message in capsys.readouterr().err


def test_a_damaged_record_is_reported_in_one_line(folder, capsys):
    (folder / ROUNDS).write_bytes((folder / ROUNDS).read_bytes()[:100])
    assert main(["verify", str(folder)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{ROUNDS} cannot be read" in line


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (RUNS, b"[]"),
        (RUNS, b"7"),
        (RUNS, b'{"a": 7}'),
        (RUNS, b"\xff"),
        (RUNS, b"[" * 100_000),
        (MANIFEST, b"[]"),
        (MANIFEST, b'{"tables": 7, "sha256": {}}'),
        (MANIFEST, b'{"tables": [[]], "sha256": {}}'),
        (MANIFEST, b'{"tables": {"a": [7]}, "sha256": {}}'),
    ],
)
def test_what_cannot_be_read_is_reported_in_one_line(folder, capsys, name, content):
    (folder / name).write_bytes(content)
    assert main(["verify", str(folder)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{name} cannot be read" in line
    with pytest.raises(BadInput, match="cannot be read"):
        results.rewrite(folder)


@pytest.mark.parametrize("content", [b"run,seed\n\xff,0\n", b"a\n1\n", b"run,seed\n" + b"x" * 200_000])
def test_a_table_that_cannot_be_read_is_a_finding(folder, capsys, content):
    (folder / f"{TABLE}_values.csv").write_bytes(content)
    code, out = verify(folder, capsys)
    assert code == 1
    assert f"{TABLE}_values.csv" in out


@pytest.mark.parametrize("key", ["digest", "data", "versions", "machine", "wall_time", "run", "id", "rounds_digest"])
@pytest.mark.parametrize("value", [None, []])
def test_a_damaged_run_is_a_finding(folder, capsys, key, value):
    runs = json.loads((folder / RUNS).read_text())
    run_id = next(iter(runs))
    runs[run_id][key] = value
    (folder / RUNS).write_text(json.dumps(runs))
    code, out = verify(folder, capsys)
    assert code == 1
    assert f"{RUNS}: run {run_id}: {key} is missing or of the wrong kind" in out
    with pytest.raises(BadInput, match=f"run {run_id}: {key} is missing"):
        results.rewrite(folder)


@pytest.mark.parametrize("command", ["verify", "report"])
def test_a_path_that_is_too_long(command, capsys):
    assert main([command, "x" * 300]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "File name too long" in line


@pytest.mark.parametrize("pinned", ["ATEN_CPU_CAPABILITY=default", "DNNL_MAX_CPU_ISA=SSE41"])
def test_another_instruction_set_is_reported_and_compared_within_a_tolerance(folder, pinned):
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
