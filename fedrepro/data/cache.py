"""Decoded data sets on disk: a folder with .npy arrays and a meta.json for each, replaced as a whole.

The arrays are compared with their sha256 when a folder is written, by `fedrepro data --check`, and when a file's time
stamp has changed. Every load compares the meta data and a sample of each file with a checksum of their own.
"""

import errno
import hashlib
import json
import math
import os
import shutil
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from fedrepro.errors import Failure
from fedrepro.simulation.files import write_atomically, write_json
from fedrepro.simulation.ledger import MIB

Arrays = dict[str, np.ndarray]
META = "meta.json"
SAMPLES, BLOCK = 128, 4096  # of each file, spread evenly
STALE = 86_400  # seconds after which a temporary folder must be left from a killed process


class Changed(Failure):
    """A cached data set is no longer what was written."""


def root() -> Path:
    """The cache: FEDREPRO_CACHE, else the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("FEDREPRO_CACHE") or Path(home) / "fedrepro").expanduser()


def read(name: str, thorough: bool = False) -> tuple[dict, Arrays] | None:
    """The meta data and memory-mapped arrays; None if they are missing, truncated or of another shape.

    Raises `Changed` if the content has changed, which only a `thorough` check is certain to detect.
    """
    return opened(root() / name, thorough)


def opened(folder: Path, thorough: bool = False) -> tuple[dict, Arrays] | None:
    try:
        meta = json.loads((folder / META).read_text())
        meta = {key: meta.get(key) for key in ("source", "subset", "mean", "std", "sha256", "arrays", "guard")}
        # Copy on write: the file cannot be changed, and a stray in-place operation cannot crash the process.
        arrays = {key: np.load(folder / f"{key}.npy", mmap_mode="c") for key in meta["arrays"]}
        same = all(described(folder, key, array) == meta["arrays"][key] for key, array in arrays.items())
        complete = arrays and same and isinstance(meta["source"], str) and isinstance(meta["subset"], str | None)
    except Exception:  # a broken file may raise anything
        return None
    return (guarded(folder, meta, arrays, thorough), arrays) if complete else None


def described(folder: Path, key: str, array: np.ndarray) -> dict:
    size = (folder / f"{key}.npy").stat().st_size
    return {"shape": list(array.shape), "dtype": str(array.dtype), "bytes": size}


def guarded(folder: Path, meta: dict, arrays: Arrays, thorough: bool) -> dict:
    """`meta`, if it and the arrays have not changed."""
    kept = meta.pop("guard")
    now = guard(folder, meta)
    if now == kept and not thorough:
        return meta
    sampled = kept is None or (isinstance(kept, dict) and kept.get("sample") == now["sample"])
    if not sampled or sha256(arrays) != meta["sha256"]:
        keep(folder, {**meta, "guard": {}})  # refused from now on
        raise changed(folder)
    if kept is None:  # just written, or written before guards existed
        meta |= statistics(arrays)
        now = guard(folder, meta)
    if now != kept:
        keep(folder, {**meta, "guard": now})
    return meta


def changed(folder: Path) -> Changed:
    name = folder.name.replace("qmnist", "mnist")  # they are fetched together
    return Changed(f"{folder} has changed (its checksum differs); `fedrepro data fetch {name}` replaces it")


def guard(folder: Path, meta: dict) -> dict:
    """The files' time stamps, and a checksum of the meta data and of blocks of each file (all if it is small)."""
    total, times = hashlib.sha256(json.dumps(meta, sort_keys=True).encode()), {}
    for key, entry in sorted(meta["arrays"].items()):
        with open(folder / f"{key}.npy", "rb", buffering=0) as file:
            times[key] = os.fstat(file.fileno()).st_mtime_ns
            for i in range(SAMPLES):
                file.seek(max(0, entry["bytes"] - BLOCK) * i // (SAMPLES - 1))
                total.update(file.read(BLOCK))
    return {"sample": total.hexdigest(), "times": times}


def keep(folder: Path, meta: dict) -> None:
    with suppress(OSError):  # a read-only cache is compared with its sha256 at every load
        write_json(folder / META, meta)


def write(name: str, arrays: Arrays, meta: dict) -> tuple[dict, Arrays]:
    """Atomic; if two processes write at once, the second uses the result of the first."""
    root().mkdir(parents=True, exist_ok=True)
    tidy(name)
    needed = sum(array.nbytes for array in arrays.values()) + BLOCK * (len(arrays) + 2)
    if shutil.disk_usage(root()).free < needed:
        raise full(name, needed)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=root()) as temporary:
            folder = Path(temporary, name)
            folder.mkdir()
            for key, array in arrays.items():
                write_atomically(folder / f"{key}.npy", partial(np.save, arr=array, allow_pickle=False))
            table = {key: described(folder, key, array) for key, array in arrays.items()}
            write_json(folder / META, {**meta, "sha256": sha256(arrays), "arrays": table})
            written = opened(folder)  # compares the sha256; stays mapped even if another process replaces it
            if written is None:
                raise changed(folder)
            publish(folder, root() / name, Path(temporary, "broken"))
            return read(name) or written
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise full(name, needed) from None
        raise


def full(name: str, needed: int) -> Failure:
    free = shutil.disk_usage(root()).free
    size, here, missing = (f"{math.ceil(n / MIB)} MiB" for n in (needed, free, max(0, needed - free)))
    return Failure(
        f"the cache {root()} is full: {name} needs {size}, {here} are free (or a quota is reached), {missing} are "
        "missing; make room, or set FEDREPRO_CACHE to a folder on another disk"
    )


def tidy(name: str) -> None:
    """Remove leftovers of killed processes."""
    for path in root().glob(f".{name}-*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > STALE:
                shutil.rmtree(path)


def sound(folder: Path) -> bool:
    try:
        return opened(folder, thorough=True) is not None
    except Changed:
        return False


def publish(folder: Path, final: Path, aside: Path) -> None:
    if not sound(final):
        with suppress(FileNotFoundError):
            os.rename(final, aside)
    try:
        os.rename(folder, final)
    except OSError:
        if not sound(final):
            raise
    directory = os.open(final.parent, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def sha256(arrays: Arrays) -> str:
    """Of all arrays with their names, types and shapes."""
    total = hashlib.sha256()
    for key, array in sorted(arrays.items()):
        total.update(f"{key} {array.dtype} {array.shape}".encode())
        total.update(np.ascontiguousarray(array).data)
    return total.hexdigest()


def statistics(arrays: Arrays) -> dict[str, list[float]]:
    """Mean and standard deviation of each channel in 0..1, from the counts of the 256 values: exact integers."""
    mean, std = [], []
    images = arrays.get("train_x", np.empty((0, 0, 0, 0)))
    for channel in range(images.shape[3]):
        parts = (images[i : i + 4096, ..., channel].ravel() for i in range(0, len(images), 4096))
        counts = np.sum([np.bincount(part, minlength=256) for part in parts], axis=0).tolist()
        total = sum(counts)
        first = sum(value * count for value, count in enumerate(counts))
        second = sum(value**2 * count for value, count in enumerate(counts))
        mean.append(first / (255 * total))
        std.append(math.sqrt(total * second - first**2) / (255 * total))
    return {"mean": mean, "std": std}
