"""Result: what a finished run gives back, and how a notebook shows it."""

from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

import torch

from fedrepro import data, models
from fedrepro.simulation import metrics
from fedrepro.simulation.run import Row, Run
from fedrepro.simulation.store import digest, rounds_digest
from fedrepro.simulation.tree import Tree

if TYPE_CHECKING:
    import pandas as pd

WIDTH, HEIGHT, MARGIN = 320, 100, 34  # of the curve, in pixels


@dataclass(frozen=True, repr=False)
class Result:
    """A finished run: `rounds` is a table with one row per round, `model()` the trained network."""

    run: Run
    rows: list[Row]
    weights: Tree
    buffers: Tree
    provenance: dict[str, Any]
    record: dict[str, Any] = field(default_factory=dict)  # what the server learned besides the weights

    @cached_property
    def rounds(self) -> "pd.DataFrame":
        """One row per round, with the derived columns ema_accuracy and best_accuracy."""
        import pandas as pd

        table = pd.DataFrame(self.rows)
        table["ema_accuracy"] = metrics.ema(table["accuracy"])
        table["best_accuracy"] = table["accuracy"].cummax()
        return table

    @cached_property
    def digest(self) -> str:
        """sha256 over the final weights and the accuracy and loss columns, nothing else."""
        return digest(self.weights, self.buffers, self.rows)

    @property
    def summary(self) -> dict[str, Any]:
        """What result.json holds."""
        found = {"run": self.run.described, "id": self.run.id, "digest": self.digest}
        return {**found, "rounds_digest": rounds_digest(self.rows), **self.provenance}

    def model(self) -> models.Net:
        """The global model with its final weights, as a torch module in evaluation mode."""
        images = data.load(self.run.data)
        with torch.random.fork_rng(devices=[]):
            net = models.build(self.run.model, classes=images.classes, channels=images.channels, size=images.size)
        net.load_state_dict({**self.weights, **self.buffers})
        return net.eval()

    def __repr__(self) -> str:
        return f"<Result: {'; '.join(self._lines())}>"

    def _repr_html_(self) -> str:
        return f"<div>{'<br>'.join(map(escape, self._lines()))}<br>{self._curve()}</div>"

    def _lines(self) -> list[str]:
        run, tested = self.run, self._tested()
        last = (
            f"accuracy {tested[-1][1]:.4f} (best {max(value for _, value in tested):.4f})" if tested else "not tested"
        )
        return [
            f"{run.method} on {run.data}, {run.split}, {run.model}, seed {run.seed}",
            f"{last} after {len(self.rows)} round{'s' * (len(self.rows) > 1)}",
            f"run {run.id}, digest {self.digest[:16]}",
        ]

    def _tested(self) -> list[tuple[int, float]]:
        return [(row["round"], row["accuracy"]) for row in self.rows if row["accuracy"] == row["accuracy"]]

    def _curve(self) -> str:
        """Accuracy by round as SVG, in the colour of the text around it; the vertical axis runs from 0 to 1."""
        across, down = WIDTH - 2 * MARGIN, HEIGHT - MARGIN
        last = max(len(self.rows) - 1, 1)
        points = [(MARGIN + across * (t - 1) / last, 10 + down * (1 - value)) for t, value in self._tested()]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        labels = ((4, 14, "1.0"), (4, 10 + down, "0.0"), (MARGIN, HEIGHT - 6, "accuracy by round"))
        text = "".join(
            f'<text x="{x}" y="{y}" font-size="11" fill="currentColor">{word}</text>' for x, y, word in labels
        )
        frame = f"M{MARGIN} 10V{10 + down}H{MARGIN + across}"
        return (
            f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="accuracy by round">{text}'
            f'<path d="{frame}" fill="none" stroke="currentColor" stroke-opacity="0.4"/>'
            f'<polyline points="{line}" fill="none" stroke="#0072b2" stroke-width="2"/></svg>'
        )
