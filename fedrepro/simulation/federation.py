"""The round, written once: broadcast, local visits, uploads (some late), aggregate, test."""

import itertools
import time

import torch

from fedrepro.methods import Round, Upload
from fedrepro.simulation.client import TEST_BATCH, Worker
from fedrepro.simulation.fleet import Fleet
from fedrepro.simulation.ledger import count, nbytes
from fedrepro.simulation.run import Run
from fedrepro.simulation.states import Clients
from fedrepro.simulation.tree import Tree


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
