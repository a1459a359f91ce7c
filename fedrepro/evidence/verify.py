"""fedrepro verify: committed results must follow from their record, and a sample of runs must repeat bit for bit.

1. Every file of the tables in manifest.json exists, and no other; figures, notebooks and the record itself have the
   checksums given there. Every cell of every CSV is computed again from rounds.csv.gz and reproduce/<paper>/*.toml;
   nothing is trained.
2. The runs drawn are trained again in a temporary store: digest, data, costs and every column of every round except the
   times must be as recorded.
"""

import csv
import io
import random
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from itertools import zip_longest
from pathlib import Path

import torch

from fedrepro.checks import number
from fedrepro.errors import bad
from fedrepro.evidence import record, spec, tables
from fedrepro.evidence.record import Record
from fedrepro.evidence.study import Study, recorded
from fedrepro.simulation import scratch
from fedrepro.simulation.cost import round_costs
from fedrepro.simulation.provenance import machine
from fedrepro.simulation.run import Run
from fedrepro.simulation.session import count_workers
from fedrepro.simulation.store import CLOCKS, read_result
from fedrepro.simulation.sweep import sweep

SHOWN = 20  # findings of one folder that are printed
NEEDED = {  # file of a record: what is lost without it
    record.RUNS: "nothing can be checked",
    record.ROUNDS: "numbers cannot be checked, only digests of runs trained again",
    record.MANIFEST: "which tables were here is not known",
}
TOLERANCE = 0.005  # of the mean accuracy over the tested rounds, on another torch or instruction set (measured: 0.002)


def main(folder: str, sample: int, seed: int, workers: int | None) -> int:
    number("sample", sample, int, 0, 10**9)
    number("seed", seed, int, 0, 2**63 - 1)
    count_workers(workers)
    records = record.find(Path(folder))
    if not records:
        raise bad("results", folder, f"a folder with a {record.RUNS} in or below it, as `fedrepro reproduce` makes it")
    checks = [Check(known) for known in records]
    findings = sum(map(_report, checks))
    _say_absent(checks, Path(folder))
    unchecked = _say_unchecked(records, Path(folder))
    findings += _train_again(records, sample, seed, workers)
    words = f"FAILED: {findings} finding{'s' * (findings > 1)}" if findings else "verified: nothing differs"
    print(words + (f"; {unchecked} folder{'s' * (unchecked > 1)} could not be checked" if unchecked else ""))
    return 1 if findings else 0


def _report(check: "Check") -> int:
    found, known = list(check.findings()), check.record
    counted = f"{known.folder}: {len(known.runs) if known.exists(record.RUNS) else 'no'} runs"
    follows = "every file is there, every cell of its CSV files follows from the record"
    print(f"{counted}:" if found else f"{counted}: {follows}")
    more = [f"... and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    for line in [*found[:SHOWN], *more]:
        print(f"  {line}")
    return len(found)


def _say_absent(checks: list["Check"], folder: Path) -> None:
    """Results may be partial on purpose: missing papers, tables and seeds are listed but are not findings."""
    for check in checks:
        known = check.record
        names = [table.name for table in spec.tables(known.paper)] if known.paper in spec.papers() else []
        if absent := [name for name in names if name not in known.manifest["tables"]]:
            print(f"{known.folder}: not measured at this scale: {', '.join(absent)}")
        for study in check.studies:
            if fewer := [seed for seed in study.table.seeds_at(known.scale) if seed not in study.seeds]:
                print(f"{known.folder}: {study.table.name}: not measured: seed {', '.join(map(str, fewer))}")
    for scale in sorted({check.record.folder.parent for check in checks}):
        here = {check.record.paper for check in checks if check.record.folder.parent == scale}
        if scale.is_relative_to(folder) and (absent := [paper for paper in spec.papers() if paper not in here]):
            print(f"{scale}: not measured at this scale: {', '.join(absent)}")


def _say_unchecked(records: list[Record], folder: Path) -> int:
    """Folders with files that belong to no record; the report's pages and notes are made from all of them."""
    report = [folder / "index.html", *(folder / f"{paper}{end}" for paper in spec.papers() for end in (".html", ".md"))]
    files = [path for path in folder.rglob("*") if path.is_file() and path not in report]
    others = Counter(path.parent for path in files)
    for known in records:
        others.pop(known.folder, None)
    for path, count in sorted(others.items()):
        print(f"{path}: not checked: {count} file{'s' * (count > 1)} without a record")
    return len(others)


class Check:
    """Finds what in a folder does not follow from its record."""

    def __init__(self, known: Record):
        self.record = known

    @cached_property
    def studies(self) -> list[Study]:
        return recorded(self.record)

    def findings(self) -> Iterator[str]:
        again = f"`fedrepro reproduce {self.record.paper} --scale {self.record.scale}` writes it"
        for name, why in NEEDED.items():
            if not self.record.exists(name):
                yield f"{name} is missing: {why}; {again}"
        if self.record.exists(record.RUNS):
            yield from self._runs()
        if all(map(self.record.exists, NEEDED)):
            yield from self._tables()
            yield from self._manifest()
            yield from self._readme()

    def _runs(self) -> Iterator[str]:
        """Runs that are damaged or incomplete."""
        known = self.record
        for run_id in known.runs:
            if why := known.damage(run_id):
                yield f"{record.RUNS}: run {run_id}: {why}"
        if not known.exists(record.ROUNDS):
            return
        for run_id in sorted(set(known.rounds) ^ set(known.runs)):
            yield f"run {run_id} is only in one of {record.RUNS} and {record.ROUNDS}"
        for run_id, rows in known.rounds.items():
            described = known.runs.get(run_id, {}).get("run")
            wanted = described.get("rounds", len(rows)) if isinstance(described, dict) else len(rows)
            if [row.get("round") for row in rows] != list(range(1, wanted + 1)):
                yield f"{record.ROUNDS}: run {run_id} does not have the rounds 1 to {wanted}"

    def _tables(self) -> Iterator[str]:
        """CSV files that are missing, differ or belong to no table; runs that belong to no table."""
        known, named = self.record, self.record.manifest["tables"]
        files = {name: text for study in self.studies for name, text in tables.csv_files(study).items()}
        drawn = {name + suffix for name in named for suffix in record.DRAWN}
        here = {path.name for path in known.folder.iterdir() if path.suffix != ".html"}  # made from the notebooks
        for name in named:
            if not any(file.startswith(name) for file in here):
                yield f"{name}: its files are missing"
        for study in self.studies:
            lacking = set(named[study.table.name]) - {run.id for run in study.runs()}
            yield from (f"{study.table.name}: the record lacks its run {run_id}" for run_id in sorted(lacking))
        for name in sorted(set(named) - {study.table.name for study in self.studies}):
            yield f"{name}: the record has none of its runs, or {known.paper} has no such table"
        for name, text in files.items():
            yield from _differences(known.folder / name, text)
        for run_id in sorted(set(known.runs) - {run_id for ids in named.values() for run_id in ids}):
            yield f"{record.RUNS}: run {run_id} belongs to no table here"
        for name in sorted(here - drawn - set(files) - {*NEEDED, record.README}):
            yield f"{name} belongs to no table of {known.paper}"

    def _manifest(self) -> Iterator[str]:
        """Figures, notebooks and files of the record that are missing or have changed."""
        then = self.record.manifest
        now = self.record.described(then["tables"])
        wanted = {name + suffix for name in then["tables"] for suffix in record.DRAWN} | set(then["sha256"])
        for file in sorted(wanted):
            if file not in now["sha256"]:
                yield f"{file} is missing"
            elif now["sha256"][file] != then["sha256"].get(file):
                yield f"{file} does not have the checksum of {record.MANIFEST}"

    def _readme(self) -> Iterator[str]:
        page = self.record.folder / record.README
        if not page.exists():
            yield f"{page.name} is missing; `fedrepro report` writes it"
        elif self.studies and tables.markdown(self.studies).encode() != page.read_bytes():
            yield f"{page.name} does not follow from the record; `fedrepro report` writes it again"


def _differences(path: Path, text: str) -> Iterator[str]:
    """Cells of a CSV file that differ from `text`, by row (the header is row 1) and column."""
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
    whole = [(known, id_) for known in records for id_ in sorted(known.runs) if not known.damage(id_)]
    drawn = random.Random(seed).sample(whole, min(sample, len(whole)))
    if not drawn:
        return 0
    minutes = sum(known.runs[run_id].get("wall_time", 0) for known, run_id in drawn) / 60
    took = f"they took {minutes:.1f} minutes when they were recorded"
    print(f"training {len(drawn)} of {len(whole)} runs again (drawn with seed {seed}); {took}", flush=True)
    promised = f"the mean accuracy over the tested rounds within {100 * TOLERANCE:g} points"
    for change in sorted({change for known, run_id in drawn for change in _machine_changes(known.runs[run_id])}):
        print(f"  {change}: digests cannot be equal; data and structure must be the same, {promised}")
    runs, findings = [Run.from_dict(known.runs[run_id]["run"]) for known, run_id in drawn], 0
    with scratch.folder() as store:
        sweep(runs, store=store, workers=workers)
        for (known, run_id), run in zip(drawn, runs, strict=True):
            summary, rows = read_result(Path(store) / run_id)
            found = _compare(known, run_id, summary, rows)
            findings += bool(found)
            agreed = f"the same results within {100 * TOLERANCE:g} points, other instruction set or torch"
            if known.runs[run_id]["digest"] == summary["digest"]:
                agreed = f"the same digest {summary['digest'][:16]}"
            name = f"{known.scale} {known.paper}, {run.method} on {run.data}, seed {run.seed}"
            print(f"  {run_id}  {name}: {found or agreed}", flush=True)
    return findings


def _compare(known: Record, run_id: str, summary: dict, rows: list[dict]) -> str | None:
    """How a run trained now differs from its record: bit for bit, or within TOLERANCE on another kind of machine."""
    recorded = known.runs[run_id]
    if recorded["data"] != summary["data"] and recorded["data"].get("sha256") != summary["data"].get("sha256"):
        return f"DIFFERS: the data are others: recorded {recorded['data']}, now {summary['data']}"
    if "costs" in recorded and recorded["costs"] != (costs := round_costs(Run.from_dict(recorded["run"]))):
        return f"DIFFERS: costs recorded {recorded['costs']}, now {costs}"
    then = known.rounds.get(run_id, [])
    if _machine_changes(recorded):
        return _compare_in_kind(then, rows)
    for before, now in zip_longest(then, rows if then else [], fillvalue={}):
        for column in [c for c in {**before, **now} if c not in CLOCKS]:
            a, b = repr(before.get(column)), repr(now.get(column))
            if a != b:
                return f"DIFFERS first in round {(now or before)['round']}: {column} recorded {a}, now {b}"
    if recorded["digest"] != summary["digest"]:
        where = "every recorded round is the same, the final weights or the recorded digest are not"
        where = where if then else "in which round is not known, the record keeps no rounds"
        return f"DIFFERS: {where}: digest recorded {recorded['digest'][:16]}, now {summary['digest'][:16]}"
    return None


def _machine_changes(recorded: dict) -> list[str]:
    """What affects the last bits of a result and differs from the machine that recorded it."""
    known = (torch.__version__, machine()), (recorded["versions"].get("torch"), recorded["machine"])
    here, then = (  # MKL chooses its kernels by the processor's vendor, torch by the instruction set
        {"torch": version, "vendor": cpu.get("cpu", "").split(" ")[0], "instruction set": cpu.get("instructions", "")}
        for version, cpu in known
    )
    return [f"{name} was {then[name]}, is {here[name]}" for name in here if here[name] != then[name]]


def _compare_in_kind(recorded: list[dict], rows: list[dict]) -> str | None:
    """If rounding differs, training takes another path: require the same structure, and accuracy within TOLERANCE."""
    for before, now in zip_longest(recorded, rows, fillvalue={}):
        if (set(before) ^ set(now)) - set(CLOCKS) or before["round"] != now["round"]:
            return f"DIFFERS: other rounds or columns from round {(now or before)['round']} on"
    for column in recorded[0]:  # later rounds may send what training decides
        if column.startswith(("bytes", "buffer_bytes")) and recorded[0][column] != rows[0][column]:
            return f"DIFFERS: {column} of the first round recorded {recorded[0][column]}, now {rows[0][column]}"
    gaps = [now["accuracy"] - before["accuracy"] for before, now in zip(recorded, rows, strict=True)]
    gap = abs(sum(g for g in gaps if g == g) / max(sum(g == g for g in gaps), 1))
    if gap > TOLERANCE:
        return f"DIFFERS: mean accuracy by {100 * gap:.2f} points; {100 * TOLERANCE:g} are allowed"
    return None
