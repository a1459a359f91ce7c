"""fedrepro verify: committed results must follow from their record, and a sample of runs must repeat to the bit.

1. Every file of the tables that manifest.json names is there, and no other; figures, notebooks and the record itself
   have its checksums. Every cell of every CSV is computed again from rounds.csv.gz and reproduce/<paper>/*.toml.
   Nothing is trained.
2. The runs drawn are trained again in a store of their own: digest, data, costs and every column of every round but the
   clocks must be the recorded ones.
"""

import csv
import io
import random
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import torch

from fedrepro.checks import number
from fedrepro.errors import bad
from fedrepro.evidence import record, spec
from fedrepro.evidence.record import Record
from fedrepro.simulation import scratch
from fedrepro.simulation.cost import round_costs
from fedrepro.simulation.provenance import machine
from fedrepro.simulation.run import Run
from fedrepro.simulation.session import count_workers
from fedrepro.simulation.store import CLOCKS, read_result
from fedrepro.simulation.sweep import sweep

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
    _say_absent(records, Path(folder))
    findings += _train_again(records, sample, seed, workers)
    print(f"FAILED: {findings} findings" if findings else "verified: nothing differs")
    return 1 if findings else 0


def _report(known: Record) -> int:
    found = list(check(known))
    told = f"{known.folder}: {len(known.runs) if known.has(record.RUNS) else 'no'} runs"
    print(
        f"{told}: every file is there, every cell of its CSV files follows from the record" if not found else f"{told}:"
    )
    for line in found[:SHOWN]:
        print(f"  {line}")
    if len(found) > SHOWN:
        print(f"  ... and {len(found) - SHOWN} more")
    return len(found)


def _say_absent(records: list[Record], folder: Path) -> None:
    """Results may be partial on purpose: which papers, tables and seeds are not here is said, and is no finding."""
    for known in records:
        if absent := [table.name for table in known.tables if not known.has(table.name + record.VALUES)]:
            print(f"{known.folder}: not measured at this scale: {', '.join(absent)}")
        for study in filter(None, map(known.study, known.tables)):
            if fewer := [seed for seed in study.table.seeds_at(known.scale) if seed not in study.seeds]:
                print(f"{known.folder}: {study.table.name}: not measured: seed {', '.join(map(str, fewer))}")
    for scale in sorted({known.folder.parent for known in records}):
        here = {known.paper for known in records if known.folder.parent == scale}
        if scale.is_relative_to(folder) and (absent := [paper for paper in spec.papers() if paper not in here]):
            print(f"{scale}: not measured at this scale: {', '.join(absent)}")


def check(known: Record) -> Iterator[str]:
    """What in this folder does not follow from its record."""
    again = f"`fedrepro reproduce {known.paper} --scale {known.scale}` writes it"
    if not known.has(record.RUNS):
        yield f"{record.RUNS} is missing: nothing can be checked; {again}"
        return
    for run_id in known.runs:
        if why := known.damage(run_id):
            yield f"{record.RUNS}: run {run_id}: {why}"
    if not known.has(record.ROUNDS):
        yield (f"{record.ROUNDS} is missing: numbers cannot be checked, only digests of runs trained again; {again}")
        return
    for run_id in sorted(set(known.rounds) ^ set(known.runs)):
        yield f"run {run_id} is only in one of {record.RUNS} and {record.ROUNDS}"
    for run_id, rows in known.rounds.items():
        described = known.runs.get(run_id, {}).get("run")
        wanted = described.get("rounds", len(rows)) if isinstance(described, dict) else len(rows)
        if [row.get("round") for row in rows] != list(range(1, wanted + 1)):
            yield f"{record.ROUNDS}: run {run_id} does not have the rounds 1 to {wanted}"
    expected = {record.RUNS, record.ROUNDS, record.MANIFEST, record.README}
    for table in known.tables:
        study = known.study(table)
        if study is None:
            if known.has(table.name + record.VALUES):
                yield f"{table.name}{record.VALUES}: the record lacks runs of every seed it names"
                expected |= {path.name for path in known.folder.glob(f"{table.name}*")}
            continue
        expected |= {table.name + suffix for suffix in record.DRAWN}
        for file, text in study.csv_files().items():
            expected.add(file)
            yield from _differences(known.folder / file, text)
    for run_id in sorted(set(known.runs) - record.named(known.folder)):
        yield f"{record.RUNS}: run {run_id} belongs to no table here"
    yield from _manifest(known, again)
    for path in sorted(known.folder.iterdir()):
        if path.name not in expected and path.suffix != ".html":  # web pages are made from the notebooks
            yield f"{path.name} belongs to no table of {known.paper}"
    text, page = known.readme(), known.folder / record.README
    if text and not page.exists():
        yield f"{page.name} is missing; `fedrepro report` writes it"
    elif text and text.encode() != page.read_bytes():
        yield f"{page.name} does not follow from the record; `fedrepro report` writes it again"


def _manifest(known: Record, again: str) -> Iterator[str]:
    """Tables and files that are gone, that came since, or that have changed."""
    if not known.has(record.MANIFEST):
        yield f"{record.MANIFEST} is missing: figures, notebooks and deleted tables cannot be checked; {again}"
        return
    now, then = known.described(), known.manifest
    for name in sorted(set(then["tables"]) ^ set(now["tables"])):
        gone = name in then["tables"]
        yield f"{name}: its files are missing" if gone else f"{name}: {record.MANIFEST} does not name this table"
    wanted = {name + suffix for name in now["tables"] for suffix in record.DRAWN} | set(then["sha256"])
    for file in sorted(wanted | set(now["sha256"])):
        if file not in now["sha256"]:
            yield f"{file} is missing"
        elif now["sha256"][file] != then["sha256"].get(file):
            yield f"{file} does not have the checksum of {record.MANIFEST}"


def _differences(path: Path, text: str) -> Iterator[str]:
    """Cells of a CSV file that are not those of `text`, by row (the header is row 1) and column."""
    if not path.exists():
        yield f"{path.name} is missing"
        return
    if path.read_bytes() == text.encode():
        return
    try:
        with open(path, newline="", encoding="utf-8") as file:
            found = list(csv.reader(file))
    except (ValueError, csv.Error) as error:
        yield f"{path.name} cannot be read ({error})"
        return
    expected = list(csv.reader(io.StringIO(text)))
    if found == expected:
        yield f"{path.name}: its quotes or line ends are not those of the record"
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
    if not sample:
        return 0
    places = [(known, run_id) for known in records if known.has(record.RUNS) for run_id in sorted(known.runs)
              if not known.damage(run_id)]  # fmt: skip
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
    with scratch.folder() as store:
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
    if "costs" in recorded and recorded["costs"] != (costs := round_costs(Run.from_dict(recorded["run"]))):
        return f"DIFFERS: costs recorded {recorded['costs']}, now {costs}"
    then = known.rounds.get(run_id, [])
    if _elsewhere(recorded):
        return _compare_in_kind(then, rows)
    for before, now in zip_longest(then, rows if then else [], fillvalue={}):
        for column in [c for c in {**before, **now} if c not in CLOCKS]:
            if repr(before.get(column)) != repr(now.get(column)):
                return (
                    f"DIFFERS first in round {(now or before)['round']}: {column} recorded {before.get(column)!r}, "
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
    then = {"torch": recorded["versions"].get("torch"), **_arithmetic(recorded["machine"])}
    return [f"{name} was {then[name]}, is {here[name]}" for name in here if here[name] != then[name]]


def _arithmetic(found: dict) -> dict[str, str]:
    """MKL chooses its code by the processor's vendor, torch by the instruction set."""
    return {"vendor": found.get("cpu", "").split(" ")[0], "instruction set": found.get("instructions", "")}


def _compare_in_kind(recorded: list[dict], rows: list[dict]) -> str | None:
    """Where rounding differs, training takes another path: the same structure, and accuracy within TOLERANCE."""
    for before, now in zip_longest(recorded, rows, fillvalue={}):
        if (set(before) ^ set(now)) - set(CLOCKS) or before["round"] != now["round"]:
            return f"DIFFERS: other rounds or columns from round {(now or before)['round']} on"
    sent = [column for column in recorded[0] if column.startswith(("bytes", "buffer_bytes"))]
    for column in sent:  # later rounds may send what training decides
        if recorded[0][column] != rows[0][column]:
            return f"DIFFERS: {column} of the first round recorded {recorded[0][column]}, now {rows[0][column]}"
    gaps = [now["accuracy"] - before["accuracy"] for before, now in zip(recorded, rows, strict=True)]
    gap = abs(sum(g for g in gaps if g == g) / max(sum(g == g for g in gaps), 1))
    if gap > TOLERANCE:
        return f"DIFFERS: mean accuracy by {100 * gap:.2f} points; {100 * TOLERANCE:g} are allowed"
    return None
