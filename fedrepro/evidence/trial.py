"""Experiments with a study: train cells with other settings, choose which curves to show.

Nothing here writes to the results or to the user's store: runs are kept in a temporary folder until the process ends.
"""

import base64
import itertools
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import seaborn as sns
from IPython.core.pylabtools import print_figure
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from tqdm import tqdm

from fedrepro.checks import choose
from fedrepro.errors import BadInput
from fedrepro.evidence import figures
from fedrepro.evidence.comparisons import select
from fedrepro.evidence.measures import ACCURACIES, COUNTED, with_sums
from fedrepro.evidence.schema import matches
from fedrepro.evidence.sections import Fields
from fedrepro.evidence.study import Study, by_labels
from fedrepro.evidence.table import Cell
from fedrepro.methods import build
from fedrepro.simulation import scratch
from fedrepro.simulation.cost import round_costs
from fedrepro.simulation.ledger import MIB
from fedrepro.simulation.run import Run
from fedrepro.simulation.session import train

NOT_THE_PAPERS = "not the paper's"
SETTINGS = [f.name for f in fields(Run) if f.init and f.name not in ("hp", "seed")]
Where = Mapping[str, str | Sequence[str]]


@dataclass(frozen=True, eq=False)
class Trial:
    """Cells of a study trained with other settings; a notebook shows its curves and controls that choose the others."""

    study: Study
    column: str
    what: str  # the settings that differ
    runs: list[Run]
    rounds: pd.DataFrame  # one row per round, with the labels of the cells

    def __repr__(self) -> str:
        return f"{NOT_THE_PAPERS}: {self.what} ({len(self.runs)} runs, not saved)"

    def _repr_mimebundle_(self, **options) -> dict[str, Any]:
        return {"text/plain": repr(self), **Picker(self)._repr_mimebundle_(**options)}

    @property
    def where(self) -> dict[str, list[Any]]:
        """What the figure shows at first: all lines of the panel in which this was tried, with all seeds."""
        hue = _hue(self.study)
        here = {axis: list(dict.fromkeys(self.rounds[axis])) for axis in self.study.axes}
        return {**here, hue: self.study.axes[hue], "seed": list(self.study.seeds)}

    @cached_property
    def figure(self) -> Figure:
        return self.picked(self.where)

    def picked(self, where: Mapping[str, Sequence[Any]]) -> Figure:
        """The study's curves with these labels, the mean over the seeds under "seed", and what was tried, dashed."""
        study, column, rows = self.study, self.column, select(self.study.rounds, where)
        seen = pd.concat([rows, self.rounds])
        varied = [axis for axis in study.axes if len(set(seen[axis])) > 1] or [_hue(study)]
        figures.style()
        figure = Figure(figsize=(11.5, 4.8), dpi=100, layout="constrained")  # not pyplot, which would show it twice
        figure.suptitle(f"{study.table.title} (scale: {study.scale})")
        panel = figure.subplots()
        colours = _draw(panel, rows, column, varied, study.axes[varied[0]] if len(varied) == 1 else ())
        tried = list(by_labels(self.rounds, varied))
        for at, mine in tried:
            cell = figures.titled(study, at)
            name = textwrap.fill(f"{NOT_THE_PAPERS}: {cell} with {self.what.replace(' = ', '=')}", 34)
            colour = "black" if len(tried) == 1 else colours.get(", ".join(at.values()), "black")
            _line(panel, mine, column, color=colour, linestyle="--", linewidth=3, errorbar=None, label=name)
        title = figures.titled(study, {axis: seen[axis].iloc[0] for axis in study.axes if axis not in varied})
        panel.set(xlabel=figures.LABELS["round"], ylabel=figures.LABELS.get(column, column), title=title)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        legend = textwrap.fill(", ".join(figures.axis_name(study, axis) for axis in varied), 34)
        panel.legend(title=legend, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
        return figure


def vary(
    study: Study,
    hp: Fields | None = None,
    cells: Where | None = None,
    seeds: Sequence[int] | None = None,
    column: str | None = None,
    workers: int | None = None,
    **settings: Any,
) -> Trial:
    """Train cells of a study with other hyperparameters or fields of Run, and draw them into its curves.

    vary(study, hp={"tau": 3}, rounds=5, cells={"method": "FedBR"}): `cells` has labels of the study's axes; on an axis
    that it does not name, the first cell is used whose method takes the hyperparameters. `seeds`: by default only the
    study's first. `column` of the rounds is drawn, by default the accuracy that the table measures.
    """
    column, hp = _column(study, column), hp or {}
    chosen = plan(study, hp, cells or {}, study.seeds[:1] if seeds is None else seeds, settings)
    runs = [run for _, run in chosen]
    rows = _train(runs, column, workers or study.workers)
    frames = [rows[run.id].assign(**cell.labels, seed=run.seed, run=run.id) for cell, run in chosen]
    what = ", ".join(f"{name} = {value}" for name, value in {**hp, **settings}.items())
    return Trial(study, column, what, runs, pd.concat(frames, ignore_index=True))


def plan(study: Study, hp: Fields, where: Where, seeds: Sequence[int], settings: Fields) -> list[tuple[Cell, Run]]:
    """The cells to train, each with its run for every seed; refuses what cannot be trained or changes nothing."""
    for name in settings:
        if name not in SETTINGS:
            raise BadInput(f"vary: unknown setting {name!r}; allowed: hp, {', '.join(SETTINGS)}")
    pairs = itertools.product(_cells(study, hp, where, settings), seeds)
    chosen = [(cell, _changed(cell, seed, hp, settings)) for cell, seed in pairs]
    if all(run.id == cell.run(run.seed).id for cell, run in chosen):
        raise BadInput(f"vary: hp={hp} and {settings} are the table's own settings; change at least one")
    return chosen


def _cells(study: Study, hp: Fields, where: Where, settings: Fields) -> list[Cell]:
    names, selected = study.table.names, {}
    for axis, wanted in where.items():
        choose("cells", axis, study.axes)
        labels = [names.get(label, label) for label in ([wanted] if isinstance(wanted, str) else wanted)]
        selected[axis] = tuple(choose(f"cells[{axis!r}]", label, study.axes[axis]) for label in labels)
    fit = [cell for cell in study.cells if matches(selected, cell.labels)]
    if not fit:
        raise BadInput(f"vary: no cell of {study.table.name} has the labels {dict(where)}")
    options = [build(settings.get("method", cell.run(study.seeds[0]).method)).options() for cell in fit]
    able = [cell for cell, taken in zip(fit, options, strict=True) if set(hp) <= set(taken)]
    if not able:
        allowed = sorted(set(itertools.chain.from_iterable(options)))
        unknown = next((name for name in hp if name not in allowed), next(iter(hp)))
        raise BadInput(f"vary: unknown hyperparameter {unknown!r}; allowed: {', '.join(allowed) or 'none'}")
    rest = {axis: (label,) for axis, label in able[0].labels.items() if axis not in selected}
    return [cell for cell in able if matches(rest, cell.labels)]


def _changed(cell: Cell, seed: int, hp: Fields, settings: Fields) -> Run:
    own = {} if "method" in settings else cell.fields.get("hp", {})  # another method has other hyperparameters
    changed = {**cell.fields, **settings, "hp": {**own, **hp}, "seed": seed}
    if "steps" in settings or "epochs" in settings:  # one replaces the other
        changed = {k: v for k, v in changed.items() if k not in ("steps", "epochs") or k in settings}
    return Run.from_dict(changed)


@cache
def _kept():
    """This process's temporary folder, which is removed when the process ends."""
    return scratch.folder()


def _train(runs: list[Run], column: str, workers: int | None) -> dict[str, pd.DataFrame]:
    """run id -> one row per round; a run that was tried before in this process is not trained again."""
    store, rows = Path(_kept().name), {}
    with tqdm(total=sum(run.rounds for run in runs), unit="round", file=sys.stdout, mininterval=1, leave=False) as bar:
        for run in runs:
            table = train(run, store=store, workers=workers, progress=lambda _: bar.update()).rounds
            rows[run.id] = with_sums(table, run, round_costs(run) if column in COUNTED else None)
    return rows


class Picker:
    """Controls that choose cells and seeds, and their curves; a picture if widgets cannot be shown."""

    def __init__(self, trial: Trial):
        import ipywidgets as w

        self.trial, self.controls = trial, {}
        for axis, labels in {**trial.study.axes, "seed": trial.study.seeds}.items():
            name = "seed" if axis == "seed" else figures.axis_name(trial.study, axis)
            size = w.Layout(width="230px", height=f"{18 * min(len(labels), 8) + 12}px")
            chosen = trial.where[axis]
            self.controls[axis] = w.SelectMultiple(options=labels, value=chosen, description=name, layout=size)
        self.image = w.Image(format="png", layout=w.Layout(max_width="100%", object_fit="contain"))
        for control in self.controls.values():
            control.observe(self.refresh, "value")
        controls = w.Box(list(self.controls.values()), layout=w.Layout(flex_flow="row wrap"))
        self.box = w.VBox([controls, self.image])
        self.refresh()  # once before any control moves: a headless run shows the figure

    def refresh(self, _=None) -> None:
        picks = {axis: list(control.value) for axis, control in self.controls.items()}
        self.image.value = print_figure(self.trial.picked(picks))

    def _repr_mimebundle_(self, **options) -> dict[str, Any]:
        widget: dict[str, Any] = dict(self.box._repr_mimebundle_(**options) or {})
        return {**widget, "image/png": base64.b64encode(self.image.value).decode()}


def _column(study: Study, given: str | None) -> str:
    """The column that curves show: the table's own, an accuracy that it measures, or the accuracy."""
    if given is not None:
        known = [str(name) for name in study.rounds.select_dtypes("number") if name not in ("round", "seed")]
        return choose("column", given, known)
    measured = [m.column for m in study.measures.values() if m.column in ACCURACIES]
    return next(iter([*study.table.curves, *measured]), "accuracy")


def _hue(study: Study) -> str:
    """The axis with one line per label: the method, or else the last axis that varies."""
    varied = [axis for axis, labels in study.axes.items() if len(labels) > 1]
    return "method" if "method" in varied else (varied or list(study.axes))[-1]


def _draw(panel: Axes, rows: pd.DataFrame, column: str, axes: list[str], order: Sequence[str] = ()) -> dict[str, Any]:
    """A line per combination of the labels of `axes`, the mean over seeds round by round -> the colour of each."""
    if not len(rows):
        return {}
    rows = rows.assign(line=[", ".join(labels) for labels in rows[axes].to_numpy()])
    here = list(dict.fromkeys(rows["line"]))
    every = list(order or here)  # a line keeps its colour when others are not picked
    colours = dict(zip(every, sns.color_palette("colorblind" if len(every) <= 10 else "husl", len(every)), strict=True))
    order = [name for name in every if name in here]
    band = figures.interval if len(set(rows["seed"])) > 1 else None
    _line(panel, rows, column, hue="line", hue_order=order, palette=colours, linewidth=2.5, errorbar=band)
    return colours


def _line(panel: Axes, rows: pd.DataFrame, column: str, **style: Any) -> None:
    """The mean over seeds round by round; a single round is a point."""
    known = rows.dropna(subset=[column])
    known = known.assign(**{column: known[column] / MIB}) if column in figures.IN_MIB else known
    style["marker"] = "o" if len(set(known["round"])) == 1 else None
    sns.lineplot(known, x="round", y=column, ax=panel, **style)
