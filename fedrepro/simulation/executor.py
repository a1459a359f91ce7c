"""Executors behind one map(): serial, and persistent worker processes fed through shared memory (cluster.py: Ray)."""

import contextlib
import gc
import math
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from fedrepro.errors import Failure
from fedrepro.simulation.shared_memory import Arena, Board, tensors_in, trim

RETRIES = 3
TRIM = 8 << 20  # bytes of an answer after which a worker returns its free memory: a few ms, against a long task


class Executor:
    """Does tasks: calls of one method of `context`, with a tuple of arguments each."""

    context: Any
    workers = 1
    same_files = True  # whether the workers see this process's files

    def share(self, value: Any) -> None:
        """Tensors in `value` reach a worker once, not with every task that has them, until the next share()."""

    def stream(self, name: str, tasks: Iterable[tuple], ahead: float = math.inf) -> Iterator[tuple[int, Any]]:
        """(i, context.name(*task)) for every task, numbered from 0, each as soon as it is done.

        No task starts `ahead` or more places after the first that is not done."""
        raise NotImplementedError

    def ordered(self, name: str, tasks: Iterable[tuple], ahead: float = math.inf) -> Iterator[Any]:
        """context.name(*task) for every task, in their order; at most `ahead` of them wait for an earlier one."""
        waiting, first = {}, 0
        for i, result in self.stream(name, tasks, ahead):
            waiting[i] = result
            del result  # not held while the consumer works
            while first in waiting:
                yield waiting.pop(first)
                first += 1

    def map(self, name: str, tasks: Iterable[tuple]) -> list[Any]:
        """[context.name(*task) for task in tasks], in that order, whichever is done first."""
        return list(self.ordered(name, tasks))

    def close(self) -> None:
        """End the workers."""


class Serial(Executor):
    """One task after the other, in this process."""

    def __init__(self, context: Any):
        self.context = context

    def stream(self, name: str, tasks: Iterable[tuple], ahead: float = math.inf) -> Iterator[tuple[int, Any]]:
        for i, task in enumerate(tasks):
            yield i, getattr(self.context, name)(*task)


class Queue:
    """Numbered tasks, each made when the one before is taken; true until all are done.

    None is taken `ahead` or more places after the first that is not done."""

    def __init__(self, tasks: Iterable[tuple], ahead: float):
        self._fresh, self._ahead, self._count = iter(tasks), ahead, 0
        self._next = next(self._fresh, None)
        self.open: dict[int, tuple] = {}  # begun, or to be repeated
        self._again: list[int] = []
        self._deaths: Counter[int] = Counter()

    def take(self) -> int | None:
        """The number of the next task, if one may start now."""
        if self._again:
            return self._again.pop()
        i = self._count
        if self._next is None or i - min(self.open, default=i) >= self._ahead:
            return None
        self.open[i], self._next, self._count = self._next, next(self._fresh, None), i + 1
        return i

    def repeat(self, i: int) -> bool:
        """Put back the task of a dead worker; False if that has happened too often."""
        self._again.append(i)
        self._deaths[i] += 1
        return self._deaths[i] < RETRIES

    def done(self, i: int) -> None:
        del self.open[i]

    def __bool__(self) -> bool:
        return bool(self.open) or self._next is not None


def _serve(
    context: Any, pipe: Connection, inbox: Arena, outbox: Arena, board: Board, inherited: list[Connection]
) -> None:
    """The worker process: does tasks until its pipe is closed."""
    for other in inherited:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    torch.set_num_threads(1)
    gc.freeze()  # a collection would write to every inherited object, and so copy its page
    while True:
        try:
            name, shared, *parcel = pipe.recv()
            board.reserve(shared)
            task = inbox.load(*parcel, copy=False, board=board)
        except (EOFError, OSError):  # closed, or reset because an answer of ours was never read
            return
        try:
            text, size = outbox.dump(getattr(context, name)(*task))
            answer = (True, text, size)
        except Exception as error:
            error.add_note(traceback.format_exc())
            answer, size = (False, error), 0
        try:
            pipe.send(answer)
        except OSError:
            return  # the parent is gone
        if size > TRIM:
            trim()


@dataclass(eq=False)
class _Child:
    """A worker process, the connection to it and the number of its current task."""

    process: BaseProcess
    pipe: Connection
    inbox: Arena
    outbox: Arena
    task: int | None = None


class Processes(Executor):
    """`workers` forked processes that inherit `context`; one that dies is replaced and its task repeated."""

    def __init__(self, context: Any, workers: int):
        self.context, self.workers = context, workers
        self._board = Board()
        self._children: list[_Child] = []
        trim()  # the workers inherit what is left
        for _ in range(workers):
            self._children.append(self._start())

    def _start(self) -> _Child:
        fork = multiprocessing.get_context("fork")
        ours, theirs = fork.Pipe()
        inbox, outbox = Arena(), Arena()
        inherited = [*(child.pipe for child in self._children), ours]
        parts = (self.context, theirs, inbox, outbox, self._board, inherited)
        process = fork.Process(target=_serve, args=parts, daemon=True)
        sys.stdout.flush()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})  # until the child is set up
        process.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
        return _Child(process, ours, inbox, outbox)

    def share(self, value: Any) -> None:
        self._board.share(tensors_in(value))

    def stream(self, name: str, tasks: Iterable[tuple], ahead: float = math.inf) -> Iterator[tuple[int, Any]]:
        queue = Queue(tasks, ahead)
        while queue:
            for child in self._children:
                if child.task is None and (i := queue.take()) is not None:
                    self._send(child, name, i, queue.open[i])
            busy = [(child, child.task) for child in self._children if child.task is not None]
            ready = multiprocessing.connection.wait([child.pipe for child, _ in busy])
            for child, i in busy:
                if child.pipe not in ready:
                    continue
                try:
                    fine, *parcel = child.pipe.recv()
                except (EOFError, OSError):
                    if not queue.repeat(i):
                        self.close()
                        raise Failure(
                            f"a worker process died {RETRIES} times on the same task; is memory short?"
                        ) from None
                    self._replace(child)
                    continue
                child.task = None
                if not fine:
                    self.close()
                    raise parcel[0]
                queue.done(i)
                yield i, child.outbox.load(*parcel, copy=True)

    def _send(self, child: _Child, name: str, i: int, task: tuple) -> None:
        child.task = i
        parcel = child.inbox.dump(task, self._board)
        # A pipe broken here is found by stream(), which waits on it.
        with contextlib.suppress(OSError):
            child.pipe.send((name, self._board.size, *parcel))

    def _replace(self, child: _Child) -> None:
        child.process.join()
        child.pipe.close()
        code = child.process.exitcode
        print(
            f"fedrepro: a worker process died (exit code {code}); its task is repeated, no round is lost",
            file=sys.stderr,
        )
        self._children.remove(child)
        self._children.append(self._start())

    def close(self) -> None:
        children, self._children = self._children, []
        for child in children:
            child.process.terminate()  # a closed pipe would not end it: workers forked since then hold its other end
            child.process.join()
            child.pipe.close()
            for arena in (child.inbox, child.outbox):
                with contextlib.suppress(OSError):
                    os.close(arena.fd)
        if children:
            os.close(self._board.fd)
