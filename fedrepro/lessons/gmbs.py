"""Lesson: GMBS, the bandit of FedBR that decides how many blocks each client gets, against invented clients."""

from dataclasses import dataclass
from functools import lru_cache
from math import cos, exp, pi, sin
from types import SimpleNamespace

import numpy as np
import seaborn as sns
import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from fedrepro.lessons.drawing import BLUE, GREY, ORANGE, canvas, columns, kept
from fedrepro.methods import Round, Upload
from fedrepro.methods.fedbr import FedBR, paper_compute, paper_traffic, upper_bounds
from fedrepro.simulation.rng import stream
from fedrepro.simulation.run import Run
from fedrepro.simulation.tree import Tree

CLIENTS = ("plain", "slow", "skewed", "far")
ROUNDS = 60


@dataclass(frozen=True)
class Setting:
    blocks: int = 6
    tau: int = 1
    ema: float = 0.5
    slow: float = 4.0  # how many times longer the slow client takes
    far: float = 2.0  # how many times farther from the mean the far client is
    rate: float = 0.3  # the share of its loss that a client loses in a round with the blocks that suit it best
    noise: float = 0.02
    seed: int = 0

    def suits(self, client: str) -> int:
        """The number of blocks that helps a client most: invented. The skewed one is best left to itself."""
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
    """The real bandit: FedBR's own plan and aggregate, fed with the feedback of clients that only pretend to train."""
    method, cids = FedBR(tau=setting.tau, ema=setting.ema), range(len(CLIENTS))
    run = Run(method="fedbr", clients=len(CLIENTS), per_round=len(CLIENTS), rounds=rounds, seed=setting.seed)
    model = SimpleNamespace(block_params={f"block {m}": [] for m in range(1, setting.blocks + 1)})
    server = {"w": Tree(x=torch.zeros(2)), "b": Tree(), **method.server_init(model)}
    loss, steps = dict.fromkeys(cids, 2.3), []
    for t in range(1, rounds + 1):
        r = Round(t, run, list(cids))
        server = method.plan(server, r)
        uploads = []
        for cid, client in enumerate(CLIENTS):
            alpha = server["fedbr/sent"][cid]
            shake = float(torch.randn((), generator=stream(setting.seed, "gmbs", t, cid)))
            fit = exp(-(((alpha - setting.suits(client)) / 1.5) ** 2))
            loss[cid] = max(loss[cid] * (1 - setting.rate * fit) + setting.noise * shake, 0.0)
            radius = setting.far if client == "far" else 1.0
            angle = 2 * pi * cid / len(CLIENTS)
            place = Tree(x=server["w"]["x"] + radius * torch.tensor([cos(angle), sin(angle)]))
            seconds = setting.slow if client == "slow" else 1.0
            sent = {"w": place, "b": Tree(), "fedbr/alpha": alpha, "fedbr/zeta": loss[cid]}
            uploads.append(Upload(cid, 1, sent, t, seconds * paper_compute(alpha, setting.blocks),
                                  seconds * paper_traffic(alpha, setting.blocks)))  # fmt: skip
        server = method.aggregate(server, uploads, r)
        p, n = ([server[key].get(cid, {}) for cid in cids] for key in ("fedbr/p", "fedbr/n"))
        V = [upper_bounds(p[cid], n[cid], t + 1, setting.blocks) for cid in cids]
        steps.append(Step(t, [server["fedbr/sent"][cid] for cid in cids], p, n, V))
    return steps


@kept
def places() -> Figure:
    figure = canvas(5.6)
    above, below = figure.add_gridspec(2, 1, height_ratios=[1, 1.15], left=0.09, right=0.985, top=0.93, bottom=0.12,
                                       hspace=0.65)  # fmt: skip
    row = above.subgridspec(1, 3, width_ratios=[50, 1, 1.3], wspace=0.03)  # the last is room for the key's labels
    choices, key = (figure.add_subplot(row[i]) for i in range(2))
    choices.set(title="blocks sent to each client", xlabel="round", yticks=range(len(CLIENTS)), yticklabels=CLIENTS,
                xticks=[0, *range(9, ROUNDS, 10)], xticklabels=[1, *range(10, ROUNDS + 1, 10)])  # fmt: skip
    key.set(xticks=[])
    key.yaxis.set_tick_params(left=False, labelleft=False, labelright=True)
    for place in (choices, key):
        place.grid(False)
    for place, title in zip(below.subgridspec(1, 3, wspace=0.28).subplots(),
                            ("", "n: how often chosen", "V = p (blue) + bonus"), strict=True):  # fmt: skip
        place.set(title=title, xlabel="number of blocks α")
    return figure


def draw(setting: Setting, t: int, client: str) -> Figure:
    steps, cid = simulate(setting, t), CLIENTS.index(client)
    now, options = steps[-1], range(1, setting.blocks)
    figure = places()
    choices, key, *panels = figure.axes
    table = np.full((len(CLIENTS), ROUNDS), np.nan)
    table[:, :t] = np.array([step.sent for step in steps]).T
    colours = ListedColormap([*sns.color_palette("viridis", setting.blocks - 1), "0.82"])
    for place, values in (choices, table), (key, np.arange(1, setting.blocks + 1)[:, None]):
        place.imshow(values, cmap=colours, vmin=0.5, vmax=setting.blocks + 0.5, aspect="auto")
    key.set(ylim=(-0.5, setting.blocks - 0.5), yticks=range(setting.blocks), yticklabels=[*options, "all"])
    p, n, V = now.p[cid], now.n[cid], now.V[cid]
    gain = [p.get(m, 0.0) for m in options]
    columns(panels[0], options, gain, color=BLUE)
    panels[0].set(title=f"p: reward, {client} client", ylim=_around(gain))
    columns(panels[1], options, [n.get(m, 0) for m in options], color=GREY)
    panels[1].set(ylim=(0, 1.1 * max(1, *n.values(), 1)))
    panels[1].locator_params(axis="y", integer=True)
    columns(panels[2], options, gain, color=BLUE)
    columns(panels[2], options, [V[m] - p.get(m, 0.0) for m in options], bottom=gain, color=ORANGE)
    best = max(V, key=V.get)
    panels[2].annotate("next", (best, V[best]), (0, 12), textcoords="offset points", ha="center",
                       arrowprops={"arrowstyle": "->", "color": "0.15"})  # fmt: skip
    panels[2].set(ylim=(min(0, *gain), max(V.values()) * 1.25))
    for panel in panels:
        panel.set(xticks=options)
    return figure


def _around(values: list[float]) -> tuple[float, float]:
    return 1.15 * min(0, *values), 1.15 * max(0.01, *values)


def say(setting: Setting, t: int, client: str) -> str:
    steps, cid = simulate(setting, t), CLIENTS.index(client)
    V = steps[-1].V[cid]
    decided = [step.sent[cid] for step in steps if step.sent[cid] < setting.blocks]
    best = max(V, key=V.get)
    right = sum(m == setting.suits(client) for m in decided)
    return (
        f"round {t}: the {client} client got {_blocks(steps[-1].sent[cid], setting.blocks)} · highest V "
        f"<b>{V[best]:.3f}</b> at α = {best} · {right} of {len(decided)} decisions were the "
        f"{setting.suits(client)} that suit{'s' if setting.suits(client) == 1 else ''} it best"
    )


def _blocks(sent: int, blocks: int) -> str:
    return "the whole model" if sent == blocks else f"{sent} block{'s' if sent > 1 else ''}"


def view(t: int, client: str, **settings) -> tuple[Figure, str]:
    setting = Setting(**settings)
    return draw(setting, t, client), say(setting, t, client)
