"""Study: one table or figure of a paper: rows of rounds -> values -> verdicts, each computed once."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import pandas as pd

from fedrepro import folders
from fedrepro.errors import BadInput, bad
from fedrepro.evidence import gate, spec
from fedrepro.evidence.claims import Claim
from fedrepro.evidence.comparisons import select
from fedrepro.evidence.judge import LATER, Measured, judge
from fedrepro.evidence.measures import COUNTED, with_sums
from fedrepro.evidence.record import RUNS, Known, Part, Record, Source
from fedrepro.evidence.schema import matches
from fedrepro.evidence.table import Cell, Table
from fedrepro.evidence.verdict import Verdict
from fedrepro.simulation import metrics
from fedrepro.simulation.run import Run

Seeds = int | Sequence[int] | None  # how many, or which; None: the table's own
Where = Mapping[str, str | list[str]]  # the labels of some cells


def results_folder() -> Path:
    return Path(os.environ.get("FEDREPRO_RESULTS", folders.work() / "results"))


def run_store() -> Path:
    return Path(os.environ.get("FEDREPRO_STORE", folders.work() / "runs"))


def in_kernels() -> dict[str, str]:
    """Environment variables that tell notebooks, which run in other folders, where results and runs are."""
    paths = {"FEDREPRO_RESULTS": results_folder(), "FEDREPRO_STORE": run_store()}
    return {name: str(path.absolute()) for name, path in paths.items()} if folders.INSTALLED else {}


def committed(scale: str, paper: str) -> Record:
    """The record in the results folder, or else the one that comes with the code."""
    own = Record(results_folder() / scale / paper)
    return own if own.exists(RUNS) else Record(spec.HOME / "results" / scale / paper)


def known_runs(scale: str, paper: str) -> Known:
    """The runs in the user's store, and those in the committed record."""
    return Known(run_store(), committed(scale, paper))


class Plan:
    """The cells and seeds that a table asks for: Plan("fedbr/table2_temperature", "smoke", seeds=2)."""

    def __init__(self, table: str | Table, scale: str | None = None, seeds: Seeds = None, where: Where | None = None):
        """`where` keeps only the cells with these labels."""
        self.scale = scale or os.environ.get("FEDREPRO_SCALE", "reduced")
        self.loaded = table if isinstance(table, Table) else spec.find(table)
        self.table = self.loaded.named_for(self.scale)  # whose labels name what this scale uses
        self.seeds = _seeds(seeds, self.table.seeds_at(self.scale))
        names = self.table.names
        lists = {axis: [label] if isinstance(label, str) else label for axis, label in (where or {}).items()}
        wanted = {axis: tuple(names.get(label, label) for label in labels) for axis, labels in lists.items()}
        self.cells = [cell for cell in self.table.cells(self.scale) if matches(wanted, cell.labels)]
        self.axes = {axis: list(choices) for axis, choices in self.table.choices(self.scale).items()}
        self.measures = self.table.measures(self.scale)

    @property
    def name(self) -> str:
        return f"{self.table.paper}/{self.table.name}"

    def runs(self) -> list[Run]:
        """The runs behind every cell and seed, then those of central training that the gate needs."""
        return [run for seed in self.seeds for run in self.runs_of(seed)] + list(self.central.values())

    def runs_of(self, seed: int) -> list[Run]:
        """The runs of every cell, and those of references that are no cell."""
        own, trained = [cell.run(seed) for cell in self.cells], self.scale != "smoke"
        others = [run for cell in self.cells if trained and (run := self.reference(cell, seed))]
        return list({run.id: run for run in own + others}.values())

    def reference(self, cell: Cell, seed: int) -> Run | None:
        return self.table.reference(cell, self.scale, seed)

    @cached_property
    def central(self) -> dict[str, Run]:
        """id of a reference run -> central training of its network; none at smoke scale, which trains nothing."""
        rule = self.table.gate
        if not rule or self.scale == "smoke":
            return {}
        runs = [run for cell in self.cells if (run := self.reference(cell, self.seeds[0]))]
        return {run.id: gate.central(run, rule.epochs) for run in runs}


class Study(Plan):
    """What a source has of a table."""

    workers: int | None = None  # of what a notebook trains

    def __init__(self, table: str | Table, scale: str | None = None, seeds: Seeds = None, source: Source | None = None):
        """Cells and seeds without a run in the source are left out; without a source nothing can be measured."""
        super().__init__(table, scale, seeds)
        self._source = source
        self._pooled = {run.id for run in self.central.values() if self._has(run)}
        grid = [(cell, seed, cell.run(seed)) for cell in self.cells for seed in self.seeds]
        self._measured = [(cell, seed, run) for cell, seed, run in grid if self._has(run)]
        cells, present = {id(cell) for cell, _, _ in self._measured}, {seed for _, seed, _ in self._measured}
        self.cells = [cell for cell in self.cells if id(cell) in cells]
        self.seeds = [seed for seed in self.seeds if seed in present]
        used = {axis: {cell.labels[axis] for cell in self.cells} for axis in self.axes}
        self.axes = {axis: [label for label in labels if label in used[axis]] for axis, labels in self.axes.items()}

    @property
    def source(self) -> Source:
        if self._source is None:
            raise BadInput(f"{self.table.name}: a study without a source has no rows")
        return self._source

    def _has(self, run: Run) -> bool:
        return self._source is None or self._source.has(run)

    def runs(self) -> list[Run]:
        """The runs that are available, by seed and cell, then the central ones that a gate compares with."""
        runs = [run for seed in self.seeds for run in self.runs_of(seed) if self._has(run)]
        gates = {found.run for found in self.gates}
        return runs + [run for run in self.central.values() if run.id in gates]

    @property
    def seeds_text(self) -> str:
        """`0, 1, 2`, or while a seed is not complete `0 (in some cells also 1)`."""
        runs = Counter(seed for _, seed, _ in self._measured)
        whole, part = (
            ", ".join(str(seed) for seed in self.seeds if (runs[seed] == len(self.cells)) is complete)
            for complete in (True, False)
        )
        if not part:
            return whole
        return f"{whole} (in some cells also {part})" if whole else f"{part} (each in some cells)"

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row per round of every run, with the axes' labels."""
        if not self._measured:
            raise BadInput(f"{self.table.name}: nothing has been trained at scale {self.scale}")
        frames = []
        for cell, seed, run in self._measured:
            table = with_sums(pd.DataFrame(self.source.rows(run)), run, self.costs.get(run.id))
            if "round_time" not in table and any(m.column == "round_time" for m in self.measures.values()):
                missing = "was recorded without CPU times; train it again (--fresh)"
                raise BadInput(f"{self.table.name}: run {run.id} {missing}")
            frames.append(table.assign(**cell.labels, seed=seed, run=run.id))
        return pd.concat(frames, ignore_index=True)

    @cached_property
    def costs(self) -> dict[str, dict[str, int]]:
        """run id -> its costs, where a measure is about floating-point operations, which are not in the rows."""
        used = {column for m in self.measures.values() for column in (m.column, getattr(m, "spend", None))}
        if not used & COUNTED:
            return {}
        return {run.id: self.source.costs(run) for _, _, run in self._measured}

    @cached_property
    def values(self) -> pd.DataFrame:
        """Tidy: one row for every cell, seed and measure."""
        rows = []
        for labels, table in by_labels(self.rounds, ["run", *self.axes, "seed"]):
            for name, measure in self.measures.items():
                numbers = {"value": measure.value(table, labels), "limit": measure.limit(table, labels)}
                rows.append({**labels, "measure": name, **numbers, "unit": measure.unit, "scale": self.scale})
        return pd.DataFrame(rows)

    def of(self, measure: str) -> pd.DataFrame:
        """The values of one measure."""
        return select(self.values, {"measure": measure})

    @cached_property
    def summary(self) -> pd.DataFrame:
        """reported | measured mean and 95% interval over seeds | scale, data, seeds, run ids."""
        lines, keys = [], ["measure", *self.axes]
        reported = {tuple(row.get(key) for key in keys): row for row in self.table.reported_rows()}.values()
        data = {tuple(cell.labels.values()): cell.run(self.seeds[0]).data for cell in self.cells}
        for labels, group in by_labels(self.values, keys):
            values = [value for value in group["value"] if not pd.isna(value)]
            mean, half = metrics.mean_interval(values or [float("nan")])
            theirs = (row for row in reported if all(row.get(key, label) == label for key, label in labels.items()))
            found = next(theirs, {"value": float("nan"), "censored": False})
            value, censored = found["value"], found["censored"]
            line = {**labels, "reported": value, "reported_more": censored, "measured": mean, "interval": half}
            line |= {"not_reached": len(group) - len(values), "seeds": len(group), "unit": group["unit"].iloc[0]}
            line |= {"scale": self.scale, "data": data[tuple(labels[axis] for axis in self.axes)]}
            lines.append(line | {"runs": " ".join(group["run"])})
        return pd.DataFrame(lines)

    @cached_property
    def measured(self) -> Measured:
        """What claims are judged by."""
        known = self.values, self.scale, self.axes, self.measures, self.table.reported_rows(), self.untrained
        whole, planned = ([cell.labels for cell in self.table.cells(s, tuned=False)] for s in ("paper", self.scale))
        return Measured(*known, whole, planned, self.table.readings)

    @cached_property
    def verdicts(self) -> list[tuple[Claim, Verdict]]:
        """Every claim with its verdict."""
        return [(claim, judge(claim, self.measured)) for claim in self.table.claims()]

    @cached_property
    def gates(self) -> list[gate.Gate]:
        """How well the reference of every panel is trained, where its runs and central training are known."""
        rule = self.table.gate
        if rule is None:
            return []
        found = []
        panels = [axis for axis, labels in self.axes.items() if axis not in rule.reference and len(labels) > 1]
        for cell in self.cells:
            references = [run for seed in self.seeds if (run := self.reference(cell, seed))]
            pooled = self.central.get(references[0].id) if references else None
            runs = [run for run in references if self._has(run)]
            if pooled and runs and pooled.id in self._pooled:
                panel = {axis: cell.labels[axis] for axis in panels}
                rows = [self.source.rows(run) for run in runs]
                found.append(gate.judge(panel, rule, rows, self.source.rows(pooled), pooled.id))
        return found

    @cached_property
    def untrained(self) -> list[tuple[dict[str, str], str]]:
        """The panels in which nothing that is learned may be judged, and why."""
        if self.scale == "paper":
            return []
        if self.scale == "smoke":
            return [({}, "smoke scale only shows that everything runs")]
        if not self.gates:
            return [({}, LATER if self.table.gate else "this table has no reference that could be trained")]
        judged = [found.panel for found in self.gates]
        here = [{axis: cell.labels[axis] for axis in judged[0]} for cell in self.cells]
        unknown = [panel for i, panel in enumerate(here) if panel not in judged and panel not in here[:i]]
        failed = [found for found in self.gates if not found.passed]
        return [(found.panel, f"the reference is {found.words}{_at(found.panel)}") for found in failed] + [
            (panel, f"{LATER}{_at(panel)}") for panel in unknown
        ]

    def grouped(self) -> pd.DataFrame:
        """Mean and standard deviation over the cells whose labels have the same number of parts, beside the paper's."""
        if (groups := self.table.groups) is None:
            raise BadInput(f"{self.table.name}: its TOML has no [groups]")
        cells = self.of(groups.measure).groupby(groups.axis, sort=False).agg({"value": "mean"}).reset_index()
        cells[groups.column] = [label.count(groups.separator) + 1 for label in cells[groups.axis]]
        names = {"cells": "size", "our mean": "mean", "our deviation over cells": "std"}
        ours = cells.groupby(groups.column).agg(**{name: ("value", how) for name, how in names.items()})
        paper = pd.read_csv(self.table.path.parent / "reported" / groups.file).set_index(groups.column)
        theirs = {"paper's mean": paper["value"] / 100, "paper's deviation": paper["std"] / 100}
        return ours.join(pd.DataFrame(theirs)).reset_index()

    def curves(self) -> pd.DataFrame:
        """For every cell and tested round the mean over seeds and the half-width of its 95% interval."""
        rows = []
        for column in self.table.curves:
            for labels, tests in by_labels(self.rounds.dropna(subset=[column]), [*self.axes, "round"]):
                mean, half = metrics.mean_interval(tests[column])
                rows.append({"column": column, **labels, "mean": mean, "interval": half, "seeds": len(tests)})
        return pd.DataFrame(rows)


def by_labels(table: pd.DataFrame, keys: list[str]) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Groups of rows with the same labels, in order of appearance."""
    for labels, rows in table.groupby(keys, sort=False):
        yield dict(zip(keys, cast("tuple", labels), strict=True)), rows


def recorded(record: Record) -> list[Study]:
    """The tables of a record, in the paper's order, without damaged runs and without tables that have no run left."""
    studies = []
    for name, ids in record.manifest["tables"].items():
        part = Part(record, ids)
        if (spec.REPRODUCE / record.paper / f"{name}.toml").exists() and (seeds := part.seeds()):
            studies.append(Study(f"{record.paper}/{name}", record.scale, seeds, part))
    return in_order([study for study in studies if study.cells])


def in_order(studies: Sequence[Study]) -> list[Study]:
    return sorted(studies, key=lambda study: spec.natural(study.table.name))


def _at(panel: dict[str, str]) -> str:
    return f" at {' '.join(panel.values())}" if panel else ""


def _seeds(given: Seeds, default: list[int]) -> list[int]:
    if given is None:
        return list(default)
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return list(range(given))
    if isinstance(given, Sequence) and not isinstance(given, str) and 0 < len(set(map(str, given))) == len(given):
        return list(given)
    raise bad("seeds", given, "a number of seeds from 1, or a list of seeds, each once")
