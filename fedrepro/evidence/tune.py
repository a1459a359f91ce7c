"""fedrepro tune <paper>/<table> --scale cpu: every method of the table gets the same number of pilot runs.

Pilots use a separate seed and are scored on images held out of the training data; test images are never read. What was
tried and chosen goes to reproduce/<paper>/tuned/<scale>.csv, where every table of the paper looks it up by data set and
method.
"""

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedrepro.checks import choose
from fedrepro.errors import BadInput
from fedrepro.evidence import spec
from fedrepro.evidence.schema import matches
from fedrepro.evidence.sections import Tuning, fields_of, merge
from fedrepro.evidence.table import Table, read_tuned
from fedrepro.simulation.progress import progress
from fedrepro.simulation.run import Run
from fedrepro.simulation.session import count_workers
from fedrepro.simulation.store import read_result, write_atomically
from fedrepro.simulation.sweep import sweep

COLUMNS: tuple[str, ...] = ("data", "method", "setting", "score", "chosen", "at the border", "run")
TUNED = ("reduced", "cpu")  # smoke only shows that everything runs; paper scale uses the paper's values


@dataclass(frozen=True)
class Pilot:
    data: str
    method: str
    setting: dict  # as the grid names it: {"lr": 0.1, "hp.mu": 1.0}
    run: Run


def rule_of(table: Table) -> Tuning:
    if not table.tune:
        table_name = f"{table.paper}/{table.name}"
        raise BadInput(f"{table_name}: its TOML has no [tune]; docs/add-a-paper.md says what belongs there")
    return table.tune


def pilots(table: Table, scale: str) -> list[Pilot]:
    """All runs of the search: the first cell of every data set and method, at each point of the method's grid."""
    rule, found = rule_of(table), {}
    for cell in table.cells(scale, tuned=False):
        if matches(rule.where, cell.labels):
            found.setdefault((cell.fields["data"], cell.fields["method"]), cell.fields)
    return [pilot for (data, method), fields in found.items() for pilot in search(rule, data, method, fields)]


def missing(table: Table, scale: str) -> list[Pilot]:
    """The pilots of every data set and method whose recorded search is not that of the grid: new, or widened since."""
    recorded, wanted = {}, {}
    for line in table.tuning_rows(scale):
        recorded.setdefault((line["data"], line["method"]), []).append(json.loads(line["setting"]))
    for pilot in pilots(table, scale):
        wanted.setdefault((pilot.data, pilot.method), []).append(pilot)
    return [
        pilot
        for method, group in wanted.items()
        if [one.setting for one in group] != recorded.get(method)
        for pilot in group
    ]


def search(rule: Tuning, data: str, method: str, fields: dict) -> list[Pilot]:
    """One pilot run per point of a method's grid: these fields of Run, fewer rounds, held-out images, another seed."""
    samples = fields.get("samples")
    short = {
        "seed": rule.seed,
        "holdout": rule.holdout,
        "rounds": max(round(rule.length * fields["rounds"]), 1),
        "samples": samples and int(samples * (1 - rule.holdout)),
    }
    settings = [(setting, merge(merge(fields, fields_of(setting)), short)) for setting in rule.settings(method)]
    return [Pilot(data, method, setting, Run.from_dict(changed)) for setting, changed in settings]


def score(rows: list[dict], column: str) -> float:
    """Mean over the tests in the last third of the rounds; -1 for a run that diverged."""
    late = [row[column] for row in rows if row["round"] > len(rows) * 2 / 3]
    tested = [value for value in late if value == value]
    return float(np.mean(tested)) if tested else -1.0


def chosen(rule: Tuning, tried: list[Pilot], store: Path) -> list[dict]:
    """The lines of tuned/<scale>.csv for these pilots; ties go to the first in the grid."""
    lines, groups = [], {}
    for pilot in tried:
        groups.setdefault((pilot.data, pilot.method), []).append(pilot)
    for (data, method), group in groups.items():
        scores = [score(read_result(store / pilot.run.id)[1], rule.column) for pilot in group]
        best = int(np.argmax(scores))
        for i, (pilot, points) in enumerate(zip(group, scores, strict=True)):
            values = data, method, json.dumps(pilot.setting), f"{points:.6f}"
            flags = ("yes", border(rule.grid_of(method), pilot.setting)) if i == best else ("", "")
            lines.append(dict(zip(COLUMNS, (*values, *flags, pilot.run.id), strict=True)))
    return lines


def border(grid: dict[str, list], setting: dict) -> str:
    """The settings whose chosen value is the smallest or largest tried: a wider grid might do better."""
    ends = [name for name, values in grid.items() if len(values) > 1 and setting[name] in (min(values), max(values))]
    return " ".join(ends)


def write(path: Path, lines: list[dict]) -> None:
    """Replace the lines with the same data set and method; keep the others."""
    own = {(line["data"], line["method"]) for line in lines}
    old = [line for line in read_tuned(path) if (line["data"], line["method"]) not in own]
    text = io.StringIO()
    out = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    out.writeheader()
    out.writerows(sorted([*old, *lines], key=lambda line: (line["data"], line["method"])))
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, lambda file: file.write(text.getvalue().encode()))


def keep(table: Table, scale: str, tried: list[Pilot], store: Path) -> list[dict]:
    """Choose, and write what was tried."""
    lines = chosen(rule_of(table), tried, store)
    write(table.tuned_file(scale), lines)
    return lines


def main(name: str, scale: str, workers: int | None, store: Path) -> int:
    choose("scale", scale, TUNED)
    count_workers(workers)
    table = spec.find(name)
    tried = pilots(table, scale)
    methods = {(pilot.data, pilot.method) for pilot in tried}
    print(f"{len(tried)} pilot runs: {len(tried) // len(methods)} for each of {len(methods)} data sets and methods")
    with progress([pilot.run for pilot in tried], store):
        sweep([pilot.run for pilot in tried], store=store, workers=workers)
    for line in keep(table, scale, tried, store):
        if line["chosen"]:
            flag = f"  at the border of its grid: {line['at the border']}" if line["at the border"] else ""
            print(f"{line['data']:16} {line['method']:20} {line['setting']:40} {float(line['score']):.4f}{flag}")
    print(f"written to {table.tuned_file(scale).relative_to(spec.HOME)}")
    return 0
