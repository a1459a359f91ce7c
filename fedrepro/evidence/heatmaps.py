"""A measure on two axes as heat maps: ours, and the paper's."""

import itertools

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns

from fedrepro.evidence import figures
from fedrepro.evidence.study import Study
from fedrepro.evidence.table import Table


def draw(
    study: Study, measure: str, rows: str | list[str], columns: str, by_row=False, mark_best=False, fmt: str = ".3f"
):
    """Mean over seeds of a measure on two axes (`rows` may be several): ours, and the paper's if it gives them.

    `by_row` shades by rank within a row, one panel below the other; `mark_best` frames the paper's best cell per row.
    """
    figures.style()
    keys = [rows] if isinstance(rows, str) else rows
    shown = {f"ours ({study.scale})": _grid(study, study.of(measure), keys, study.axes, columns)}
    if any(row["measure"] == measure for row in study.table.reported_rows()):
        shown["the paper (its own scale)"] = _reported(study, study.loaded, measure, keys, columns)  # in its own words
    heights = [1.6 + 0.5 * len(table) for table in shown.values()]
    if by_row:
        figure, axes = plt.subplots(len(shown), 1, figsize=(11, sum(heights)), squeeze=False, height_ratios=heights)
    else:
        figure, axes = plt.subplots(1, len(shown), figsize=(6.2 * len(shown), max(4.8, *heights)), squeeze=False)
    for panel, (title, table), names in zip(axes.flat, shown.items(), (study.table, study.loaded), strict=False):
        shades = table.rank(axis=1, pct=True) if by_row else table
        sns.heatmap(shades, annot=table, fmt=fmt, cmap="viridis", ax=panel, cbar=False)
        title = f"{figures.with_unit(study, measure)}: {title}"
        panel.set(title=title, xlabel=figures.axis_name(study, columns), ylabel=table.index.name)
        if by_row:
            panel.tick_params(axis="y", rotation=0)
        if mark_best:
            _frame(panel, table, _reported(study, names, measure, keys, columns).idxmax(axis=1))
    figure.tight_layout()
    framed = "  ·  framed: the paper's best of each row" * mark_best
    figures.note(study, figure, more=figures.averaged(study, study.values, keys, columns) + framed)
    return figure


def _reported(study: Study, names: Table, measure: str, rows: list[str], columns: str) -> pd.DataFrame:
    """The paper's numbers, by the labels of this table: those of the scale, or the paper's own."""
    values = pd.DataFrame([row for row in names.reported_rows() if row["measure"] == measure])
    return _grid(study, values, rows, names.choices("paper"), columns)


def _grid(study: Study, values: pd.DataFrame, rows: list[str], axes: dict, columns: str) -> pd.DataFrame:
    """The values by the axes `rows`, as far as the values have them, and by the axis `columns`."""
    known = [key for key in rows if key in values]
    order = [" ".join(labels) for labels in itertools.product(*(axes[key] for key in known))]
    values = values.assign(row=[" ".join(labels) for labels in values[known].to_numpy()])
    table = values.pivot_table(index="row", columns=columns, values="value").astype(float)
    here, across = [row for row in order if row in table.index], [label for label in axes[columns] if label in table]
    return table.loc[here, across].rename_axis(index=" and\n".join(figures.axis_name(study, key) for key in known))


def _frame(panel, table: pd.DataFrame, cells: pd.Series) -> None:
    """A red frame around one cell of each row, where the table has it."""
    rows, columns = list(table.index), list(table.columns)
    for row, column in cells.items():
        if row in rows and column in columns:
            x, y = columns.index(column), rows.index(row)
            panel.add_patch(plt.Rectangle((x, y), 1, 1, fill=False, edgecolor="red", lw=3, clip_on=False, zorder=3))
