"""One run from its first round to its result, resumed where an earlier process stopped.

The same Run gives the same bytes on any number of workers and after any interruption.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch

from fedrepro.checks import choose
from fedrepro.errors import Failure, bad
from fedrepro.simulation import metrics
from fedrepro.simulation.client import Worker
from fedrepro.simulation.executor import Executor, Processes, Serial
from fedrepro.simulation.federation import Federation
from fedrepro.simulation.provenance import provenance
from fedrepro.simulation.run import Run
from fedrepro.simulation.states import Clients
from fedrepro.simulation.store import Store, digest, rounds_digest
from fedrepro.simulation.tree import Tree

ENGINES = ("process", "ray")


@dataclass(frozen=True)
class Result:
    run: Run
    rows: list[dict]
    weights: Tree
    buffers: Tree
    provenance: dict
    record: dict = field(default_factory=dict)  # what the method's server learned beside the weights

    @cached_property
    def rounds(self):
        """One row a round, with the derived columns ema_accuracy and best_accuracy."""
        import pandas as pd

        table = pd.DataFrame(self.rows)
        tested = table["accuracy"].dropna()
        table["ema_accuracy"] = metrics.ema(table["accuracy"])
        table["best_accuracy"] = pd.Series(metrics.best(tested.tolist()), index=tested.index)
        return table

    @cached_property
    def digest(self) -> str:
        """sha256 over the final weights and the accuracy and loss columns, nothing else."""
        return digest(self.weights, self.buffers, self.rows)


def pick_device(device: str) -> str:
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError):
        raise bad("device", device, "auto, cpu, or a device this torch can use") from None
    return device


def count_workers(workers: int | None) -> int:
    if workers is None:
        workers = os.environ.get("FEDREPRO_WORKERS") or len(os.sched_getaffinity(0))
        workers = int(workers) if str(workers).isdigit() else workers
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise bad("workers", workers, "a whole number from 1")
    return workers


def pick_engine(engine: str | None) -> str:
    return choose("engine", engine or os.environ.get("FEDREPRO_ENGINE") or "process", ENGINES)


def _spread(engine: str, workers: int | None, resource: str = "CPU") -> int:
    """How many tasks may run side by side."""
    if engine == "process":
        return count_workers(workers)
    from fedrepro.simulation import cluster

    return cluster.count(None if workers is None else count_workers(workers), resource)


def _executor(engine: str, context, workers: int, gpus: int = 0) -> Executor:
    if engine == "ray":
        from fedrepro.simulation.cluster import Cluster

        return Cluster(context, workers, gpus)
    return Processes(context, workers) if workers > 1 else Serial(context)


def _session(run: Run, store, workers: int | None, device: str, engine: str | None) -> Iterator[dict | Result]:
    """Every row as it is made (old ones first when a run goes on), then the Result."""
    engine, device = pick_engine(engine), pick_device(device)
    workers = _spread(engine, workers)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = executor = clients = shelf = None
    try:
        worker = Worker(run, device)  # before the store, so that a run that cannot be made writes nothing
        folder = Store(store, run) if store is not None else None
        if folder and folder.finished:
            result = _finished(run, folder)
            yield from result.rows
            yield result
            return
        spread = min(workers, run.per_round) if device == "cpu" else 1
        executor = _executor(engine if device == "cpu" else "process", worker, spread)
        clients = Clients(folder.path / "clients" if folder else None)
        shelf = Clients(folder.path / "server" if folder else None)
        federation = Federation(run, executor, worker, clients, shelf)
        if folder and (saved := folder.resume()):
            federation.restore(saved)
        yield from list(federation.rows)
        try:
            while federation.t < run.rounds:
                federation.advance()
                if folder and folder.due():
                    folder.save(federation.snapshot(), clients, shelf)
                yield federation.rows[-1]
        finally:
            complete = len(federation.rows) == federation.t
            if folder and complete and folder.safe < federation.t:
                folder.save(federation.snapshot(), clients, shelf)
        result = Result(run, federation.rows, federation.server["w"], federation.server["b"],
                        provenance(run, worker, federation.rows),
                        federation.method.record(federation.server))  # fmt: skip
        if folder:
            _keep(result, folder)
        yield result
    finally:
        if executor:
            executor.close()
        for states in (clients, shelf):
            if states:
                states.close()
        if folder:
            folder.close()
        torch.set_num_threads(threads)


def _keep(result: Result, folder: Store) -> None:
    summary = {"run": result.run.described, "id": result.run.id, "digest": result.digest,
               "rounds_digest": rounds_digest(result.rows), **result.provenance}  # fmt: skip
    weights = {"w": result.weights, "b": result.buffers, "record": result.record}
    folder.finish(summary, weights, result.rows)


def _finished(run: Run, folder: Store) -> Result:
    summary, rows, weights = folder.result()
    keep = ("data", "fedrepro", "commit", "versions", "machine", "wall_time")
    return Result(run, rows, weights["w"], weights["b"], {k: summary[k] for k in keep},
                  weights.get("record", {}))  # fmt: skip


def rounds(
    run: Run, *, store=None, workers: int | None = None, device: str = "auto", engine: str | None = None
) -> Iterator[dict]:
    """train() as a generator: one row a round, for live plots. Close it to stop; a store lets it go on later."""
    with contextlib.closing(_session(run, store, workers, device, engine)) as session:
        yield from (item for item in session if not isinstance(item, Result))


def train(
    run: Run, *, store=None, workers: int | None = None, device: str = "auto", engine: str | None = None,
    progress: Callable | None = None,
) -> Result:  # fmt: skip
    """Train to the end; with a store, go on where an earlier process stopped. `progress(row)` after each round.

    `engine`: process (this machine) or ray (the clients of a round go to a Ray cluster).
    """
    with contextlib.closing(_session(run, store, workers, device, engine)) as session:
        for item in session:
            if isinstance(item, Result):
                return item
            if progress:
                progress(item)
    raise Failure("the run ended without a result")
