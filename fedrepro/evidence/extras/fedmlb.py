"""For FedMLB's notebooks: a measure against another, how far a method is ahead of another, points for sets of paths."""

from collections.abc import Callable, Iterable

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.figure import Figure

from fedrepro.evidence import figures
from fedrepro.evidence.comparisons import select
from fedrepro.evidence.study import Study
from fedrepro.simulation.metrics import mean_interval


def against(study: Study, x: str, y: str, hue: str = "method") -> Figure:
    """One measure against another, a line for each label of `hue`; whiskers are 95% intervals over seeds."""
    figures.style()
    wide = study.values.pivot_table(index=[*study.axes, "seed"], columns="measure", values="value").reset_index()
    figure, panel = plt.subplots(figsize=(8, 4.8))
    for i, label in enumerate(study.axes[hue]):
        rows = wide[wide[hue] == label].groupby([a for a in study.axes if a != hue], sort=False)
        points = [(part[x].mean(), *mean_interval(part[y])) for _, part in rows]
        across, mean, half = zip(*sorted(points, key=lambda p: p[0]), strict=True)
        panel.errorbar(across, mean, yerr=[h or 0 for h in half], label=label, marker="os^DvPX"[i % 7], capsize=4)
    panel.set(xlabel=figures.with_unit(study, x), ylabel=y)
    figures.one_legend(figure, [panel], figures.axis_name(study, hue))
    figures.note(study, figure)
    return figure


def ahead(study: Study, pairs: Iterable[tuple[str, str]], axis: str = "method", y: str = "ema_accuracy") -> Figure:
    """By how many points the first of each pair is ahead of the second, round by round: a column per pair, a row
    for every combination of the other axes' labels."""
    figures.style()
    pairs = [pair for pair in pairs if set(pair) <= set(study.axes[axis])]
    tests, rows = study.rounds.dropna(subset=[y]), figures.combinations(study, [a for a in study.axes if a != axis])
    size = (1 + 3.2 * len(pairs), 3.8 * len(rows))
    figure, axes = plt.subplots(len(rows), len(pairs), figsize=size, squeeze=False, sharex=True, sharey=True)
    for panels, at in zip(axes, rows, strict=True):
        curves = select(tests, at).pivot_table(index=["round", "seed"], columns=axis, values=y)
        curves = curves.reindex(columns=study.axes[axis])  # NaN where nothing is trained yet
        for panel, (better, worse) in zip(panels, pairs, strict=True):
            points = 100 * (curves[better] - curves[worse]).unstack("seed")
            panel.plot(points.index, points, color="0.6", linewidth=1)
            panel.plot(points.index, points.mean(axis=1), linewidth=2.5)
            panel.axhline(0, color="0.2", linestyle="--", linewidth=1)
            panel.set(title=f"{better} −\n{worse}", xlabel=figures.LABELS["round"])
        panels[0].set_ylabel(f"points of accuracy ahead\n{figures.titled(study, at)}")
    figure.tight_layout()
    figures.note(study, figure, more="  ·  thin: each seed, thick: their mean")
    return figure


def spread(study: Study, measure: str, axis: str, group: Callable, hue: Callable, labels: tuple[str, str]) -> Figure:
    """A point for every label of `axis`, in columns by group(label), coloured by hue(label); the line is their mean."""
    figures.style()
    values = study.of(measure).groupby(axis, sort=False).agg({"value": "mean"}).reset_index()
    values["group"], values["hue"] = values[axis].map(group), values[axis].map(hue)
    figure, panel = plt.subplots(figsize=(8, 4.8))
    colours = {"hue": "hue", "hue_order": sorted(values["hue"].unique()), "palette": "viridis"}
    sns.swarmplot(values, x="group", y="value", **colours, size=9, ax=panel)
    sns.pointplot(values, x="group", y="value", color="0.4", errorbar=None, markers="_", linestyles="--", ax=panel)
    panel.set(xlabel=labels[0], ylabel=measure)
    figures.one_legend(figure, [panel], labels[1])
    figures.note(study, figure)
    return figure
