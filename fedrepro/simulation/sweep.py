"""Many runs: side by side, or one by one when that keeps more workers busy."""

import contextlib
import os
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from fedrepro.simulation.client import Worker
from fedrepro.simulation.progress import stoppable
from fedrepro.simulation.result import Result
from fedrepro.simulation.run import Run
from fedrepro.simulation.session import (
    Folder,
    count_workers,
    parallel_tasks,
    pick_device,
    pick_engine,
    start_executor,
    train,
)
from fedrepro.simulation.store import Store, check_root

Digests = Generator[tuple[Run, str]]  # of each run as it ends


class _Runs:
    """The context of a sweep's workers: one task is one whole run, to its end even if it diverges."""

    def __init__(self, store: Folder, device: str):
        self.store, self.device = store, device

    def digest(self, run: Run) -> str:
        return self._train(run, self.store).digest

    def result(self, run: Run) -> Result:
        """On a node of a cluster: checkpoints stay there, the result is sent back."""
        return self._train(run, os.environ.get("FEDREPRO_NODE_STORE", self.store))

    def _train(self, run: Run, store: Folder) -> Result:
        return train(run, store=store, workers=1, device=self.device, engine="process", stop_diverged=False)


def sweep(
    runs: Sequence[Run],
    *,
    store: Folder,
    workers: int | None = None,
    device: str = "auto",
    engine: str | None = None,
    progress: Callable[[Run], object] | None = None,
) -> dict[str, str]:
    """Train many runs -> {run id: digest}: side by side, or one by one when that keeps more workers busy.

    A run that diverges is a result like any other: it is trained to its end, and the others are not affected.
    """
    runs, engine, digests = list({run.id: run for run in runs}.values()), pick_engine(engine), {}
    train_all = _on_cluster if engine == "ray" else _on_this_machine
    with stoppable(kept=True), contextlib.closing(train_all(runs, check_root(store), workers, device)) as done:
        for run, digest in done:
            digests[run.id] = digest
            if progress:
                progress(run)
    return {run.id: digests[run.id] for run in runs}


def _on_this_machine(runs: list[Run], store: Path, workers: int | None, device: str) -> Digests:
    workers, device = count_workers(workers), pick_device(device)
    _check_all(runs, store, device)
    if len(runs) < workers or device != "cpu":
        yield from _one_by_one(runs, store, workers, device, "process")
        return
    with contextlib.closing(start_executor("process", _Runs(store, device), workers)) as executor:
        for i, found in executor.stream("digest", [(run,) for run in runs]):
            yield runs[i], found


def _one_by_one(runs: list[Run], store: Path, workers: int, device: str, engine: str) -> Digests:
    for run in runs:
        result = train(run, store=store, workers=workers, device=device, engine=engine, stop_diverged=False)
        yield run, result.digest


def _on_cluster(runs: list[Run], store: Path, workers: int | None, device: str) -> Digests:
    """Finished runs are read here. A node need not see this store: what it finishes is sent back."""
    device = device if device.startswith("cuda") else pick_device(device)  # this machine need not have a GPU
    gpus, store = int(device != "cpu"), store.absolute()
    workers = parallel_tasks("ray", workers, "GPU" if gpus else "CPU")
    _check_all(runs, store, "cpu")
    here = [run for run in runs if (store / run.id / "result.json").exists()]
    todo = [run for run in runs if run not in here]
    yield from _one_by_one(here, store, 1, "cpu", "process")
    if todo and not gpus and len(todo) < min(workers, max(run.per_round for run in todo)):
        yield from _one_by_one(todo, store, workers, device, "ray")
    elif todo:
        executor = start_executor("ray", _Runs(store, device), min(workers, len(todo)), gpus)
        with contextlib.closing(executor):
            for i, result in executor.stream("result", [(run,) for run in todo]):
                with contextlib.closing(Store(store, todo[i])) as folder:
                    if not folder.finished:  # the node does not share this store
                        folder.finish(result)
                yield todo[i], result.digest


def _check_all(runs: Sequence[Run], store: Path, device: str) -> None:
    """Build the partition and model of every unfinished run, so that nothing is trained if one cannot be built."""
    needed = {}
    for run in runs:
        if not (store / run.id / "result.json").exists():
            parts = (run.data, run.split, run.clients, run.samples, run.share, run.holdout, run.seed, run.personal)
            needed[(*parts, run.model, run.batch)] = run
    for run in needed.values():
        Worker(run, device)
