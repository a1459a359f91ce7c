"""Lesson: how AMA mixes the old model, the updates on time and the late ones; a toy problem in two dimensions."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from fedrepro.errors import bad
from fedrepro.lessons.drawing import GIVEN, GLOBAL, INK, LATE, LOCAL, OTHER, SECOND, canvas, columns, contours, kept
from fedrepro.methods import Round, Upload, ama, build
from fedrepro.simulation.fleet import Fleet
from fedrepro.simulation.run import Run
from fedrepro.simulation.tree import Tree

CLIENTS, PER_ROUND = 8, 4
LOCAL_STEPS, LOCAL_RATE = 6, 0.15
START = (-2.6, 2.2)
STRANGER = (3.2, -2.6)  # the best point of the client whose late updates are added
METHODS = {"ama": SECOND, "naive": GIVEN, "fedavg": OTHER}
NOTES = {"ama": "AMA", "naive": "late updates dropped", "fedavg": "late updates as if new"}
ALT = "Weights of the old model, updates on time and late ones; three methods on a map; their distance from the best."


@dataclass(frozen=True)
class Setting:
    alpha0: float = 0.1
    eta: float = 0.01
    b: float = 0.6
    late: float = 0.3  # share of the updates that are late
    max_delay: int = 5
    rounds: int = 40
    at: int = 20  # the round looked at, in which the updates of `added` arrive
    added: tuple[int, ...] = ()  # how many rounds late each of them is

    def __post_init__(self):
        for s in self.added:
            if s >= self.at:
                raise bad("rounds late", s, f"less than the round it arrives in ({self.at}): it must have started")
        if self.at > self.rounds:
            raise bad("round looked at", self.at, f"at most the number of rounds ({self.rounds})")
        self.run("ama")  # refuses alpha0 + eta * rounds above 1

    def run(self, method: str) -> Run:
        hp = {"alpha0": self.alpha0, "eta": self.eta, "b": self.b} if method == "ama" else {}
        fleet: dict[str, Any] = {"clients": CLIENTS, "per_round": PER_ROUND, "max_delay": self.max_delay}
        return Run(method=method, hp=hp, rounds=self.rounds, seed=1, delay=self.late, **fleet)


@dataclass(frozen=True, eq=False)
class Course:
    """One method's path: the models after rounds 0..R, and the staleness of the late updates of each round."""

    models: np.ndarray  # (R + 1, 2)
    staleness: list[list[int]]


def bowls() -> tuple[torch.Tensor, torch.Tensor]:
    """Each client's loss is a bowl, sum_d c_d (x_d - a_d)^2 / 2: the centres a and the curvatures c."""
    angle = torch.arange(CLIENTS) * (2 * torch.pi / CLIENTS)
    centres = torch.stack([1.6 * angle.cos(), 1.1 * angle.sin()], 1)
    return centres, torch.stack([0.4 + 0.6 * (angle.sin() > 0), 0.4 + 0.6 * (angle.cos() > 0)], 1)


def best() -> np.ndarray:
    """The minimum of the mean loss."""
    centres, curves = bowls()
    return ((centres * curves).sum(0) / curves.sum(0)).numpy()


def descend(x: torch.Tensor, centre: torch.Tensor, curve: torch.Tensor) -> torch.Tensor:
    """LOCAL_STEPS times x -= LOCAL_RATE * curve * (x - centre)."""
    return centre + (1 - LOCAL_RATE * curve) ** LOCAL_STEPS * (x - centre)


@lru_cache(maxsize=64)
def travel(setting: Setting, name: str) -> Course:
    """The method's own aggregate and the fleet's own draws; only the clients' training is a toy."""
    run = setting.run(name)
    method, fleet = build(name, **run.hp), Fleet(run)
    centres, curves = bowls()
    server: dict[str, Any] = {"w": Tree(x=torch.tensor(START)), "b": Tree()}
    past, pending, staleness = [server["w"]["x"]], [], []
    for t in range(1, setting.rounds + 1):
        r = Round(t, run, fleet.participants(t))
        trained = descend(past[-1], centres[r.participants], curves[r.participants])
        for cid, x in zip(r.participants, trained, strict=True):
            pending.append((t + fleet.delay(t, cid), Upload(cid, 1, {"w": Tree(x=x), "b": Tree()}, t)))
        if t == setting.at:
            for s in setting.added:
                x = descend(past[t - s - 1], torch.tensor(STRANGER), torch.ones(2))
                pending.append((t, Upload(CLIENTS, 1, {"w": Tree(x=x), "b": Tree()}, t - s)))
        uploads = [upload for due, upload in pending if due <= t]
        pending = [(due, upload) for due, upload in pending if due > t]
        server = method.aggregate(server, uploads, r)
        past.append(server["w"]["x"])
        staleness.append([t - upload.round for upload in uploads if upload.round < t])
    return Course(torch.stack(past).numpy(), staleness)


def weights(setting: Setting) -> list[tuple[float, float, list[float]]]:
    """alpha, beta and the gammas of every round, given the late updates that arrived in it."""
    method, late = ama.AMA(**setting.run("ama").hp), travel(setting, "ama").staleness
    return [ama.mixing(method.old(t), s, setting.b) for t, s in enumerate(late, start=1)]


@kept
def layout() -> Figure:
    figure = canvas(5.7)
    over, _, where, apart = figure.subplots(2, 2, gridspec_kw={"width_ratios": [1.2, 1]}).flat
    figure.subplots_adjust(left=0.075, right=0.985, top=0.94, bottom=0.1, hspace=0.45, wspace=0.22)
    over.set(title="weights: old α, on time β, late γ", xlabel="round")
    where.set(xticks=[], yticks=[])
    apart.set(title="distance from the best point", xlabel="round")
    return figure


def draw(setting: Setting) -> Figure:
    figure = layout()
    over, now, where, apart = figure.axes
    rounds, mixed = range(1, setting.rounds + 1), weights(setting)
    parts = [[a for a, _, _ in mixed], [b for _, b, _ in mixed], [sum(g) for _, _, g in mixed]]
    over.stackplot(rounds, parts, colors=[GLOBAL, LOCAL, LATE], step="mid", linewidth=0)
    over.axvline(setting.at, color=INK, linewidth=1.5)
    over.set(ylim=(0, 1), xlim=(0.5, setting.rounds + 0.5))
    _round(now, setting, mixed[setting.at - 1])
    _map(where, setting)
    for name, colour in METHODS.items():
        apart.plot(range(setting.rounds + 1), distances(setting, name), color=colour, label=NOTES[name], linewidth=2)
    apart.axvline(setting.at, color=INK, linewidth=1.5)
    apart.set(ylim=(0, None))
    apart.legend(fontsize=10, edgecolor="none", framealpha=0.9)
    return figure


def _round(ax, setting: Setting, mixed) -> None:
    alpha, beta, gammas = mixed
    late = travel(setting, "ama").staleness[setting.at - 1]
    bars = [("α", alpha, GLOBAL), ("β", beta, LOCAL)]
    bars += [(f"γ\n{s} late", g, LATE) for s, g in zip(late, gammas, strict=True)]
    columns(ax, range(len(bars)), [value for _, value, _ in bars], color=[colour for *_, colour in bars])
    for i, (_, value, _) in enumerate(bars):
        ax.text(i, value + 0.02, f"{value:.3f}", ha="center", fontsize=9)
    ax.set(title=f"weights of round {setting.at}", ylim=(0, 1.1), xticks=range(len(bars)))
    ax.set_xticklabels([label for label, *_ in bars], fontsize=10)


def _map(ax, setting: Setting) -> None:
    centres, curves = (value.numpy() for value in bowls())
    contours(ax, best(), curves.mean(0), 0, range(1, 12), 0.8)
    ax.plot(*centres.T, "o", color=LOCAL, markersize=6)
    if setting.added:
        ax.plot(*STRANGER, "X", color=LATE, markersize=10)
        ax.text(STRANGER[0] - 0.25, STRANGER[1], "best for the late client", ha="right", va="center", fontsize=10)
    for name, colour in METHODS.items():
        way = travel(setting, name).models
        ax.plot(*way.T, "-", color=colour, linewidth=1.6)
        ax.plot(*way[setting.at], "s", color=colour, markersize=6)
    ax.plot(*best(), "*", color="0.1", markersize=13)
    ax.set(xlim=(-3.1, 3.7), ylim=(-3.0, 2.6))
    ax.set_title(f"● clients' optima  ★ optimum  ■ round {setting.at}")


def distances(setting: Setting, name: str) -> np.ndarray:
    return np.linalg.norm(travel(setting, name).models - best(), axis=1)


def say(setting: Setting) -> str:
    alpha, beta, gammas = weights(setting)[setting.at - 1]
    apart = " · ".join(f"{NOTES[name]} {distances(setting, name)[setting.at]:.3f}" for name in METHODS)
    return (
        f"round {setting.at}: α <b>{alpha:.4f}</b>, β <b>{beta:.4f}</b>, γ <b>{sum(gammas):.4f}</b> for "
        f"{len(gammas)} late, sum {alpha + beta + sum(gammas):.4f} · distance afterwards: {apart}"
    )


def view(late1: int = 0, late2: int = 0, late3: int = 0, **settings) -> tuple[Figure, str]:
    setting = Setting(**settings, added=tuple(s for s in (late1, late2, late3) if s))
    return draw(setting), say(setting)
