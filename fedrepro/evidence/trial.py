"""A study as an instrument: train a cell with other settings, lay a table out as the paper prints it, pick curves.

Nothing here writes to the results or to a person's store: what is tried is kept in a temporary folder, for as long as
the process runs.
"""

import base64
import io
import itertools
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from pathlib import Path

import pandas as pd
import seaborn as sns
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedrepro.checks import choose
from fedrepro.errors import BadInput
from fedrepro.evidence import figures
from fedrepro.evidence.comparisons import select
from fedrepro.evidence.schema import matches
from fedrepro.evidence.study import Study
from fedrepro.evidence.table import Cell
from fedrepro.simulation import scratch
from fedrepro.simulation.metrics import mean_interval
from fedrepro.simulation.run import Run
from fedrepro.simulation.session import train

NOT_THE_PAPERS = "not the paper's"
ACCURACIES = ("accuracy", "ema_accuracy", "personal_accuracy")  # kept as shares, printed in percent
SETTINGS = [f.name for f in fields(Run) if f.init and f.name not in ("hp", "seed")]
Where = Mapping[str, str | list[str]]


@dataclass(frozen=True, eq=False)
class Trial:
    """Cells of a study trained with other settings; a notebook shows its figure."""

    study: Study
    column: str
    what: str  # the settings that differ
    runs: list[Run]
    rounds: pd.DataFrame  # one row per round, with the labels of the cells

    def __repr__(self) -> str:
        return f"{NOT_THE_PAPERS}: {self.what} ({len(self.runs)} runs, not saved)"

    def _repr_png_(self) -> bytes:
        return _png(self.figure)

    @cached_property
    def figure(self) -> Figure:
        """The curves of the study, and this one dashed: a panel for each place on the axes but one."""
        hue = _hue(self.study)
        others = [axis for axis in self.study.axes if axis != hue]
        panels = self.rounds[others].drop_duplicates().to_dict("records") if others else [{}]
        figure, axes = _panels(self.study, len(panels))
        for panel, labels in zip(axes, panels, strict=True):
            colours = _draw(panel, select(self.study.rounds, labels), self.column, [hue], self.study.axes[hue])
            tried = select(self.rounds, labels)
            for label, rows in tried.groupby(hue, sort=False):
                mean = rows.dropna(subset=self.column).groupby("round")[self.column].mean()
                name = textwrap.fill(f"{NOT_THE_PAPERS}: {label} with {self.what.replace(' = ', '=')}", 34)
                colour = "black" if tried[hue].nunique() == 1 else colours[label]
                values = _shown(self.column, mean)
                panel.plot(mean.index, values, color=colour, linestyle="--", linewidth=3, label=name)
            _finish(self.study, panel, self.column, labels, [hue])
        return figure


def vary(
    study: Study,
    hp: Mapping | None = None,
    cells: Where | None = None,
    seeds: Sequence[int] | None = None,
    column: str | None = None,
    workers: int | None = None,
    **settings,
) -> Trial:
    """Train cells of a study with other hyperparameters or fields of Run, and draw them into its curves.

    vary(study, hp={"tau": 3}, rounds=5, cells={"method": "FedBR"}): `cells` has labels of the study's axes; without it
    the first cell is trained whose method takes the hyperparameters. One seed, the study's first, unless told
    otherwise.
    """
    for name in settings:
        if name not in SETTINGS:
            raise BadInput(f"vary: unknown setting {name!r}; allowed: hp, {', '.join(SETTINGS)}")
    column = _column(study, column)
    chosen = _cells(study, dict(hp or {}), cells, settings)
    seeds = study.seeds[:1] if seeds is None else seeds
    runs = {(cell, seed): _changed(study.cells[cell], seed, dict(hp or {}), settings)
            for cell in chosen for seed in seeds}  # fmt: skip
    if all(run.id == study.cells[cell].run(seed).id for (cell, seed), run in runs.items()):
        raise BadInput(f"vary: hp={dict(hp or {})} and {settings} are the table's own settings; change at least one")
    rows = _train(list(runs.values()), workers)
    frames = [
        rows[run.id].assign(**study.cells[cell].labels, seed=seed, run=run.id) for (cell, seed), run in runs.items()
    ]
    what = ", ".join(f"{name} = {value}" for name, value in {**(hp or {}), **settings}.items())
    return Trial(study, column, what, list(runs.values()), pd.concat(frames, ignore_index=True))


def _cells(study: Study, hp: dict, where: Where | None, settings: dict) -> list[int]:
    """The positions of the cells to train."""
    for axis, wanted in (where or {}).items():
        choose("cells", axis, study.axes)
        for label in [wanted] if isinstance(wanted, str) else wanted:
            choose(f"cells[{axis!r}]", label, study.axes[axis])
    fit = [i for i, cell in enumerate(study.cells) if matches(dict(where or {}), cell.labels)]
    if not fit:
        raise BadInput(f"vary: no cell of {study.table.name} has the labels {dict(where or {})}")
    taken = {i: _options(study, i, settings) for i in fit}
    able = [i for i in fit if set(hp) <= set(taken[i])]
    if not able:
        unknown = next(name for name in hp if not any(name in options for options in taken.values()))
        allowed = sorted(set(itertools.chain.from_iterable(taken.values())))
        raise BadInput(f"vary: unknown hyperparameter {unknown!r}; allowed: {', '.join(allowed) or 'none'}")
    return able if where else able[:1]


def _options(study: Study, cell: int, settings: dict) -> list[str]:
    """The hyperparameters that a cell's method takes, or the method that it gets."""
    from fedrepro.methods import build

    return build(settings.get("method", study.cells[cell].run(study.seeds[0]).method)).options()


def _changed(cell: Cell, seed: int, hp: dict, settings: dict) -> Run:
    own = {} if "method" in settings else cell.fields.get("hp", {})  # another method has other hyperparameters
    changed = {**cell.fields, **settings, "hp": {**own, **hp}, "seed": seed}
    if "steps" in settings or "epochs" in settings:  # one replaces the other
        changed = {k: v for k, v in changed.items() if k not in ("steps", "epochs") or k in settings}
    return Run.from_dict(changed)


@cache
def _kept():
    """The temporary folder of this process: it goes when the process does."""
    return scratch.folder()


def _train(runs: list[Run], workers: int | None) -> dict[str, pd.DataFrame]:
    """run id -> one row per round; a run that was tried before in this process is not trained again."""
    from tqdm import tqdm

    store, rows = Path(_kept().name), {}
    with tqdm(total=sum(run.rounds for run in runs), unit="round", file=sys.stdout, mininterval=1, leave=False) as bar:
        for run in runs:
            table = train(run, store=store, workers=workers, progress=lambda _: bar.update()).rounds
            rows[run.id] = table.assign(bytes=(table["bytes_down"] + table["bytes_up"]).cumsum())
    return rows


def paper_table(study: Study, measure: str | None = None, across: str | Sequence[str] | None = None):
    """The paper's numbers in rows and columns, as it prints them, and ours beside each.

    `across` names the axes whose labels are columns, by default the last one; the other axes go down. A table with one
    axis has its measures across. Accuracies are in percent.
    """
    reported = study.table.reported_rows()
    told = [name for name in study.measures if any(row["measure"] == name for row in reported)]
    if measure is not None:
        choose("measure", measure, study.measures)
    axes = list(study.axes)
    if across is None:
        across = axes[-1:] if len(axes) > 1 else []
    across = [across] if isinstance(across, str) else list(across)
    for axis in across:
        choose("across", axis, study.axes)
    down = [axis for axis in axes if axis not in across]
    shown = [measure] if measure else (told or list(study.measures))[: None if len(axes) == 1 else 1]
    numbers = {}
    for name in shown:
        theirs = [row for row in reported if row["measure"] == name]
        ours = study.values[study.values["measure"] == name]
        for labels in _places(study, theirs):
            row = tuple(labels[axis] for axis in down) or ("",)
            column = (*([name] if len(shown) > 1 else []), *(labels[axis] for axis in across))
            cell = numbers.setdefault(row, {})
            if theirs:
                cell[(*column, "paper")] = _theirs(study, name, theirs, labels)
            cell[(*column, f"ours ({study.scale})")] = _ours(study, name, select(ours, labels))
    table = pd.DataFrame(numbers.values(), index=_index(study, numbers, down)).fillna("–")
    table = table.loc[:, (table != "–").any()]  # a column that is neither the paper's nor ours
    table.columns = pd.MultiIndex.from_tuples(table.columns)
    return _styled(study, table, shown)


def _places(study: Study, theirs: list[dict]) -> list[dict[str, str]]:
    """The cells that the paper's table has or that we measured, in the paper's order."""
    ours = [cell.labels for cell in study.cells]
    paper = {axis: list(labels) for axis, labels in study.table.choices("paper").items()}
    order = {axis: list(dict.fromkeys([*paper[axis], *study.axes[axis]])) for axis in study.axes}
    places = (dict(zip(order, labels, strict=True)) for labels in itertools.product(*order.values()))
    return [labels for labels in places if labels in ours or any(_said(row, labels) for row in theirs)]


def _said(row: dict, labels: dict[str, str]) -> bool:
    """Whether a reported number is of this cell; an axis that the paper does not have says nothing."""
    return all(row.get(axis) in (None, label) for axis, label in labels.items())


def _theirs(study: Study, measure: str, rows: list[dict], labels: dict[str, str]) -> str:
    row = next((row for row in rows if _said(row, labels)), None)
    if row is None:
        return "–"
    std = "" if pd.isna(row["std"]) else f" ({_number(study, measure, row['std'])})"
    return _number(study, measure, row["value"]) + "+" * row["censored"] + std


def _ours(study: Study, measure: str, values: pd.DataFrame) -> str:
    known = values["value"].dropna().tolist()
    if not len(values):
        return "–"
    if not known:
        return "not reached"
    mean, half = mean_interval(known)
    text = _number(study, measure, mean) + (f" ± {_number(study, measure, half)}" if half is not None else "")
    return text if len(known) == len(values) else f"{text}, {len(known)} of {len(values)} seeds"


def _number(study: Study, measure: str, value: float) -> str:
    return f"{100 * value:.2f}" if _percent(study, measure) else f"{value:.4g}"


def _percent(study: Study, measure: str) -> bool:
    return study.measures[measure].column in ACCURACIES and not study.measures[measure].unit


def _index(study: Study, rows: Mapping, down: list[str]) -> pd.Index:
    if not down:
        return pd.Index([""])
    return pd.MultiIndex.from_tuples(list(rows), names=[study.table.axis[axis].label or axis for axis in down])


def _styled(study: Study, table: pd.DataFrame, measures: list[str]):
    unit = {name: "%" if _percent(study, name) else study.measures[name].unit for name in measures}
    named = "; ".join(f"{name} ({unit[name]})" if unit[name] else name for name in measures)
    note = "" if study.scale == "paper" else " The paper's numbers are of its own scale: compare order and trend."
    ours = [column for column in table.columns if column[-1] != "paper"]
    lines = [{"selector": "th", "props": "text-align: left"}, {"selector": "caption", "props": "text-align: left"}]
    style = table.style.set_caption(f"{study.table.title}. {named}; ours: mean ± 95% interval over seeds.{note}")
    return style.set_properties(subset=ours, **{"font-weight": "bold"}).set_table_styles(lines)


def pick(study: Study, column: str | None = None) -> "Picker":
    """Controls that choose cells and seeds, and their curves."""
    return Picker(study, _column(study, column))


def picked(study: Study, where: Where, seeds: Sequence[int], column: str) -> Figure:
    """The curves of the cells with these labels, the mean over these seeds."""
    rows = study.rounds
    for axis, labels in {**where, "seed": list(seeds)}.items():
        rows = rows[rows[axis].isin([labels] if isinstance(labels, str) else list(labels))]
    figure, (panel,) = _panels(study, 1)
    if not len(rows):
        panel.text(0.5, 0.5, "nothing is picked", ha="center", transform=panel.transAxes)
        return figure
    varied = [axis for axis in study.axes if rows[axis].nunique() > 1] or [_hue(study)]
    _draw(panel, rows, column, varied)
    _finish(study, panel, column, {axis: rows[axis].iloc[0] for axis in study.axes if axis not in varied}, varied)
    return figure


class Picker:
    """What `pick` shows; where widgets cannot be shown, the figure is there as a picture."""

    def __init__(self, study: Study, column: str):
        import ipywidgets as w

        self.study, self.column, self.controls = study, column, {}
        for axis, labels in {**study.axes, "seed": study.seeds}.items():
            name = "seed" if axis == "seed" else study.table.axis[axis].label or axis
            size = w.Layout(width="230px", height=f"{24 * min(len(labels), 8) + 16}px")
            self.controls[axis] = w.SelectMultiple(options=labels, value=labels, description=name, layout=size)
        self.image = w.Image(format="png", layout=w.Layout(max_width="100%", object_fit="contain"))
        for control in self.controls.values():
            control.observe(self.refresh, "value")
        wrapped = w.Layout(flex_flow="row wrap")
        self.box = w.VBox([w.Box(list(self.controls.values()), layout=wrapped), self.image])
        self.refresh()  # once without anybody moving a control: a headless run shows the figure

    def refresh(self, _=None) -> None:
        where = {axis: list(control.value) for axis, control in self.controls.items()}
        seeds = where.pop("seed")
        self.image.value = _png(picked(self.study, where, seeds, self.column))

    def _repr_mimebundle_(self, **options) -> dict:
        return {**self.box._repr_mimebundle_(**options), "image/png": base64.b64encode(self.image.value).decode()}


def _column(study: Study, given: str | None) -> str:
    """The column that curves show: the table's own, an accuracy that it measures, or the accuracy."""
    known = [c for c in study.rounds.select_dtypes("number") if c not in ("round", "seed")]
    if given is not None:
        return choose("column", given, known)
    measured = [m.column for m in study.measures.values() if m.column in ACCURACIES]
    return next(iter([*study.table.curves, *measured]), "accuracy")


def _hue(study: Study) -> str:
    """The axis whose labels are lines: the method, else the last one that varies."""
    varied = [axis for axis, labels in study.axes.items() if len(labels) > 1]
    return "method" if "method" in varied else (varied or list(study.axes))[-1]


def _panels(study: Study, count: int) -> tuple[Figure, list]:
    """A figure outside of pyplot: it is shown where it is returned and nowhere else."""
    figures.style()
    figure = Figure(figsize=(5.5 + 6 * count, 4.8), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{study.table.title} (scale: {study.scale})")
    return figure, list(figure.subplots(1, count, squeeze=False, sharey=True)[0])


def _draw(panel, rows: pd.DataFrame, column: str, axes: list[str], order: Sequence[str] | None = None) -> dict:
    """A line per combination of the labels of `axes`, the mean over seeds round by round -> the colour of each."""
    rows = rows.dropna(subset=column).assign(line=rows[axes].agg(", ".join, axis=1))
    rows[column] = _shown(column, rows[column])
    order = [name for name in order or rows["line"].unique() if name in set(rows["line"])]
    colours = dict(zip(order, sns.color_palette("colorblind" if len(order) <= 10 else "husl", len(order)), strict=True))
    band = figures.interval if rows["seed"].nunique() > 1 else None
    sns.lineplot(rows, x="round", y=column, hue="line", hue_order=order, palette=colours, linewidth=2.5, errorbar=band,
                 ax=panel)  # fmt: skip
    return colours


def _shown(column: str, values):
    return values / 2**20 if column in figures.MIB else values


def _finish(study: Study, panel, column: str, labels: dict[str, str], lines: list[str]) -> None:
    """Title, axes and legend; a number in the title has its axis's name beside it."""
    names = {axis: study.table.axis[axis].label or axis for axis in study.axes}
    title = [f"{names[axis]} = {v}" if v.replace(".", "", 1).isdigit() else v for axis, v in labels.items()]
    panel.set(xlabel=figures.LABELS["round"], ylabel=figures.LABELS.get(column, column), title=", ".join(title))
    panel.xaxis.get_major_locator().set_params(integer=True)
    legend = ", ".join(names[axis] for axis in lines)
    panel.legend(title=legend, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()
