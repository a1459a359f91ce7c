"""The round, written once.

begin -> for each round: broadcast, local visits, uploads (some late), aggregate, test -> result.
The same Run gives the same bytes on any number of workers and after any interruption.
"""

import contextlib
import functools
import itertools
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch

from fedrepro import __version__, metrics
from fedrepro.errors import Failure, bad, choose
from fedrepro.executor import Executor, Processes, Serial
from fedrepro.fleet import Fleet
from fedrepro.ledger import count, nbytes
from fedrepro.local import TEST_BATCH, Worker
from fedrepro.methods import Round, Upload
from fedrepro.run import Run
from fedrepro.store import Clients, Store, check_root, digest, rounds_digest
from fedrepro.tree import Tree

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


class Federation:
    """The server's side of one run: `advance()` makes one round."""

    def __init__(self, run: Run, executor, worker: Worker, clients: Clients, shelf: Clients | None = None):
        self.run, self.executor, self.worker, self.clients = run, executor, worker, clients
        self.shelf = shelf or Clients(None)
        self.fleet, self.method = Fleet(run), worker.method
        self.t, self.clock, self.rows = 0, 0.0, []
        self.visits: dict[int, int] = {}
        self.pending: list[tuple[int, Upload]] = []  # (round in which it reaches the server, upload)
        self.server = {"w": worker.params.clone(), "b": worker.buffers.clone()}
        self.server |= self.method.server_init(worker.model)

    def snapshot(self) -> dict:
        pending = [[due, list(upload)] for due, upload in self.pending]
        return {
            "t": self.t, "clock": self.clock, "rows": self.rows, "visits": self.visits,
            "pending": pending, "server": self.server, "versions": self.clients.version, "shelf": self.shelf.version,
            "shelf_bytes": self.shelf.size,
        }  # fmt: skip

    def restore(self, saved: dict) -> None:
        self.t, self.clock, self.rows, self.visits = saved["t"], saved["clock"], saved["rows"], saved["visits"]
        self.pending = [(due, Upload(*upload)) for due, upload in saved["pending"]]
        self.server = {k: self._to_device(v) for k, v in saved["server"].items()}
        self.clients.version, self.shelf.version = saved["versions"], saved["shelf"]
        self.shelf.size = saved["shelf_bytes"]

    def _to_device(self, value):
        return value.to(self.worker.device) if isinstance(value, Tree | torch.Tensor) else value

    def advance(self) -> dict:
        started = time.perf_counter()
        self.t += 1
        t, run = self.t, self.run
        r = Round(t, run, self.method.invite(self.fleet.participants(t), self.fleet.limited), self.shelf)
        self.server = self.method.plan(self.server, r)

        messages = [self.method.broadcast(self.server, cid, r) for cid in r.participants]
        planned = time.perf_counter()
        visits = self.executor.map("client", [
            (t, cid, message, self.clients.get(cid), self.visits.get(cid, 0), self.fleet.limited(cid))
            for cid, message in zip(r.participants, messages, strict=True)
        ])  # fmt: skip

        visited = time.perf_counter()
        row = dict.fromkeys(("bytes_down", "bytes_up", "buffer_bytes_down", "buffer_bytes_up"), 0)
        duration, losses, links = 0.0, [], []
        for cid, message, (sent, kept, loss, n) in zip(r.participants, messages, visits, strict=True):
            down, buffers_down = count(message)
            up, buffers_up = count(sent)
            row["bytes_down"] += down
            row["bytes_up"] += up
            row["buffer_bytes_down"] += buffers_down
            row["buffer_bytes_up"] += buffers_up
            compute, communicate = self.fleet.seconds(t, cid, up, down)
            links.append(self.fleet.transfer(t, cid, up, down))
            duration = max(duration, compute + communicate)
            self.clients.put(cid, kept, t)
            self.visits[cid] = self.visits.get(cid, 0) + 1
            due = t + self.fleet.delay(t, cid)
            self.pending.append((due, Upload(cid, n, sent, t, compute, communicate)))
            losses.append(loss)
        self.clock += duration

        uploads = [upload for due, upload in self.pending if due <= t]
        self.pending = [(due, upload) for due, upload in self.pending if due > t]
        collected = time.perf_counter()
        self.server = self.method.aggregate(self.server, uploads, r)
        server_time = planned - started + time.perf_counter() - collected

        scores = self._test(r, visits)
        row = {
            "round": t, **scores, "train_loss": sum(losses) / len(losses) if losses else float("nan"), **row,
            **self.method.columns(self.server, r), "sim_time": self.clock,
            **self._links(links), "server_bytes": nbytes(self.server) + self.shelf.nbytes, "server_time": server_time,
            "client_time": (visited - planned) * self.executor.workers / max(len(visits), 1),
            "wall_time": time.perf_counter() - started,
        }  # fmt: skip
        self.rows.append(row)
        return row

    def _links(self, links: list[tuple[float, float]]) -> dict:
        """Mean seconds up and down over the participants, where the run tells the two ways apart."""
        if not self.run.download:
            return {}
        means = [sum(way) / len(way) for way in zip(*links, strict=True)] or [float("nan")] * 2
        return dict(zip(("time_up", "time_down"), means, strict=True))

    def _test(self, r: Round, visits: list) -> dict:
        if r.t % (self.run.eval_every or 1) and r.t != self.run.rounds:
            return {"accuracy": float("nan"), "loss": float("nan")} | (
                {"personal_accuracy": float("nan")} if self.run.personal else {}
            )
        total = len(self.worker.data.test_y)
        batches, parts = -(-total // TEST_BATCH), self.executor.workers
        cuts = [batches * i // parts for i in range(parts + 1)]
        personal = self._test_personally(r, visits) if self.run.personal else None
        models = self.method.tested(self.server, lambda cid: self.clients.get(cid) or {}, r)
        if personal and not models:
            return {"accuracy": personal[0], "loss": personal[1], "personal_accuracy": personal[0]}
        tasks = [(*model, range(low, high)) for model in models for low, high in itertools.pairwise(cuts) if low < high]
        scores = [score for part in self.executor.map("test", tasks) for score in part]
        total *= max(len(models), 1)
        result = {"accuracy": sum(s[0] for s in scores) / total, "loss": sum(s[1] for s in scores) / total}
        return result | ({"personal_accuracy": personal[0]} if personal else {})

    def _test_personally(self, r: Round, visits: list) -> tuple[float, float]:
        """Mean over clients of the (accuracy, loss) of each one's model on its own test split."""
        cids = range(self.run.clients) if self.run.personal == "all" else r.participants
        if not cids:
            return float("nan"), float("nan")
        if self.run.personal == "trained":
            models = [self.method.trained_model(sent, kept) for sent, kept, _, _ in visits]
        else:
            models = [self.method.personal(self.server, self.clients.get(cid) or {}, cid) for cid in cids]
        scores = self.executor.map("test_client", [(*model, cid) for model, cid in zip(models, cids, strict=True)])
        return tuple(sum(score[i] / score[2] for score in scores) / len(cids) for i in (0, 1))


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
    from fedrepro import cluster

    return cluster.count(None if workers is None else count_workers(workers), resource)


def _executor(engine: str, context, workers: int, gpus: int = 0) -> Executor:
    if engine == "ray":
        from fedrepro.cluster import Cluster

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


@functools.cache
def commit() -> str | None:
    """The commit of the code that runs, with + when it was changed since; None outside a checkout."""
    home = Path(__file__).resolve().parent
    git = functools.partial(subprocess.run, cwd=home, capture_output=True, text=True, check=False)
    try:
        head = git(["git", "rev-parse", "--short=12", "HEAD"])
        dirty = git(["git", "status", "--porcelain", "--untracked-files=no", "."])
    except OSError:
        return None
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "") if head.returncode == 0 else None


ISA_VARIABLES = ("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR")  # pin instruction sets


@functools.cache
def machine() -> dict[str, str]:
    """What of this machine decides the last bits: its processor and the instruction set torch uses on it."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        found = dict(
            re.findall(r"^(vendor_id|model name)\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        )
        model = " ".join(found.values()) or model
    pinned = [f"{name}={os.environ[name]}" for name in ISA_VARIABLES if os.environ.get(name)]
    instructions = " ".join([torch.backends.cpu.get_cpu_capability(), *pinned])
    return {"processor": platform.machine(), "cpu": model, "instructions": instructions}


def provenance(run: Run, worker: Worker, rows: list[dict]) -> dict:
    return {
        "data": worker.data.provenance,
        "fedrepro": __version__,
        "commit": commit(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "machine": {**machine(), "cores": os.cpu_count(), "device": str(worker.device)},
        "wall_time": sum(row["wall_time"] for row in rows),
    }
