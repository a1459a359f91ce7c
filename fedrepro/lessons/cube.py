"""Lesson: KAPC's relationship cube, layer by layer, and the layers that BLS would not send."""

from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedrepro.lessons.drawing import BLUE, GREEN, ORANGE, RED, canvas, heat, kept
from fedrepro.methods.kapc import normalise, step
from fedrepro.methods.mixtures import gram, stack
from fedrepro.simulation.client import Worker
from fedrepro.simulation.executor import Serial
from fedrepro.simulation.federation import Federation
from fedrepro.simulation.run import Run
from fedrepro.simulation.states import Clients

SETTINGS = {"lam": 0.1, "beta": 0.01, "rate": 0.1, "updates": 5}  # what the lesson varies
TRAINED = Run(data="digits", split="shards:2", clients=6, per_round=6, model="cnn_mnist", method="kapc",
              hp=SETTINGS, rounds=12, epochs=1, batch=30, lr=0.1,
              momentum=0.5, personal="all")  # fmt: skip


@dataclass(frozen=True, eq=False)
class Trained:
    """A small KAPC federation: what its server computed, and what it needs to compute it with other settings."""

    layers: dict[str, int]  # name: bytes
    labels: list[list[int]]  # the classes of each client
    products: list[list[torch.Tensor]]  # of each round and layer, <w_j, w_k> of the models that the server had
    cubes: list[torch.Tensor]  # of each round, layer x client x client
    accuracy: list[float]


@cache
def federation() -> Trained:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    worker, clients, shelf = Worker(TRAINED), Clients(None), Clients(None)
    layers, everyone = worker.model.layers(), range(TRAINED.clients)
    products, cubes = [], []
    try:
        served = Federation(TRAINED, Serial(worker), worker, clients, shelf)
        for _ in range(TRAINED.rounds):
            models = [(shelf.get(cid) or served.server)["w"] for cid in everyone]
            products.append([gram(stack(models, names)) for names in layers.values()])
            served.advance()
            cubes.append(served.server["kapc/r"])
    finally:
        clients.close()
        shelf.close()
        torch.set_num_threads(threads)
    sizes = {name: sum(worker.params[key].nbytes for key in keys) for name, keys in layers.items()}
    counts = worker.parts.label_counts(worker.data.train_y, worker.data.classes)
    labels = [row.nonzero().flatten().tolist() for row in counts]
    return Trained(sizes, labels, products, cubes, [row["personal_accuracy"] for row in served.rows])


@lru_cache(maxsize=32)
def evolve(lam: float, beta: float, rate: float, updates: int) -> np.ndarray:
    """R of every round (round x layer x client x client), from the same clients' models with these settings."""
    trained = federation()
    cube = torch.full_like(trained.cubes[0], 1 / TRAINED.clients)
    rounds = []
    for products in trained.products:
        layers = []
        for rows, product in zip(cube, products, strict=True):
            for _ in range(updates):
                rows = step(rows, product, lam, beta, rate)  # Eq. (12)
            layers.append(normalise(rows))
        cube = torch.stack(layers)
        rounds.append(cube)
    return torch.stack(rounds).numpy()


def withheld(cube: np.ndarray, mu: float) -> np.ndarray:
    """Which layers (columns) are not sent to each client (rows): those with r_ii >= mu."""
    own = cube.diagonal(axis1=1, axis2=2)
    return np.greater_equal(own, mu).T


@kept
def places() -> Figure:
    figure = canvas(6.3)
    names, clients = layer_names(), range(TRAINED.clients)
    grid = figure.add_gridspec(2, 1, left=0.115, right=0.985, top=0.93, bottom=0.1, hspace=0.42)
    relations = figure.add_subplot(grid[0])
    own = [f"{cid}: " + " ".join(map(str, labels)) for cid, labels in enumerate(federation().labels)]
    relations.set(ylabel="client, with its classes", xticks=clients, yticks=clients, yticklabels=own)
    for side in relations.spines.values():
        side.set_visible(False)
    over, sent = grid[1].subgridspec(1, 2, width_ratios=[1.35, 1], wspace=0.22).subplots()
    over.set(xlabel="round", ylabel="rᵢᵢ")
    sent.set(title="not sent (orange): rᵢᵢ ≥ μ", ylabel="client", xticks=range(len(names)), xticklabels=names,
             yticks=clients)  # fmt: skip
    return figure


def layer_names() -> list[str]:
    return [name.split(".")[1] for name in federation().layers]


def draw(t: int, client: int, mu: float, **settings) -> Figure:
    figure, names, cubes = places(), layer_names(), evolve(**settings)
    relations, over, sent = figure.axes
    _relations(relations, cubes[t - 1], client, [f"{name}, round {t}" for name in names])
    for i, (name, colour) in enumerate(zip(names, (GREEN, BLUE, ORANGE, RED), strict=True)):
        over.plot(range(1, len(cubes) + 1), cubes[:, i, client, client], color=colour, label=name, linewidth=2)
    over.axhline(mu, color="0.2", linestyle="--", linewidth=1.5)
    over.axvline(t, color="0.6", linewidth=1)
    over.set(title=f"how much client {client} listens to itself", ylim=(0, 1.02))
    over.legend(fontsize=10, ncols=4, loc="upper left", framealpha=0.9, handlelength=1.2, columnspacing=1)
    heat(sent, withheld(cubes[t - 1], mu), colours="light:#d55e00", low=0, high=1.4)
    return figure


def _relations(place, layers: np.ndarray, client: int, titles: list[str]) -> None:
    """The matrices of all layers side by side, in one image: axes are what takes the time."""
    n = layers.shape[1]
    side_by_side = np.hstack([np.pad(layer, ((0, 0), (0, 1)), constant_values=np.nan) for layer in layers])[:, :-1]
    told = (np.arange(n)[:, None] == client) & ~np.isnan(side_by_side)
    heat(place, side_by_side, colours="mako_r", numbers="{:.2f}", where=told, low=0, high=1)
    for i, title in enumerate(titles):
        left = i * (n + 1)
        place.text(left + (n - 1) / 2, -0.8, title, ha="center", va="bottom", fontsize=13)
        row = Rectangle((left - 0.5, client - 0.5), n, 1, fill=False, edgecolor=ORANGE, linewidth=2.5, clip_on=False)
        place.add_patch(row).set_zorder(3)


def say(t: int, client: int, mu: float, **settings) -> str:
    trained, cube = federation(), evolve(**settings)[t - 1]
    sizes, kept = np.array(list(trained.layers.values())), withheld(cube, mu)
    row = cube[-1, client]
    friend = max((cid for cid in range(TRAINED.clients) if cid != client), key=lambda cid: row[cid])
    saved = (kept @ sizes).sum() / sizes.sum() / len(kept)
    return (
        f"μ = {mu:.2f} withholds <b>{kept.sum()}</b> of {kept.size} layers, <b>{saved:.1%}</b> of the bytes down · "
        f"in the last layer client {client} gives itself {row[client]:.3f} and of the others most to client {friend}, "
        f"{row[friend]:.3f} · mean personal accuracy after round {t}: {trained.accuracy[t - 1]:.3f}"
    )


def view(**settings) -> tuple[Figure, str]:
    return draw(**settings), say(**settings)
