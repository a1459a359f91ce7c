"""Executors behind one map(): serial, and persistent worker processes fed through shared memory (cluster.py: Ray)."""

import contextlib
import io
import mmap
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch import Tensor

from fedrepro.errors import Failure

ALIGN = 64
RETRIES = 3


class Executor:
    """Does tasks: calls of one method of `context`, with a tuple of arguments each."""

    context: Any
    workers = 1

    def stream(self, name: str, tasks: Sequence[tuple]) -> Iterator[tuple[int, Any]]:
        """(i, context.name(*tasks[i])) for every i, each as soon as it is done."""
        raise NotImplementedError

    def map(self, name: str, tasks: Sequence[tuple]) -> list[Any]:
        """[context.name(*task) for task in tasks], in that order, whichever is done first."""
        results = dict(self.stream(name, tasks))
        return [results[i] for i in range(len(tasks))]

    def close(self) -> None:
        """End the workers."""


class Serial(Executor):
    """One task after the other, in this process."""

    def __init__(self, context: Any):
        self.context = context

    def stream(self, name: str, tasks: Sequence[tuple]) -> Iterator[tuple[int, Any]]:
        for i, task in enumerate(tasks):
            yield i, getattr(self.context, name)(*task)


class Arena:
    """Shared memory that grows as needed and carries the tensors of one message at a time."""

    def __init__(self):
        self.fd = os.memfd_create("fedrepro")
        self.map: mmap.mmap | None = None

    def _reserve(self, size: int) -> None:
        """At least `size` bytes; the old mapping lives as long as tensors use it."""
        if self.map is None or len(self.map) < size:
            current = os.fstat(self.fd).st_size
            if current < size:
                os.ftruncate(self.fd, max(size, 2 * current))
            self.map = mmap.mmap(self.fd, 0)

    def dump(self, value: Any) -> tuple[bytes, int]:
        """Pickle `value` -> (text, bytes of its tensors, which are in shared memory)."""
        tensors, size = [], 0

        class Pickler(pickle.Pickler):
            def persistent_id(self, item):
                nonlocal size
                if not isinstance(item, Tensor):
                    return None
                item = item.detach()
                if item.device.type != "cpu":
                    item = item.cpu()
                if not (item.is_contiguous() or item.is_contiguous(memory_format=torch.channels_last)):
                    item = item.contiguous()
                address = (size, tuple(item.shape), item.stride(), item.dtype)
                tensors.append((size, item))
                size += -(-item.nbytes // ALIGN) * ALIGN
                return address

        text = io.BytesIO()
        Pickler(text, protocol=5).dump(value)
        self._reserve(max(size, ALIGN))
        for offset, item in tensors:
            if item.numel():
                flat = torch.frombuffer(self.map, dtype=item.dtype, count=item.numel(), offset=offset)
                flat.copy_(item.as_strided((item.numel(),), (1,)))
        return text.getvalue(), size

    def load(self, text: bytes, size: int, copy: bool) -> Any:
        """What `dump` was given; without `copy`, its tensors change with the next message."""
        self._reserve(max(size, ALIGN))
        arena = self.map

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, address):
                offset, shape, stride, dtype = address
                count = 1
                for extent in shape:
                    count *= extent
                if not count:
                    return torch.empty(shape, dtype=dtype)
                flat = torch.frombuffer(arena, dtype=dtype, count=count, offset=offset)
                return (flat.clone() if copy else flat).as_strided(shape, stride)

        return Unpickler(io.BytesIO(text)).load()


def _serve(context: Any, pipe: Connection, inbox: Arena, outbox: Arena, inherited: list[Connection]) -> None:
    """The worker process: does tasks until its pipe is closed."""
    for other in inherited:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    torch.set_num_threads(1)
    while True:
        try:
            name, *parcel = pipe.recv()
            task = inbox.load(*parcel, copy=False)
        except (EOFError, OSError):  # closed, or reset because an answer of ours was never read
            return
        try:
            answer = (True, *outbox.dump(getattr(context, name)(*task)))
        except Exception as error:
            error.add_note(traceback.format_exc())
            answer = (False, error)
        try:
            pipe.send(answer)
        except OSError:
            return  # the parent is gone


@dataclass(eq=False)
class _Child:
    """A worker process, the way to it and the number of the task it is busy with."""

    process: BaseProcess
    pipe: Connection
    inbox: Arena
    outbox: Arena
    task: int | None = None


class Processes(Executor):
    """`workers` forked processes that inherit `context`; one that dies is replaced and its task repeated."""

    def __init__(self, context: Any, workers: int):
        self.context, self.workers, self.lost = context, workers, 0
        self._children: list[_Child] = []
        for _ in range(workers):
            self._children.append(self._start())

    def _start(self) -> _Child:
        fork = multiprocessing.get_context("fork")
        ours, theirs = fork.Pipe()
        inbox, outbox = Arena(), Arena()
        inherited = [*(child.pipe for child in self._children), ours]
        process = fork.Process(target=_serve, args=(self.context, theirs, inbox, outbox, inherited), daemon=True)
        sys.stdout.flush()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})  # until the child is set up
        process.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
        return _Child(process, ours, inbox, outbox)

    def stream(self, name: str, tasks: Sequence[tuple]) -> Iterator[tuple[int, Any]]:
        todo = list(range(len(tasks)))[::-1]
        tries, open_tasks = [0] * len(tasks), len(tasks)
        while open_tasks:
            for child in self._children:
                if child.task is None and todo:
                    self._send(child, name, tasks, todo.pop(), tries)
            busy = [(child, child.task) for child in self._children if child.task is not None]
            ready = multiprocessing.connection.wait([child.pipe for child, _ in busy])
            for child, i in busy:
                if child.pipe not in ready:
                    continue
                try:
                    fine, *parcel = child.pipe.recv()
                except (EOFError, OSError):
                    todo.append(i)
                    self._replace(child)
                    continue
                child.task = None
                if not fine:
                    self.close()
                    raise parcel[0]
                open_tasks -= 1
                yield i, child.outbox.load(*parcel, copy=True)

    def _send(self, child: _Child, name: str, tasks: Sequence[tuple], i: int, tries: list[int]) -> None:
        tries[i] += 1
        if tries[i] > RETRIES:
            self.close()
            raise Failure(f"a worker process died {RETRIES} times on the same task; is memory short?")
        child.task = i
        # A pipe broken here is found by stream(), which waits on it.
        with contextlib.suppress(OSError):
            child.pipe.send((name, *child.inbox.dump(tasks[i])))

    def _replace(self, child: _Child) -> None:
        child.process.join()
        child.pipe.close()
        self.lost += 1
        code = child.process.exitcode
        print(
            f"fedrepro: a worker process died (exit code {code}); its task is repeated, no round is lost",
            file=sys.stderr,
        )
        slot = self._children.index(child)
        del self._children[slot]
        self._children.insert(slot, self._start())

    def close(self) -> None:
        children, self._children = self._children, []
        for child in children:
            child.pipe.close()
            if child.task is not None:
                child.process.terminate()
            child.process.join()
            for arena in (child.inbox, child.outbox):
                with contextlib.suppress(OSError):
                    os.close(arena.fd)
