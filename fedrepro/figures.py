"""The figures of a study, with seaborn: lines over rounds, bars and lines over an axis, heat maps."""

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns

from fedrepro.metrics import mean_interval
from fedrepro.store import load_tensors
from fedrepro.verdict import select

LABELS = {
    "round": "communication round", "accuracy": "test accuracy", "ema_accuracy": "test accuracy (moving average)",
    "loss": "test loss", "sim_time": "simulated time (s)", "bytes": "traffic as sent (MiB)",
    "paper_bytes": "traffic by Eq. (4) (MiB)", "personal_accuracy": "mean personal test accuracy",
    "alpha": "mean number of blocks sent", "omega": "mean number of layers uploaded (Ω)",
    "self_mean": "mean self-relationship",
}  # fmt: skip
MIB = {"bytes", "paper_bytes"}


def style() -> None:
    """Colour-blind safe, and large enough for a projector."""
    sns.set_theme(style="whitegrid", context="talk", font_scale=0.75, palette="colorblind")
    plt.rcParams["svg.hashsalt"] = "fedrepro"  # the same figure is the same file


def interval(values) -> tuple[float, float]:
    """The 95% interval of the mean that the tables show, for seaborn's error bars."""
    mean, half = mean_interval(values)
    return mean - (half or 0), mean + (half or 0)


def _note(study, figure) -> None:
    """Every figure says what it is: scale, data, seeds."""
    data = sorted({cell.run(study.seeds[0]).data.partition(":")[0] for cell in study.cells})
    text = f"scale: {study.scale}  ·  data: {', '.join(data)}  ·  seeds: {', '.join(map(str, study.seeds))}"
    if study.values["value"].isna().any():
        text += "  ·  a missing point or bar: target not reached"
    figure.text(0.01, -0.02, text, fontsize="x-small", color="0.35", ha="left", va="top")


def curves(study, x: str = "round", y: str = "accuracy", hue: str = "method", col: str | None = None,
           where: dict | None = None):  # fmt: skip
    """Mean over seeds of a column along rounds, time or traffic; the band is the 95% interval."""
    style()
    table = select(study.rounds, where or {}).copy()
    for column in MIB & {x, y}:
        table[column] /= 2**20
    columns = study.axes[col] if col else [None]
    figure, axes = plt.subplots(1, len(columns), figsize=(1.5 + 6 * len(columns), 4.6), squeeze=False, sharey=True)
    many = len(study.seeds) > 1 and x == "round"
    for place, label in zip(axes[0], columns, strict=True):
        shown = table[table[col] == label] if col else table
        sns.lineplot(shown, x=x, y=y, hue=hue, style=hue, dashes=True, hue_order=study.axes[hue],
                     style_order=study.axes[hue], ax=place, errorbar=interval if many else None,
                     units=None if x == "round" else "seed", estimator="mean" if x == "round" else None)  # fmt: skip
        number = (label or "").replace(".", "").isdigit()
        title = f"{study.table.axis[col].get('label', col)} = {label}" if number else label or ""
        place.set(xlabel=LABELS.get(x, x), ylabel=LABELS.get(y, y), title=title)
        place.xaxis.get_major_locator().set_params(integer=x == "round")
    _one_legend(figure, axes[0], study.table.axis[hue].get("label", hue))
    _note(study, figure)
    return figure


def _panels(study, measures: list[str] | None) -> tuple[plt.Figure, dict[str, plt.Axes]]:
    """A figure with a panel for each measure, at most three in a row."""
    names = measures or list(study.measures)
    columns = min(len(names), 3)
    rows = -(-len(names) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(1.5 + 5 * columns, 4.4 * rows), squeeze=False)
    for unused in axes.flat[len(names) :]:
        unused.remove()
    return figure, dict(zip(names, axes.flat, strict=False))


def _by_measure(study, x: str, measures: list[str] | None, hue: str | None, draw):
    """`draw(values, panel)` for each measure; labels with units, one legend, the note."""
    style()
    figure, panels = _panels(study, measures)
    for name, place in panels.items():
        draw(study.values[study.values["measure"] == name], place)
        unit = study.measures[name].get("unit", "")
        place.set(xlabel=study.table.axis[x].get("label", x), ylabel=f"{name} ({unit})" if unit else name)
    if hue:
        _one_legend(figure, list(panels.values()), study.table.axis[hue].get("label", hue))
    else:
        figure.tight_layout()
    _note(study, figure)
    return figure


def over(study, x: str, measures: list[str] | None = None, hue: str | None = None):
    """Each measure over an axis: points with 95% intervals, one panel a measure."""
    groups = len(study.axes[hue]) if hue else 1

    def draw(values, place):
        sns.pointplot(values, x=x, y="value", hue=hue, order=study.axes[x], hue_order=study.axes[hue] if hue else None,
                      dodge=0.25 if groups > 1 else False, markers=list("os^DvPX")[:groups] if hue else "o",
                      linestyles=["-"] * groups if hue else "-", ax=place, capsize=0.08,
                      errorbar=interval if len(study.seeds) > 1 else None)  # fmt: skip

    return _by_measure(study, x, measures, hue, draw)


def bars(study, x: str, measures: list[str] | None = None, hue: str | None = None):
    """Each measure as bars over an axis; a bar that is missing did not reach its target."""

    def draw(values, place):
        sns.barplot(values, x=x, y="value", hue=hue or x, order=study.axes[x], hue_order=study.axes[hue or x],
                    legend=bool(hue), ax=place, errorbar=interval if len(study.seeds) > 1 else None,
                    capsize=0.15)  # fmt: skip
        place.tick_params(axis="x", rotation=25 if len(study.axes[x]) < 7 else 75)

    return _by_measure(study, x, measures, hue, draw)


def ranking(study, measure: str, y: str = "method", hue: str | None = None, col: str = "dataset"):
    """One measure as horizontal bars for every label of an axis, one panel for each label of `col`; the paper's
    numbers, where it gives them, are crosses."""
    style()
    values = study.values[study.values["measure"] == measure]
    columns, groups = study.axes[col], study.axes[hue] if hue else [None]
    height = 1.2 + 0.24 * len(study.axes[y]) * (1 + len(groups)) / 2
    figure, axes = plt.subplots(1, len(columns), figsize=(3 + 5 * len(columns), height + 1), squeeze=False, sharey=True)
    theirs = [r for r in study.table.reported_rows() if r["measure"] == measure]
    for place, label in zip(axes[0], columns, strict=True):
        sns.barplot(values[values[col] == label], x="value", y=y, hue=hue, order=study.axes[y], ax=place, capsize=0.2,
                    hue_order=groups if hue else None, errorbar=interval if len(study.seeds) > 1 else None)  # fmt: skip
        for row in theirs:
            if row[col] == label and row[y] in study.axes[y] and (not hue or row[hue] in groups):
                shift = (groups.index(row[hue]) + 0.5) / len(groups) * 0.8 - 0.4 if hue else 0
                place.plot(row["value"], study.axes[y].index(row[y]) + shift, "kx", markersize=5)
        place.set(xlabel=measure, ylabel="", title=label)
        place.plot([], [], "kx", markersize=5, label="the paper (its scale)")
    _one_legend(figure, axes[0], study.table.axis[hue].get("label", hue) if hue else "")
    _note(study, figure)
    return figure


def heat(study, measure: str, rows: str, columns: str):
    """Mean over seeds of a measure on two axes; our values left, the paper's right where it gives them."""
    style()
    ours = study.values[study.values["measure"] == measure]
    ours = ours.pivot_table(index=rows, columns=columns, values="value").reindex(study.axes[rows])[study.axes[columns]]
    theirs = pd.DataFrame([r for r in study.table.reported_rows() if r["measure"] == measure])
    panels = [(f"ours ({study.scale})", ours)]
    if len(theirs):
        theirs = theirs.pivot_table(index=rows, columns=columns, values="value")
        panels.append(("the paper (its own scale)", theirs))
    figure, axes = plt.subplots(1, len(panels), figsize=(6.2 * len(panels), 4.8), squeeze=False)
    for place, (title, table) in zip(axes[0], panels, strict=True):
        sns.heatmap(table.astype(float), annot=True, fmt=".3f", cmap="viridis", ax=place, cbar=False)
        place.set(title=title, xlabel=study.table.axis[columns].get("label", columns),
                  ylabel=study.table.axis[rows].get("label", rows))  # fmt: skip
    figure.tight_layout()
    _note(study, figure)
    return figure


def relationship(study, client: int = 9, axis: str = "dataset"):
    """KAPC's final relationship matrix of one client, layer by client, for every label of an axis (first seed)."""
    style()
    figure, axes = plt.subplots(1, len(study.cells), figsize=(1 + 6.5 * len(study.cells), 5), squeeze=False)
    for place, cell in zip(axes[0], study.cells, strict=True):
        cube = load_tensors(study.store / cell.run(study.seeds[0]).id / "weights.pt")["record"]["relationship"]
        sns.heatmap(cube[:, client].numpy(), cmap="viridis", ax=place, vmin=0, annot=len(cube) < 9, fmt=".2f",
                    cbar_kws={"label": "relationship coefficient"}, annot_kws={"fontsize": 9})  # fmt: skip
        place.set(
            title=f"{cell.labels[axis]}: client {client}", xlabel="client", ylabel="layer (0 is nearest the image)"
        )
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


def choices(study, hue: str = "method"):
    """How often each number of blocks was sent in partial rounds."""
    style()
    columns = sorted(c for c in study.rounds if c.startswith("alpha_"))[:-1]  # the last is the whole model
    counts = study.rounds.groupby(hue)[columns].sum().reindex(study.axes[hue])
    shares = counts.div(counts.sum(axis=1), axis=0).rename(columns=lambda c: c.removeprefix("alpha_"))
    table = shares.reset_index().melt(id_vars=hue, var_name="blocks", value_name="share")
    figure, place = plt.subplots(figsize=(7.5, 4.2))
    sns.barplot(table, x="blocks", y="share", hue=hue, ax=place)
    place.axhline(1 / len(columns), color="0.4", linestyle="--", linewidth=1)
    place.set(xlabel="number of last blocks sent (α)", ylabel="share of partial rounds")
    _one_legend(figure, [place], "method")
    _note(study, figure)
    return figure
