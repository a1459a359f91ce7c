"""For the arena's notebooks: accuracy against costs, and the Pareto front."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedrepro.evidence import figures
from fedrepro.evidence.comparisons import select
from fedrepro.evidence.ranking import reference_of
from fedrepro.evidence.study import Study

APART = 0.052  # of the height of a panel, between two names
SAME, STEP = 0.02, 0.006  # of the largest cost: costs that count as the same, and the step between their points
WHISKERS = "  ·  whiskers: all seeds, cut at the border  ·  points of about the same cost stand side by side"


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
    """The mean of one measure against each cost; the line joins the methods on the front, in blue. The reference is
    black."""
    figures.style()
    figure, panels = plt.subplots(1, len(costs), figsize=(9 * len(costs), 7), sharey=True, squeeze=False)
    gains, *spent = (
        {label: select(study.of(name), {axis: label})["value"].to_numpy() for label in study.axes[axis]}
        for name in (gain, *costs)
    )
    for panel, cost, paid in zip(panels[0], costs, spent, strict=True):
        points = {label: (float(paid[label].mean()), float(gains[label].mean())) for label in gains}
        best, drawn = front(points), side_by_side(points)
        colours = {reference_of(study, axis): "black"} | dict.fromkeys(best, "C0")
        steps = zip(*(drawn[label] for label in best), strict=True)
        panel.step(*steps, where="post", color="0.3", ls="--", lw=1.5, zorder=0)
        for label, at in drawn.items():
            low, high = gains[label].min(), gains[label].max()
            look: dict[str, Any] = {"color": colours.get(label, "0.6"), "zorder": 2 + (label in colours)}
            panel.errorbar(*at, yerr=[[at[1] - low], [high - at[1]]], fmt="o", ms=7, capsize=3, lw=1.2, **look)
        means = [at[1] for at in points.values()]
        lowest = min(means) - 0.1 * (max(means) - min(means))  # a run that failed would hide all other differences
        panel.set(xlim=(0, None), ylim=(lowest, None), xlabel=f"{figures.with_unit(study, cost)}, all rounds")
        panel.set(ylabel=gain, title=f"blue: the best {gain} for its {cost}")
        _name_beside(panel, drawn, colours)
    figure.tight_layout()
    figures.note(study, figure, more=WHISKERS)
    return figure


def side_by_side(points: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Where to draw points (cost, gain): those of about the same cost beside each other, the best one last."""
    most, groups = max(cost for cost, _ in points.values()), []
    for label, (cost, _) in sorted(points.items(), key=lambda item: item[1][0]):
        if not groups or cost - points[groups[-1][0]][0] > SAME * most:
            groups.append([])
        groups[-1].append(label)
    drawn = {}
    for group in groups:
        for i, label in enumerate(sorted(group, key=lambda label: points[label][1])):
            cost, gain = points[label]
            drawn[label] = (cost + (i - (len(group) - 1) / 2) * STEP * most, gain)
    return drawn


def _name_beside(panel: Axes, points: Mapping[str, tuple[float, float]], colours: Mapping[str, str]) -> None:
    """Names to the right of the panel, in the order of the points and far enough apart to read."""
    low, high = panel.get_ylim()
    ranked = sorted(points, key=lambda label: points[label][1])
    heights = spread_out([(points[label][1] - low) / (high - low) for label in ranked])
    for label, height in zip(ranked, heights, strict=True):
        line = {"arrowstyle": "-", "color": colours.get(label, "0.75"), "lw": 0.8, "relpos": (0, 0.5)}
        beside = {"xytext": (1.02, height), "textcoords": "axes fraction", "va": "center", "fontsize": 12}
        look: dict[str, Any] = {"color": colours.get(label, "0.3"), "weight": "bold" if label in colours else "normal"}
        panel.annotate(label, xy=points[label], arrowprops=line, **beside, **look)


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
