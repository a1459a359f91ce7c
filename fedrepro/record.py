"""What stands behind the committed results of one paper at one scale: results/<scale>/<paper>/

runs.json      for every run: description, digest, data and its checksum, commit, versions, machine, wall time
rounds.csv.gz  every round of every run, as the store had it
"""

import csv
import gzip
import io
import json
from functools import cached_property
from pathlib import Path

from fedrepro import spec
from fedrepro.errors import BadInput
from fedrepro.report import Study, markdown
from fedrepro.store import number, read_result, write_atomically, write_json

RUNS, ROUNDS = "runs.json", "rounds.csv.gz"


class Record:
    def __init__(self, folder: Path):
        self.folder, self.scale, self.paper = folder, folder.parent.name, folder.name

    @cached_property
    def runs(self) -> dict[str, dict]:
        try:
            return json.loads((self.folder / RUNS).read_text())
        except (OSError, ValueError) as error:
            raise BadInput(f"{self.folder / RUNS} cannot be read ({error})") from None

    @property
    def has_rounds(self) -> bool:
        return (self.folder / ROUNDS).exists()

    @cached_property
    def rounds(self) -> dict[str, list[dict]]:
        """run id -> its rows."""
        rows: dict[str, list[dict]] = {}
        if not self.has_rounds:
            return rows
        try:
            with gzip.open(self.folder / ROUNDS, "rt", newline="") as lines:
                for line in csv.DictReader(lines):
                    run = line.pop("run")
                    rows.setdefault(run, []).append({k: number(v) for k, v in line.items() if v})
        except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, csv.Error) as error:
            raise BadInput(f"{self.folder / ROUNDS} cannot be read ({type(error).__name__})") from None
        return rows

    def study(self, table: spec.Table) -> Study | None:
        """The table computed from the record, for those seeds of its values CSV that the record has; None without."""
        lines = _lines(self.folder / f"{table.name}_values.csv")
        named = sorted({int(line["seed"]) for line in lines if (line.get("seed") or "").isdigit()})
        cells = table.cells(self.scale)
        seeds = [seed for seed in named if all(cell.run(seed).id in self.rounds for cell in cells)]
        if not seeds:
            return None
        study = Study(f"{table.paper}/{table.name}", self.scale, seeds)
        study.folder, study.rows_of = self.folder, self.rounds.__getitem__
        return study

    def readme(self) -> str | None:
        """The text of README.md; None unless every table of the paper is there."""
        tables = spec.tables(self.paper)
        if not all((self.folder / f"{table.name}_values.csv").exists() for table in tables):
            return None
        studies = [self.study(table) for table in tables]
        return markdown(studies) if all(studies) else None


def write_readme(folder: Path) -> None:
    if text := Record(folder).readme():
        write_atomically(folder / "README.md", lambda f: f.write(text.encode()))


def find(folder: Path) -> list[Record]:
    """The records in and below a folder, in the order of their paths."""
    return [Record(path.parent) for path in sorted(folder.rglob(RUNS))]


def write(folder: Path, store: Path) -> None:
    """The record of every run that a values CSV in `folder` names: from the store, else as it was recorded before."""
    old, runs, rounds = Record(folder), {}, {}
    known = old.runs if (folder / RUNS).exists() else {}
    for run in sorted({line["run"] for path in folder.glob("*_values.csv") for line in _lines(path)}):
        if (store / run / "result.json").exists():
            runs[run], rounds[run] = read_result(store / run)
        elif run in known:
            runs[run], rounds[run] = known[run], old.rounds.get(run, [])
    write_json(folder / RUNS, runs)
    text = _csv(rounds).encode()
    write_atomically(folder / ROUNDS, lambda f: f.write(gzip.compress(text, mtime=0)))


def _lines(path: Path) -> list[dict]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def _csv(rounds: dict[str, list[dict]]) -> str:
    """A column that a run's method does not have is empty."""
    columns = list(dict.fromkeys(["run", *(key for rows in rounds.values() for row in rows[:1] for key in row)]))
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(columns)
    for run, rows in rounds.items():
        out.writerows([run, *(repr(row[c]) if c in row else "" for c in columns[1:])] for row in rows)
    return text.getvalue()
