"""Tensors in memory that processes share: one message at a time, and a board that all of them read."""

import ctypes
import io
import itertools
import math
import mmap
import os
import pickle
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

ALIGN = 64
Place = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]  # of a tensor: its offset, shape and strides


def trim() -> None:
    """Return the memory that malloc keeps for later to the system, if this malloc can (glibc's)."""
    if release := getattr(ctypes.CDLL(None), "malloc_trim", None):
        release(0)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in nested containers."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(part)


class Arena:
    """Shared memory that grows as needed and carries the tensors of one message at a time."""

    def __init__(self):
        self.fd = os.memfd_create("fedrepro")
        self.map: mmap.mmap | None = None

    def reserve(self, size: int) -> None:
        """At least `size` bytes; the old mapping lives as long as tensors use it."""
        size = max(size, ALIGN)
        if self.map is None or len(self.map) < size:
            current = os.fstat(self.fd).st_size
            if current < size:
                os.ftruncate(self.fd, max(size, 2 * current))
            self.map = mmap.mmap(self.fd, 0)

    def write(self, offset: int, item: Tensor) -> None:
        if item.numel():
            flat = torch.frombuffer(self.map, dtype=item.dtype, count=item.numel(), offset=offset)
            flat.copy_(item.as_strided((item.numel(),), (1,)))

    def read(self, place: Place, copy: bool) -> Tensor:
        offset, shape, stride, dtype = place
        if not (count := math.prod(shape)):
            return torch.empty(shape, dtype=dtype)
        flat = torch.frombuffer(self.map, dtype=dtype, count=count, offset=offset)
        return (flat.clone() if copy else flat).as_strided(shape, stride)

    def dump(self, value: Any, board: "Board | None" = None) -> tuple[bytes, int]:
        """Pickle `value` -> (text, bytes of its tensors, which are in shared memory: the board's there)."""
        pickler = _Pickler(value, board)
        self.reserve(pickler.size)
        for offset, item in pickler.tensors:
            self.write(offset, item)
        return pickler.text.getvalue(), pickler.size

    def load(self, text: bytes, size: int, copy: bool, board: "Board | None" = None) -> Any:
        """What `dump` was given; without `copy`, its tensors change with the next message."""
        self.reserve(size)
        return _Unpickler(text, self, board, copy).load()


class Places(Protocol):
    """Where shared tensors are."""

    def place(self, item: Tensor) -> Any: ...


class Source(Protocol):
    """Where tensors are read from."""

    def read(self, place: Any, copy: bool) -> Tensor: ...


class _Pickler(pickle.Pickler):
    """Pickles `value` without its tensors: the board has them, or they are listed with their offsets."""

    def __init__(self, value: Any, board: Places | None):
        self.text = io.BytesIO()
        super().__init__(self.text, protocol=5)
        self._board, self.size = board, 0
        self.tensors: list[tuple[int, Tensor]] = []
        self.dump(value)

    def persistent_id(self, item: Any) -> tuple[bool, Place] | None:
        if not isinstance(item, Tensor):
            return None
        if self._board and (place := self._board.place(item)):
            return True, place
        item, offset = _dense(item), self.size
        self.tensors.append((offset, item))
        self.size += _aligned(item)
        return False, (offset, tuple(item.shape), item.stride(), item.dtype)


class _Unpickler(pickle.Unpickler):
    """Finds the tensors that _Pickler left out."""

    def __init__(self, text: bytes, arena: Source, board: Source | None, copy: bool):
        super().__init__(io.BytesIO(text))
        self._arena, self._board, self._copy = arena, board, copy

    def persistent_load(self, address: tuple[bool, Place]) -> Tensor:
        on_board, place = address
        return (self._board if self._board and on_board else self._arena).read(place, self._copy)


class Arrays:
    """The tensors of one message as flat arrays of bytes, which Ray moves without pickling them."""

    def __init__(self, flat: list[np.ndarray]):
        self._flat = dict(zip(itertools.accumulate(map(_aligned, flat), initial=0), flat, strict=False))

    def read(self, place: Place, copy: bool) -> Tensor:
        offset, shape, stride, dtype = place
        if not math.prod(shape):
            return torch.empty(shape, dtype=dtype)
        with warnings.catch_warnings(action="ignore"):  # that the object store's memory cannot be written
            flat = torch.from_numpy(self._flat[offset])
        return (flat.clone() if copy else flat).view(dtype).as_strided(shape, stride)


def pack(value: Any, board: Places | None = None) -> tuple[bytes, list[np.ndarray]]:
    """Pickle `value` -> (text, its tensors except those on the board)."""
    pickler = _Pickler(value, board)
    return pickler.text.getvalue(), [
        item.as_strided((item.numel(),), (1,)).view(torch.uint8).numpy() for _, item in pickler.tensors
    ]


def unpack(text: bytes, flat: list[np.ndarray], copy: bool, board: Source | None = None) -> Any:
    """What `pack` was given; without `copy`, its tensors must not be written."""
    return _Unpickler(text, Arrays(flat), board, copy).load()


class Board(Arena):
    """Shared memory that all workers read: each shared tensor is written once, with the first task that has it."""

    def __init__(self):
        super().__init__()
        self.share(())

    def share(self, tensors: Iterable[Tensor]) -> None:
        """Start again with these; no worker may be reading."""
        self._shared = {id(tensor): tensor for tensor in tensors}  # holds them, so that ids stay theirs
        self._places: dict[int, Place] = {}
        self.size = 0

    def place(self, item: Tensor) -> Place | None:
        """Where the tensor is, if it is a shared one."""
        key = id(item)
        if key in self._shared and key not in self._places:
            item, offset = _dense(item), self.size
            self.size += _aligned(item)
            self.reserve(self.size)
            self.write(offset, item)
            self._places[key] = (offset, tuple(item.shape), item.stride(), item.dtype)
        return self._places.get(key)


def _dense(item: Tensor) -> Tensor:
    """On the CPU, without gaps, outside of autograd."""
    item = item.detach().cpu()
    if item.is_contiguous() or item.is_contiguous(memory_format=torch.channels_last):
        return item
    return item.contiguous()


def _aligned(item: Tensor | np.ndarray) -> int:
    return -(-item.nbytes // ALIGN) * ALIGN
