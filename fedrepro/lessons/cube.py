"""Lesson: KAPC's relationship cube, layer by layer, and the layers that BLS would not send."""

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
import seaborn as sns
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedrepro.lessons.drawing import CHOSEN, GIVEN, INK, LATE, canvas, kept, keyed, matrix
from fedrepro.methods.kapc import normalise, step
from fedrepro.methods.mixtures import gram, stack
from fedrepro.simulation.run import Run
from fedrepro.simulation.session import serve

SETTINGS = {"lam": 0.1, "beta": 0.01, "rate": 0.1, "updates": 5}  # what the lesson varies
CLIENTS, ROUNDS = 6, 12
DATA: dict[str, Any] = {"data": "digits", "split": "shards:2", "clients": CLIENTS, "per_round": CLIENTS}
TRAINING: dict[str, Any] = {"model": "cnn_mnist", "rounds": ROUNDS, "epochs": 1, "batch": 30, "lr": 0.1}
TRAINED = Run(**DATA, **TRAINING, momentum=0.5, personal="all", method="kapc", hp=SETTINGS)
ALT = "Relationship matrices of four layers; a client's self-relationship by round; the layers that are not sent."


@dataclass(frozen=True, eq=False)
class Trained:
    """A small KAPC federation: what its server computed, and the inputs to repeat that with other settings."""

    layers: dict[str, int]  # name: bytes
    labels: list[list[int]]  # the classes of each client
    products: list[torch.Tensor]  # of each round, layer x client x client: <w_j, w_k> of the server's models
    cubes: list[torch.Tensor]  # of each round, alike
    accuracy: list[float]


@cache
def trained() -> Trained:
    products, cubes = [], []
    with serve(TRAINED) as running:
        worker, own = running.worker, running.per_client
        layers = worker.model.layers()
        for _ in range(ROUNDS):
            models: list[Any] = [(own.get(cid) or running.server)["w"] for cid in range(CLIENTS)]
            products.append(torch.stack([gram(stack(models, names)) for names in layers.values()]))
            running.advance()
            cubes.append(running.server["kapc/r"])
    sizes = {name: sum(worker.params[key].nbytes for key in keys) for name, keys in layers.items()}
    counts = worker.parts.label_counts(worker.data.train_y, worker.data.classes)
    labels = [row.nonzero().flatten().tolist() for row in counts]
    return Trained(sizes, labels, products, cubes, [row["personal_accuracy"] for row in running.rows])


@lru_cache(maxsize=32)
def evolve(lam: float, beta: float, rate: float, updates: int) -> np.ndarray:
    """R of every round (round x layer x client x client), from the same clients' models with these settings."""
    cube, rounds = torch.full_like(trained().cubes[0], 1 / CLIENTS), []
    for products in trained().products:
        for _ in range(updates):
            cube = step(cube, products, lam, beta, rate)  # Eq. (12)
        cube = normalise(cube)
        rounds.append(cube)
    return torch.stack(rounds).numpy()


def withheld(cube: np.ndarray, mu: float) -> np.ndarray:
    """Which layers (columns) are not sent to each client (rows): those with r_ii >= mu."""
    own = cube.diagonal(axis1=1, axis2=2)
    return np.greater_equal(own, mu).T


@kept
def layout() -> Figure:
    figure = canvas(5.6)
    names, clients = layer_names(), range(CLIENTS)
    grid = figure.add_gridspec(2, 1, left=0.125, right=0.985, top=0.92, bottom=0.105, hspace=0.5)
    relations, _ = keyed(figure, grid[0], [50, 1, 1.6])
    classes = [f"{cid}: " + " ".join(map(str, labels)) for cid, labels in enumerate(trained().labels)]
    relations.set(ylabel="client: its classes", xticks=clients, yticks=clients, yticklabels=classes)
    relations.spines[:].set_visible(False)
    below = grid[1].subgridspec(1, 2, width_ratios=[1.35, 1], wspace=0.25)
    over, sent = figure.add_subplot(below[0]), figure.add_subplot(below[1])
    over.set(xlabel="round", ylabel="rᵢᵢ")
    sent.set(title="not sent (red): rᵢᵢ ≥ μ", ylabel="client", yticks=clients)
    sent.set(xticks=range(len(names)), xticklabels=names)
    return figure


def layer_names() -> list[str]:
    return [name.split(".")[1] for name in trained().layers]


def draw(t: int, client: int, mu: float, **settings) -> Figure:
    figure, names, cubes = layout(), layer_names(), evolve(**settings)
    relations, key, over, sent = figure.axes
    _relations(relations, key, cubes[t - 1], client, [f"{name}, round {t}" for name in names])
    for i, (name, colour) in enumerate(zip(names, sns.color_palette("viridis_r", len(names)), strict=True)):
        over.plot(range(1, len(cubes) + 1), cubes[:, i, client, client], color=colour, label=name, linewidth=2.5)
    over.axhline(mu, color=INK, linestyle="--", linewidth=1.5)
    over.axvline(t, color=GIVEN, linewidth=1)
    over.set(title=f"weight of client {client} on itself", ylim=(0, 1.02))
    over.legend(fontsize=10, ncols=2, loc="upper left", framealpha=0.9, handlelength=1.2, columnspacing=1)
    matrix(sent, withheld(cubes[t - 1], mu), colours=f"light:{LATE}", low=0, high=1)
    return figure


def _relations(ax, key, layers: np.ndarray, client: int, titles: list[str]) -> None:
    """The matrices of all layers side by side in one image, because axes are slow to draw."""
    n = layers.shape[1]
    side_by_side = np.hstack([np.pad(layer, ((0, 0), (0, 1)), constant_values=np.nan) for layer in layers])[:, :-1]
    row = (np.arange(n)[:, None] == client) & ~np.isnan(side_by_side)
    matrix(ax, side_by_side, numbers="{:.2f}", where=row, low=0, high=1, key=key)
    for i, title in enumerate(titles):
        left = i * (n + 1)
        ax.text(left + (n - 1) / 2, -0.8, title, ha="center", va="bottom", fontsize=12)
        frame = Rectangle((left - 0.5, client - 0.5), n, 1, fill=False, edgecolor=CHOSEN, linewidth=2.5, clip_on=False)
        ax.add_patch(frame).set_zorder(3)


def say(t: int, client: int, mu: float, **settings) -> str:
    cube = evolve(**settings)[t - 1]
    sizes, kept = np.array(list(trained().layers.values())), withheld(cube, mu)
    row = cube[-1, client]
    friend = max((cid for cid in range(CLIENTS) if cid != client), key=lambda cid: row[cid])
    saved = (kept @ sizes).sum() / sizes.sum() / len(kept)
    return (
        f"μ = {mu:.2f} withholds <b>{kept.sum()}</b> of {kept.size} layers, <b>{saved:.1%}</b> of the downlink bytes · "
        f"in the last layer client {client} gives itself {row[client]:.3f}, and most of the rest to client {friend}, "
        f"{row[friend]:.3f} · mean personal accuracy after round {t}: {trained().accuracy[t - 1]:.3f}"
    )


def view(**settings) -> tuple[Figure, str]:
    return draw(**settings), say(**settings)
