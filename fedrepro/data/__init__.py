"""Images and labels as tensors: `load("cifar10")`, `load("synthetic:classes=5,size=12")`.

A data set is decoded once into the cache (FEDREPRO_CACHE, else ~/.cache/fedrepro) and memory-mapped from there.
"""

import os
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from fedrepro.checks import choose, parse_options
from fedrepro.data import builtin, cache, own, sources
from fedrepro.data.coarse import COARSE
from fedrepro.data.own import fingerprint, register
from fedrepro.data.sources import DataUnavailable
from fedrepro.data.transforms import augment
from fedrepro.errors import bad
from fedrepro.simulation.rng import stream

__all__ = [
    "DataUnavailable",
    "Dataset",
    "augment",
    "check",
    "fetch",
    "fingerprint",
    "load",
    "names",
    "register",
    "status",
]

_FILES = ("mnist", "fashion_mnist", "cifar10", "cifar100", "cifar100_coarse", "tiny_imagenet", "femnist")
STORED = {name: name.removesuffix("_coarse") for name in _FILES}  # name -> cache folder
BUILT_IN = {"digits": (builtin.digits, "scikit-learn"), "synthetic": (builtin.synthetic, "generated")}  # and its source


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and labels in memory, or mapped from the cache."""

    name: str
    train_x: Tensor  # uint8 (or float32, if registered so), N,H,W,C
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int
    mean: tuple[float, ...]  # of each channel of the training images, in 0..1
    std: tuple[float, ...]
    writers: Tensor | None  # who wrote each training image
    test_writers: Tensor | None
    provenance: dict

    @property
    def size(self) -> int:
        return self.train_x.shape[1]

    @property
    def channels(self) -> int:
        return self.train_x.shape[3]

    @cached_property
    def affine(self) -> tuple[Tensor, Tensor]:
        """(x / 255 - mean) / std as x * scale + shift, for a whole flattened image."""
        mean, std = torch.tensor(self.mean), torch.tensor(self.std)
        pixels = self.size**2
        return (1 / (255 * std)).repeat(pixels), (-mean / std).repeat(pixels)

    def batch(self, x: Tensor) -> Tensor:
        """uint8 N,H,W,C -> normalised float32 N,C,H,W with channels_last strides."""
        scale, shift = (t.to(x.device) for t in self.affine)
        return torch.addcmul(shift, x.flatten(1), scale).view(x.shape).permute(0, 3, 1, 2)

    @classmethod
    def made(cls, name: str, arrays: cache.Arrays, classes: int, found: dict, provenance: dict) -> "Dataset":
        """From arrays, with the mean and std in `found`."""
        tensors: dict[str, Any] = {key: torch.from_numpy(array) for key, array in arrays.items()}
        tensors |= {"writers": tensors.pop("train_writers", None), "test_writers": tensors.get("test_writers")}
        mean, std = tuple(found["mean"]), tuple(found["std"])
        return cls(name, **tensors, classes=classes, mean=mean, std=std, provenance=provenance)

    def held_out(self, share: float, seed: int) -> "Dataset":
        """The training images alone, a random share of which becomes the test set."""
        order = torch.randperm(len(self.train_y), generator=stream(seed, "holdout"))
        tested, trained = order.tensor_split([round(share * len(order))])
        trained = trained.sort().values
        return replace(
            self,
            train_x=self.train_x[trained],
            train_y=self.train_y[trained],
            test_x=self.train_x[tested],
            test_y=self.train_y[tested],
            writers=None if self.writers is None else self.writers[trained],
            test_writers=None if self.writers is None else self.writers[tested],
            provenance={**self.provenance, "held_out": share},
        )


def names() -> list[str]:
    return [*STORED, *BUILT_IN, *own.names()]


def check(text: str) -> tuple[str, dict[str, Any]]:
    """Name and options; an unknown data set or option is refused.

    Any data set may declare that it stands in for another: `mnist:substitute_for=femnist`."""
    if not isinstance(text, str):
        raise bad("data", text, ", ".join(names()))
    name, known = text.partition(":")[0], names()
    if name not in known:
        raise bad("data", name, f"{', '.join(sorted(known))}; register your own first (fedrepro.data.register)", known)
    defaults = builtin.DEFAULTS if name == "synthetic" else {}
    name, options = parse_options("data", text, {**defaults, "substitute_for": ""})
    if "substitute_for=" in text:
        choose("data option substitute_for", options["substitute_for"], names())
    if name == "synthetic":
        builtin.check_synthetic(options)
    return name, options


def load(name: str) -> Dataset:
    """The data set, decoded into the cache first if it is not there."""
    base, options = check(name)
    if base in own.names():
        found = own.registered(base)
        stands_in = {"substitute_for": options["substitute_for"]} if options["substitute_for"] else {}
        return replace(found, name=name, provenance={**found.provenance, "name": name, **stands_in})
    return loaded(name, str(cache.root()), os.environ.get("FEDREPRO_DATA"))


@lru_cache(maxsize=4)
def loaded(text: str, cache_root: str, data_root: str | None) -> Dataset:
    """`load`, cached as long as the environment stays the same."""
    name, options = check(text)
    substitute_for = options.pop("substitute_for")
    if name in BUILT_IN:
        make, source = BUILT_IN[name]
        arrays = make(**options)
        meta: dict[str, Any] = {"source": source, "sha256": cache.sha256(arrays), **cache.statistics(arrays)}
        classes = options.get("classes", 10)
    else:
        found = cache.read(STORED[name])
        if found is None:
            fetch(name, progress=sys.stderr.isatty())
        meta, arrays = found or stored(STORED[name])
        classes = sources.SOURCES[STORED[name]].classes
    if name == "mnist":
        arrays |= mnist_writers(arrays)
    if name == "cifar100_coarse":
        classes = max(COARSE) + 1
        arrays |= {key: np.array(COARSE)[arrays[key]] for key in ("train_y", "test_y")}
    provenance = {"name": text, "source": meta["source"], "sha256": meta["sha256"]}
    more = {"subset": meta.get("subset"), "substitute_for": substitute_for}
    provenance |= {key: value for key, value in more.items() if value}
    return Dataset.made(text, arrays, classes, meta, provenance)


def stored(folder: str, progress: bool = False, mend: bool = False) -> tuple[dict, cache.Arrays]:
    """A cached data set, decoded first if needed; `mend` reads every byte and replaces the set if it has changed."""
    try:
        found = cache.read(folder, thorough=mend)
    except cache.Changed:
        if not mend:
            raise
        found = None
    if found is None:
        bar = partial(tqdm, desc=folder, disable=not progress, leave=False)
        source, arrays = sources.obtain(folder, bar)
        found = cache.write(folder, arrays, {"source": source, "subset": sources.subset(folder, arrays)})
    return found


def mnist_writers(arrays: cache.Arrays) -> cache.Arrays:
    """QMNIST's writers of these images, if its labels are available and agree with MNIST's."""
    if cache.read("qmnist") is None and not sources.local_paths("qmnist"):
        return {}
    with suppress(DataUnavailable):
        _, labels = stored("qmnist")
        if all(np.array_equal(arrays[key], labels[key]) for key in ("train_y", "test_y")):
            return {key: labels[key] for key in ("train_writers", "test_writers")}
    return {}


def fetch(name: str, progress: bool = True) -> Path:
    """Make sure that a data set is in the cache, complete and unchanged -> its folder."""
    name, _ = check(name)
    if name not in STORED:
        raise bad("data", name, f"one that is fetched: {', '.join(STORED)} ({name} needs no download)")
    stored(STORED[name], progress, mend=True)
    if name == "mnist":
        with suppress(DataUnavailable):  # only some splits need the writers
            stored("qmnist", progress, mend=True)
    return cache.root() / STORED[name]


def status(verify: bool = False) -> list[dict]:
    """One row per data set; `verify` reads every cached byte and compares checksums."""
    blank = {"where": "not here", "source": "", "sha256": "", "bytes": 0}
    return [{"name": name, **blank, **found_at(name, verify)} for name in names()]


def found_at(name: str, verify: bool) -> dict:
    if name in BUILT_IN:
        return {"where": "built in", "source": BUILT_IN[name][1]}
    if name not in STORED:
        return {"where": "your own", "source": "registered"}
    folder = STORED[name]
    try:
        found = cache.read(folder, verify)
        if name == "mnist":
            cache.read("qmnist", verify)
    except cache.Changed as why:
        return {"where": "changed", "source": str(why)}
    if found:
        meta, _ = found
        return {
            "where": "cached",
            "source": " ".join(filter(None, (meta["source"], meta["subset"]))),
            "sha256": meta["sha256"],
            "bytes": sum(entry["bytes"] for entry in meta["arrays"].values()),
        }
    if here := sources.local_paths(folder):
        return {"where": "in FEDREPRO_DATA", "source": here[0]}
    return {"source": ", ".join(sources.SOURCES[folder].remote) or "LEAF's preprocess.sh"}
