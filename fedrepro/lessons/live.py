"""Lesson: small federations trained live, two methods side by side."""

import html
import threading
from collections.abc import Callable, Iterable
from dataclasses import fields
from itertools import accumulate
from typing import Any

from matplotlib.figure import Figure

from fedrepro.lessons.drawing import FIRST, SECOND, canvas
from fedrepro.methods import registry
from fedrepro.simulation import metrics
from fedrepro.simulation.ledger import MIB
from fedrepro.simulation.run import Run
from fedrepro.simulation.session import rounds

DATA = ("digits", "fashion_mnist")
SPLITS = ("iid", "dirichlet:0.3", "dirichlet:0.1", "level:7", "dominant:0.8", "shards:2", "dirichlet_unequal:0.3")
DEFAULTS: dict[str, Any] = dict(
    data="digits", split="dirichlet:0.3", clients=10, per_round=5, rounds=20, epochs=1, lr=0.05, seed=0
)
FIXED: dict[str, Any] = {"model": "cnn_mnist", "momentum": 0.9, "batch": 10}
METHODS = ("fedavg", "fedbr")
TARGET = 0.7
ALT = "Test accuracy of two methods by round and by traffic."

Curve = tuple[Run, list[dict]]


def describe(common: dict, method: str, hp: dict) -> Run:
    """The run of one side, or BadInput. Fashion-MNIST is cut to 200 images per client, for speed."""
    samples = 200 if common["data"] == "fashion_mnist" else None
    return Run(**FIXED, **common, samples=samples, method=method, hp=hp)


def hyperparameters(method: str) -> list:
    return list(fields(registry()[method]))


def traffic(rows: list[dict]) -> list[float]:
    """MiB sent up and down so far, BatchNorm statistics included, after each round."""
    sent = [sum(row[key] for key in row if key.endswith(("bytes_up", "bytes_down"))) for row in rows]
    return [total / MIB for total in accumulate(sent)]


def label(run: Run) -> str:
    """The method and the hyperparameters that are not its defaults."""
    changed = {f.name: run.hp[f.name] for f in hyperparameters(run.method) if run.hp.get(f.name) != f.default}
    shown = [f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in changed.items()]
    return f"{run.method} {', '.join(shown)}".strip()


def draw(curves: list[Curve]) -> Figure:
    """Accuracy along rounds and along traffic; the sides are A (solid) and B (dashed)."""
    figure = canvas(4.2)
    by_round, by_traffic = figure.subplots(1, 2, sharey=True)
    figure.subplots_adjust(left=0.1, right=0.97, top=0.9, bottom=0.17, wspace=0.1)
    for side, colour, line, (run, rows) in zip("AB", (FIRST, SECOND), ("-", "--"), curves, strict=False):
        accuracy = [row["accuracy"] for row in rows]
        style = {"color": colour, "linestyle": line, "linewidth": 2.2, "marker": "o", "markersize": 4}
        by_round.plot([row["round"] for row in rows], accuracy, **style, label=f"{side}: {label(run)}")
        by_traffic.plot(traffic(rows), accuracy, **style)
    most = max((run.rounds for run, _ in curves), default=DEFAULTS["rounds"])
    by_round.set(title="by round", xlabel="communication round", ylabel="test accuracy", ylim=(0, 1))
    by_round.set(xlim=(0, most + 0.5))
    by_round.xaxis.get_major_locator().set_params(integer=True)
    by_traffic.set(title="by traffic", xlabel="traffic up and down (MiB)", xlim=(0, None))
    if curves:
        by_round.legend(loc="upper left", fontsize=10.5, framealpha=0.9)
    return figure


def summary(curves: list[Curve]) -> list[dict]:
    """One row per side for the table at the end."""
    names = ("last accuracy", "best accuracy", f"rounds to {TARGET:.0%}", "traffic (MiB)")
    table = []
    for side, (run, rows) in zip("AB", curves, strict=False):
        measured = [""] * len(names)
        if rows:
            accuracy = [row["accuracy"] for row in rows]
            reached = metrics.format_rounds(metrics.rounds_to_target(accuracy, TARGET), len(rows))
            measured = [f"{accuracy[-1]:.3f}", f"{max(accuracy):.3f}", reached, f"{traffic(rows)[-1]:.2f}"]
        line = {"": side, "method": label(run), "rounds": f"{len(rows)} of {run.rounds}"}
        table.append(line | dict(zip(names, measured, strict=True)) | {"run id": run.id})
    return table


def as_html(table: list[dict]) -> str:
    def line(cells: Iterable, tag: str) -> str:
        return "".join(f"<{tag} style='padding:2px 12px;text-align:left'>{html.escape(str(c))}</{tag}>" for c in cells)

    body = "".join(f"<tr>{line(row.values(), 'td')}</tr>" for row in table)
    return f"<table><tr>{line(table[0], 'th')}</tr>{body}</table>"


class Session(threading.Thread):
    """Trains the runs in turn, one round at a time, in its own thread, so that the notebook's buttons keep working.

    `progress(session)` is called after each round and `ended(session)` at the end, both in this thread. Between two
    rounds the session can pause or stop. It starts when the session `before` has ended: both use torch's random state.
    """

    def __init__(self, runs: list[Run], progress: Callable, ended: Callable, before: threading.Thread | None = None):
        super().__init__(daemon=True)
        self.curves: list[Curve] = [(run, []) for run in runs]
        self.finished = False
        self.error: Exception | None = None
        self._progress, self._ended, self._before, self._stopped = progress, ended, before, False
        self._go = threading.Event()
        self._go.set()

    @property
    def paused(self) -> bool:
        return not self._go.is_set()

    def pause(self) -> None:
        self._go.clear()

    def resume(self) -> None:
        self._go.set()

    def stop(self) -> None:
        self._stopped = True
        self._go.set()

    def run(self) -> None:
        if self._before:
            self._before.join()
        streams: list[Any] = [rounds(run, workers=1) for run, _ in self.curves]
        try:
            self.finished = self._rounds(streams)
        except Exception as error:
            self.error = error
        finally:
            for stream in reversed(streams):  # the last to change torch's threads is the first to put them back
                stream.close()
            self._ended(self)

    def _rounds(self, streams: list) -> bool:
        """True if every round was made, False if the session was stopped."""
        for _ in range(max(run.rounds for run, _ in self.curves)):
            for (_, rows), stream in zip(self.curves, streams, strict=True):
                self._go.wait()
                if self._stopped:
                    return False
                rows.append(next(stream))
                self._progress(self)
        return True


def example(count: int = 4) -> list[Curve]:
    """The two default methods at the default settings, for a few rounds, without buttons."""
    common = DEFAULTS | {"rounds": count}
    runs = [describe(common, method, {}) for method in METHODS]
    return [(run, list(rounds(run, workers=1))) for run in runs]
