"""Lesson: how the training images are divided among the clients."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from matplotlib.figure import Figure

from fedrepro import data
from fedrepro.data.partition import partition
from fedrepro.lessons.drawing import BLUE, canvas, columns, heat, kept, ticks

DATA = ("digits", "synthetic", "mnist", "fashion_mnist", "cifar10")
SHOWN = 6  # clients whose images are shown,
IMAGES = 8  # and how many of each


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
    """Those of DATA that are here: none is downloaded for a lesson."""
    here = {row["name"] for row in data.status() if row["where"] in ("built in", "cached")}
    return [name for name in DATA if name in here]


@lru_cache(maxsize=32)
def divide(name: str, split: str, clients: int, seed: int = 0) -> Division:
    loaded = data.load(name)
    parts = partition(split, loaded.train_y, clients, seed=seed, writers=loaded.writers)
    counts = parts.label_counts(loaded.train_y, loaded.classes).numpy()
    rows = [parts[cid] for cid in range(min(SHOWN, clients))]
    spread = [torch.linspace(0, len(own) - 1, IMAGES).long() for own in rows]  # a part may be in order of its classes
    samples = torch.stack([loaded.train_x[own[some]] for own, some in zip(rows, spread, strict=True)])
    return Division(name, split, counts, samples.numpy())


@kept
def places() -> Figure:
    figure = canvas(4.7)
    labels, sizes, images = figure.subplots(1, 3, gridspec_kw={"width_ratios": [4, 1.3, 4]})
    figure.subplots_adjust(left=0.07, right=0.99, top=0.9, bottom=0.14, wspace=0.14)
    labels.set(title="samples of each class", xlabel="class", ylabel="client")
    sizes.set(title="size", xlabel="samples", yticks=[])
    images.set(xticks=[])
    return figure


def draw(division: Division) -> Figure:
    clients, classes = division.counts.shape
    figure = places()
    labels, sizes, images = figure.axes
    some = division.counts > division.counts.max() / 10  # fewer look like none
    heat(labels, division.counts, numbers="{:.0f}", where=some, low=0)
    labels.set(xticks=ticks(classes, 10), yticks=ticks(clients))
    columns(sizes, range(clients), division.sizes, flat=True, color=BLUE)
    sizes.set(xlim=(0, None), ylim=(clients - 0.5, -0.5), xticks=[0, division.sizes.max()])
    shown, _, height, width, _ = division.samples.shape
    framed = np.pad(division.samples, ((0, 0), (0, 0), (0, 1), (0, 1), (0, 0)), constant_values=255)
    mosaic = framed.transpose(0, 2, 1, 3, 4).reshape(shown * (height + 1), IMAGES * (width + 1), -1)
    images.imshow(mosaic if mosaic.shape[2] == 3 else mosaic[..., 0], cmap="gray", aspect="auto")
    images.grid(False)
    images.set(title=f"images of the first {shown} clients",
               yticks=[(i + 0.5) * (height + 1) for i in range(shown)], yticklabels=range(shown))  # fmt: skip
    return figure


def say(division: Division) -> str:
    sizes, held = division.sizes, (division.counts > 0).sum(1)
    return (
        f"distance from everyone's labels <b>{division.distance:.3f}</b> (0: all clients alike) · "
        f"classes of a client {held.min()} to {held.max()} · samples of a client {sizes.min()} to {sizes.max()}, "
        f"{sizes.sum()} in all"
    )


def view(name: str, split: str, clients: int, seed: int) -> tuple[Figure, str]:
    division = divide(name, split, clients, seed)
    return draw(division), say(division)
