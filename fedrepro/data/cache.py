"""Decoded data sets on disk: one folder of .npy arrays and a meta.json each, replaced as a whole."""

import hashlib
import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np

Arrays = dict[str, np.ndarray]


def root() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("FEDREPRO_CACHE") or Path(home) / "fedrepro").expanduser()


def read(name: str) -> tuple[dict, Arrays] | None:
    """The meta data and memory-mapped arrays; None if they are missing, truncated or of another shape."""
    return opened(root() / name)


def opened(folder: Path) -> tuple[dict, Arrays] | None:
    try:
        meta = json.loads((folder / "meta.json").read_text())
        # Copy on write: nobody can change the file, and a stray in-place operation cannot crash the process.
        arrays = {key: np.load(folder / f"{key}.npy", mmap_mode="c") for key in meta["arrays"]}
        same = all(described(folder, key, array) == meta["arrays"][key] for key, array in arrays.items())
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None
    return (meta, arrays) if same else None


def described(folder: Path, key: str, array: np.ndarray) -> dict:
    size = (folder / f"{key}.npy").stat().st_size
    return {"shape": list(array.shape), "dtype": str(array.dtype), "bytes": size}


def write(name: str, arrays: Arrays, meta: dict) -> tuple[dict, Arrays]:
    """Appears complete or not at all; of two processes that write at once, the second takes the first's."""
    root().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=root()) as temporary:
        folder = Path(temporary, name)
        folder.mkdir()
        for key, array in arrays.items():
            with open(folder / f"{key}.npy", "wb") as file:
                np.save(file, array, allow_pickle=False)
                sync(file)
        table = {key: described(folder, key, array) for key, array in arrays.items()}
        with open(folder / "meta.json", "w") as file:
            json.dump({**meta, "sha256": digest(arrays), "arrays": table}, file, indent=1)
            sync(file)
        written = opened(folder)  # stays mapped even if another process replaces it
        publish(folder, root() / name, Path(temporary, "broken"))
        return read(name) or written


def publish(folder: Path, final: Path, aside: Path) -> None:
    if read(final.name) is None:
        with suppress(FileNotFoundError):
            os.rename(final, aside)
    try:
        os.rename(folder, final)
    except OSError:
        if read(final.name) is None:
            raise
    directory = os.open(final.parent, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def sync(file) -> None:
    file.flush()
    os.fsync(file.fileno())


def digest(arrays: Arrays) -> str:
    total = hashlib.sha256()
    for key, array in sorted(arrays.items()):
        total.update(f"{key} {array.dtype} {array.shape}".encode())
        total.update(np.ascontiguousarray(array).data)
    return total.hexdigest()
