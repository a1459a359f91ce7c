"""Lesson: DFL's soft targets, one row a label, and the share of the hard labels beside them."""

from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

from fedrepro.errors import bad
from fedrepro.lessons.drawing import BLUE, GREEN, GREY, ORANGE, canvas, columns, heat, kept
from fedrepro.methods.dfl import DFL, soft_targets
from fedrepro.simulation.client import Local, Worker
from fedrepro.simulation.executor import Serial
from fedrepro.simulation.federation import Federation
from fedrepro.simulation.run import Run
from fedrepro.simulation.states import Clients

TRAINED = Run(data="digits", split="dominant:0.6", clients=10, per_round=5, model="cnn_mnist", method="dfl", rounds=10,
              epochs=2, batch=20, lr=0.1, momentum=0.5)  # fmt: skip
SERVER = "everyone (the server's)"


@dataclass(frozen=True, eq=False)
class Trained:
    """A small DFL federation: what the server had after rounds 0..R, and the worker that can look at its models."""

    worker: Worker
    models: list[tuple]  # (weights, BatchNorm statistics)
    tables: list[torch.Tensor]
    accuracy: list[float]


@cache
def federation() -> Trained:
    run = TRAINED
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    worker, clients = Worker(run), Clients(None)
    try:
        served = Federation(run, Serial(worker), worker, clients)
        models, tables = [(served.server["w"], served.server["b"])], [served.server["dfl/y"]]
        for _ in range(run.rounds):
            served.advance()
            models.append((served.server["w"], served.server["b"]))
            tables.append(served.server["dfl/y"])
    finally:
        clients.close()
        torch.set_num_threads(threads)
    return Trained(worker, models, tables, [float("nan"), *(row["accuracy"] for row in served.rows)])


def table(t: int, owner: str) -> np.ndarray:
    """The server's soft targets after round t, or those that one client would make with the model of round t."""
    trained = federation()
    if owner == SERVER:
        return trained.tables[t].numpy()
    return _own(t, int(owner.split()[-1]))


@lru_cache(maxsize=128)
def _own(t: int, cid: int) -> np.ndarray:
    worker = federation().worker
    k = Local(worker, max(t, 1), cid, 0, False, len(worker.parts[cid]))
    k.load(*federation().models[t])
    return soft_targets(k).numpy()


def owners() -> list[str]:
    return [SERVER, *(f"client {cid}" for cid in range(TRAINED.clients))]


def schedule(strategy: str, threshold: float, ratio: float, rounds: int) -> list[float]:
    """The share of the hard labels in rounds 1..R."""
    dfl = DFL(threshold=threshold, strategy=strategy, ratio=ratio)
    return [dfl.rho(r, rounds) for r in range(1, rounds + 1)]


def target(soft: np.ndarray, label: int, rho: float) -> np.ndarray:
    """What a student sees: rho CE(label) + (1 - rho) KL(soft || p) has the gradient p - this, in the logits.

    A row of zeros is a label that the table's owner does not have: nothing but the hard label is taught.
    """
    return rho * np.eye(len(soft))[label] + (1 - rho) * soft[label]


@lru_cache(maxsize=128)
def answer(t: int, label: int) -> tuple[np.ndarray, np.ndarray]:
    """The first test image of a label, and what the model of round t thinks of it."""
    worker = federation().worker
    row = int((worker.data.test_y == label).nonzero()[0])
    image = worker.data.test_x[row : row + 1]
    w, b = federation().models[t]
    with torch.no_grad():
        worker.params.copy_(w)
        worker.buffers.copy_(b)
        out = worker.model.eval()(worker.data.batch(image))
    return image[0, ..., 0].numpy(), F.softmax(out.double(), 1)[0].numpy()


@kept
def places() -> Figure:
    figure, classes = canvas(6.6), range(federation().worker.data.classes)
    grid = figure.add_gridspec(2, 2, width_ratios=[1.15, 1], left=0.075, right=0.985, top=0.94, bottom=0.1,
                               hspace=0.42, wspace=0.17)  # fmt: skip
    figure.add_subplot(grid[:, 0]).set(xlabel="class that the outputs give", ylabel="true label", xticks=classes,
                                       yticks=classes)  # fmt: skip
    figure.add_subplot(grid[0, 1]).set(title="ρ: share of the hard label")
    figure.add_subplot(grid[1, 1]).set(xlabel="class", xticks=classes[::3], yticks=[0, 0.5, 1])
    return figure


def draw(t: int, owner: str, label: int, strategy: str, threshold: float, ratio: float, rounds: int, r: int) -> Figure:
    soft, shares = table(t, owner), schedule(strategy, threshold, ratio, rounds)
    classes, figure = range(len(soft)), places()
    place, ratios, student = figure.axes
    told = np.arange(len(soft))[:, None] == label
    heat(place, soft, colours="mako_r", numbers="{:.2f}", where=told, low=0, high=1)
    place.axhspan(label - 0.5, label + 0.5, fill=False, edgecolor=ORANGE, linewidth=3, clip_on=False)
    place.set_title(f"soft targets after round {t}: {owner}")
    ratios.plot(range(1, rounds + 1), shares, color=BLUE, linewidth=2.5)
    ratios.plot(r, shares[r - 1], "o", color=ORANGE, markersize=9)
    ratios.set(xlabel=f"round of {rounds}", ylim=(-0.03, 1.03))
    image, thought = answer(t, label)
    seen = target(soft, label, shares[r - 1])
    for shift, values, colour, name in (
        (-0.27, np.eye(len(soft))[label], GREY, "hard label"),
        (0, seen, ORANGE, f"taught at ρ = {shares[r - 1]:.2f}"),
        (0.27, thought, GREEN, "the model's answer"),
    ):
        columns(student, [c + shift for c in classes], values, width=0.27, color=colour, label=name)
    student.set(title=f"what a student sees of a {label}", ylim=(0, 1.65))
    student.legend(fontsize=9.5, loc="upper left", frameon=False)
    digit = np.kron(image, np.ones((8, 8)))  # pixels of the picture itself: axes of their own would take long
    right, top = student.get_position().max * figure.get_size_inches() * figure.dpi - 4
    figure.figimage(digit, right - len(digit), top - len(digit), cmap="gray_r", origin="upper", zorder=5)
    return figure


def say(t: int, owner: str, label: int, strategy: str, threshold: float, ratio: float, rounds: int, r: int) -> str:
    soft, rho = table(t, owner), schedule(strategy, threshold, ratio, rounds)[r - 1]
    seen = target(soft, label, rho)
    if not soft[label].any():
        note = f"{owner} has no {label}: its row is empty and does not count in the mean"
    else:
        other = int(np.argsort(soft[label])[-2])
        note = f"next likely for a {label}: {other} ({soft[label][other]:.3f})"
    accuracy = federation().accuracy[t]
    tested = "an untrained model" if t == 0 else f"a model of accuracy {accuracy:.3f}"
    return f"ρ = <b>{rho:.3f}</b>; the true class is taught with <b>{seen[label]:.3f}</b> · {note} · {tested}"


def view(**settings) -> tuple[Figure, str]:
    r, rounds = settings["r"], settings["rounds"]
    if r > rounds:
        raise bad("round r", r, f"at most the number of rounds R ({rounds})")
    return draw(**settings), say(**settings)
