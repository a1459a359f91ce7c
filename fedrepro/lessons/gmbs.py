"""Lesson: GMBS, FedBR's bandit that decides how many blocks each client gets, with invented clients."""

from dataclasses import dataclass
from functools import lru_cache
from math import cos, exp, pi, sin
from types import SimpleNamespace
from typing import Any

import numpy as np
import seaborn as sns
import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from fedrepro.lessons.drawing import CHOSEN, GIVEN, LOCAL, OLDER, canvas, columns, kept, keyed
from fedrepro.methods import Round, Upload
from fedrepro.methods.fedbr import FedBR, paper_compute, paper_traffic, upper_bounds
from fedrepro.simulation.rng import stream
from fedrepro.simulation.run import Run
from fedrepro.simulation.tree import Tree

CLIENTS = ("plain", "slow", "skewed", "far")
ROUNDS = 60
ALT = "The number of blocks sent to each of four clients by round; the bandit's reward, count and bound per choice."


@dataclass(frozen=True)
class Setting:
    blocks: int = 6
    tau: int = 1
    ema: float = 0.5
    slow: float = 4.0  # how many times longer the slow client takes
    far: float = 2.0  # how many times farther from the mean the far client is
    rate: float = 0.3  # the share by which a client's loss falls in a round with its best number of blocks
    noise: float = 0.02

    def suits(self, client: str) -> int:
        """The (invented) number of blocks that helps a client most; the skewed client is best left alone."""
        return {"plain": self.blocks // 2, "slow": self.blocks // 2, "skewed": 1, "far": self.blocks - 1}[client]


@dataclass(frozen=True)
class Step:
    """After one round, for each client: what it got, and the bandit's numbers for its next decision."""

    t: int
    sent: list[int]
    p: list[dict[int, float]]
    n: list[dict[int, int]]
    V: list[dict[int, float]]


@lru_cache(maxsize=32)
def simulate(setting: Setting, rounds: int = ROUNDS) -> list[Step]:
    """The real bandit: FedBR's own plan and aggregate, with feedback from clients that only pretend to train."""
    method, cids = FedBR(tau=setting.tau, ema=setting.ema), range(len(CLIENTS))
    run = Run(method="fedbr", clients=len(CLIENTS), per_round=len(CLIENTS), rounds=rounds)
    model: Any = SimpleNamespace(block_params={m: [] for m in range(setting.blocks)})  # the server only counts them
    server: dict[str, Any] = {"w": Tree(x=torch.zeros(2)), "b": Tree(), **method.server_init(model)}
    losses, steps = dict.fromkeys(cids, 2.3), []
    for t in range(1, rounds + 1):
        r = Round(t, run, list(cids))
        server = method.plan(server, r)
        uploads = [_visit(setting, t, cid, server, losses) for cid in cids]
        server = method.aggregate(server, uploads, r)
        p, n = ([server[key].get(cid, {}) for cid in cids] for key in ("fedbr/p", "fedbr/n"))
        V = [upper_bounds(p[cid], n[cid], t + 1, setting.blocks) for cid in cids]
        steps.append(Step(t, [server["fedbr/sent"][cid] for cid in cids], p, n, V))
    return steps


def _visit(setting: Setting, t: int, cid: int, server: dict[str, Any], losses: dict[int, float]) -> Upload:
    """The answer of an invented client: the better the number of blocks suits it, the more its loss falls."""
    client, alpha = CLIENTS[cid], server["fedbr/sent"][cid]
    shake = float(torch.randn((), generator=stream(0, "gmbs", t, cid)))
    fit = exp(-(((alpha - setting.suits(client)) / 1.5) ** 2))
    losses[cid] = max(losses[cid] * (1 - setting.rate * fit) + setting.noise * shake, 0.0)
    radius, seconds = setting.far if client == "far" else 1.0, setting.slow if client == "slow" else 1.0
    angle = 2 * pi * cid / len(CLIENTS)
    model = Tree(x=server["w"]["x"] + radius * torch.tensor([cos(angle), sin(angle)]))
    sent = {"w": model, "b": Tree(), "fedbr/alpha": alpha, "fedbr/zeta": losses[cid]}
    compute, traffic = paper_compute(alpha, setting.blocks), paper_traffic(alpha, setting.blocks)
    return Upload(cid, 1, sent, t, seconds * compute, seconds * traffic)


@kept
def layout() -> Figure:
    figure = canvas(5.3)
    margins = {"left": 0.1, "right": 0.985, "top": 0.93, "bottom": 0.115}
    above, below = figure.add_gridspec(2, 1, height_ratios=[1, 1.15], **margins, hspace=0.65)
    choices, _ = keyed(figure, above, [50, 1.2, 2])
    choices.set(title="blocks sent to each client", xlabel="round", yticks=range(len(CLIENTS)), yticklabels=CLIENTS)
    choices.set(xticks=[0, *range(9, ROUNDS, 10)], xticklabels=[1, *range(10, ROUNDS + 1, 10)])
    choices.grid(False)
    panels = below.subgridspec(1, 3, wspace=0.34)
    for i, title in enumerate(("", "n: times chosen", "V = p (below) + bonus")):
        figure.add_subplot(panels[i]).set(title=title, xlabel="number of blocks α")
    return figure


def draw(setting: Setting, t: int, client: str) -> Figure:
    steps, cid = simulate(setting, t), CLIENTS.index(client)
    figure = layout()
    choices, key, *panels = figure.axes
    table = np.full((len(CLIENTS), ROUNDS), np.nan)
    table[:, :t] = np.array([step.sent for step in steps]).T
    colours = ListedColormap([*sns.color_palette("viridis", setting.blocks - 1), "0.82"])
    for ax, values in (choices, table), (key, np.arange(1, setting.blocks + 1)[:, None]):
        ax.imshow(values, cmap=colours, vmin=0.5, vmax=setting.blocks + 0.5, aspect="auto")
    choices.axhspan(cid - 0.5, cid + 0.5, fill=False, edgecolor=CHOSEN, linewidth=3, clip_on=False)
    options = range(1, setting.blocks)
    key.set(ylim=(-0.5, setting.blocks - 0.5), yticks=range(setting.blocks), yticklabels=[*options, "all"])
    _bandit(panels, steps[-1], cid, client)
    return figure


def _bandit(panels, now: Step, cid: int, client: str) -> None:
    """p, n and V of one client."""
    p, n, V = now.p[cid], now.n[cid], now.V[cid]
    reward, count, bound = panels
    gain = [p.get(m, 0.0) for m in V]
    columns(reward, list(V), gain, color=LOCAL)
    reward.set(title=f"p: reward, {client} client", ylim=(1.15 * min(0, *gain), 1.15 * max(0.01, *gain)))
    columns(count, list(V), [n.get(m, 0) for m in V], color=GIVEN)
    count.set(ylim=(0, 1.1 * max(1, *n.values(), 1)))
    count.locator_params(axis="y", integer=True)
    columns(bound, list(V), gain, color=LOCAL)
    columns(bound, list(V), [V[m] - p.get(m, 0.0) for m in V], bottom=gain, color=OLDER)
    best = max(V, key=V.__getitem__)
    arrow = {"arrowstyle": "->", "color": CHOSEN, "linewidth": 2}
    bound.annotate("next", (best, V[best]), (0, 12), textcoords="offset points", ha="center", arrowprops=arrow)
    bound.set(ylim=(min(0, *gain), max(V.values()) * 1.25))
    for panel in panels:
        panel.set(xticks=list(V))


def say(setting: Setting, t: int, client: str) -> str:
    steps, cid = simulate(setting, t), CLIENTS.index(client)
    V = steps[-1].V[cid]
    decided = [step.sent[cid] for step in steps if step.sent[cid] < setting.blocks]
    best = max(V, key=V.__getitem__)
    right = sum(m == setting.suits(client) for m in decided)
    sent = steps[-1].sent[cid]
    got = "the whole model" if sent == setting.blocks else f"{sent} block{'s' if sent > 1 else ''}"
    return (
        f"round {t}: the {client} client got {got} · highest V "
        f"<b>{V[best]:.3f}</b> at α = {best} · "
        f"{right} of {len(decided)} decisions were the best, α = {setting.suits(client)}"
    )


def view(t: int, client: str, **settings) -> tuple[Figure, str]:
    setting = Setting(**settings)
    return draw(setting, t, client), say(setting, t, client)
