"""For the arena's notebooks: accuracy against costs, and the Pareto front."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedrepro.evidence import figures
from fedrepro.evidence.comparisons import select
from fedrepro.evidence.study import Study
from fedrepro.simulation.metrics import mean_interval

APART = 0.052  # of the height of a panel, between two names


def front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """The names of the points (cost, gain) on the Pareto front, by cost."""
    kept, best = [], -np.inf
    for name, (_, gain) in sorted(points.items(), key=lambda item: (item[1][0], -item[1][1])):
        if gain > best:
            kept.append(name)
            best = gain
    return kept


def pareto(
    study: Study, gain: str, costs: tuple[str, ...] = ("traffic", "computation"), axis: str = "method"
) -> Figure:
    """The mean of one measure against each cost; the line joins the methods on the front."""
    figures.style()
    figure, panels = plt.subplots(1, len(costs), figsize=(9 * len(costs), 7), sharey=True, squeeze=False)
    labels = study.axes[axis]
    colours = dict(zip(labels, sns.color_palette("husl", len(labels)), strict=True))
    gains = {label: mean_interval(select(study.of(gain), {axis: label})["value"]) for label in labels}
    for panel, cost in zip(panels[0], costs, strict=True):
        spent = {label: select(study.of(cost), {axis: label})["value"].to_numpy() for label in labels}
        points = {label: (float(spent[label].mean()), gains[label][0]) for label in labels}
        for label, (x, y) in points.items():
            panel.errorbar(x, y, yerr=gains[label][1] or 0, fmt="o", ms=9, capsize=4, color=colours[label])
        joined = [points[label] for label in front(points)]
        panel.step(*zip(*joined, strict=True), where="post", color="0.3", ls="--", lw=1.5, zorder=0)
        panel.set(xlim=(0, None), xlabel=f"{figures.with_unit(study, cost)}, all rounds", ylabel=gain)
        panel.set_title(f"dashed: the best {gain} for its {cost}")
        _name_beside(panel, points, colours)
    figure.tight_layout()
    figures.note(study, figure)
    return figure


def _name_beside(panel: Axes, points: Mapping[str, tuple[float, float]], colours: Mapping) -> None:
    """Names to the right of the panel, in the order of the points and far enough apart to read."""
    low, high = panel.get_ylim()
    ranked = sorted(points, key=lambda label: points[label][1])
    heights = spread_out([(points[label][1] - low) / (high - low) for label in ranked])
    for label, height in zip(ranked, heights, strict=True):
        line = {"arrowstyle": "-", "color": colours[label], "lw": 0.8, "alpha": 0.7, "relpos": (0, 0.5)}
        beside = {"xytext": (1.02, height), "textcoords": "axes fraction", "va": "center", "fontsize": 11}
        panel.annotate(label, xy=points[label], arrowprops=line, **beside)


def spread_out(heights: list[float]) -> list[float]:
    """Sorted heights at least APART from each other, moved up as needed, then down so that the last is at most 1."""
    raised = []
    for height in heights:
        raised.append(max(height, raised[-1] + APART) if raised else height)
    ceiling, placed = 1.0, []
    for height in reversed(raised):
        placed.append(min(height, ceiling))
        ceiling = placed[-1] - APART
    return placed[::-1]
