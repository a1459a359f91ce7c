"""For KAPC's notebooks: the relationship matrix, how r_ii grows with and without learning and how much traffic that
saves (KA-15), the sizes of layers, two readings of the wireless links."""

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure

from fedrepro.evidence import figures, spec
from fedrepro.evidence.notebook import Shown
from fedrepro.evidence.study import Study
from fedrepro.methods.kapc import VISITS, normalise, write_back
from fedrepro.models import build
from fedrepro.simulation.fleet import Fleet, shannon
from fedrepro.simulation.ledger import MIB
from fedrepro.simulation.run import Run
from fedrepro.simulation.session import train


def relationship(study: Shown, client: int = 9, col: str = "dataset", row: str = "cube") -> Figure:
    """One client's final relationship matrix (layers x clients), for all labels of two axes (first seed)."""
    figures.style()
    shape = len(study.axes[row]), len(study.axes[col])
    figure, axes = plt.subplots(*shape, figsize=(1 + 6.5 * shape[1], 4.4 * shape[0]), squeeze=False)
    for cell in study.cells:
        panel = axes[study.axes[row].index(cell.labels[row]), study.axes[col].index(cell.labels[col])]
        run = cell.run(study.seeds[0])  # read from the store; trained where only its rows are known, from the record
        cube = train(run, store=study.store, workers=study.workers).record["relationship"]
        numbers = {"annot": max(cube.shape[:2]) < 11, "fmt": ".2f", "annot_kws": {"fontsize": 9}}
        bar = {"label": "relationship coefficient"}
        sns.heatmap(cube[:, client].numpy(), cmap="viridis", ax=panel, vmin=0, cbar_kws=bar, **numbers)
        title = f"{cell.labels[col]}, {cell.labels[row]}"
        panel.set(title=title, xlabel="client", ylabel="layer (0 is nearest the image)")
    figure.suptitle(f"client {client}")
    figure.tight_layout()
    figures.note(study, figure)
    return figure


def without_learning(run: Run) -> pd.DataFrame:
    """r_ii that Algorithm 3 compares with mu at every visit of this run's clients if eta_r were 0: lines 6 and 12 of
    Algorithm 5 alone, the same in every layer."""
    matrix = torch.full((run.clients, run.clients), 1 / run.clients, dtype=torch.float64)
    visits, rows = [0] * run.clients, []
    for t in range(1, run.rounds + 1):
        chosen = torch.tensor(Fleet(run).participants(t))
        part = normalise(matrix[chosen][:, chosen])
        write_back(matrix, chosen, part, run.hp["rows"])
        for cid, own in zip(chosen.tolist(), part.diagonal().tolist(), strict=True):
            visits[cid] += 1
            rows.append({"round": t, "client": cid, "visit": visits[cid], "r_ii": own})
    return pd.DataFrame(rows)


def self_by_visit(study: Study) -> pd.DataFrame:
    """Mean r_ii of the study's runs over layers and clients at their first visits, for each cube."""
    columns = {f"self_visit_{v}": v for v in range(1, VISITS + 1)}
    means = study.rounds.groupby("cube", sort=False).agg(dict.fromkeys(columns, "mean"))
    rows = [(cube, v, means.at[cube, column]) for cube in means.index for column, v in columns.items()]
    return pd.DataFrame(rows, columns=["cube", "visit", "r_ii"]).dropna().reset_index(drop=True)


def visits(study: Study) -> Figure:
    """r_ii over visits: trained cubes with markers, the rules without learning dashed, the thresholds dotted."""
    figures.style()
    figure, panel = plt.subplots(figsize=(9, 4.8))
    trained = self_by_visit(study)
    sns.lineplot(trained, x="visit", y="r_ii", hue="cube", style="cube", dashes=False, markers=True, ax=panel)
    run = study.cells[0].run(study.seeds[0])
    for rule, colour in (("printed", "0.2"), ("mass", "0.6")):
        alone = without_learning(replace(run, hp={**run.hp, "rows": rule}))
        own = alone.groupby("visit").agg({"r_ii": "mean"}).loc[:VISITS]
        panel.plot(own.index, own["r_ii"], color=colour, linestyle="--", label=f"rule alone: {rule}")
    for mu in study.axes["mu"]:
        panel.axhline(float(mu), color="0.5", linestyle=":", linewidth=1)
    panel.set(xlabel="visit of a client", ylabel="mean self-relationship r_ii", ylim=(0, 1.02))
    panel.set_xticks(range(1, VISITS + 1))
    figures.one_legend(figure, [panel], "relationship cube")
    figures.note(study, figure, more="  ·  dotted: the thresholds μ")
    return figure


def savings(study: Study) -> pd.DataFrame:
    """For each threshold the share of the download saved, in the paper and with each cube, and how much of the
    printed cube's saving is there without learning."""
    run = study.cells[0].run(study.seeds[0])
    everything = layer_sizes(run.model, run.per_round)["its parameters"].sum() * 4 * run.per_round / MIB
    known = study.summary.query("measure == 'download per round'")
    table = 1 - known.pivot(index="mu", columns="cube", values="measured")[study.axes["cube"]] / everything
    paper = known[known["cube"] == "printed"].set_index("mu")["reported"]
    costs = spec.find("kapc/table6_costs").reported_rows()
    (whole,) = [r["value"] for r in costs if (r["method"], r["measure"]) == ("KAPC", "download per round")]
    table.insert(0, "paper", 1 - paper / whole)
    table["without learning, of printed"] = table["printed, η_r = 0"] / table["printed"]
    table.columns.name = None
    return table.reset_index()


def layer_sizes(model: str, clients: int = 10, classes: int = 10, channels: int = 3, size: int = 32) -> pd.DataFrame:
    """What KAPC's clients upload in a round when they send layers 1..Ω and BatchNorm, in MiB."""
    net = build(model, classes=classes, channels=channels, size=size)
    counts = {name: p.numel() for name, p in net.named_parameters()}
    layers = {name: sum(counts[key] for key in keys) for name, keys in net.layers().items()}
    rest = sum(counts.values()) - sum(layers.values())
    sent = (np.cumsum(list(layers.values())) + rest) * 4 * clients / MIB
    table = {"Ω": range(1, len(layers) + 1), "last layer sent": list(layers), "its parameters": list(layers.values())}
    return pd.DataFrame({**table, f"upload of {clients} clients (MiB)": sent, "share of the model": sent / sent[-1]})


def wireless(nbytes: int, clients: int = 100, seed: int = 0) -> pd.DataFrame:
    """Mean seconds of one model up and down for clients drawn from KAPC's Table 4, by two readings of it."""
    draw = np.random.default_rng(seed).uniform
    band, power, metres = draw(10, 30, clients), draw(23, 30, clients), draw(100, 500, clients)
    megabits = nbytes * 8 / 1e6
    ways = (band, power, metres), ([50] * clients, [30] * clients, metres)
    up, down = (np.mean([megabits / shannon(*link) for link in zip(*way, strict=True)]) for way in ways)
    readings = ["one bit per second and hertz (used here)", "its powers, distances and noise"]
    seconds = {"up (s)": [np.mean(megabits / band), up], "down (s)": [megabits / 50, down]}
    return pd.DataFrame({"reading of Table 4": readings, **seconds})
