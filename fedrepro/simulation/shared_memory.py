"""Tensors in memory that processes share: one message at a time, and a board that all of them read."""

import io
import math
import mmap
import os
import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

ALIGN = 64
Place = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]  # of a tensor: its offset, shape and strides


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
        tensors, size = [], 0

        class Pickler(pickle.Pickler):
            def persistent_id(self, item):
                nonlocal size
                if not isinstance(item, Tensor):
                    return None
                if board and (place := board.place(item)):
                    return True, place
                item = _dense(item)
                place = (size, tuple(item.shape), item.stride(), item.dtype)
                tensors.append((size, item))
                size += _aligned(item)
                return False, place

        text = io.BytesIO()
        Pickler(text, protocol=5).dump(value)
        self.reserve(size)
        for offset, item in tensors:
            self.write(offset, item)
        return text.getvalue(), size

    def load(self, text: bytes, size: int, copy: bool, board: "Board | None" = None) -> Any:
        """What `dump` was given; without `copy`, its tensors change with the next message."""
        self.reserve(size)
        own = self

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, address):
                on_board, place = address
                return (board if board and on_board else own).read(place, copy)

        return Unpickler(io.BytesIO(text)).load()


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


def _aligned(item: Tensor) -> int:
    return -(-item.nbytes // ALIGN) * ALIGN
