"""Many runs: side by side, or one by one when that keeps more workers busy."""

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from fedrepro.simulation.client import Worker
from fedrepro.simulation.run import Run
from fedrepro.simulation.session import (
    Result,
    _executor,
    _keep,
    _spread,
    count_workers,
    pick_device,
    pick_engine,
    train,
)
from fedrepro.simulation.store import Store, check_root


class _Cells:
    """The context of a sweep's workers: one task is one whole run."""

    def __init__(self, store, device: str):
        self.store, self.device = store, device

    def cell(self, run: Run) -> str:
        return train(run, store=self.store, workers=1, device=self.device, engine="process").digest

    def away(self, run: Run) -> Result:
        """On a node of a cluster: kept there as far as it comes, and sent home whole."""
        store = os.environ.get("FEDREPRO_NODE_STORE", self.store)
        return train(run, store=store, workers=1, device=self.device, engine="process")


def sweep(
    runs: Sequence[Run], *, store, workers: int | None = None, device: str = "auto", engine: str | None = None,
    progress: Callable | None = None,
) -> dict[str, str]:  # fmt: skip
    """Train many runs -> {run id: digest}: side by side, or one by one when that keeps more workers busy."""
    runs, engine = list({run.id: run for run in runs}.values()), pick_engine(engine)
    check_root(store)
    if engine == "ray":
        return _sweep_away(runs, Path(store).absolute(), workers, device, progress)
    workers, device = count_workers(workers), pick_device(device)
    _check_all(runs, store, device)
    if len(runs) < workers or device != "cpu":
        return _sweep_one_by_one(runs, store, workers, device, engine, progress)
    digests = {}
    with contextlib.closing(_executor(engine, _Cells(store, device), workers)) as executor:
        for i, found in executor.stream("cell", [(run,) for run in runs]):
            digests[runs[i].id] = found
            if progress:
                progress(runs[i])
    return {run.id: digests[run.id] for run in runs}


def _sweep_one_by_one(runs, store, workers, device, engine, progress) -> dict[str, str]:
    digests = {}
    for run in runs:
        digests[run.id] = train(run, store=store, workers=workers, device=device, engine=engine).digest
        if progress:
            progress(run)
    return digests


def _sweep_away(runs: list[Run], store: Path, workers: int | None, device: str, progress) -> dict[str, str]:
    """On a cluster. Finished runs are read here; a node need not see this store, what it finishes is sent home."""
    device = device if device.startswith("cuda") else pick_device(device)  # this machine need not have a GPU
    gpus = int(device != "cpu")
    workers = _spread("ray", workers, "GPU" if gpus else "CPU")
    _check_all(runs, store, "cpu")
    here = [run for run in runs if (store / run.id / "result.json").exists()]
    todo = [run for run in runs if run not in here]
    digests = _sweep_one_by_one(here, store, 1, "cpu", "process", progress)
    if todo and not gpus and len(todo) < min(workers, max(run.per_round for run in todo)):
        digests |= _sweep_one_by_one(todo, store, workers, device, "ray", progress)
    elif todo:
        with contextlib.closing(_executor("ray", _Cells(store, device), min(workers, len(todo)), gpus)) as executor:
            for i, result in executor.stream("away", [(run,) for run in todo]):
                with contextlib.closing(Store(store, todo[i])) as folder:
                    if not folder.finished:  # the node does not share this store
                        _keep(result, folder)
                digests[todo[i].id] = result.digest
                if progress:
                    progress(todo[i])
    return {run.id: digests[run.id] for run in runs}


def _check_all(runs: Sequence[Run], store, device: str) -> None:
    """Make every partition and model that is not finished yet, so that nothing is trained if one cannot be."""
    needed = {}
    for run in runs:
        if not (Path(store) / run.id / "result.json").exists():
            parts = (run.data, run.split, run.clients, run.samples, run.share, run.holdout, run.seed, run.personal)
            needed[(*parts, run.model, run.batch)] = run
    for run in needed.values():
        Worker(run, device)
