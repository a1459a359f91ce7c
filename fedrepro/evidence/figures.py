"""The figures of a study, with seaborn: lines over rounds, bars and lines over an axis. Heat maps: heatmaps.py."""

import itertools
import textwrap
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns

from fedrepro.data import load
from fedrepro.data.partition import partition
from fedrepro.evidence.comparisons import select
from fedrepro.evidence.study import Study
from fedrepro.simulation.ledger import MIB
from fedrepro.simulation.metrics import mean_interval

LABELS = {
    "round": "communication round",
    "accuracy": "test accuracy",
    "ema_accuracy": "test accuracy (moving average)",
    "loss": "test loss",
    "sim_time": "simulated time (s)",
    "bytes": "traffic as sent (MiB)",
    "paper_bytes": "traffic by Eq. (4) (MiB)",
    "personal_accuracy": "mean personal test accuracy",
    "alpha": "mean number of blocks sent",
    "omega": "mean number of layers uploaded (Ω)",
    "self_mean": "mean self-relationship",
    "flops": "operations of all clients so far",
    "round_time": "time of a round (s)",
}
IN_MIB = {"bytes", "paper_bytes"}  # columns shown in MiB
Names = list[str] | None
Panels = str | list[str] | None  # the axes that have a panel for every combination of their labels


def style() -> None:
    """Safe for colour-blind readers, large enough for a projector, in a font that comes with matplotlib."""
    sns.set_theme(style="whitegrid", context="talk", font_scale=0.75, palette="colorblind", font="DejaVu Sans")
    plt.rcParams["svg.hashsalt"] = "fedrepro"  # equal figures are equal files


def interval(values) -> tuple[float, float]:
    """The 95% interval of the mean, as in the tables, for seaborn's error bars; clipped at zero if no value is
    negative. That of two values would hide all else: they are drawn as their range."""
    mean, half = mean_interval(values)
    low, high = (min(values), max(values)) if len(values) == 2 else (mean - (half or 0), mean + (half or 0))
    return (max(low, 0.0) if min(values) >= 0 else low), high


def _error(study: Study):
    """What seaborn draws around a mean over seeds."""
    return interval if len(study.seeds) > 1 else None


def _data(name: str) -> str:
    """mnist:substitute_for=femnist -> "mnist in place of femnist"; other options are details."""
    short, _, options = name.partition(":")
    return f"{short} in place of {options.partition('=')[2]}" if options.startswith("substitute_for=") else short


def note(study: Study, figure, measures: Names = None, more: str = "") -> None:
    """State scale, data and seeds below the figure."""
    data = sorted({_data(cell.run(study.seeds[0]).data) for cell in study.cells})
    text = f"scale: {study.scale}  ·  data: {', '.join(data)}  ·  seeds: {study.seeds_text}"
    counts = study.values.groupby(list(study.axes))["seed"].nunique()
    text += "  ·  of two seeds the range is shown" * bool((counts == 2).any())
    if any(study.of(measure)["value"].isna().any() for measure in measures or []):
        text += "  ·  a missing point or bar: target not reached"
    figure.text(0.01, -0.02, text + more, fontsize="x-small", color="0.35", ha="left", va="top")


def averaged(study: Study, values: pd.DataFrame, *shown: Panels) -> str:
    """For the note: the axes that a figure does not show, over whose labels it takes means."""
    seen = {axis for some in shown for axis in ([some] if isinstance(some, str) else some or [])}
    hidden = [axis_name(study, axis) for axis in study.axes if axis not in seen and len(set(values[axis])) > 1]
    return f"  ·  means over: {', '.join(hidden)}" if hidden else ""


def axis_name(study: Study, axis: str) -> str:
    return study.table.axis[axis].label or axis


def with_unit(study: Study, measure: str) -> str:
    unit = study.measures[measure].unit.replace(" ", "\N{NO-BREAK SPACE}")
    return f"{measure} ({unit})" if unit else measure


def curves(
    study: Study,
    x: str = "round",
    y: str = "accuracy",
    hue: str = "method",
    col: Panels = None,
    row: Panels = None,
    where: dict | None = None,
):
    """Mean over seeds of a column along rounds, time or traffic, of the cells `where`; the band is the 95% interval.
    `col` and `row` may each be several axes: a panel for every combination of their labels."""
    style()
    table = select(study.rounds, where or {}).copy()
    for column in IN_MIB & {x, y}:
        table[column] /= MIB
    columns, rows = combinations(study, col), combinations(study, row)
    size = (1.5 + 6 * len(columns), 4.6 * len(rows))
    figure, axes = plt.subplots(len(rows), len(columns), figsize=size, squeeze=False, sharey=True)
    lines = {"hue": hue, "style": hue, "hue_order": study.axes[hue], "style_order": study.axes[hue]}
    if x == "round":
        lines |= {"estimator": "mean", "errorbar": _error(study)}
    else:
        lines |= {"estimator": None, "errorbar": None, "units": "seed"}
    for panel, (a, b) in zip(axes.flat, itertools.product(rows, columns), strict=True):
        sns.lineplot(select(table, {**a, **b}), x=x, y=y, **lines, dashes=True, ax=panel)
        panel.set(xlabel=LABELS.get(x, x), ylabel=LABELS.get(y, y), title=titled(study, {**a, **b}))
        panel.xaxis.get_major_locator().set_params(integer=x == "round")
    one_legend(figure, list(axes.flat), axis_name(study, hue))
    note(study, figure, more=averaged(study, table, hue, col, row))
    return figure


def ahead(
    study: Study,
    pairs: str | list[tuple[str, str]],
    axis: str = "method",
    y: str = "accuracy",
    where: dict | None = None,
):
    """By how many points the first of each pair is ahead of the second, round by round: a column per pair, a row for
    every combination of the other axes' labels. A single label is compared with each of the others."""
    style()
    labels = study.axes[axis]
    pairs = [(pairs, label) for label in labels if label != pairs] if isinstance(pairs, str) else pairs
    pairs = [pair for pair in pairs if set(pair) <= set(labels)]
    tests = select(study.rounds, where or {}).dropna(subset=[y])
    rows = [at for at in combinations(study, [a for a in study.axes if a != axis]) if len(select(tests, at))]
    if not pairs:
        figure = plt.figure(figsize=(8, 0.6))
        figure.text(0, 0.5, "Nothing to compare yet: of each pair only one method is trained.")
        return figure
    size = (1 + 3.2 * len(pairs), 3.8 * len(rows))
    figure, axes = plt.subplots(len(rows), len(pairs), figsize=size, squeeze=False, sharex="row", sharey="col")
    for panels, at in zip(axes, rows, strict=True):
        curves = select(tests, at).pivot_table(index=["round", "seed"], columns=axis, values=y)
        curves = curves.reindex(columns=labels)  # NaN where nothing is trained yet
        for panel, (better, worse) in zip(panels, pairs, strict=True):
            points = 100 * (curves[better] - curves[worse]).unstack("seed")
            panel.plot(points.index, points, color="0.6", linewidth=1)
            panel.plot(points.index, points.mean(axis=1), linewidth=2.5)
            panel.axhline(0, color="0.2", linestyle="--", linewidth=1)
            panel.set(title=f"{better} −\n{textwrap.fill(worse, 24)}", xlabel=LABELS["round"])
        panels[0].set_ylabel(f"points of accuracy ahead\n{textwrap.fill(titled(study, at), 28)}")
    figure.tight_layout()
    note(study, figure, more="  ·  thin: each seed, thick: their mean")
    return figure


def combinations(study: Study, axes: Panels) -> list[dict[str, str]]:
    """Every combination of the labels of these axes; without axes, a single empty one."""
    keys = [axes] if isinstance(axes, str) else axes or []
    return [dict(zip(keys, labels, strict=True)) for labels in itertools.product(*(study.axes[key] for key in keys))]


def titled(study: Study, labels: dict[str, str]) -> str:
    """Labels as a title; numbers with the name of their axis."""
    numeric = {axis: label.replace(".", "", 1).isdigit() for axis, label in labels.items()}
    return ", ".join(f"{axis_name(study, a)} = {label}" if numeric[a] else label for a, label in labels.items())


def _by_measure(study: Study, x: str, measures: Names, hue: str | None, col: Panels, draw, sharey: bool = True):
    """`draw(values, panel)` for each measure (and label of `col`); labels with units, one legend, the note.

    At most three panels per row; with several labels of `col`, one row per measure, on one scale if `sharey`."""
    style()
    names, labels = measures or list(study.measures), combinations(study, col)
    columns = len(labels) if len(labels) > 1 else min(len(names), 3)
    rows = -(-len(names) * len(labels) // columns)
    size, shared = (1.5 + 5 * columns, 4.4 * rows), "row" if len(labels) > 1 and sharey else False
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, sharey=shared)
    shown = list(itertools.product(names, labels))
    panels, unused = axes.flat[: len(shown)], axes.flat[len(shown) :]
    for panel in unused:
        panel.remove()
    for (name, at), panel in zip(shown, panels, strict=True):
        draw(select(study.of(name), at), panel)
        height = textwrap.fill(with_unit(study, name), 36)
        panel.set(xlabel=axis_name(study, x), ylabel=height, title=titled(study, at))
    if hue:
        one_legend(figure, panels, axis_name(study, hue))
    else:
        figure.tight_layout()
    note(study, figure, names, averaged(study, study.values, x, hue, col))
    return figure


def over(
    study: Study,
    x: str,
    measures: Names = None,
    hue: str | None = None,
    col: Panels = None,
    joined: bool = True,
    sharey: bool = True,
):
    """Each measure over an axis: points with 95% intervals, one panel per measure (and label of `col`); lines between
    the points unless the axis has no order. Without `sharey` every panel has a scale of its own."""
    groups = len(study.axes[hue]) if hue else 1

    def draw(values, panel):
        line = "-" if joined else "none"
        marks: dict[str, Any] = {"markers": list("os^DvPX")[:groups] if hue else "o"}
        marks |= {"linestyles": [line] * groups if hue else line}
        marks |= {"order": study.axes[x], "hue_order": study.axes[hue] if hue else None}
        marks |= {"dodge": 0.25 if groups > 1 else False, "capsize": 0.08, "errorbar": _error(study)}
        sns.pointplot(values, x=x, y="value", hue=hue, ax=panel, **marks)
        _wrap(panel, study.axes[x])

    return _by_measure(study, x, measures, hue, col, draw, sharey)


def bars(study: Study, x: str, measures: Names = None, hue: str | None = None, col: Panels = None):
    """Each measure as bars over an axis; a bar that is missing did not reach its target."""

    def draw(values, panel):
        order = {"order": study.axes[x], "hue_order": study.axes[hue or x], "legend": bool(hue)}
        sns.barplot(values, x=x, y="value", hue=hue or x, **order, ax=panel, errorbar=_error(study), capsize=0.15)
        _wrap(panel, study.axes[x])

    return _by_measure(study, x, measures, hue, col, draw)


def _wrap(panel, labels: list[str]) -> None:
    """Long labels below a panel are turned."""
    if sum(map(len, labels)) > 25:
        names = [textwrap.fill(label, 22) for label in labels]
        panel.set_xticks(range(len(names)), names, rotation=35, ha="right", rotation_mode="anchor")


def ranking(study: Study, measure: str, hue: str, col: Panels, y: str = "method"):
    """One measure as horizontal bars for every label of the axis `y`, one panel for each label of `col`; at paper scale
    the paper's numbers are crosses."""
    style()
    panels, groups, labels = combinations(study, col), study.axes[hue], study.axes[y]
    height = 1.2 + 0.24 * len(labels) * (1 + len(groups)) / 2
    figure, axes = plt.subplots(1, len(panels), figsize=(3 + 5 * len(panels), height + 1), squeeze=False, sharey=True)
    theirs = [r for r in study.table.reported_rows() if r["measure"] == measure and study.scale == "paper"]
    for panel, at in zip(axes[0], panels, strict=True):
        bars: dict[str, Any] = {"order": labels, "hue_order": groups, "errorbar": _error(study), "capsize": 0.2}
        sns.barplot(select(study.of(measure), at), x="value", y=y, hue=hue, ax=panel, **bars)
        for row in theirs:
            if row[y] in labels and row.get(hue, groups[0]) in groups and all(row[axis] == at[axis] for axis in at):
                shift = (groups.index(row[hue]) + 0.5) / len(groups) * 0.8 - 0.4 if hue in row else 0
                panel.plot(row["value"], labels.index(row[y]) + shift, "kx", markersize=7, markeredgewidth=2)
        panel.set(xlabel=measure, ylabel="", title=titled(study, at))
        if theirs:
            panel.plot([], [], "kx", markersize=7, markeredgewidth=2, label="the paper")
    one_legend(figure, axes[0], axis_name(study, hue))
    note(study, figure, more=averaged(study, study.values, y, hue, col))
    return figure


def split(study: Study, clients: int = 12):
    """How many samples of each class the first clients of the first cell hold."""
    style()
    run = study.cells[0].run(study.seeds[0])
    data = load(run.data)
    options = {"samples": run.samples, "share": run.share or 1.0, "writers": data.writers}
    parts = partition(run.split, data.train_y, run.clients, seed=run.seed, **options)
    counts = pd.DataFrame(parts.label_counts(data.train_y, data.classes)[:clients].numpy())
    if data.classes > 20:
        starts = range(0, data.classes, 10)
        counts = pd.DataFrame({f"{c}-{c + 9}": counts.loc[:, c : c + 9].sum(axis=1) for c in starts})
    figure, panel = plt.subplots(figsize=(9, 4.2))
    sns.heatmap(counts, annot=True, fmt="d", cmap="rocket_r", ax=panel, cbar_kws={"label": "samples"})
    title = f"{run.data.partition(':')[0]}, split {run.split}: samples of each class"
    panel.set(title=title, xlabel="class", ylabel="client")
    panel.tick_params(axis="y", rotation=0)
    figure.tight_layout()
    return figure


def one_legend(figure, panels, title: str) -> None:
    handles, labels = panels[0].get_legend_handles_labels()
    for panel in panels:
        if panel.get_legend():
            panel.get_legend().remove()
    figure.tight_layout()
    figure.legend(handles, labels, title=title, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
