"""Where the rounds of runs come from: the store, and the record beside the results in <results>/<scale>/<paper>/:

runs.json      for every run: description, digests, data and their checksum, commit, versions, machine, wall time, and
               its costs if a table needs them
rounds.csv.gz  every round of every run, as the store had it
manifest.json  the tables with the ids of their runs, and the sha256 of files that cannot be computed again
"""

import csv
import gzip
import hashlib
import io
import json
import shutil
import zlib
from collections.abc import Callable, Iterable
from functools import cache, cached_property
from pathlib import Path
from typing import Protocol

from fedrepro import data
from fedrepro.errors import BadInput, bad
from fedrepro.simulation.cost import round_costs
from fedrepro.simulation.run import Run
from fedrepro.simulation.store import check_summary, read_result, rounds_digest, to_number, write_atomically, write_json

RUNS, ROUNDS, MANIFEST, README = "runs.json", "rounds.csv.gz", "manifest.json", "README.md"
DRAWN = (".png", ".svg", ".ipynb")  # a table's files besides CSV


class Source(Protocol):
    """Where a study takes its runs from."""

    def has(self, run: Run) -> bool: ...
    def summary(self, run: Run) -> dict: ...  # description, digests, provenance
    def rows(self, run: Run) -> list[dict]: ...  # one per round
    def costs(self, run: Run) -> dict[str, int]: ...  # of a round, as `round_costs` counts them


class Record:
    """The record in a folder, which may be incomplete. As a source it has the undamaged runs on the data that are
    available here."""

    def __init__(self, folder: Path):
        self.folder, self.scale, self.paper = folder, folder.parent.name, folder.name
        self.damage = cache(self._damage)

    def exists(self, name: str) -> bool:
        return (self.folder / name).exists()

    @cached_property
    def runs(self) -> dict[str, dict]:
        return self._json(RUNS, lambda runs: all(isinstance(run, dict) for run in runs.values()))

    @cached_property
    def manifest(self) -> dict[str, dict]:
        def right_shape(found: dict) -> bool:
            lists = found["tables"].values()
            named = all(isinstance(ids, list) and all(isinstance(id_, str) for id_ in ids) for ids in lists)
            return named and isinstance(found["sha256"], dict)

        return self._json(MANIFEST, right_shape) or {"tables": {}, "sha256": {}}

    def _json(self, name: str, right_shape: Callable[[dict], bool]) -> dict:
        """The file's content; empty without the file."""
        if not self.exists(name):
            return {}
        try:
            found = json.loads((self.folder / name).read_text(encoding="utf-8"))
            if not isinstance(found, dict) or not right_shape(found):
                raise ValueError("it does not hold what it should")
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise BadInput(f"{self.folder / name} cannot be read ({error})") from None
        return found

    @cached_property
    def rounds(self) -> dict[str, list[dict]]:
        """run id -> its rows."""
        rows: dict[str, list[dict]] = {}
        if not self.exists(ROUNDS):
            return rows
        try:
            with gzip.open(self.folder / ROUNDS, "rt", newline="", encoding="utf-8") as lines:
                for line in csv.DictReader(lines):
                    run = line.pop("run")
                    rows.setdefault(run, []).append({k: to_number(v) for k, v in line.items() if v})
        except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, csv.Error, zlib.error) as error:
            raise BadInput(f"{self.folder / ROUNDS} cannot be read ({type(error).__name__})") from None
        return rows

    def _damage(self, run_id: str) -> str | None:
        """Why the record of a run cannot be what its training produced; None if it can."""
        try:
            check_summary(self.runs[run_id], run_id)
        except ValueError as error:
            return str(error)
        if self.exists(ROUNDS) and rounds_digest(self.rounds.get(run_id, [])) != self.runs[run_id]["rounds_digest"]:
            return f"its rows in {ROUNDS} are not those that were recorded"
        return None

    def refuse_damage(self) -> None:
        for run_id in self.runs:
            if why := self.damage(run_id):
                raise BadInput(f"{self.folder / RUNS}: run {run_id}: {why}; `fedrepro verify` lists all that differs")

    def has(self, run: Run) -> bool:
        if run.id not in self.runs or run.id not in self.rounds or self.damage(run.id):
            return False
        return self.runs[run.id]["data"].get("sha256") == data.load(run.data).provenance["sha256"]

    def summary(self, run: Run) -> dict:
        return self.runs[run.id]

    def rows(self, run: Run) -> list[dict]:
        return self.rounds[run.id]

    def costs(self, run: Run) -> dict[str, int]:
        if not isinstance(found := self.runs[run.id].get("costs"), dict):
            raise BadInput(f"{self.folder / RUNS}: run {run.id}: its costs are missing, and a table needs them")
        return found

    def described(self, tables: dict[str, list[str]]) -> dict[str, dict]:
        """What manifest.json must contain, with the checksums of the existing files."""
        files = [RUNS, ROUNDS, *(name + suffix for name in tables for suffix in DRAWN)]
        here = [name for name in files if self.exists(name)]
        sums = {name: hashlib.sha256((self.folder / name).read_bytes()).hexdigest() for name in here}
        return {"tables": tables, "sha256": sums}


class Part:
    """The undamaged runs of a record that belong to one of its tables."""

    def __init__(self, record: Record, ids: Iterable[str]):
        self.record, self.ids = record, ids
        self.summary, self.rows, self.costs = record.summary, record.rows, record.costs

    @cached_property
    def whole(self) -> dict[str, dict]:
        """run id -> its summary."""
        here = [id_ for id_ in self.ids if id_ in self.record.runs and id_ in self.record.rounds]
        return {id_: self.record.runs[id_] for id_ in here if not self.record.damage(id_)}

    def seeds(self) -> list[int]:
        return list(dict.fromkeys(summary["run"]["seed"] for summary in self.whole.values()))

    def has(self, run: Run) -> bool:
        return run.id in self.whole


class Known:
    """The finished runs of a store, and those of a record that are not in the store."""

    def __init__(self, store: Path, record: Record):
        self.store, self.record = store, record
        self._read = cache(read_result)

    def stored(self, run: Run) -> bool:
        return (self.store / run.id / "result.json").exists()

    def has(self, run: Run) -> bool:
        return self.stored(run) or self.record.has(run)

    def _result(self, run: Run) -> tuple[dict, list[dict]]:
        if self.stored(run):
            return self._read(self.store / run.id)
        return self.record.summary(run), self.record.rows(run)

    def summary(self, run: Run) -> dict:
        return self._result(run)[0]

    def rows(self, run: Run) -> list[dict]:
        return self._result(run)[1]

    def costs(self, run: Run) -> dict[str, int]:
        return self.record.runs.get(run.id, {}).get("costs") or round_costs(run)

    def to_train(self, runs: Iterable[Run], fresh: bool = False) -> list[Run]:
        """The runs neither in the store nor in the record; with `fresh` all of them, deleted from the store."""
        unique = list({run.id: run for run in runs}.values())
        for run in unique if fresh else []:
            shutil.rmtree(self.store / run.id, ignore_errors=True)
        return [run for run in unique if fresh or not self.has(run)]


def check_path(folder: Path) -> None:
    try:
        folder.exists()
    except OSError as error:
        raise bad("results", str(folder), f"the path of a folder ({error.strerror})") from None


def find(folder: Path) -> list[Record]:
    """The records in and below a folder, complete or not, sorted by path."""
    check_path(folder)
    marks = (RUNS, ROUNDS, MANIFEST, "*_values.csv")
    return [Record(path) for path in sorted({path.parent for mark in marks for path in folder.rglob(mark)})]


def write(folder: Path, runs: dict[str, dict], rounds: dict[str, list[dict]], tables: dict[str, list[str]]) -> None:
    """`tables`: name -> the ids of its runs. Rows come first: whenever a writer is killed, a run in runs.json has its
    rows, and is not trained again."""
    text = as_csv(rounds).encode()
    write_atomically(folder / ROUNDS, lambda f: f.write(gzip.compress(text, mtime=0)))
    write_json(folder / RUNS, runs)
    write_json(folder / MANIFEST, Record(folder).described(tables))


def as_csv(rounds: dict[str, list[dict]]) -> str:
    """Columns that a run's method does not have stay empty."""
    columns = list(dict.fromkeys(["run", *(key for rows in rounds.values() for row in rows[:1] for key in row)]))
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(columns)
    for run, rows in rounds.items():
        out.writerows([run, *(repr(row[c]) if c in row else "" for c in columns[1:])] for row in rows)
    return text.getvalue()
