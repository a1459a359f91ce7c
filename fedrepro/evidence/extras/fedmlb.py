"""For FedMLB's notebooks: one measure against another, and a point for every set of paths."""

from collections.abc import Callable

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.figure import Figure

from fedrepro.evidence import figures
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
