"""The figures of a study, with seaborn: lines over rounds, bars and lines over an axis, heat maps."""

import itertools
import textwrap

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns

from fedrepro.evidence.comparisons import select
from fedrepro.simulation.metrics import mean_interval
from fedrepro.simulation.session import train

LABELS = {
    "round": "communication round", "accuracy": "test accuracy", "ema_accuracy": "test accuracy (moving average)",
    "loss": "test loss", "sim_time": "simulated time (s)", "bytes": "traffic as sent (MiB)",
    "paper_bytes": "traffic by Eq. (4) (MiB)", "personal_accuracy": "mean personal test accuracy",
    "alpha": "mean number of blocks sent", "omega": "mean number of layers uploaded (Ω)",
    "self_mean": "mean self-relationship",
}  # fmt: skip
MIB = {"bytes", "paper_bytes"}


def style() -> None:
    """Colour-blind safe, large enough for a projector, in a font that matplotlib brings along."""
    sns.set_theme(style="whitegrid", context="talk", font_scale=0.75, palette="colorblind", font="DejaVu Sans")
    plt.rcParams["svg.hashsalt"] = "fedrepro"  # the same figure is the same file


def interval(values) -> tuple[float, float]:
    """The 95% interval of the mean that the tables show, for seaborn's error bars; of what is never negative it is
    drawn from zero on."""
    mean, half = mean_interval(values)
    low, high = mean - (half or 0), mean + (half or 0)
    return (max(low, 0.0) if min(values) >= 0 else low), high


def _data(name: str) -> str:
    """mnist:substitute_for=femnist -> "mnist in place of femnist"; other options are details."""
    short, _, options = name.partition(":")
    return f"{short} in place of {options.partition('=')[2]}" if options.startswith("substitute_for=") else short


def _note(study, figure, measures: list[str] | None = None, more: str = "") -> None:
    """Every figure says what it is: scale, data, seeds."""
    data = sorted({_data(cell.run(study.seeds[0]).data) for cell in study.cells})
    text = f"scale: {study.scale}  ·  data: {', '.join(data)}  ·  seeds: {', '.join(map(str, study.seeds))}"
    if study.values[study.values["measure"].isin(measures or [])]["value"].isna().any():
        text += "  ·  a missing point or bar: target not reached"
    figure.text(0.01, -0.02, text + more, fontsize="x-small", color="0.35", ha="left", va="top")


def _with_unit(study, measure: str) -> str:
    unit = study.measures[measure].unit
    return f"{measure} ({unit})" if unit else measure


def curves(study, x: str = "round", y: str = "accuracy", hue: str = "method", col: str | list[str] | None = None,
           row: str | list[str] | None = None, where: dict | None = None):  # fmt: skip
    """Mean over seeds of a column along rounds, time or traffic, of the cells `where`; the band is the 95% interval.
    `col` and `row` may each be several axes: a panel for every combination of their labels."""
    style()
    table = select(study.rounds, where or {}).copy()
    for column in MIB & {x, y}:
        table[column] /= 2**20
    columns, rows = _combinations(study, col), _combinations(study, row)
    figure, axes = plt.subplots(len(rows), len(columns), figsize=(1.5 + 6 * len(columns), 4.6 * len(rows)),
                                squeeze=False, sharey=True)  # fmt: skip
    many = len(study.seeds) > 1 and x == "round"
    for place, (a, b) in zip(axes.flat, itertools.product(rows, columns), strict=True):
        sns.lineplot(select(table, {**a, **b}), x=x, y=y, hue=hue, style=hue, dashes=True, hue_order=study.axes[hue],
                     style_order=study.axes[hue], ax=place, errorbar=interval if many else None,
                     units=None if x == "round" else "seed", estimator="mean" if x == "round" else None)  # fmt: skip
        place.set(xlabel=LABELS.get(x, x), ylabel=LABELS.get(y, y), title=_titled(study, {**a, **b}))
        place.xaxis.get_major_locator().set_params(integer=x == "round")
    _one_legend(figure, list(axes.flat), (study.table.axis[hue].label or hue))
    _note(study, figure)
    return figure


def _combinations(study, axes: str | list[str] | None) -> list[dict[str, str]]:
    """Every combination of the labels of these axes; without axes, the one that holds everywhere."""
    keys = [axes] if isinstance(axes, str) else axes or []
    return [dict(zip(keys, labels, strict=True)) for labels in itertools.product(*(study.axes[key] for key in keys))]


def _titled(study, labels: dict[str, str]) -> str:
    """Numbers need their axis's name beside them."""
    number = lambda label: label.replace(".", "", 1).isdigit()  # noqa: E731
    return ", ".join(f"{(study.table.axis[axis].label or axis)} = {label}" if number(label) else label
                     for axis, label in labels.items())  # fmt: skip


def _panels(study, measures: list[str] | None, col: str | list[str] | None) -> tuple[plt.Figure, list[tuple]]:
    """A figure with a panel for each measure, at most three in a row; with several labels of `col` a row for each
    measure.
    -> the figure, and (measure, labels, axes) of every panel."""
    names, labels = measures or list(study.measures), _combinations(study, col)
    columns = len(labels) if len(labels) > 1 else min(len(names), 3)
    rows = -(-len(names) * len(labels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(1.5 + 5 * columns, 4.4 * rows), squeeze=False,
                                sharey="row" if len(labels) > 1 else False)  # fmt: skip
    panels = list(itertools.product(names, labels))
    for unused in axes.flat[len(panels) :]:
        unused.remove()
    return figure, [(*panel, place) for panel, place in zip(panels, axes.flat, strict=False)]


def _by_measure(study, x: str, measures: list[str] | None, hue: str | None, col: str | list[str] | None, draw):
    """`draw(values, panel)` for each measure (and label of `col`); labels with units, one legend, the note."""
    style()
    figure, panels = _panels(study, measures, col)
    for name, labels, place in panels:
        draw(select(study.values[study.values["measure"] == name], labels), place)
        place.set(xlabel=(study.table.axis[x].label or x), ylabel=textwrap.fill(_with_unit(study, name), 36),
                  title=_titled(study, labels))  # fmt: skip
    if hue:
        _one_legend(figure, [place for *_, place in panels], (study.table.axis[hue].label or hue))
    else:
        figure.tight_layout()
    _note(study, figure, [name for name, *_ in panels])
    return figure


def over(study, x: str, measures: list[str] | None = None, hue: str | None = None,
         col: str | list[str] | None = None):  # fmt: skip
    """Each measure over an axis: points with 95% intervals, one panel a measure (and label of `col`)."""
    groups = len(study.axes[hue]) if hue else 1

    def draw(values, place):
        sns.pointplot(values, x=x, y="value", hue=hue, order=study.axes[x], hue_order=study.axes[hue] if hue else None,
                      dodge=0.25 if groups > 1 else False, markers=list("os^DvPX")[:groups] if hue else "o",
                      linestyles=["-"] * groups if hue else "-", ax=place, capsize=0.08,
                      errorbar=interval if len(study.seeds) > 1 else None)  # fmt: skip

    return _by_measure(study, x, measures, hue, col, draw)


def bars(study, x: str, measures: list[str] | None = None, hue: str | None = None,
         col: str | list[str] | None = None):  # fmt: skip
    """Each measure as bars over an axis; a bar that is missing did not reach its target."""

    def draw(values, place):
        sns.barplot(values, x=x, y="value", hue=hue or x, order=study.axes[x], hue_order=study.axes[hue or x],
                    legend=bool(hue), ax=place, errorbar=interval if len(study.seeds) > 1 else None,
                    capsize=0.15)  # fmt: skip
        if sum(map(len, study.axes[x])) > 25:
            names = [textwrap.fill(label, 22) for label in study.axes[x]]
            place.set_xticks(range(len(names)), names, rotation=35, ha="right", rotation_mode="anchor")

    return _by_measure(study, x, measures, hue, col, draw)


def ranking(study, measure: str, y: str = "method", hue: str | None = None, col: str = "dataset"):
    """One measure as horizontal bars for every label of an axis, one panel for each label of `col`; at paper scale
    the paper's numbers are crosses."""
    style()
    values = study.values[study.values["measure"] == measure]
    columns, groups = study.axes[col], study.axes[hue] if hue else [None]
    height = 1.2 + 0.24 * len(study.axes[y]) * (1 + len(groups)) / 2
    figure, axes = plt.subplots(1, len(columns), figsize=(3 + 5 * len(columns), height + 1), squeeze=False, sharey=True)
    theirs = [r for r in study.table.reported_rows() if r["measure"] == measure and study.scale == "paper"]
    for place, label in zip(axes[0], columns, strict=True):
        sns.barplot(values[values[col] == label], x="value", y=y, hue=hue, order=study.axes[y], ax=place, capsize=0.2,
                    hue_order=groups if hue else None, errorbar=interval if len(study.seeds) > 1 else None)  # fmt: skip
        for row in theirs:
            if row[col] == label and row[y] in study.axes[y] and (not hue or row[hue] in groups):
                shift = (groups.index(row[hue]) + 0.5) / len(groups) * 0.8 - 0.4 if hue else 0
                place.plot(row["value"], study.axes[y].index(row[y]) + shift, "kx", markersize=5)
        place.set(xlabel=measure, ylabel="", title=label)
        if theirs:
            place.plot([], [], "kx", markersize=5, label="the paper")
    _one_legend(figure, axes[0], (study.table.axis[hue].label or hue) if hue else "")
    _note(study, figure)
    return figure


def against(study, x: str, y: str, hue: str = "method"):
    """One measure against another, a line for each label of `hue`; whiskers are 95% intervals over seeds."""
    style()
    wide = study.values.pivot_table(index=[*study.axes, "seed"], columns="measure", values="value").reset_index()
    figure, place = plt.subplots(figsize=(8, 4.8))
    for i, label in enumerate(study.axes[hue]):
        rows = wide[wide[hue] == label].groupby([a for a in study.axes if a != hue], sort=False)
        points = [(part[x].mean(), *mean_interval(part[y])) for _, part in rows]
        across, mean, half = zip(*sorted(points, key=lambda p: p[0]), strict=True)
        place.errorbar(across, mean, yerr=[h or 0 for h in half], label=label, marker="os^DvPX"[i % 7], capsize=4)
    place.set(xlabel=_with_unit(study, x), ylabel=y)
    _one_legend(figure, [place], (study.table.axis[hue].label or hue))
    _note(study, figure)
    return figure


def spread(study, measure: str, axis: str, group, hue, labels: tuple[str, str]):
    """A point for every label of `axis`, in columns by group(label), coloured by hue(label); the line is their mean."""
    style()
    values = study.values[study.values["measure"] == measure].groupby(axis, sort=False)["value"].mean().reset_index()
    values["group"], values["hue"] = values[axis].map(group), values[axis].map(hue)
    figure, place = plt.subplots(figsize=(8, 4.8))
    sns.swarmplot(values, x="group", y="value", hue="hue", hue_order=sorted(values["hue"].unique()), size=9,
                  palette="viridis", ax=place)  # fmt: skip
    sns.pointplot(values, x="group", y="value", color="0.4", errorbar=None, markers="_", linestyles="--", ax=place)
    place.set(xlabel=labels[0], ylabel=measure)
    _one_legend(figure, [place], labels[1])
    _note(study, figure)
    return figure


def heat(study, measure: str, rows: str | list[str], columns: str, by_row=False, mark_best=False, fmt: str = ".3f"):
    """Mean over seeds of a measure on two axes (`rows` may be several, of which the paper's table has some): ours, and
    the paper's where it gives them.

    `by_row` shades by the rank within a row, panel below panel; `mark_best` frames the paper's best cell of each row.
    """
    style()
    keys = [rows] if isinstance(rows, str) else rows

    def grid(values: pd.DataFrame, axes: dict) -> pd.DataFrame:
        known = [key for key in keys if key in values]
        names = " and\n".join((study.table.axis[key].label or key) for key in known)
        order = [" ".join(place) for place in itertools.product(*(axes[key] for key in known))]
        values = values[values["measure"] == measure].assign(row=lambda v: v[known].agg(" ".join, axis=1))
        table = values.pivot_table(index="row", columns=columns, values="value").astype(float)
        table = table.reindex([row for row in order if row in table.index]).rename_axis(names)
        return table[[c for c in axes[columns] if c in table]]

    panels = {f"ours ({study.scale})": grid(study.values, study.axes)}
    if any(row["measure"] == measure for row in study.table.reported_rows()):
        theirs = grid(pd.DataFrame(study.table.reported_rows()), study.table.choices("paper"))
        panels["the paper (its own scale)"] = theirs
    heights, named = [1.6 + 0.5 * len(table) for table in panels.values()], _with_unit(study, measure)
    if by_row:
        figure, axes = plt.subplots(len(panels), 1, figsize=(11, sum(heights)), squeeze=False, height_ratios=heights)
    else:
        figure, axes = plt.subplots(1, len(panels), figsize=(6.2 * len(panels), max(4.8, *heights)), squeeze=False)
    for place, (title, table) in zip(axes.flat, panels.items(), strict=True):
        sns.heatmap(table.rank(axis=1, pct=True) if by_row else table, annot=table, fmt=fmt, cmap="viridis", ax=place,
                    cbar=False)  # fmt: skip
        place.set(title=f"{named}: {title}", xlabel=(study.table.axis[columns].label or columns),
                  ylabel=table.index.name)  # fmt: skip
        if by_row:
            place.tick_params(axis="y", rotation=0)
        if mark_best:
            _frame(place, table, theirs.idxmax(axis=1))
    figure.tight_layout()
    _note(study, figure, more="  ·  framed: the paper's best of each row" * mark_best)
    return figure


def _frame(place, table: pd.DataFrame, cells: pd.Series) -> None:
    """A red frame around one cell of each row, where the table has it."""
    for row, column in cells.items():
        if row in table.index and column in table:
            corner = (table.columns.get_loc(column), table.index.get_loc(row))
            place.add_patch(plt.Rectangle(corner, 1, 1, fill=False, edgecolor="red", lw=3, clip_on=False, zorder=3))


def relationship(study, client: int = 9, col: str = "dataset", row: str = "cube"):
    """KAPC's final relationship matrix of one client, layer by client, for all labels of two axes (first seed)."""
    style()
    shape = len(study.axes[row]), len(study.axes[col])
    figure, axes = plt.subplots(*shape, figsize=(1 + 6.5 * shape[1], 4.4 * shape[0]), squeeze=False)
    for cell in study.cells:
        place = axes[study.axes[row].index(cell.labels[row]), study.axes[col].index(cell.labels[col])]
        run = cell.run(study.seeds[0])  # read from the store; trained where only its rows are known, from the record
        cube = train(run, store=study.store, workers=study.workers).record["relationship"]
        sns.heatmap(cube[:, client].numpy(), cmap="viridis", ax=place, vmin=0, annot=max(cube.shape[:2]) < 11,
                    fmt=".2f", cbar_kws={"label": "relationship coefficient"}, annot_kws={"fontsize": 9})  # fmt: skip
        place.set(
            title=f"{cell.labels[col]}, {cell.labels[row]}", xlabel="client", ylabel="layer (0 is nearest the image)"
        )
    figure.suptitle(f"client {client}")
    figure.tight_layout()
    _note(study, figure)
    return figure


def split(study, clients: int = 12):
    """How the classes fall on the first clients."""
    style()
    counts = study.partition(clients)
    if counts.shape[1] > 20:
        counts = counts.T.groupby(counts.columns // 10).sum().T.rename(columns=lambda c: f"{10 * c}-{10 * c + 9}")
    figure, place = plt.subplots(figsize=(9, 4.2))
    sns.heatmap(counts, annot=True, fmt="d", cmap="rocket_r", ax=place,
                cbar_kws={"label": "samples"})  # fmt: skip
    run = study.cells[0].run(study.seeds[0])
    place.set(
        title=f"{run.data.partition(':')[0]}, split {run.split}: samples of each class", xlabel="class", ylabel="client"
    )
    figure.tight_layout()
    return figure


def _one_legend(figure, places, title: str) -> None:
    handles, labels = places[0].get_legend_handles_labels()
    for place in places:
        if place.get_legend():
            place.get_legend().remove()
    figure.tight_layout()
    figure.legend(handles, labels, title=title, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def choices(study, hue: str = "method", col: str = "dataset", row: str = "reading"):
    """How often each number of blocks was sent in partial rounds, one panel for each label of `col` and `row`."""
    style()
    columns = sorted(c for c in study.rounds if c.startswith("alpha_"))[:-1]  # the last is the whole model
    counts = study.rounds.groupby([row, col, hue])[columns].sum()
    shares = counts.div(counts.sum(axis=1), axis=0).rename(columns=lambda c: c.removeprefix("alpha_"))
    table = shares.reset_index().melt(id_vars=[row, col, hue], var_name="blocks", value_name="share")
    rows, cols = study.axes[row], study.axes[col]
    size = (1.5 + 6 * len(cols), 4.2 * len(rows))
    figure, axes = plt.subplots(len(rows), len(cols), figsize=size, squeeze=False, sharey=True)
    for place, labels in zip(axes.flat, itertools.product(rows, cols), strict=True):
        shown = select(table, dict(zip((row, col), labels, strict=True)))
        sns.barplot(shown, x="blocks", y="share", hue=hue, hue_order=study.axes[hue], ax=place)
        place.axhline(1 / len(columns), color="0.4", linestyle="--", linewidth=1)
        title = ", ".join(labels)
        place.set(xlabel="number of last blocks sent (α)", ylabel="share of partial rounds", title=title)
    _one_legend(figure, list(axes.flat), (study.table.axis[hue].label or hue))
    _note(study, figure)
    return figure
