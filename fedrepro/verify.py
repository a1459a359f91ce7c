"""fedrepro verify: committed results must follow from their record, and a sample of runs must repeat to the bit.

1. Every cell of every CSV is computed again from rounds.csv.gz and reproduce/<paper>/*.toml; no training.
2. The runs drawn are trained again in a store of their own: digest, data and every round must be the recorded ones.
"""

import csv
import io
import random
import tempfile
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import torch

from fedrepro import record, spec
from fedrepro.engine import count_workers, machine, sweep
from fedrepro.errors import BadInput, bad
from fedrepro.record import Record
from fedrepro.run import Run, number
from fedrepro.store import CLOCKS, read_result

SHOWN = 20  # findings of one folder that are printed
TOLERANCE = 0.005  # of the mean accuracy over the tested rounds, on another torch or instruction set (measured: 0.002)


def main(folder: str, sample: int, seed: int, workers: int | None) -> int:
    number("sample", sample, int, 0, 10**9)
    number("seed", seed, int, 0, 2**63 - 1)
    count_workers(workers)
    records = record.find(Path(folder))
    if not records:
        raise bad("results", folder, f"a folder with a {record.RUNS} in or below it, as `fedrepro reproduce` makes it")
    findings = sum(_report(known) for known in records)
    findings += _train_again(records, sample, seed, workers)
    print(f"FAILED: {findings} findings" if findings else "verified: nothing differs")
    return 1 if findings else 0


def _report(known: Record) -> int:
    found = list(check(known))
    told = f"{known.folder}: {len(known.runs)} runs"
    print(f"{told}: every cell of its CSV files follows from the record" if not found else f"{told}:")
    for line in found[:SHOWN]:
        print(f"  {line}")
    if len(found) > SHOWN:
        print(f"  ... and {len(found) - SHOWN} more")
    return len(found)


def check(known: Record) -> Iterator[str]:
    """What in this folder does not follow from its record."""
    for run_id in known.runs:
        if why := _not_described(known, run_id):
            yield f"{record.RUNS}: run {run_id}: {why}"
    if not known.has_rounds:
        yield (f"{record.ROUNDS} is missing (records made before it was kept lack it): numbers cannot be checked, only "
               f"digests of runs trained again; `fedrepro reproduce {known.paper} --scale {known.scale}` "
               "writes it")  # fmt: skip
        return
    for run_id in set(known.rounds) ^ set(known.runs):
        yield f"run {run_id} is only in one of {record.RUNS} and {record.ROUNDS}"
    for run_id, rows in known.rounds.items():
        wanted = known.runs.get(run_id, {}).get("run", {}).get("rounds", len(rows))
        if [row.get("round") for row in rows] != list(range(1, wanted + 1)):
            yield f"{record.ROUNDS}: run {run_id} does not have the rounds 1 to {wanted}"
    tables = {table.name: table for table in spec.tables(known.paper)} if known.paper in spec.papers() else {}
    for path in sorted(known.folder.glob("*_values.csv")):
        name = path.name.removesuffix("_values.csv")
        study = known.study(tables[name]) if name in tables else None
        if study is None:
            why = (
                "the record lacks runs of every seed it names" if name in tables else f"{known.paper} has no such table"
            )
            yield f"{path.name}: {why}"
            continue
        for file, text in study.csv_files().items():
            yield from _differences(known.folder / file, text)
    page = known.folder / "README.md"
    if tables and page.exists() and (text := known.readme()) and text != page.read_text():
        yield "README.md does not follow from the record; `fedrepro report` writes it again"


def _not_described(known: Record, run_id: str) -> str | None:
    try:
        now = Run.from_dict(known.runs[run_id]["run"]).id
    except (BadInput, LookupError, TypeError) as error:
        return f"its description is not a run ({error})"
    return None if now == run_id else f"its description is that of run {now}"


def _differences(path: Path, text: str) -> Iterator[str]:
    """Cells of a CSV file that are not those of `text`, by row (the header is row 1) and column."""
    if not path.exists():
        yield f"{path.name} is missing"
        return
    with open(path, newline="") as file:
        found = list(csv.reader(file))
    expected = list(csv.reader(io.StringIO(text)))
    if found[:1] != expected[:1]:
        yield f"{path.name}: row 1: its columns should be {', '.join(expected[0])}"
        return
    if len(found) != len(expected):
        yield f"{path.name}: {len(found) - 1} rows, the record gives {len(expected) - 1}"
    for row, (here, there) in enumerate(zip(found, expected, strict=False), 1):
        for column, a, b in zip_longest(expected[0], here, there, fillvalue=""):
            if a != b:
                yield f"{path.name}: row {row}, column {column}: {a!r}, the record gives {b!r}"


def _train_again(records: list[Record], sample: int, seed: int, workers: int | None) -> int:
    places = [(known, run_id) for known in records for run_id in sorted(known.runs)
              if not _not_described(known, run_id)]  # fmt: skip
    drawn = random.Random(seed).sample(places, min(sample, len(places)))
    if not drawn:
        return 0
    minutes = sum(known.runs[run_id].get("wall_time", 0) for known, run_id in drawn) / 60
    print(f"training {len(drawn)} of {len(places)} runs again (drawn with seed {seed}); "
          f"they took {minutes:.1f} minutes when they were recorded", flush=True)  # fmt: skip
    for change in sorted({change for known, run_id in drawn for change in _elsewhere(known.runs[run_id])}):
        print(f"  {change}: digests cannot be equal; data and structure must be the same, the mean accuracy over the "
              f"tested rounds within {100 * TOLERANCE:g} points")  # fmt: skip
    runs, findings = [Run.from_dict(known.runs[run_id]["run"]) for known, run_id in drawn], 0
    with tempfile.TemporaryDirectory(prefix="fedrepro-verify-") as store:
        sweep(runs, store=store, workers=workers)
        for (known, run_id), run in zip(drawn, runs, strict=True):
            summary, rows = read_result(Path(store) / run_id)
            found = _compare(known, run_id, summary, rows)
            findings += bool(found)
            print(f"  {run_id}  {known.scale} {known.paper}, {run.method} on {run.data}, seed {run.seed}: "
                  + (found or _agreement(known.runs[run_id], summary)), flush=True)  # fmt: skip
    return findings


def _agreement(recorded: dict, summary: dict) -> str:
    if recorded["digest"] == summary["digest"]:
        return f"the same digest {summary['digest'][:16]}"
    return f"the same results within {100 * TOLERANCE:g} points, other instruction set or torch"


def _compare(known: Record, run_id: str, summary: dict, rows: list[dict]) -> str | None:
    """How a run trained now differs from its record, by the promise for this machine: to the bit, or in kind."""
    recorded = known.runs[run_id]
    if recorded["data"] != summary["data"] and recorded["data"].get("sha256") != summary["data"].get("sha256"):
        return f"DIFFERS: the data are others: recorded {recorded['data']}, now {summary['data']}"
    if _elsewhere(recorded):
        return _compare_in_kind(known.rounds.get(run_id, []), rows)
    for before, now in zip(known.rounds.get(run_id, []), rows, strict=False):
        for column in [c for c in before if c not in CLOCKS]:
            if repr(before[column]) != repr(now.get(column)):
                return (
                    f"DIFFERS first in round {now['round']}: {column} recorded {before[column]!r}, "
                    f"now {now.get(column)!r}"
                )
    if recorded["digest"] != summary["digest"]:
        where = "every recorded round is the same, the final weights or the recorded digest are not"
        where = where if known.rounds.get(run_id) else "in which round is not known, the record keeps no rounds"
        return f"DIFFERS: {where}: digest recorded {recorded['digest'][:16]}, now {summary['digest'][:16]}"
    return None


def _elsewhere(recorded: dict) -> list[str]:
    """What decides the last bits of a result and differs here from where it was recorded."""
    here = {"torch": torch.__version__, **_arithmetic(machine())}
    then = {"torch": recorded["versions"]["torch"], **_arithmetic(recorded["machine"])}
    return [f"{name} was {then[name]}, is {here[name]}" for name in here if here[name] != then[name]]


def _arithmetic(found: dict) -> dict[str, str]:
    """MKL chooses its code by the processor's vendor, torch by the instruction set."""
    return {"vendor": found.get("cpu", "").split(" ")[0], "instruction set": found.get("instructions", "")}


def _compare_in_kind(recorded: list[dict], rows: list[dict]) -> str | None:
    """Where rounding differs, training takes another path: the same structure, and accuracy within TOLERANCE."""
    for before, now in zip_longest(recorded, rows, fillvalue={}):
        if list(before) != list(now) or before["round"] != now["round"]:
            return f"DIFFERS: other rounds or columns from round {(now or before)['round']} on"
    sent = [column for column in recorded[0] if column.startswith(("bytes", "buffer_bytes"))]
    for column in sent:  # later rounds may send what training decides
        if recorded[0][column] != rows[0][column]:
            return f"DIFFERS: {column} of the first round recorded {recorded[0][column]}, now {rows[0][column]}"
    gaps = [now["accuracy"] - before["accuracy"] for before, now in zip(recorded, rows, strict=True)]
    gap = abs(sum(g for g in gaps if g == g) / sum(g == g for g in gaps))
    if gap > TOLERANCE:
        return f"DIFFERS: mean accuracy by {100 * gap:.2f} points; {100 * TOLERANCE:g} are allowed"
    return None
