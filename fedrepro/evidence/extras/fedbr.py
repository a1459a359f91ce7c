"""For FedBR's notebooks: the sizes of blocks, and how many of them were sent."""

import itertools

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from fedrepro.evidence import figures
from fedrepro.evidence.comparisons import select
from fedrepro.evidence.study import Study
from fedrepro.models import build


def block_sizes(model: str, classes: int = 10, channels: int = 3, size: int = 32) -> pd.DataFrame:
    """The sizes of the last blocks of a model, beside the share α/M that FedBR's Eq. (4) charges for them."""
    net = build(model, classes=classes, channels=channels, size=size)
    parameters = dict(net.named_parameters())
    counts = [sum(parameters[n].numel() for n in names if n in parameters) for names in net.block_params.values()]
    blocks, last = len(counts), np.cumsum(counts[::-1])
    sent = {"last blocks sent (α)": range(1, blocks + 1), "from block": list(net.block_params)[::-1]}
    shares = {"share of bytes": last / last[-1], "charged by Eq. (4): α/M": np.arange(1, blocks + 1) / blocks}
    return pd.DataFrame({**sent, "parameters": last, **shares})


def choices(study: Study, hue: str = "method", col: str = "dataset", row: str = "reading") -> Figure:
    """How often each number of blocks was sent in partial rounds, one panel for each label of `col` and `row`."""
    figures.style()
    columns = sorted(c for c in study.rounds if c.startswith("alpha_"))[:-1]  # the last is the whole model
    counts = study.rounds.groupby([row, col, hue]).agg(dict.fromkeys(columns, "sum"))
    shares = counts.div(counts.sum(axis=1), axis=0).rename(columns={c: c.removeprefix("alpha_") for c in columns})
    table = shares.reset_index().melt(id_vars=[row, col, hue], var_name="blocks", value_name="share")
    rows, cols = study.axes[row], study.axes[col]
    size = (1.5 + 6 * len(cols), 4.2 * len(rows))
    figure, axes = plt.subplots(len(rows), len(cols), figsize=size, squeeze=False, sharey=True)
    for panel, labels in zip(axes.flat, itertools.product(rows, cols), strict=True):
        shown = select(table, dict(zip((row, col), labels, strict=True)))
        sns.barplot(shown, x="blocks", y="share", hue=hue, hue_order=study.axes[hue], ax=panel)
        panel.axhline(1 / len(columns), color="0.4", linestyle="--", linewidth=1)
        title = ", ".join(labels)
        panel.set(xlabel="number of last blocks sent (α)", ylabel="share of partial rounds", title=title)
    figures.one_legend(figure, list(axes.flat), figures.axis_name(study, hue))
    figures.note(study, figure)
    return figure
