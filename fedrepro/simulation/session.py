"""One run from its first round to its result, resumed where an earlier process stopped.

The same Run gives the same bytes on any number of workers and after any interruption.
"""

import contextlib
import os
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch

from fedrepro.checks import choose
from fedrepro.errors import Diverged, Failure, bad
from fedrepro.simulation.client import Worker
from fedrepro.simulation.executor import Executor, Processes, Serial
from fedrepro.simulation.federation import Federation
from fedrepro.simulation.progress import stoppable
from fedrepro.simulation.provenance import provenance
from fedrepro.simulation.result import Result
from fedrepro.simulation.run import Row, Run
from fedrepro.simulation.states import Clients
from fedrepro.simulation.store import Store

ENGINES = ("process", "ray")
Folder = str | os.PathLike[str]


def pick_device(device: str) -> str:
    """The device to train on; `auto` is a GPU if there is one."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError):
        raise bad("device", device, "auto, cpu, or a device this torch can use") from None
    return device


def count_workers(workers: int | None) -> int:
    """How many worker processes: as given, else FEDREPRO_WORKERS, else one per core."""
    value: object = workers
    if value is None:
        given = os.environ.get("FEDREPRO_WORKERS") or str(len(os.sched_getaffinity(0)))
        value = int(given) if given.isdigit() else given
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise bad("workers", value, "a whole number from 1")
    return value


def pick_engine(engine: str | None) -> str:
    """process or ray: as given, else FEDREPRO_ENGINE, else process."""
    return choose("engine", engine or os.environ.get("FEDREPRO_ENGINE") or "process", ENGINES)


def parallel_tasks(engine: str, workers: int | None, resource: str = "CPU") -> int:
    """How many tasks may run side by side."""
    if engine == "process":
        return count_workers(workers)
    from fedrepro.simulation import cluster

    return cluster.count(None if workers is None else count_workers(workers), resource)


def start_executor(engine: str, context: Any, workers: int, gpus: int = 0) -> Executor:
    """The executor whose tasks are calls of `context`'s methods."""
    if engine == "ray":
        from fedrepro.simulation.cluster import Cluster

        return Cluster(context, workers, gpus)
    return Processes(context, workers) if workers > 1 else Serial(context)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """torch on one thread: sums do not depend on the number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def serve(
    run: Run, worker: Worker | None = None, workers: int = 1, engine: str = "process", folder: Store | None = None
) -> Iterator[Federation]:
    """A federation before its next round, which `advance()` does; all it opened is closed at the end."""
    with one_thread(), contextlib.ExitStack() as stack:
        worker = worker or Worker(run)
        kept = [Clients(folder.path / name if folder else None) for name in ("clients", "server")]
        for states in kept:
            stack.callback(states.close)
        executor = stack.enter_context(contextlib.closing(start_executor(engine, worker, workers)))
        federation = Federation(run, executor, worker, *kept)
        if folder and (saved := folder.resume()):
            federation.restore(saved)
        yield federation


def _session(
    run: Run, store: Folder | None, workers: int | None, device: str, engine: str | None, stop_diverged: bool = True
) -> Generator[Row | Result]:
    """Every row as it is known (stored ones first when a run resumes), then the Result."""
    engine, device = pick_engine(engine), pick_device(device)
    workers = min(parallel_tasks(engine, workers), run.per_round)
    if device != "cpu":
        engine, workers = "process", 1
    with one_thread(), contextlib.ExitStack() as stack:
        worker = Worker(run, device)  # before the store: a run that cannot be built writes nothing
        folder = stack.enter_context(contextlib.closing(Store(store, run))) if store is not None else None
        if folder and folder.finished:
            result = _finished(run, folder)
            yield from result.rows
            yield result
            return
        federation = stack.enter_context(serve(run, worker, workers, engine, folder))
        yield from list(federation.rows)
        yield from _remaining_rounds(federation, folder, stop_diverged)
        weights, buffers = federation.server["w"], federation.server["b"]
        record = federation.method.record(federation.server)
        result = Result(run, federation.rows, weights, buffers, provenance(worker, federation.rows), record)
        if folder:
            folder.finish(result)
        yield result


def _remaining_rounds(federation: Federation, folder: Store | None, stop_diverged: bool) -> Iterator[Row]:
    """The rows of the remaining rounds. With a store, a checkpoint is written now and then, and however it ends."""
    run = federation.run
    try:
        while federation.t < run.rounds:
            row = federation.advance()
            if stop_diverged and federation.diverged:
                raise Diverged(
                    f"{run.method} diverged in round {row['round']} of {run.rounds}: its training loss is "
                    f"{row['train_loss']}; a learning rate below {run.lr:g} may help"
                )
            if folder and folder.due():
                folder.save(federation)
            yield row
    finally:
        complete = len(federation.rows) == federation.t and not federation.diverged
        if folder and complete and folder.safe < federation.t:
            folder.save(federation)


def _finished(run: Run, folder: Store) -> Result:
    summary, rows, weights = folder.result()
    known = {key: summary[key] for key in ("data", "fedrepro", "commit", "versions", "machine", "wall_time")}
    return Result(run, rows, weights["w"], weights["b"], known, weights.get("record", {}))


def rounds(
    run: Run,
    *,
    store: Folder | None = None,
    workers: int | None = None,
    device: str = "auto",
    engine: str | None = None,
) -> Generator[Row]:
    """train() as a generator: one row per round, for live plots. Close it to stop; with a store, it resumes later."""
    with contextlib.closing(_session(run, store, workers, device, engine)) as session:
        yield from (item for item in session if not isinstance(item, Result))


def train(
    run: Run,
    *,
    store: Folder | None = None,
    workers: int | None = None,
    device: str = "auto",
    engine: str | None = None,
    progress: Callable[[Row], object] | None = None,
    stop_diverged: bool = True,
) -> Result:
    """Train to the end; with a store, resume where an earlier process stopped. `progress(row)` after each round.

    `engine`: process (this machine) or ray (the clients of a round go to a Ray cluster). A run whose training loss is
    no longer finite ends with `Diverged`, unless `stop_diverged` is False.
    """
    session = _session(run, store, workers, device, engine, stop_diverged)
    with stoppable(store is not None), contextlib.closing(session):
        for item in session:
            if isinstance(item, Result):
                return item
            if progress:
                progress(item)
    raise Failure("the run ended without a result")
