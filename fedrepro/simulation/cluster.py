"""A Ray cluster behind the same map() as the other executors: one actor per CPU or GPU, each with its own context."""

import logging
import math
import os
import platform
import sys
import traceback
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from fedrepro import __version__
from fedrepro.errors import BadInput, Failure, bad
from fedrepro.simulation.executor import RETRIES, Executor, Queue
from fedrepro.simulation.shared_memory import pack, tensors_in, unpack

PATIENCE = 30  # seconds without a free CPU or GPU after which a line says so


def connect():
    """Ray, connected to RAY_ADDRESS, else to the cluster of this machine, else to one started for this process."""
    try:
        import ray  # pyright: ignore[reportMissingImports] - an extra
    except ImportError:
        extra = "pip install 'fedrepro[ray]', or .venv/bin/pip install -e '.[ray]' in a clone"
        raise BadInput(f"engine: ray is not installed; install the extra: {extra}") from None
    if not ray.is_initialized():
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # if we start the cluster
        try:
            ray.init(logging_level=logging.ERROR, include_dashboard=False if "RAY_ADDRESS" not in os.environ else None)
        except (ConnectionError, ValueError, AssertionError) as error:
            raise BadInput(f"address: no Ray cluster answers at {os.environ.get('RAY_ADDRESS')!r} ({error})") from None
        os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address  # for the processes we start
    return ray


def count(workers: int | None, resource: str = "CPU") -> int:
    """How many actors: as given, else one per CPU (or GPU) that the cluster has now."""
    here = int(connect().cluster_resources().get(resource, 0))
    if workers is None and not here:
        raise bad("engine", "ray", f"a cluster with a {resource}; this one has none")
    return workers or here


def versions() -> dict[str, str]:
    """What must be equal everywhere for equal digests."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"fedrepro": __version__, "torch": torch.__version__, "python": python}


class Used:
    """The shared tensors that one task has, in the order of their first use."""

    def __init__(self, shared: dict[int, Tensor]):
        self._shared, self.places = shared, {}

    def place(self, item: Tensor) -> tuple[int] | None:
        return self.places.setdefault(id(item), (len(self.places),)) if id(item) in self._shared else None


class Shared(list[Tensor]):
    """The shared tensors of a task, where it is done."""

    def read(self, place: tuple[int], copy: bool) -> Tensor:
        return self[place[0]]


class Host:
    """The actor: a copy of the context, one task at a time."""

    def __init__(self, context: Any):
        torch.set_num_threads(1)
        self.context = context
        self.shared: tuple[Any, Shared] = (None, Shared())  # where the last shared tensors came from, and they

    def about(self) -> dict[str, str]:
        return versions()

    def call(self, name: str, task: tuple, stored: list) -> tuple[bool, Any]:
        """`stored`: a reference to the task's shared tensors, or nothing. A new one is read where the node has it."""
        try:
            if stored and stored[0] != self.shared[0]:
                import ray  # pyright: ignore[reportMissingImports] - an extra

                self.shared = stored[0], Shared(unpack(*ray.get(stored[0]), copy=False))
            arguments = unpack(*task, copy=False, board=self.shared[1])
            return True, pack(getattr(self.context, name)(*arguments))
        except Exception as error:
            error.add_note(traceback.format_exc())
            return False, error


class Cluster(Executor):
    """`workers` actors on a Ray cluster; one that dies, alone or with its node, is replaced and its task repeated."""

    same_files = False

    def __init__(self, context: Any, workers: int, gpus: int = 0):
        self.context, self.workers, self.lost, self.ray = context, workers, 0, connect()
        self._shared = self.ray.put(context)
        self._actor = self.ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0, max_task_retries=0)(Host)
        self._idle: list = []
        self._asked: dict = {}  # the answer to come -> (actor, whether it is new)
        self._busy: dict = {}  # the answer to come -> (actor, number of the task)
        self._parts: dict[int, Tensor] = {}  # by their id, the tensors that many tasks may have
        self._stored: dict[tuple[int, ...], Any] = {}  # those that tasks had, in the object store
        self._failed = 0  # new actors that died, since the last one that did not
        for _ in range(workers):
            self._start()

    def share(self, value: Any) -> None:
        self._parts = {id(tensor): tensor for tensor in tensors_in(value)}  # holds them, so that ids stay theirs
        self._stored = {}

    def _pack(self, task: tuple) -> tuple[tuple, list]:
        """The task without its shared tensors, and where they are: in the object store, once for all such tasks."""
        used = Used(self._parts)
        packed, key = pack(task, used), tuple(used.places)
        if key and key not in self._stored:
            self._stored[key] = self.ray.put(pack([self._parts[i] for i in key]))
        return packed, [self._stored[key]] if key else []

    def _start(self) -> None:
        actor = self._actor.remote(self._shared)
        self._asked[actor.about.remote()] = actor, True

    def stream(self, name: str, tasks: Iterable[tuple], ahead: float = math.inf) -> Iterator[tuple[int, Any]]:
        queue = Queue(tasks, ahead)
        while queue:
            while self._idle and (i := queue.take()) is not None:
                actor = self._idle.pop()
                self._busy[actor.call.remote(name, *self._pack(queue.open[i]))] = actor, i
            answer = self._next()
            if answer in self._asked:
                self._arrived(answer, *self._asked.pop(answer))
                continue
            actor, i = self._busy.pop(answer)
            try:
                fine, result = self.ray.get(answer)
            except self.ray.exceptions.RayError as error:  # the actor, its node or the answer on it is gone
                if not queue.repeat(i):
                    raise Failure(f"a Ray worker died {RETRIES} times on the same task; {_short(error)}") from None
                self._replace(actor, error)
                continue
            if not fine:
                raise result
            self._idle.append(actor)
            queue.done(i)
            yield i, unpack(*result, copy=True)  # a copy, so that the object store can drop it

    def _next(self):
        """The next answer to arrive."""
        waiting = [*self._busy, *self._asked]
        ready, _ = self.ray.wait(waiting, num_returns=1, timeout=None if self._busy else PATIENCE)
        if not ready:
            print("fedrepro: no free worker on the Ray cluster yet; waiting for one", file=sys.stderr)
            ready, _ = self.ray.wait(waiting, num_returns=1)
        return ready[0]

    def _arrived(self, answer, actor, new: bool) -> None:
        try:
            there = self.ray.get(answer)
        except self.ray.exceptions.RayError as error:
            self._failed += new
            if self._failed == RETRIES:
                raise Failure(f"no worker can start on the Ray cluster: {_short(error)}") from None
            self._start()
            return
        if there != versions():
            raise Failure(f"a node of the Ray cluster has {there}, this process {versions()}; digests would differ")
        self._failed = 0
        self._idle.append(actor)

    def _replace(self, actor, error: Exception) -> None:
        """Idle actors may be lost with the same node: each is asked again before it gets a task."""
        self.lost += 1
        print(f"fedrepro: a Ray worker died ({type(error).__name__}); its task is repeated", file=sys.stderr)
        self.ray.kill(actor)
        self._start()
        for other in self._idle:
            self._asked[other.about.remote()] = other, False
        self._idle = []

    def close(self) -> None:
        for actor in [*self._idle, *(actor for actor, _ in [*self._asked.values(), *self._busy.values()])]:
            self.ray.kill(actor)
        self._idle, self._asked, self._busy = [], {}, {}


def _short(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]
