"""A table laid out as the paper prints it: its numbers in rows and columns, ours beside each."""

import itertools
from collections.abc import Sequence
from typing import Any

import pandas as pd
from pandas.io.formats.style import Styler

from fedrepro.checks import choose
from fedrepro.evidence import figures, tables
from fedrepro.evidence.contrasts import with_interval
from fedrepro.evidence.measures import ACCURACIES
from fedrepro.evidence.study import Study, by_labels
from fedrepro.simulation.metrics import mean_interval

NONE = "–"


def paper_table(
    study: Study,
    measures: str | Sequence[str] | None = None,
    across: str | Sequence[str] | None = None,
    down: Sequence[str] = (),
) -> Styler:
    """The paper's numbers in rows and columns, as it prints them, and ours beside each; accuracies in percent.

    `measures`: by default all that the paper reports. `across`: the axes whose labels are columns, outermost first; by
    default the last axis if there are several. It may include "measure", which otherwise comes first. The other axes
    are rows, beginning with those in `down`; one with a single label is left out. Our numbers under each reading of the
    paper stand side by side.
    """
    reported = study.table.reported_rows()
    printed = [name for name in study.measures if any(row["measure"] == name for row in reported)]
    shown = _list("measures", measures or printed or list(study.measures), list(study.measures))
    reading = [axis for axis in study.axes if axis == study.table.readings]
    readings = list(itertools.product(*(study.axes[axis] for axis in reading)))
    paper = study.table.choices("paper")  # in its order, then what only we have
    order = {axis: list(dict.fromkeys([*paper[axis], *labels])) for axis, labels in study.axes.items()}
    order["measure"] = shown
    axes = [axis for axis in study.axes if axis not in reading and len(order[axis]) > 1] or list(study.axes)
    across = _list("across", axes[1:][-1:] if across is None else across, [*axes, "measure"])
    across = across if "measure" in across else ["measure", *across]
    down = [axis for axis in dict.fromkeys([*_list("down", down, axes), *axes]) if axis not in across]
    keys = ["measure", *axes, *reading]
    ours = {tuple(at.values()): rows["value"].tolist() for at, rows in by_labels(study.values, keys)}
    rows, columns = (list(itertools.product(*(order[axis] for axis in some))) for some in (down, across))
    lines: list[list[str]] = [[] for _ in rows]
    for (line, left), top in itertools.product(zip(lines, rows, strict=True), columns):
        labels = dict(zip([*down, *across], [*left, *top], strict=True))
        theirs = (row for row in reported if all(row.get(k) in (None, v) for k, v in labels.items()))
        key = tuple(labels[axis] for axis in ("measure", *axes))
        line.append(_theirs(study, next(theirs, None)))
        line += [_ours(study, labels["measure"], ours.get((*key, *label))) for label in readings]
    named = [", ".join([tables.ours(study), *(label if len(readings) > 1 else ())]) for label in readings]
    sides = [(*column, side) for column in columns for side in ("paper", *named)]
    names = ["" if axis == "measure" else figures.axis_name(study, axis) for axis in across]
    table = pd.DataFrame(lines, columns=pd.MultiIndex.from_tuples(sides, names=[*names, ""]))
    if down:
        table.index = pd.MultiIndex.from_tuples(rows, names=[figures.axis_name(study, axis) for axis in down])
    known = table != NONE
    table = table.loc[known.any(axis=1), known.any()]  # the paper's cells, and ours
    table = table.rename(index=(names := _beside(study)), columns=names)
    if len(shown) == 1:
        table.columns = table.columns.droplevel(across.index("measure"))
    return _styled(study, table, shown, hide=not down)


def _beside(study: Study) -> dict[str, str]:
    """The paper's labels, with what we use instead: "CIFAR-10 (ours: Fashion-MNIST)"."""
    return {name: f"{label} (ours: {name.removesuffix(f' for {label}')})" for label, name in study.table.names.items()}


def _list(what: str, given: str | Sequence[str], known: list[str]) -> list[str]:
    return [choose(what, name, known) for name in ([given] if isinstance(given, str) else given)]


def _theirs(study: Study, row: dict[str, Any] | None) -> str:
    if row is None:
        return NONE
    std = "" if pd.isna(row["std"]) else f" ({_number(study, row['measure'], row['std'])})"
    return _number(study, row["measure"], row["value"]) + "+" * row["censored"] + std


def _ours(study: Study, measure: str, values: list[float] | None) -> str:
    if values is None:
        return NONE
    known = [value for value in values if not pd.isna(value)]
    if not known:
        return "not reached"
    times = 100 if _percent(study, measure) else 1
    mean, half = mean_interval(known)
    text = with_interval(times * mean, times * half) if half else _number(study, measure, mean)
    return text if len(known) == len(values) else f"{text}, {len(known)} of {len(values)} seeds"


def _number(study: Study, measure: str, value: float) -> str:
    if _percent(study, measure):
        return f"{100 * value:.2f}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _percent(study: Study, measure: str) -> bool:
    return study.measures[measure].column in ACCURACIES and not study.measures[measure].unit


def _styled(study: Study, table: pd.DataFrame, measures: list[str], hide: bool) -> Styler:
    named = "; ".join(f"{name} (%)" if _percent(study, name) else figures.with_unit(study, name) for name in measures)
    note = "" if study.scale == "paper" else " The paper's numbers are of its own scale: compare order and trend."
    bold = [column for column in table.columns if "paper" not in (column, column[-1])]
    style = table.style.set_caption(f"{study.table.title}. {named}; ours: mean ± 95% interval over seeds.{note}")
    style = style.set_properties(subset=bold, **{"font-weight": "bold"}).set_table_styles(
        [{"selector": "th, caption", "props": [("text-align", "left")]}]
    )
    return style.hide(axis="index") if hide else style
