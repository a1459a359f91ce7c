"""Lesson: how the training images are divided among the clients."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from matplotlib.figure import Figure

from fedrepro import data
from fedrepro.data.partition import partition
from fedrepro.lessons.drawing import LOCAL, canvas, columns, kept, keyed, matrix, ticks

DATA = ("digits", "synthetic", "mnist", "fashion_mnist", "cifar10")
SHOWN = 6  # clients whose images are shown,
IMAGES = 6  # and how many of each
ALT = "A matrix of the number of images by client and class; a bar per client for its size; images of some clients."


@dataclass(frozen=True, eq=False)
class Division:
    data: str
    split: str
    counts: np.ndarray  # (clients, classes)
    samples: np.ndarray  # (clients shown, images, height, width, channels)

    @property
    def sizes(self) -> np.ndarray:
        return self.counts.sum(1)

    @property
    def distance(self) -> float:
        """Mean over clients of the total variation distance of their label shares from everyone's together.

        0: all alike; 1 - 1/C: each client has one of C classes that are equally frequent.
        """
        own = self.counts / self.sizes[:, None]
        return float(np.abs(own - self.counts.sum(0) / self.counts.sum()).sum(1).mean() / 2)


def ready() -> list[str]:
    """The data sets of DATA that are available: a lesson downloads nothing."""
    here = {row["name"] for row in data.status() if row["where"] in ("built in", "cached")}
    return [name for name in DATA if name in here]


@lru_cache(maxsize=32)
def divide(name: str, split: str, clients: int, seed: int = 0) -> Division:
    loaded = data.load(name)
    parts = partition(split, loaded.train_y, clients, seed=seed, writers=loaded.writers)
    counts = parts.label_counts(loaded.train_y, loaded.classes).numpy()
    rows = [parts[cid] for cid in range(min(SHOWN, clients))]
    spread = [torch.linspace(0, len(own) - 1, IMAGES).long() for own in rows]  # a part may be sorted by class
    samples = torch.stack([loaded.train_x[own[some]] for own, some in zip(rows, spread, strict=True)])
    return Division(name, split, counts, samples.numpy())


@kept
def layout() -> Figure:
    figure = canvas(5.3)
    margins = {"left": 0.08, "right": 0.99, "top": 0.93, "bottom": 0.115}
    grid = figure.add_gridspec(1, 2, width_ratios=[5.4, 3.4], **margins, wspace=0.13)
    labels, _, sizes = keyed(figure, grid[0], [4, 0.16, 0.2, 1.2], wspace=0.16)
    labels.set(title="images per class", xlabel="class", ylabel="client")
    sizes.set(title="in all", xlabel="images", yticks=[])
    figure.add_subplot(grid[1]).set(xticks=[])
    return figure


def draw(division: Division) -> Figure:
    clients, classes = division.counts.shape
    figure = layout()
    labels, key, sizes, images = figure.axes
    some = division.counts > division.counts.max() / 10  # fewer look like none
    matrix(labels, division.counts, numbers="{:.0f}", where=some, low=0, key=key)
    labels.set(xticks=ticks(classes, 10), yticks=ticks(clients))
    columns(sizes, range(clients), division.sizes, flat=True, color=LOCAL)
    sizes.set(xlim=(0, None), ylim=(clients - 0.5, -0.5), xticks=[0, division.sizes.max()])
    shown, _, height, width, _ = division.samples.shape
    framed = np.pad(division.samples, ((0, 0), (0, 0), (0, 1), (0, 1), (0, 0)), constant_values=255)
    mosaic = framed.transpose(0, 2, 1, 3, 4).reshape(shown * (height + 1), IMAGES * (width + 1), -1)
    images.imshow(mosaic, cmap="gray", aspect="auto")
    images.grid(False)
    figure.set_gid("photos" if mosaic.shape[2] == 3 else None)
    rows = [(i + 0.5) * (height + 1) for i in range(shown)]
    images.set(title=f"images of the first {shown} clients", yticks=rows, yticklabels=range(shown))
    return figure


def say(division: Division) -> str:
    sizes, held = division.sizes, (division.counts > 0).sum(1)
    return (
        f"mean distance from the overall class shares <b>{division.distance:.3f}</b> (0: all clients alike) · "
        f"classes per client {held.min()} to {held.max()} · images per client {sizes.min()} to {sizes.max()}, "
        f"{sizes.sum()} in all"
    )


def view(name: str, split: str, clients: int, seed: int) -> tuple[Figure, str]:
    division = divide(name, split, clients, seed)
    return draw(division), say(division)
