"""Data sets that need no download: scikit-learn's digits, and generated patterns."""

import math
from functools import reduce
from importlib.util import find_spec
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrepro.data.transforms import pick
from fedrepro.errors import Failure, bad
from fedrepro.simulation.rng import stream

SYNTHETIC = {  # option: default, smallest, largest
    "classes": (10, 2, 1000),
    "channels": (1, 1, 4),
    "size": (16, 8, 256),
    "train": (2000, 1, 1_000_000),
    "test": (500, 1, 1_000_000),
    "difficulty": (0.5, 0.0, 1.0),
    "seed": (0, 0, 2**31 - 1),
}
DEFAULTS = {option: default for option, (default, _, _) in SYNTHETIC.items()}
DIGITS_TRAIN = 1437


def check_synthetic(options: dict[str, Any]) -> None:
    """Refuse options out of range."""
    for key, (_, low, high) in SYNTHETIC.items():
        if not low <= options[key] <= high:
            raise bad(f"data option {key}", options[key], f"{low} to {high}")
    if options["train"] < options["classes"]:
        raise bad("data option train", options["train"], f"at least one image per class, {options['classes']}")


def synthetic(
    classes: int, channels: int, size: int, train: int, test: int, difficulty: float, seed: int
) -> dict[str, np.ndarray]:
    """Each class is a smooth random pattern; `difficulty` shifts it and adds another pattern and noise.

    Made of random integers, additions and multiplications, so the images are the same on every processor.
    """
    reach = round(difficulty * size / 8)
    cover = 2 * difficulty * math.sqrt(channels)  # more channels carry more information: cover them more
    contrast = 50 / math.sqrt(1 + cover**2)

    def smooth(count: int, generator: torch.Generator, width: int) -> np.ndarray:
        image = normal((count, 4, 4, channels), generator)
        weight = bicubic(width)
        image = reduce(add, (weight[:, i, None, None] * image[:, i, None] for i in range(4)))
        return reduce(add, (weight[:, i, None] * image[:, :, i, None] for i in range(4)))

    patterns = torch.from_numpy(smooth(classes, stream(seed, "synthetic", "patterns"), size + 2 * reach))

    def images(labels: Tensor, draw: torch.Generator) -> np.ndarray:
        down, right = torch.randint(0, 2 * reach + 1, (2, len(labels), 1), generator=draw)
        image = pick(patterns[labels], torch.arange(size) + down, torch.arange(size) + right).numpy()
        image += cover * smooth(len(labels), draw, size)
        image += difficulty / 2 * normal(image.shape, draw)
        return np.clip(contrast * image + 128, 0, 255).astype(np.uint8)

    arrays = {}
    for split, count in (("train", train), ("test", test)):
        draw = stream(seed, "synthetic", split)
        labels = torch.randperm(count, generator=draw) % classes
        parts = labels.split(max(1, 2**20 // (size**2 * channels)))
        arrays[f"{split}_x"] = np.concatenate([images(part, draw) for part in parts])
        arrays[f"{split}_y"] = labels.numpy()
    return arrays


def normal(shape: tuple[int, ...], generator: torch.Generator) -> np.ndarray:
    """Nearly normal, mean 0 and variance 1: a sum of four uniform draws (at most 3.5 from 0)."""
    draws = torch.randint(-(2**15), 2**15, (4, *shape), generator=generator, dtype=torch.int32)
    return (draws.sum(0).numpy() + 2) / (2**16 / math.sqrt(3))


def bicubic(width: int) -> np.ndarray:
    """(width, 4): the weights of four equally spaced values, the outer ones repeated (Keys 1981, a = -3/4)."""
    position = (np.arange(width) + 0.5) * 4 / width - 0.5
    d = np.abs(position[:, None] - np.arange(-2, 6))
    weight = np.where(d < 1, (1.25 * d - 2.25) * d * d + 1, np.where(d < 2, -0.75 * (((d - 5) * d + 8) * d - 4), 0))
    weight[:, 2] += weight[:, 0] + weight[:, 1]
    weight[:, 5] += weight[:, 6] + weight[:, 7]
    return weight[:, 2:6]


def digits() -> dict[str, np.ndarray]:
    """As sklearn.datasets.load_digits, without the two seconds that importing scikit-learn takes."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise Failure("scikit-learn, which has the digits, is not installed")
    table = np.loadtxt(Path(package.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")
    images = np.rint(table[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    labels = table[:, -1].astype(np.int64)
    order = torch.randperm(len(labels), generator=stream(0, "digits")).numpy()
    train, test = order[:DIGITS_TRAIN], order[DIGITS_TRAIN:]
    return {"train_x": images[train], "train_y": labels[train], "test_x": images[test], "test_y": labels[test]}
