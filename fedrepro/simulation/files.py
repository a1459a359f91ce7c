"""Atomic writes, and tensor files that load without executing code."""

import contextlib
import json
import os
import pickle
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch

from fedrepro.errors import BadInput
from fedrepro.simulation import scratch
from fedrepro.simulation.tree import Tree


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """`write(file)` to a temporary file beside it, fsync, rename; until then the old file stays intact."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.{scratch.owner()}")
    os.fchmod(handle, 0o644)  # mkstemp's files are for their owner only
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def write_json(path: Path, value: object) -> None:
    write_atomically(path, lambda f: f.write(json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"))


def plain(value: Any) -> Any:
    """Trees as marked dictionaries: a file must load with weights_only=True."""
    if isinstance(value, Tree):
        return {"__tree__": dict(value)}
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list | tuple) else value


def rich(value: Any) -> Any:
    """What `plain` was made from."""
    if isinstance(value, dict):
        return Tree(value["__tree__"]) if "__tree__" in value else {k: rich(v) for k, v in value.items()}
    return [rich(v) for v in value] if isinstance(value, list) else value


def save_tensors(path: Path, value: Any) -> None:
    try:
        write_atomically(path, lambda f: torch.save(plain(value), f))
    except RuntimeError as error:  # of torch.save; what ended the write, such as Ctrl-C or a full disk, came before it
        raise error.__context__ or error from None


def damaged(path: Path, why: str) -> BadInput:
    return BadInput(f"store: {path} cannot be read ({why}); delete its folder to train the run again")


def load_tensors(path: Path, mapped: bool = False, check: bool = True) -> Any:
    """Nothing is executed, and to `check` every byte is compared with its checksum, which torch.load does not do.

    `mapped` tensors stay on disk until they are used."""
    try:
        with zipfile.ZipFile(path) as parts:
            if check and parts.testzip():
                raise zipfile.BadZipFile
        return rich(torch.load(path, weights_only=True, map_location="cpu", mmap=mapped))
    except (OSError, RuntimeError, ValueError, LookupError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        raise damaged(path, type(error).__name__) from None
