"""Study: one table or figure of a paper, from its TOML to measured beside reported, verdicts and figures."""

import os
import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from fedrepro import metrics, spec, verdict
from fedrepro.cost import round_costs
from fedrepro.engine import sweep
from fedrepro.errors import BadInput, bad
from fedrepro.fleet import shannon
from fedrepro.store import read_result, write_atomically

MARKS = {"reproduced": "✓", "contradicted": "✗", "inconclusive": "?", verdict.NOT_TESTABLE: "–"}
VERDICT_COLUMNS = ["claim", "the paper says", "verdict", "evidence", "judged how"]
ROUND_MIB = 2**20


def results_folder() -> Path:
    return Path(os.environ.get("FEDREPRO_RESULTS", spec.HOME / "results"))


def run_store() -> Path:
    return Path(os.environ.get("FEDREPRO_STORE", spec.HOME / "runs"))


def default_scale() -> str:
    return os.environ.get("FEDREPRO_SCALE", "reduced")


class Study:
    """Study("fedbr/table2_temperature", scale="smoke").run().show() ..."""

    def __init__(self, table: str | spec.Table, scale: str | None = None, seeds: int | Sequence[int] | None = None,
                 workers: int | None = None, fresh: bool = False):  # fmt: skip
        self.scale = scale or default_scale()
        self.table = (table if isinstance(table, spec.Table) else spec.find(table)).named_for(self.scale)
        self.cells = self.table.cells(self.scale)
        self.seeds = _seeds(seeds, self.table.seeds_at(self.scale))
        self.workers, self.fresh, self.store = workers, fresh, run_store()
        self.axes = {axis: list(choices) for axis, choices in self.table.choices(self.scale).items()}
        self.measures = self.table.measures(self.scale)
        self.folder = results_folder() / self.scale / self.table.paper
        self.rows_of = lambda run_id: read_result(self.store / run_id)[1]
        self.costs_of = round_costs

    def runs(self) -> list:
        return [cell.run(seed) for seed in self.seeds for cell in self.cells]

    def run(self) -> "Study":
        """Train what is not in the store yet, side by side, with progress."""
        from tqdm import tqdm

        runs = list({run.id: run for run in self.runs()}.values())
        if self.fresh:
            for run in runs:
                _forget(self.store / run.id)
        done = sum((self.store / run.id / "result.json").exists() for run in runs)
        with tqdm(total=len(runs), unit="run", file=sys.stdout, mininterval=1, leave=False) as bar:
            sweep(runs, store=self.store, workers=self.workers, progress=lambda run: bar.update())
        print(f"{len(runs)} runs: {len(runs) - done} trained now, {done} taken from the store")
        return self

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row a round of every run, with the axes' labels."""
        frames = []
        for cell in self.cells:
            for seed in self.seeds:
                run = cell.run(seed)
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
        used = {column for m in self.measures.values() for column in (m["column"], m.get("spend"))}
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
                        "value": _measure(table, {**measure, "target": spec.target(measure, labels)}),
                        "unit": measure.get("unit", ""),
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
        return row["measure"] + (f" ({spec.target(measure, row):.0%})" if measure["kind"] == "to_target" else "")

    def _measured(self, row: dict) -> str:
        """`0.5 ± 0.01`; a target that seeds missed says so, in rounds by the papers' notation "1000+"."""
        half = row["interval"]
        text = f"{row['measured']:.4g}" + ("" if half is None or np.isnan(half) else f" ± {half:.3g}")
        if not row["not_reached"]:
            return text
        in_rounds = self.measures[row["measure"]]["column"] == "round"
        missed = metrics.format_rounds(None, self.cells[0].run(0).rounds) if in_rounds else "not reached"
        if row["not_reached"] == row["seeds"]:
            return missed
        return f"{text}; {missed} with {row['not_reached']} of {row['seeds']} seeds"

    @property
    def caption(self) -> str:
        note = self.table.at(self.scale).get("data_note", "")
        caption = f"Scale {self.scale}, seeds {', '.join(map(str, self.seeds))}. {note}"
        if self.scale != "paper":
            caption += " The paper's numbers are of its own scale: compare order and trend, not values."
        return caption

    def show(self):
        return self.readable().style.hide(axis="index").set_caption(self.caption)

    def verdicts(self) -> pd.DataFrame:
        reported, rows = self.table.reported_rows(), []
        for claim in self.table.claims():
            found = self._judge(claim, reported)
            rows.append({"claim": claim["id"], "the paper says": claim["claim"], "said in": claim["said in"],
                         **found, "judged how": claim.get("note", ""), "scale": self.scale,
                         "seeds": len(self.seeds)})  # fmt: skip
        columns = ["claim", "the paper says", "said in", "verdict", "evidence", "judged how", "scale", "seeds"]
        return pd.DataFrame(rows, columns=columns)

    def _judge(self, claim: dict, reported: list[dict]) -> dict:
        names = spec.measures_of(claim)
        found = {}
        for name in names or [""]:
            values, better = self.values[self.values["measure"] == name], self.measures.get(name, {}).get("better", "")
            found[name] = verdict.judge({**claim, "measure": name}, values, self.scale, self.axes, better, reported)
        return verdict.together(found) if len(names) > 1 else found[name]

    def show_verdicts(self):
        table = self.verdicts()
        table["verdict"] = [f"{MARKS[v]} {v}" for v in table["verdict"]]
        return _wrapped(table[VERDICT_COLUMNS])

    def deviations(self):
        return _wrapped(pd.DataFrame(self.table.deviation, columns=["what", "why", "erratum"]).fillna(""))

    def grouped(self) -> pd.DataFrame:
        """Mean and deviation over the cells whose labels have equally many parts, beside the paper's."""
        groups = self.table.groups
        values = self.values[self.values["measure"] == groups["measure"]]
        cells = values.groupby(groups["axis"], sort=False)["value"].mean()
        parts = cells.index.map(lambda label: label.count(groups["separator"]) + 1)
        ours = cells.groupby(parts).agg(["size", "mean", "std"])
        paper = pd.read_csv(self.table.path.parent / "reported" / groups["file"]).set_index(groups["column"])
        paper = (paper[["value", "std"]] / 100).rename(columns={"value": "paper's mean", "std": "paper's deviation"})
        names = {"size": "cells", "mean": "our mean", "std": "our deviation over cells"}
        return ours.join(paper).rename(columns=names).rename_axis(groups["column"]).reset_index()

    def run_ids(self) -> pd.DataFrame:
        return self.values[["run", *self.axes, "seed"]].drop_duplicates().reset_index(drop=True)

    def csv_files(self) -> dict[str, str]:
        """file name -> text: the summary, the values, the verdicts, the groups of cells."""
        tables = {"": self.summary(), "_values": self.values, "_verdicts": self.verdicts()}
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


def markdown(studies: list[Study]) -> str:
    """The paper on one page: for each table its command, the numbers, the figure, the verdicts, the deviations."""
    first = studies[0]
    lines = [f"# {first.table.paper}: measured at scale {first.scale}", "",
             "Made by `fedrepro reproduce`; do not edit. Verdicts are explained in the project's README."]  # fmt: skip
    shown = []
    for study in studies:
        name, claims = study.table.name, study.verdicts()
        command = f"make reproduce-{study.table.paper} SCALE={study.scale} SEEDS={len(study.seeds)} TABLE={name}"
        claims["verdict"] = [f"{MARKS[v]} {v}" for v in claims["verdict"]]
        lines += ["", f"## {study.table.title}", "", study.table.question, "", f"    {command}", "", study.caption, "",
                  _markdown_table(study.readable()), "", *_groups(study),
                  f"![{study.table.title}]({name}.png)", "",
                  _markdown_table(claims[VERDICT_COLUMNS]), ""]  # fmt: skip
        new = [d for d in study.table.deviation if d not in shown]
        shown += new
        lines += [f"- {d['what']}: {d['why']}" + (f" ({d['erratum']})" if d.get("erratum") else "") for d in new]
    return "\n".join(lines) + "\n"


def _groups(study: Study) -> list[str]:
    if not study.table.groups:
        return []
    table = study.grouped().round(4).astype(object).fillna("")
    return [study.table.groups["title"] + ":", "", _markdown_table(table), ""]


def _markdown_table(table: pd.DataFrame) -> str:
    rows = [list(table.columns), ["---"] * table.shape[1], *table.astype(str).to_numpy().tolist()]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


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


def _measure(table: pd.DataFrame, measure: dict) -> float:
    """One number from a run's rounds; NaN where a target was not reached or a budget is below one round."""
    kind, times = measure["kind"], measure.get("times", 1.0)
    column = table[measure["column"]]
    tail = column[table["round"] > table["round"].max() - measure.get("window", len(table))].dropna()
    if kind in ("final", "total"):
        return float(column.dropna().iloc[-1]) * times
    if kind == "best":
        return float(column.max()) * times
    if kind == "mean":
        return float(tail.mean()) * times
    if kind == "at_round":
        return float(column[table["round"] <= measure["round"]].dropna().iloc[-1]) * times
    if kind == "gain":  # from that round to the last
        return _measure(table, {**measure, "kind": "final"}) - _measure(table, {**measure, "kind": "at_round"})
    if kind == "to_target":
        reached = table[measure.get("of", "accuracy")] >= measure["target"]
        return float(column[reached].iloc[0]) * times if reached.any() else float("nan")
    if kind == "within_budget":
        inside = table[table[measure["spend"]] * times <= measure["budget"]]
        return float(inside[measure["column"]].dropna().max()) if len(inside) else float("nan")
    if kind == "stability":
        return metrics.stability(tail) * times
    raise BadInput(f"measure: unknown kind {kind!r}")


def _wrapped(table: pd.DataFrame):
    return (
        table.style.hide(axis="index")
        .set_properties(**{"text-align": "left", "white-space": "normal"})
        .set_table_styles([{"selector": "th", "props": [("text-align", "left")]}])
    )


def block_sizes(model: str, classes: int = 10, channels: int = 3, size: int = 32) -> pd.DataFrame:
    """What the last blocks of a model weigh, beside the share α/M that FedBR's Eq. (4) charges for them."""
    from fedrepro.models import build

    net = build(model, classes=classes, channels=channels, size=size)
    parameters = dict(net.named_parameters())
    counts = [sum(parameters[n].numel() for n in names if n in parameters) for names in net.block_params.values()]
    blocks, last = len(counts), np.cumsum(counts[::-1])
    return pd.DataFrame({"last blocks sent (α)": range(1, blocks + 1), "from block": list(net.block_params)[::-1],
                         "parameters": last, "share of bytes": last / last[-1],
                         "charged by Eq. (4): α/M": np.arange(1, blocks + 1) / blocks})  # fmt: skip


def layer_sizes(model: str, clients: int = 10, classes: int = 10, channels: int = 3, size: int = 32) -> pd.DataFrame:
    """What KAPC's clients upload in a round when they send layers 1..Ω and BatchNorm, in MiB."""
    from fedrepro.models import build

    net = build(model, classes=classes, channels=channels, size=size)
    counts = {name: p.numel() for name, p in net.named_parameters()}
    layers = {name: sum(counts[key] for key in keys) for name, keys in net.layers().items()}
    rest = sum(counts.values()) - sum(layers.values())
    sent = (np.cumsum(list(layers.values())) + rest) * 4 * clients / ROUND_MIB
    return pd.DataFrame({"Ω": range(1, len(layers) + 1), "last layer sent": list(layers),
                         "its parameters": list(layers.values()), f"upload of {clients} clients (MiB)": sent,
                         "share of the model": sent / sent[-1]})  # fmt: skip


def wireless(nbytes: int, clients: int = 100, seed: int = 0) -> pd.DataFrame:
    """Mean seconds of one model up and down for clients drawn from KAPC's Table 4, by two readings of it."""
    draw = np.random.default_rng(seed).uniform
    band, power, metres = draw(10, 30, clients), draw(23, 30, clients), draw(100, 500, clients)
    megabits = nbytes * 8 / 1e6
    literal = [np.mean([megabits / shannon(b, p, m) for b, p, m in zip(*way, strict=True)])
               for way in ((band, power, metres), ([50] * clients, [30] * clients, metres))]  # fmt: skip
    readings = ["one bit per second and hertz (used here)", "its powers, distances and noise"]
    return pd.DataFrame({"reading of Table 4": readings,
                         "up (s)": [np.mean(megabits / band), literal[0]],
                         "down (s)": [megabits / 50, literal[1]]})  # fmt: skip
