"""Data sets that need no download: scikit-learn's digits and generated patterns."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedrepro.data.transforms import pick
from fedrepro.errors import bad
from fedrepro.rng import stream

SYNTHETIC = {
    "classes": 10,
    "channels": 1,
    "size": 16,
    "train": 2000,
    "test": 500,
    "difficulty": 0.5,
    "seed": 0,
}
LIMITS = {
    "classes": (2, 1000),
    "channels": (1, 4),
    "size": (8, 256),
    "train": (1, 1_000_000),
    "test": (1, 1_000_000),
    "difficulty": (0.0, 1.0),
    "seed": (0, 2**31 - 1),
}
DIGITS_TRAIN = 1437


def check_synthetic(options: dict) -> None:
    for key, (low, high) in LIMITS.items():
        if not low <= options[key] <= high:
            raise bad(f"data option {key}", options[key], f"{low} to {high}")
    if options["train"] < options["classes"]:
        raise bad("data option train", options["train"], f"at least one image a class, {options['classes']}")


def synthetic(classes, channels, size, train, test, difficulty, seed) -> dict[str, np.ndarray]:
    """Each class is a smooth random pattern; `difficulty` moves it and covers it with another and noise."""
    reach = round(difficulty * size / 8)
    cover = 2 * difficulty * channels**0.5  # more channels tell more: cover them more
    contrast = 50 / (1 + cover**2) ** 0.5

    def smooth(count: int, generator: torch.Generator, width: int) -> Tensor:
        coarse = torch.randn(count, channels, 4, 4, generator=generator)
        return F.interpolate(coarse, (width, width), mode="bicubic").permute(0, 2, 3, 1)

    patterns = smooth(classes, stream(seed, "synthetic", "patterns"), size + 2 * reach)

    def images(labels: Tensor, draw: torch.Generator) -> Tensor:
        down, right = torch.randint(0, 2 * reach + 1, (2, len(labels), 1), generator=draw)
        image = pick(patterns[labels], torch.arange(size) + down, torch.arange(size) + right)
        image += cover * smooth(len(labels), draw, size)
        image += difficulty / 2 * torch.randn(image.shape, generator=draw)
        return image.mul_(contrast).add_(128).clamp_(0, 255).to(torch.uint8)

    arrays = {}
    for split, count in (("train", train), ("test", test)):
        draw = stream(seed, "synthetic", split)
        labels = torch.randperm(count, generator=draw) % classes
        arrays[f"{split}_x"] = torch.cat([images(part, draw) for part in labels.split(1000)]).numpy()
        arrays[f"{split}_y"] = labels.numpy()
    return arrays


def digits() -> dict[str, np.ndarray]:
    """What sklearn.datasets.load_digits reads, without the two seconds that importing scikit-learn takes."""
    home = Path(find_spec("sklearn").submodule_search_locations[0])
    table = np.loadtxt(home / "datasets/data/digits.csv.gz", delimiter=",")
    images = np.rint(table[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    labels = table[:, -1].astype(np.int64)
    order = torch.randperm(len(labels), generator=stream(0, "digits")).numpy()
    train, test = order[:DIGITS_TRAIN], order[DIGITS_TRAIN:]
    return {
        "train_x": images[train],
        "train_y": labels[train],
        "test_x": images[test],
        "test_y": labels[test],
    }
