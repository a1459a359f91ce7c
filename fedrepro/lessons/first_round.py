"""Lesson: what a round is, FedAvg, and client drift, with two clients and a model of two weights."""

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from fedrepro import data
from fedrepro.lessons.drawing import CHOSEN, FIRST, GIVEN, GLOBAL, SECOND, canvas, contours, kept
from fedrepro.methods import FedAvg, Round, Upload
from fedrepro.simulation.run import Run
from fedrepro.simulation.tree import Tree

DIGITS = (3, 8)  # the model answers +1 and -1
ROUNDS, MOMENTS = 20, 60  # a round has three moments: send, train, average
START = (-0.5, 0.9)
LIMITS = {"xlim": (-0.9, 1.7), "ylim": (-1.5, 1.7)}
COLOURS = {"A": FIRST, "B": SECOND}
ALT = "A map of the model's two weights with the ways of clients A and B and of the server; their images; the distance."
MOMENT = (
    "the server averages both models, weighted by the clients' shares of the images",
    "the server sends its model to both clients",
    "each client takes {steps} step{s} of gradient descent on its own images",
)


@dataclass(frozen=True)
class Setting:
    steps: int = 10  # E
    rate: float = 0.2
    skew: float = 0.9  # share of A's images that are 3s, and of B's that are 8s
    size: float = 0.5  # A's share of all images
    mu: float = 0.0  # FedProx's pull to the model that was received

    @property
    def threes(self) -> float:
        """The share of all images that are 3s."""
        return self.size * self.skew + (1 - self.size) * (1 - self.skew)


@cache
def features() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of each image of the two digits: the picture, (x, 1) with its first principal component x, and the label ±1."""
    loaded = data.load("digits")
    rows = (loaded.train_y == DIGITS[0]) | (loaded.train_y == DIGITS[1])
    images, labels = loaded.train_x[rows][..., 0], torch.where(loaded.train_y[rows] == DIGITS[0], 1.0, -1.0).double()
    pixels = images.double().flatten(1)
    pixels -= pixels.mean(0)
    x = pixels @ torch.linalg.svd(pixels, full_matrices=False)[2][0]
    x = x / x.std() * torch.sign((x * labels).sum())
    return images, torch.stack([x, torch.ones_like(x)], 1), labels


@lru_cache(maxsize=64)
def bowl(three: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean of (w x + b - label)² / 2 over images of which a share `three` are 3s, a quadratic bowl: its curvature H
    and minimum."""
    _, x, labels = features()
    weights = torch.where(labels > 0, three / (labels > 0).sum(), (1 - three) / (labels < 0).sum())
    curve = x.T @ (weights[:, None] * x)
    return curve, torch.linalg.solve(curve, x.T @ (weights * labels))


def bowls(setting: Setting) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    return {"A": bowl(setting.skew), "B": bowl(1 - setting.skew)}


def visit(setting: Setting, name: str, start: torch.Tensor) -> torch.Tensor:
    """A client's models before and after each of its E steps; with mu the loss has FedProx's mu/2 |w - start|²."""
    (curve, least), way = bowls(setting)[name], [start]
    for _ in range(setting.steps):
        way.append(way[-1] - setting.rate * (curve @ (way[-1] - least) + setting.mu * (way[-1] - start)))
    return torch.stack(way)


@dataclass(frozen=True, eq=False)
class Course:
    models: np.ndarray  # the server's after rounds 0..R
    visits: list[dict[str, np.ndarray]]  # of each round


@lru_cache(maxsize=64)
def course(setting: Setting) -> Course:
    """Rounds of FedAvg: the library's own aggregate, two clients that train as above."""
    run = Run(clients=2, per_round=2, rounds=ROUNDS)
    server: dict[str, Any] = {"w": Tree(x=torch.tensor(START, dtype=torch.float64)), "b": Tree()}
    models, visits = [server["w"]["x"]], []
    for t in range(1, ROUNDS + 1):
        ways = {name: visit(setting, name, models[-1]) for name in COLOURS}
        sent = [Tree(x=way[-1]) for way in ways.values()]
        images = [round(100 * share) for share in (setting.size, 1 - setting.size)]
        uploads = [Upload(cid, images[cid], {"w": sent[cid], "b": Tree()}, t) for cid in (0, 1)]
        server = FedAvg().aggregate(server, uploads, Round(t, run, [0, 1]))
        models.append(server["w"]["x"])
        visits.append({name: way.numpy() for name, way in ways.items()})
    return Course(torch.stack(models).numpy(), visits)


def distances(setting: Setting) -> np.ndarray:
    return np.linalg.norm(course(setting).models - bowl(setting.threes)[1].numpy(), axis=1)


def accuracy(model: np.ndarray, setting: Setting) -> float:
    """On all images, weighted by the clients' shares."""
    _, x, labels = features()
    right = ((x.numpy() @ model) * labels.numpy() > 0).astype(float)
    return float(setting.threes * right[labels > 0].mean() + (1 - setting.threes) * right[labels < 0].mean())


@kept
def layout() -> Figure:
    figure = canvas(5.3)
    grid = figure.add_gridspec(1, 2, width_ratios=[1.5, 1], left=0.09, right=0.985, top=0.93, bottom=0.115, wspace=0.24)
    figure.add_subplot(grid[0]).set(xlabel="weight w", ylabel="bias b")
    right = grid[1].subgridspec(2, 1, hspace=0.5, height_ratios=[1, 1.5])
    images, apart = figure.add_subplot(right[0]), figure.add_subplot(right[1])
    images.set(xticks=[], yticks=[0, 1], yticklabels=["A", "B"])
    images.grid(False)
    apart.set(title="server's distance from ★", xlabel="round")
    return figure


def draw(setting: Setting, moment: int) -> Figure:
    figure = layout()
    where, images, apart = figure.axes
    _map(where, setting, moment)
    _images(images, setting)
    once = Setting(1, setting.rate, setting.skew, setting.size)
    apart.plot(range(ROUNDS + 1), distances(once), "--", color=GIVEN, linewidth=2, label="E = 1")
    apart.plot(range(ROUNDS + 1), distances(setting), color=GLOBAL, linewidth=2.5, label=f"E = {setting.steps}")
    apart.axvline(moment / 3, color=CHOSEN, linewidth=2)
    apart.set(ylim=(0, 1.6), xlim=(0, ROUNDS))
    apart.legend(fontsize=10.5, frameon=False)
    return figure


def _map(ax, setting: Setting, moment: int) -> None:
    rounds, phase = divmod(moment, 3)  # complete rounds, and what has happened since
    curve, least = bowl(setting.threes)
    bends, turn = np.linalg.eigh(curve.numpy())
    angle = np.degrees(np.arctan2(turn[1, 0], turn[0, 0]))
    contours(ax, least.numpy(), bends, angle, [0.02, 0.1, 0.25, 0.5, 0.9, 1.4, 2.0], 0.9)
    models = course(setting).models
    ax.plot(*models[: rounds + 1].T, "-s", color=GLOBAL, linewidth=2, markersize=6)
    for name, colour in COLOURS.items():
        own = bowls(setting)[name][1].numpy()
        ax.plot(*own, "o", color=colour, markersize=11)
        ax.text(own[0] + 0.08, own[1] + (0.1 if name == "A" else -0.2), f"best for {name}", color=colour, fontsize=11)
        if moment and phase != 1:
            way = course(setting).visits[rounds if phase else rounds - 1][name]
            ax.plot(*way.T, "-", color=colour, linewidth=2, marker=".", markersize=6)
    ax.plot(*least.numpy(), "*", color="0.1", markersize=15)
    ax.plot(*models[rounds], "s", color=GLOBAL, markersize=10, markeredgecolor=CHOSEN, markeredgewidth=2.5)
    ax.set(**LIMITS, title="■ server's model   ★ best for all images")


def _images(ax, setting: Setting, count: int = 8) -> None:
    """Images of each client in its own mixture."""
    pictures, _, labels = features()
    rows = []
    for three in (setting.skew, 1 - setting.skew):
        threes = round(three * count)
        rows.append(torch.cat([pictures[labels > 0][:threes], pictures[labels < 0][: count - threes]]))
    framed = np.pad(torch.stack(rows).numpy(), ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=255)
    mosaic = framed.transpose(0, 2, 1, 3).reshape(2 * 9, count * 9)
    ax.imshow(mosaic, cmap="gray", aspect="auto", extent=(0, count, 1.5, -0.5))
    ax.set(title=f"A: {setting.skew:.0%} 3s, B: {1 - setting.skew:.0%}")


def say(setting: Setting, moment: int) -> str:
    rounds, phase = divmod(moment, 3)
    model, drift = course(setting).models[rounds], ""
    if moment and phase != 1:
        ways = course(setting).visits[rounds if phase else rounds - 1]
        drift = f" · drift: A and B end <b>{np.linalg.norm(ways['A'][-1] - ways['B'][-1]):.2f}</b> apart"
    what = MOMENT[phase].format(steps=setting.steps, s="s" if setting.steps > 1 else "")
    when = f"round {rounds + bool(phase)}: {what}" if moment else "before the first round"
    apart = distances(setting)
    return (
        f"<b>{when}</b>{drift} · the server's model is right for {accuracy(model, setting):.1%} of the images, "
        f"{apart[rounds]:.2f} from the best; after {ROUNDS} rounds {apart[-1]:.2f}"
    )


def view(moment: int = 0, **settings) -> tuple[Figure, str]:
    setting = Setting(**settings)
    return draw(setting, moment), say(setting, moment)
