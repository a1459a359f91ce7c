"""Study: one table or figure of a paper, from its TOML to measured beside reported, verdicts and figures."""

import os
import sys
from collections.abc import Container, Sequence
from dataclasses import asdict, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fedrepro.checks import choose
from fedrepro.errors import BadInput, bad
from fedrepro.evidence import gate, spec, verdict
from fedrepro.evidence.claims import Claim
from fedrepro.evidence.measures import ToTarget
from fedrepro.evidence.verdict import Verdict, judge
from fedrepro.simulation import metrics
from fedrepro.simulation.cost import round_costs
from fedrepro.simulation.run import Run
from fedrepro.simulation.store import read_result, write_atomically
from fedrepro.simulation.sweep import sweep

if TYPE_CHECKING:
    from fedrepro.evidence.record import Record

VERDICT_WORDS = """A claim *holds* at this scale if the 95% interval of every comparison it makes lies where the claim
puts it; the *opposite* is found if one lies elsewhere, also after Holm's correction for their number. With one seed
only what no seed changes, such as bytes, is judged. docs/verdicts.md has the rules."""
SHOWN_EFFECTS = 8  # of a claim in the notebook and the README; the CSV file has all


def results_folder() -> Path:
    return Path(os.environ.get("FEDREPRO_RESULTS", spec.HOME / "results"))


def run_store() -> Path:
    return Path(os.environ.get("FEDREPRO_STORE", spec.HOME / "runs"))


def default_scale() -> str:
    return os.environ.get("FEDREPRO_SCALE", "reduced")


class Study:
    """Study("fedbr/table2_temperature", scale="smoke").run().show() ..."""

    def __init__(
        self,
        table: str | spec.Table,
        scale: str | None = None,
        seeds: int | Sequence[int] | None = None,
        workers: int | None = None,
        fresh: bool = False,
        missing: str = "train",
    ):
        """`fresh` trains everything again; `missing` says what to do with runs that are neither in the store nor in
        the committed record: train them, or leave them out."""
        self.scale = scale or default_scale()
        self.table = (table if isinstance(table, spec.Table) else spec.find(table)).named_for(self.scale)
        self.cells = self.table.cells(self.scale)
        self.seeds = _seeds(seeds, self.table.seeds_at(self.scale))
        self.workers, self.fresh, self.missing = workers, fresh, choose("missing", missing, ("train", "leave"))
        self.store = run_store()
        self.axes = {axis: list(choices) for axis, choices in self.table.choices(self.scale).items()}
        self.measures = self.table.measures(self.scale)
        self.folder = results_folder() / self.scale / self.table.paper
        self.costs_of = round_costs
        self.rows_of = self._rows
        self.known: Container[str] | None = None  # ids of the runs that there are; None: all

    @cached_property
    def committed(self) -> "Record":
        """The record of this paper and scale: in the results folder, else the one that came with the code."""
        from fedrepro.evidence.record import RUNS, Record

        own = Record(self.folder)
        return own if own.has(RUNS) else Record(spec.HOME / "results" / self.scale / self.table.paper)

    def _rows(self, run_id: str) -> list[dict]:
        kept = self.store / run_id
        return read_result(kept)[1] if (kept / "result.json").exists() else self.committed.rounds[run_id]

    def runs(self) -> list[Run]:
        """The runs behind every cell and seed, then those of central training that the gate needs."""
        return [cell.run(seed) for seed in self.seeds for cell in self.cells] + list(self.central.values())

    @cached_property
    def central(self) -> dict[str, Run]:
        """id of a reference run -> central training of its network; none at smoke scale, which trains nothing."""
        rule = self.table.gate
        if not rule or self.scale == "smoke":
            return {}
        cells = [cell for cell in self.cells if rule.is_reference(cell.labels)]
        runs = [cell.run(self.seeds[0]) for cell in cells]
        return {run.id: gate.central(run, rule.epochs) for run in runs}

    def run(self) -> "Study":
        """Train what is neither in the store nor in the committed record, side by side, with progress."""
        from tqdm import tqdm

        runs = list({run.id: run for run in self.runs()}.values())
        if self.fresh:
            for run in runs:
                _forget(self.store / run.id)
        kept = [run for run in runs if (self.store / run.id / "result.json").exists()]
        recorded = [] if self.fresh else [run for run in runs if run not in kept and self.committed.offers(run)]
        todo = [run for run in runs if run not in kept and run not in recorded] if self.missing == "train" else []
        with tqdm(total=len(todo), unit="run", file=sys.stdout, mininterval=1, leave=False) as bar:
            sweep(todo, store=self.store, workers=self.workers, progress=lambda run: bar.update())
        counts = {"trained now": todo, "from the store": kept, "from the committed record": recorded}
        known = {run.id for found in counts.values() for run in found}
        words = [f"{len(found)} {where}" for where, found in counts.items() if found]
        words += [f"{len(runs) - len(known)} not trained and left out"] if len(known) < len(runs) else []
        print(f"{len(runs)} runs: " + ", ".join(words))
        self.keep_only(known)
        return self

    def keep_only(self, known: Container[str]) -> None:
        """Leave out the cells and seeds of which no run is known."""
        self.cells = [cell for cell in self.cells if any(cell.run(seed).id in known for seed in self.seeds)]
        if not self.cells:
            raise BadInput(f"{self.table.name}: nothing of it has been trained at scale {self.scale}")
        self.seeds = [seed for seed in self.seeds if any(cell.run(seed).id in known for cell in self.cells)]
        present = {axis: {cell.labels[axis] for cell in self.cells} for axis in self.axes}
        self.axes = {axis: [label for label in labels if label in present[axis]] for axis, labels in self.axes.items()}
        self.known = known

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row a round of every run, with the axes' labels."""
        frames = []
        for cell in self.cells:
            for seed in self.seeds:
                run = cell.run(seed)
                if self.known is not None and run.id not in self.known:
                    continue
                table = pd.DataFrame(self.rows_of(run.id))
                table["bytes"] = (table["bytes_down"] + table["bytes_up"]).cumsum()
                if "paper_bytes" in table:
                    table["paper_bytes"] = table["paper_bytes"].cumsum()
                else:
                    table["paper_bytes"] = table["bytes"]
                table["ema_accuracy"] = metrics.ema(table["accuracy"])
                if self.needs_costs:
                    costs = self.costs_of(run)
                    table["flops"] = costs["visit_flops"] * run.per_round * table["round"]
                    table["client_flops"] = costs["client_flops"] * run.per_round
                    table["server_flops"] = costs["server_flops"]
                if "time_up" in table:
                    table["link_time"] = table["time_up"] + table["time_down"]
                    table["round_time"] = table["link_time"] + table["client_time"] + table["server_time"]
                frames.append(table.assign(**cell.labels, seed=seed, run=run.id))
        return pd.concat(frames, ignore_index=True)

    @property
    def needs_costs(self) -> bool:
        """Whether a measure is about floating-point operations, which are counted and not in the rows."""
        used = {column for m in self.measures.values() for column in (m.column, getattr(m, "spend", None))}
        return bool(used & {"flops", "client_flops", "server_flops"})

    @cached_property
    def values(self) -> pd.DataFrame:
        """Tidy: one row for every cell, seed and measure."""
        rows = []
        for run_id, table in self.rounds.groupby(["run", *self.axes, "seed"], sort=False):
            labels = dict(zip(["run", *self.axes, "seed"], run_id, strict=True))
            for name, measure in self.measures.items():
                rows.append(
                    {
                        **labels,
                        "measure": name,
                        "value": measure.value(table, labels),
                        "limit": measure.limit(table),
                        "unit": measure.unit,
                        "scale": self.scale,
                    }
                )
        return pd.DataFrame(rows)

    def summary(self) -> pd.DataFrame:
        """reported | measured mean and 95% interval over seeds | scale, data, seeds, run ids."""
        reported = {}
        for row in self.table.reported_rows():
            reported[(row["measure"], *(row.get(axis) for axis in self.axes))] = row["value"], row["censored"]
        lines = []
        data = {tuple(cell.labels.values()): cell.run(self.seeds[0]).data for cell in self.cells}
        for key, group in self.values.groupby(["measure", *self.axes], sort=False):
            mean, half = metrics.mean_interval(group["value"].dropna().tolist() or [float("nan")])
            value, censored = _lookup(reported, key)
            lines.append({
                "measure": key[0], **dict(zip(self.axes, key[1:], strict=True)),
                "reported": value, "reported_more": censored, "measured": mean, "interval": half,
                "not_reached": int(group["value"].isna().sum()), "seeds": len(group),
                "unit": group["unit"].iloc[0], "scale": self.scale, "data": data[key[1:]],
                "runs": " ".join(group["run"]),
            })  # fmt: skip
        return pd.DataFrame(lines)

    def readable(self, summary: pd.DataFrame | None = None) -> pd.DataFrame:
        """The summary as a person reads it: the paper's number beside ours, with its interval over seeds."""
        table = self.summary() if summary is None else summary
        rows = table.to_dict("records")
        table["measured"] = [self._measured(row) for row in rows]
        table["measure"] = [self._named(row) for row in rows]
        table["reported"] = ["" if pd.isna(v) else f"{v:.4g}" + "+" * more
                             for v, more in zip(table["reported"], table["reported_more"], strict=True)]  # fmt: skip
        names = {"reported": "paper (its scale)", "measured": f"ours ({self.scale})"}
        dropped = ["interval", "reported_more", "not_reached", "runs", "scale"]
        return table.drop(columns=dropped).rename(columns=names)

    def _named(self, row: dict) -> str:
        measure = self.measures[row["measure"]]
        return row["measure"] + (f" ({measure.target_at(row):.0%})" if isinstance(measure, ToTarget) else "")

    def _measured(self, row: dict) -> str:
        """`0.5 ± 0.01`; a target that seeds missed says so, in rounds by the papers' notation "1000+"."""
        half = row["interval"]
        text = f"{row['measured']:.4g}" + ("" if half is None or np.isnan(half) else f" ± {half:.3g}")
        if not row["not_reached"]:
            return text
        in_rounds = self.measures[row["measure"]].column == "round"
        missed = metrics.format_rounds(None, self.cells[0].run(0).rounds) if in_rounds else "not reached"
        if row["not_reached"] == row["seeds"]:
            return missed
        return f"{text}; {missed} with {row['not_reached']} of {row['seeds']} seeds"

    @property
    def caption(self) -> str:
        note = self.table.at(self.scale).data_note
        caption = f"Scale {self.scale}, seeds {', '.join(map(str, self.seeds))}. {note}"
        if self.scale != "paper":
            caption += " The paper's numbers are of its own scale: compare order and trend, not values."
        return caption

    def show(self):
        return self.readable().style.hide(axis="index").set_caption(self.caption)

    @cached_property
    def verdicts(self) -> list[tuple[Claim, Verdict]]:
        """Every claim with its verdict."""
        known = self.values, self.scale, self.axes, self.measures, self.table.reported_rows(), self.untrained
        whole = [cell.labels for cell in self.table.cells("paper", tuned=False)]
        return [(claim, judge(claim, *known, paper_cells=whole)) for claim in self.table.claims()]

    @cached_property
    def gates(self) -> list[gate.Gate]:
        """How far the reference of every panel came, where it and its central training are known."""
        rule, found = self.table.gate, []
        panels = [axis for axis, labels in self.axes.items() if rule and axis not in rule.reference and len(labels) > 1]
        for cell in self.cells:
            pooled = self.central.get(cell.run(self.seeds[0]).id)
            runs = [run.id for run in map(cell.run, self.seeds) if self.known is None or run.id in self.known]
            if pooled and runs and (self.known is None or pooled.id in self.known):
                panel = {axis: cell.labels[axis] for axis in panels}
                rows = [self.rows_of(run) for run in runs]
                found.append(gate.judge(panel, rule, rows, self.rows_of(pooled.id), pooled.id))
        return found

    @property
    def untrained(self) -> list[tuple[dict[str, str], str]]:
        """The panels in which nothing that is learned may be judged, and why."""
        if self.scale == "paper":
            return []
        if self.scale == "smoke":
            return [({}, "smoke scale only shows that everything runs")]
        if not self.gates:
            return [({}, "no reference of this table is trained")]
        judged = [found.panel for found in self.gates]
        here = [{axis: cell.labels[axis] for axis in judged[0]} for cell in self.cells]
        unknown = [panel for i, panel in enumerate(here) if panel not in judged and panel not in here[:i]]
        failed = [found for found in self.gates if not found.passed]
        return [(found.panel, f"the reference is {found.words}{_at(found.panel)}") for found in failed] + [
            (panel, f"no reference is trained{_at(panel)}") for panel in unknown
        ]

    def gate_table(self) -> pd.DataFrame:
        """One row per panel: the reference beside central training of the same network."""
        return pd.DataFrame(
            [
                {
                    **found.panel,
                    "reference": " ".join(found.rule.reference.values()),
                    "accuracy": found.accuracy,
                    "central": found.central,
                    "share": found.accuracy / found.central,
                    "needed": found.rule.share,
                    "rise over the last third": found.rise,
                    "allowed": found.rule.rise,
                    "passed": found.passed,
                    "run": found.run,
                }
                for found in self.gates
            ]
        )

    def tuning_table(self) -> pd.DataFrame:
        """Every pilot run of this table's methods on its data sets, the chosen ones marked."""
        used = {(cell.fields["data"], cell.fields.get("method")) for cell in self.cells}
        lines = [line for line in self.table.tuning_rows(self.scale) if (line["data"], line["method"]) in used]
        return pd.DataFrame(lines)

    def evidence(self) -> None:
        """Shows what stands behind the numbers: gate, tuning, verdicts, deviations, run ids."""
        from IPython.display import Markdown, display

        parts = {
            "Is the reference trained?": (_gate_words(self), self.gate_table()),
            "How each method was tuned": (_tuning_words(self), self.tuning_table()),
            "Verdicts": (VERDICT_WORDS, self.readable_verdicts()),
            "Where this differs from the paper": ("", pd.DataFrame(self.table.deviation).fillna("")),
            "Run ids": ("Every number above comes from these runs; the store and the record know them by id.",
                        self.run_ids()),
        }  # fmt: skip
        for title, (words, table) in parts.items():
            display(Markdown(f"## {title}\n\n{words}"))
            if len(table):
                display(_wrapped(table))

    def verdict_table(self) -> pd.DataFrame:
        """One row per claim: the verdict and, in a line, why."""
        columns = ["claim", "the paper says", "source", "verdict", "reason", "how it is judged", "scale", "seeds"]
        rows = [
            (
                claim.id,
                claim.says,
                claim.source,
                found.word,
                found.reason,
                claim.note,
                self.scale,
                len(self.seeds),
            )
            for claim, found in self.verdicts
        ]
        return pd.DataFrame(rows, columns=columns)

    def effect_table(self) -> pd.DataFrame:
        """One row per comparison of every claim that was judged."""
        rows = [{"claim": claim.id, **asdict(effect)} for claim, found in self.verdicts for effect in found.effects]
        return pd.DataFrame(rows, columns=["claim", *(field.name for field in fields(verdict.Effect))])

    def readable_verdicts(self) -> pd.DataFrame:
        """The verdicts as a person reads them, with the effects behind them: first those that do not hold."""
        rows = []
        for claim, found in self.verdicts:
            effects = sorted(found.effects, key=lambda e: ("opposite", "open", "holds").index(e.state))
            shown = [verdict.text(effect) for effect in effects[:SHOWN_EFFECTS]]
            if len(effects) > SHOWN_EFFECTS:
                shown.append(f"{len(effects) - SHOWN_EFFECTS} more in {self.table.name}_effects.csv")
            rows.append(
                {
                    "claim": claim.id,
                    "the paper says": claim.says,
                    "verdict": f"{verdict.MARKS[found.state]} {found.word}",
                    "evidence": ". ".join([found.reason, "; ".join(shown)]) if shown else found.reason,
                    "how it is judged": claim.note,
                }
            )
        return pd.DataFrame(rows, columns=["claim", "the paper says", "verdict", "evidence", "how it is judged"])

    def show_verdicts(self):
        return _wrapped(self.readable_verdicts())

    def deviations(self):
        return _wrapped(pd.DataFrame(self.table.deviation, columns=["what", "why", "erratum"]).fillna(""))

    def grouped(self) -> pd.DataFrame:
        """Mean and deviation over the cells whose labels have equally many parts, beside the paper's."""
        groups = self.table.groups
        values = self.values[self.values["measure"] == groups.measure]
        cells = values.groupby(groups.axis, sort=False)["value"].mean()
        parts = cells.index.map(lambda label: label.count(groups.separator) + 1)
        ours = cells.groupby(parts).agg(["size", "mean", "std"])
        paper = pd.read_csv(self.table.path.parent / "reported" / groups.file).set_index(groups.column)
        paper = (paper[["value", "std"]] / 100).rename(columns={"value": "paper's mean", "std": "paper's deviation"})
        names = {"size": "cells", "mean": "our mean", "std": "our deviation over cells"}
        return ours.join(paper).rename(columns=names).rename_axis(groups.column).reset_index()

    def curves(self) -> pd.DataFrame:
        """For every cell and tested round the mean over seeds and the half-width of its 95% interval."""
        rows = []
        for column in self.table.curves:
            tested = self.rounds.dropna(subset=column).groupby([*self.axes, "round"], sort=False)[column]
            for place, values in tested:
                mean, half = metrics.mean_interval(values)
                labels = dict(zip([*self.axes, "round"], place, strict=True))
                rows.append({"column": column, **labels, "mean": mean, "interval": half, "seeds": len(values)})
        return pd.DataFrame(rows)

    def run_ids(self) -> pd.DataFrame:
        return self.values[["run", *self.axes, "seed"]].drop_duplicates().reset_index(drop=True)

    def csv_files(self) -> dict[str, str]:
        """file name -> text: the summary, the values, the verdicts and the effects behind them, the groups of cells,
        the gate, the curves."""
        tables = {
            "": self.summary(),
            "_values": self.values,
            "_verdicts": self.verdict_table(),
            "_effects": self.effect_table(),
        }
        if self.gates:
            tables["_gate"] = self.gate_table()
        if self.table.curves:
            tables["_curves"] = self.curves()
        if self.table.groups:
            tables["_groups"] = self.grouped()
        return {f"{self.table.name}{suffix}.csv": table.to_csv(index=False, float_format="%.10g")
                for suffix, table in tables.items()}  # fmt: skip

    def save(self, figure=None) -> None:
        """The CSV files, and the figure as PNG and SVG, under results/<scale>/<paper>/."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, text in self.csv_files().items():
            write_atomically(self.folder / name, lambda f, text=text: f.write(text.encode()))
        if figure is not None:
            for kind in ("png", "svg"):
                figure.savefig(self.folder / f"{self.table.name}.{kind}", dpi=110, bbox_inches="tight",
                               metadata={"Date": None} if kind == "svg" else None)  # fmt: skip

    def partition(self, clients: int = 12) -> pd.DataFrame:
        """How many samples of each class the first clients of the first cell hold."""
        from fedrepro.data import load
        from fedrepro.data.partition import partition

        run = self.cells[0].run(self.seeds[0])
        data = load(run.data)
        parts = partition(run.split, data.train_y, run.clients, seed=run.seed, samples=run.samples,
                          share=run.share or 1.0, writers=data.writers)  # fmt: skip
        counts = parts.label_counts(data.train_y, data.classes)[:clients].numpy()
        return pd.DataFrame(counts, index=pd.Index(range(len(counts)), name="client"))


def _at(panel: dict[str, str]) -> str:
    return f" at {' '.join(panel.values())}" if panel else ""


def _gate_words(study: Study) -> str:
    if study.scale == "smoke":
        return "Smoke scale only shows that everything runs: nothing that is learned is judged."
    if not study.table.gate:
        return "Nothing in this table is learned."
    words = "A reference is trained if it comes close to central training of the same network and its curve is flat. "
    if study.scale == "paper":
        return words + "At paper scale this withholds no verdict."
    return words + "Where it is not, accuracy, ranking and speed of convergence are not judged."


def _tuning_words(study: Study) -> str:
    if study.scale == "paper":
        return "As the paper states; what it does not state is a deviation below."
    if not len(study.tuning_table()):
        return "Not at all: every method uses the settings under deviations."
    return (
        "Every method got the same number of pilot runs, on a seed and on held-out training images that no verdict "
        "uses; the score is their accuracy over the last third of the rounds. A chosen value at the border of its grid "
        "is flagged: a wider grid might have found a better one."
    )


def _seeds(given, default: list[int]) -> list[int]:
    if given is None:
        return list(default)
    if isinstance(given, int) and not isinstance(given, bool):
        if given < 1:
            raise bad("seeds", given, "a number of seeds from 1, or a list of seeds")
        return list(range(given))
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise bad("seeds", given, "a number of seeds from 1, or a list of seeds")
    return list(given)


def _forget(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def _lookup(reported: dict, key: tuple) -> tuple[float, bool]:
    for place, value in reported.items():
        if place[0] == key[0] and all(a is None or a == b for a, b in zip(place[1:], key[1:], strict=True)):
            return value
    return float("nan"), False


def _wrapped(table: pd.DataFrame):
    return (
        table.style.hide(axis="index")
        .set_properties(**{"text-align": "left", "white-space": "normal"})
        .set_table_styles([{"selector": "th", "props": [("text-align", "left")]}])
    )
