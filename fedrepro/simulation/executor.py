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
from typing import Any

import torch
from torch import Tensor

from fedrepro.errors import Failure

ALIGN = 64
RETRIES = 3


class Executor:
    context: Any
    workers = 1

    def stream(self, name: str, tasks: Sequence[tuple]) -> Iterator[tuple[int, Any]]:
        """(i, context.name(*tasks[i])) for every i, as they are done."""
        raise NotImplementedError

    def map(self, name: str, tasks: Sequence[tuple]) -> list:
        """[context.name(*task) for task in tasks], in that order whoever is first."""
        results = [None] * len(tasks)
        for i, result in self.stream(name, tasks):
            results[i] = result
        return results

    def close(self) -> None:
        pass


class Serial(Executor):
    def __init__(self, context: Any):
        self.context = context

    def stream(self, name: str, tasks: Sequence[tuple]) -> Iterator[tuple[int, Any]]:
        for i, task in enumerate(tasks):
            yield i, getattr(self.context, name)(*task)


class Arena:
    """A shared, growing piece of memory that carries the tensors of one message at a time."""

    def __init__(self):
        self.fd = os.memfd_create("fedrepro")
        self.map: mmap.mmap | None = None

    def _reserve(self, size: int) -> None:
        """The old mapping, if tensors still look into it, lives on until they are gone."""
        if self.map is None or len(self.map) < size:
            current = os.fstat(self.fd).st_size
            if current < size:
                os.ftruncate(self.fd, max(size, 2 * current))
            self.map = mmap.mmap(self.fd, 0)

    def dump(self, value) -> tuple[bytes, int]:
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
                place = (size, tuple(item.shape), item.stride(), item.dtype)
                tensors.append((size, item))
                size += -(-item.nbytes // ALIGN) * ALIGN
                return place

        text = io.BytesIO()
        Pickler(text, protocol=5).dump(value)
        self._reserve(max(size, ALIGN))
        for offset, item in tensors:
            if item.numel():
                flat = torch.frombuffer(self.map, dtype=item.dtype, count=item.numel(), offset=offset)
                flat.copy_(item.as_strided((item.numel(),), (1,)))
        return text.getvalue(), size

    def load(self, text: bytes, size: int, copy: bool):
        self._reserve(max(size, ALIGN))
        arena = self.map

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, place):
                offset, shape, stride, dtype = place
                count = 1
                for extent in shape:
                    count *= extent
                if not count:
                    return torch.empty(shape, dtype=dtype)
                flat = torch.frombuffer(arena, dtype=dtype, count=count, offset=offset)
                return (flat.clone() if copy else flat).as_strided(shape, stride)

        return Unpickler(io.BytesIO(text)).load()


def _serve(context, pipe, inbox: Arena, outbox: Arena, inherited) -> None:
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


class Processes(Executor):
    """`workers` forked processes that inherit `context`; a worker that dies is replaced, its task done again."""

    def __init__(self, context: Any, workers: int):
        self.context, self.workers, self.lost = context, workers, 0
        self._slots: list[dict] = [{} for _ in range(workers)]
        for slot in self._slots:
            self._start(slot)

    def _start(self, slot: dict) -> None:
        fork = multiprocessing.get_context("fork")
        ours, theirs = fork.Pipe()
        inherited = [s["pipe"] for s in self._slots if "pipe" in s] + [ours]
        slot.update(pipe=ours, inbox=Arena(), outbox=Arena(), task=None)
        process = fork.Process(
            target=_serve, args=(self.context, theirs, slot["inbox"], slot["outbox"], inherited), daemon=True
        )
        sys.stdout.flush()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})  # until the child is set up
        process.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        slot["process"] = process
        theirs.close()

    def stream(self, name: str, tasks: Sequence[tuple]) -> Iterator[tuple[int, Any]]:
        todo = list(range(len(tasks)))[::-1]
        tries, open_tasks = [0] * len(tasks), len(tasks)
        while open_tasks:
            for slot in self._slots:
                if slot["task"] is None and todo:
                    self._send(slot, name, tasks, todo.pop(), tries)
            busy = {slot["pipe"]: slot for slot in self._slots if slot["task"] is not None}
            for pipe in multiprocessing.connection.wait(list(busy)):
                slot = busy[pipe]
                i = slot["task"]
                try:
                    fine, *parcel = pipe.recv()
                except (EOFError, OSError):
                    todo.append(i)
                    self._replace(slot)
                    continue
                slot["task"] = None
                if not fine:
                    self.close()
                    raise parcel[0]
                open_tasks -= 1
                yield i, slot["outbox"].load(*parcel, copy=True)

    def _send(self, slot: dict, name: str, tasks: Sequence[tuple], i: int, tries: list[int]) -> None:
        tries[i] += 1
        if tries[i] > RETRIES:
            self.close()
            raise Failure(f"a worker process died {RETRIES} times on the same task; is memory short?")
        slot["task"] = i
        # A pipe broken here is found by stream(), which waits on it.
        with contextlib.suppress(OSError):
            slot["pipe"].send((name, *slot["inbox"].dump(tasks[i])))

    def _replace(self, slot: dict) -> None:
        process = slot["process"]
        process.join()
        self.lost += 1
        print(f"fedrepro: a worker process died (exit code {process.exitcode}); "
              "its task is done again, no finished round is lost", file=sys.stderr)  # fmt: skip
        slot["pipe"].close()
        del slot["pipe"]
        self._start(slot)

    def close(self) -> None:
        slots, self._slots = self._slots, []
        for slot in slots:
            slot["pipe"].close()
            if slot["task"] is not None:
                slot["process"].terminate()
            slot["process"].join()
            for arena in (slot["inbox"], slot["outbox"]):
                with contextlib.suppress(OSError):
                    os.close(arena.fd)
