"""Lesson: DFL's soft targets, one row per label, and the share of the hard labels beside them."""

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

from fedrepro.errors import bad
from fedrepro.lessons.drawing import CHOSEN, GIVEN, GLOBAL, INK, canvas, columns, kept, keyed, matrix
from fedrepro.methods.dfl import DFL, soft_targets
from fedrepro.simulation.client import Local, Worker
from fedrepro.simulation.run import Run
from fedrepro.simulation.session import serve

DATA: dict[str, Any] = {"data": "digits", "split": "dominant:0.6", "clients": 10, "per_round": 5}
TRAINING: dict[str, Any] = {"model": "cnn_mnist", "rounds": 10, "epochs": 2, "batch": 20, "lr": 0.1, "momentum": 0.5}
TRAINED = Run(**DATA, **TRAINING, method="dfl")
SERVER = "everyone (server)"
OWNERS = [SERVER, *(f"client {cid}" for cid in range(TRAINED.clients))]
ALT = "A table of soft targets, a row per label; the share of the hard label by round; what a client is taught."


@dataclass(frozen=True, eq=False)
class Trained:
    """A small DFL federation: what the server had after rounds 0..R, and the worker that can look at its models."""

    worker: Worker
    models: list[tuple]  # (weights, BatchNorm statistics)
    tables: list[torch.Tensor]
    accuracy: list[float]


@cache
def trained() -> Trained:
    models, tables = [], []
    with serve(TRAINED) as running:
        for t in range(TRAINED.rounds + 1):
            if t:
                running.advance()
            models.append((running.server["w"], running.server["b"]))
            tables.append(running.server["dfl/y"])
    return Trained(running.worker, models, tables, [float("nan"), *(row["accuracy"] for row in running.rows)])


@lru_cache(maxsize=128)
def table(t: int, owner: str) -> np.ndarray:
    """The server's soft targets after round t, or those that one client would make with the model of round t."""
    if owner == SERVER:
        return trained().tables[t].numpy()
    worker, cid = trained().worker, int(owner.split()[-1])
    k = Local(worker, max(t, 1), cid, 0, False, len(worker.parts[cid]))
    k.load(*trained().models[t])
    return soft_targets(k).numpy()


def schedule(strategy: str, threshold: float, ratio: float, rounds: int) -> list[float]:
    """The share of the hard labels in rounds 1..R."""
    dfl = DFL(threshold=threshold, strategy=strategy, ratio=ratio)
    return [dfl.rho(r, rounds) for r in range(1, rounds + 1)]


def target(soft: np.ndarray, label: int, rho: float) -> np.ndarray:
    """The effective target: rho CE(label) + (1 - rho) KL(soft || p) has the gradient p - this, in the logits.

    A row of zeros is a label that the table's owner does not have: nothing but the hard label is taught.
    """
    return rho * np.eye(len(soft))[label] + (1 - rho) * soft[label]


@lru_cache(maxsize=128)
def answer(t: int, label: int) -> tuple[np.ndarray, np.ndarray]:
    """The first test image of a label, and the model's output for it after round t."""
    worker = trained().worker
    image = worker.data.test_x[worker.data.test_y == label][:1]
    out = worker.frozen(0, *trained().models[t]).eval()(worker.data.batch(image))
    return image[0, ..., 0].numpy(), F.softmax(out.double(), 1)[0].numpy()


@kept
def layout() -> Figure:
    figure, classes = canvas(5.6), range(trained().worker.data.classes)
    margins = {"left": 0.075, "right": 0.985, "top": 0.94, "bottom": 0.105}
    grid = figure.add_gridspec(2, 2, width_ratios=[1.25, 1], **margins, hspace=0.42, wspace=0.17)
    soft, _ = keyed(figure, grid[:, 0], [30, 1, 2.5])
    soft.set(xlabel="class of the outputs", ylabel="true label", xticks=classes, yticks=classes)
    figure.add_subplot(grid[0, 1]).set(title="ρ: share of the hard label")
    figure.add_subplot(grid[1, 1]).set(xlabel="class", xticks=classes[::3], yticks=[0, 0.5, 1])
    return figure


def draw(t: int, owner: str, label: int, strategy: str, threshold: float, ratio: float, rounds: int, r: int) -> Figure:
    soft, shares = table(t, owner), schedule(strategy, threshold, ratio, rounds)
    figure = layout()
    ax, key, ratios, student = figure.axes
    row = np.arange(len(soft))[:, None] == label
    matrix(ax, soft, numbers="{:.2f}", where=row, low=0, high=1, key=key)
    ax.axhspan(label - 0.5, label + 0.5, fill=False, edgecolor=CHOSEN, linewidth=3, clip_on=False)
    ax.set_title(f"soft targets, round {t}: {owner}")
    ratios.plot(range(1, rounds + 1), shares, color=INK, linewidth=2.5)
    ratios.plot(r, shares[r - 1], "o", color=CHOSEN, markersize=9)
    ratios.set(xlabel=f"round of {rounds}", ylim=(-0.03, 1.03))
    _student(figure, student, soft, label, shares[r - 1], t)
    return figure


def _student(figure: Figure, ax, soft: np.ndarray, label: int, rho: float, t: int) -> None:
    """The hard label, what is taught and what the model answers, beside the image."""
    image, answered = answer(t, label)
    bars = {
        "hard label": (np.eye(len(soft))[label], GIVEN),
        f"taught at ρ = {rho:.2f}": (target(soft, label, rho), CHOSEN),
        "the model's answer": (answered, GLOBAL),
    }
    for shift, (name, (values, colour)) in zip((-0.27, 0, 0.27), bars.items(), strict=True):
        columns(ax, np.arange(len(soft)) + shift, values, width=0.27, color=colour, label=name)
    ax.set(title=f"what a client learns about a {label}", ylim=(0, 1.75))
    ax.legend(fontsize=9.5, loc="upper left", frameon=False)
    digit = np.kron(image, np.ones((7, 7)))  # drawn as pixels, because axes of its own would be slow
    right, top = np.array(ax.get_position().max) * figure.get_size_inches() * figure.dpi - 4
    figure.figimage(digit, right - len(digit), top - len(digit), cmap="gray_r", origin="upper", zorder=5)


def say(t: int, owner: str, label: int, strategy: str, threshold: float, ratio: float, rounds: int, r: int) -> str:
    soft, rho = table(t, owner), schedule(strategy, threshold, ratio, rounds)[r - 1]
    seen = target(soft, label, rho)
    if not soft[label].any():
        note = f"{owner} has no {label}: its row is empty and does not count in the mean"
    else:
        other = int(np.argsort(soft[label])[-2])
        note = f"next likely for a {label}: {other} ({soft[label][other]:.3f})"
    tested = f"a model of accuracy {trained().accuracy[t]:.3f}" if t else "an untrained model"
    return f"ρ = <b>{rho:.3f}</b>; the true class is taught with <b>{seen[label]:.3f}</b> · {note} · {tested}"


def view(**settings) -> tuple[Figure, str]:
    r, rounds = settings["r"], settings["rounds"]
    if r > rounds:
        raise bad("round r", r, f"at most the number of rounds R ({rounds})")
    return draw(**settings), say(**settings)
