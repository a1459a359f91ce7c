"""What stands behind the committed results of one paper at one scale: results/<scale>/<paper>/

runs.json      for every run: description, digests, data and their checksum, commit, versions, machine, wall time, and
               its costs where a table needs them
rounds.csv.gz  every round of every run, as the store had it
manifest.json  which tables of the paper are here, and the sha256 of what no table follows from or gives
"""

import csv
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from fedrepro import data
from fedrepro.errors import BadInput, bad
from fedrepro.evidence import spec
from fedrepro.evidence.study import Study
from fedrepro.evidence.tables import markdown
from fedrepro.simulation import scratch
from fedrepro.simulation.cost import round_costs
from fedrepro.simulation.run import Run
from fedrepro.simulation.store import check_summary, read_result, rounds_digest, to_number, write_atomically, write_json

RUNS, ROUNDS, MANIFEST, README = "runs.json", "rounds.csv.gz", "manifest.json", "README.md"
VALUES, GATE = "_values.csv", "_gate.csv"  # files that name runs
DRAWN = (".png", ".svg", ".ipynb")  # what a table has beside its CSV files


class Record:
    def __init__(self, folder: Path):
        self.folder, self.scale, self.paper = folder, folder.parent.name, folder.name
        self._studies: dict[str, Study | None] = {}

    @cached_property
    def runs(self) -> dict[str, dict]:
        return self._json(RUNS, lambda runs: all(isinstance(run, dict) for run in runs.values()))

    @cached_property
    def manifest(self) -> dict:
        def right(found: dict) -> bool:
            return all(isinstance(name, str) for name in found["tables"]) and isinstance(found["sha256"], dict)

        return self._json(MANIFEST, right)

    def _json(self, name: str, right_shape) -> dict:
        try:
            found = json.loads((self.folder / name).read_text(encoding="utf-8"))
            if not isinstance(found, dict) or not right_shape(found):
                raise ValueError("it does not hold what it should")
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise BadInput(f"{self.folder / name} cannot be read ({error})") from None
        return found

    def damage(self, run_id: str) -> str | None:
        """Why what is recorded of a run cannot be what its training gave."""
        try:
            check_summary(self.runs[run_id], run_id)
        except ValueError as error:
            return str(error)
        rows = self.rounds.get(run_id, [])
        if self.has(ROUNDS) and rounds_digest(rows) != self.runs[run_id]["rounds_digest"]:
            return f"its rows in {ROUNDS} are not those that it was recorded with"
        return None

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()

    @cached_property
    def rounds(self) -> dict[str, list[dict]]:
        """run id -> its rows."""
        rows: dict[str, list[dict]] = {}
        if not self.has(ROUNDS):
            return rows
        try:
            with gzip.open(self.folder / ROUNDS, "rt", newline="", encoding="utf-8") as lines:
                for line in csv.DictReader(lines):
                    run = line.pop("run")
                    rows.setdefault(run, []).append({k: to_number(v) for k, v in line.items() if v})
        except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, csv.Error, zlib.error) as error:
            raise BadInput(f"{self.folder / ROUNDS} cannot be read ({type(error).__name__})") from None
        return rows

    @cached_property
    def tables(self) -> list[spec.Table]:
        """Those of the paper, here or not."""
        return spec.tables(self.paper) if self.paper in spec.papers() else []

    def study(self, table: spec.Table) -> Study | None:
        """The table computed from the record, for those seeds of its values CSV that the record has; None without."""
        if table.name not in self._studies:
            self._studies[table.name] = self._study(table)
        return self._studies[table.name]

    def _study(self, table: spec.Table) -> Study | None:
        if not self.has(table.name + VALUES):
            return None
        lines = _lines(self.folder / (table.name + VALUES))
        seeds = sorted({int(line["seed"]) for line in lines if (line.get("seed") or "").isdigit()})
        if not seeds or not any(line["run"] in self.rounds for line in lines):
            return None
        study = Study(table, self.scale, seeds)
        study.folder, study.rows_of, study.costs_of = self.folder, self.rounds.__getitem__, self._costs
        here = {line["run"] for line in lines} | {run.id for run in study.central.values()}
        study.keep_only(here & set(self.rounds))
        return study

    def offers(self, run: Run) -> bool:
        """Whether the record has this run, whole and of the data that are here."""
        if not self.has(RUNS) or run.id not in self.runs or self.damage(run.id):
            return False
        return self.runs[run.id]["data"].get("sha256") == data.load(run.data).provenance["sha256"]

    def _costs(self, run: Run) -> dict[str, int]:
        return self.runs.get(run.id, {}).get("costs") or round_costs(run)

    def readme(self) -> str | None:
        """The text of README.md: the tables that are here; None without any."""
        studies = [study for table in self.tables if (study := self.study(table))]
        return markdown(studies) if studies else None

    def described(self) -> dict:
        """What manifest.json must hold, from the files that are here."""
        here = [table.name for table in self.tables if self.has(table.name + VALUES)]
        files = [RUNS, ROUNDS, *(name + suffix for name in here for suffix in DRAWN)]
        sums = {name: hashlib.sha256((self.folder / name).read_bytes()).hexdigest() for name in files if self.has(name)}
        return {"tables": here, "sha256": sums}


def write_readme(folder: Path) -> None:
    if text := Record(folder).readme():
        write_atomically(folder / README, lambda f: f.write(text.encode()))


def check_path(folder: Path) -> None:
    try:
        folder.exists()
    except OSError as error:
        raise bad("results", str(folder), f"the path of a folder ({error.strerror})") from None


def find(folder: Path) -> list[Record]:
    """The records in and below a folder, in the order of their paths, whatever part of them is left."""
    check_path(folder)
    marks = (RUNS, ROUNDS, MANIFEST, f"*{VALUES}")
    return [Record(path) for path in sorted({path.parent for mark in marks for path in folder.rglob(mark)})]


def named(folder: Path) -> set[str]:
    """The runs that the CSV files in a folder name."""
    files = [path for ending in (VALUES, GATE) for path in folder.glob(f"*{ending}")]
    return {line["run"] for path in files for line in _lines(path)}


def write(folder: Path, store: Path) -> None:
    """The record of every run that a values CSV in `folder` names: from the store, else as it was recorded before."""
    scratch.tidy(folder, ".")
    old, runs, rounds = Record(folder), {}, {}
    known = old.runs if old.has(RUNS) else {}
    for run in sorted(named(folder)):
        if (store / run / "result.json").exists():
            runs[run], rounds[run] = read_result(store / run)
        elif run in known:
            if why := old.damage(run):
                raise BadInput(f"{folder / RUNS}: run {run}: {why}")
            runs[run], rounds[run] = known[run], old.rounds[run]
    for run in _counted(old):
        if run in runs and "costs" not in runs[run]:
            runs[run]["costs"] = round_costs(Run.from_dict(runs[run]["run"]))
    write_json(folder / RUNS, runs)
    text = _csv(rounds).encode()
    write_atomically(folder / ROUNDS, lambda f: f.write(gzip.compress(text, mtime=0)))
    write_json(folder / MANIFEST, Record(folder).described())
    write_readme(folder)


def _counted(known: Record) -> Iterator[str]:
    """The runs of the tables that are about floating-point operations."""
    for table in known.tables:
        if known.has(table.name + VALUES) and Study(table, known.scale).needs_costs:
            yield from {line["run"] for line in _lines(known.folder / (table.name + VALUES))}


def _lines(path: Path) -> list[dict]:
    try:
        with open(path, newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
        if lines and not {"run"} <= set(lines[0]):
            raise ValueError("it has no column run")
    except (OSError, ValueError, csv.Error) as error:
        raise BadInput(f"{path} cannot be read ({error})") from None
    return lines


def _csv(rounds: dict[str, list[dict]]) -> str:
    """A column that a run's method does not have is empty."""
    columns = list(dict.fromkeys(["run", *(key for rows in rounds.values() for row in rows[:1] for key in row)]))
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(columns)
    for run, rows in rounds.items():
        out.writerows([run, *(repr(row[c]) if c in row else "" for c in columns[1:])] for row in rows)
    return text.getvalue()
