"""The round, written once: broadcast, visits, uploads (some late), aggregate, test."""

import itertools
import math
import time
from typing import Any

import torch

from fedrepro.methods import Message, Round, State, Upload
from fedrepro.simulation.client import TEST_BATCH, Visit, Worker
from fedrepro.simulation.executor import Executor
from fedrepro.simulation.fleet import Fleet
from fedrepro.simulation.ledger import count, nbytes
from fedrepro.simulation.run import Row, Run
from fedrepro.simulation.states import Clients
from fedrepro.simulation.tree import Tree


class Federation:
    """The server's side of one run: `advance()` does one round."""

    def __init__(
        self, run: Run, executor: Executor, worker: Worker, clients: Clients, per_client: Clients | None = None
    ):
        self.run, self.executor, self.worker = run, executor, worker
        self.clients = clients  # what the clients keep
        self.per_client = per_client or Clients()  # what the server keeps about each client
        self.fleet, self.method = Fleet(run), worker.method
        self.t = 0
        self.clock = 0.0  # virtual seconds
        self.rows: list[Row] = []
        self.diverged = False  # whether a participant's loss was not finite in the last round
        self.visits: dict[int, int] = {}  # how often each client took part
        self.pending: list[tuple[int, Upload]] = []  # (round in which it reaches the server, upload)
        self.server: State = {"w": worker.params.clone(), "b": worker.buffers.clone()}
        self.server |= self.method.server_init(worker.model)

    def snapshot(self) -> dict[str, Any]:
        """All that a later process needs to resume; `store.SNAPSHOT` lists the keys."""
        return {
            "t": self.t,
            "clock": self.clock,
            "rows": self.rows,
            "visits": self.visits,
            "pending": [[due, list(upload)] for due, upload in self.pending],
            "server": self.server,
            "versions": self.clients.version,
            "shelf": self.per_client.version,  # its name in files
            "shelf_bytes": self.per_client.size,
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        self.t, self.clock, self.rows, self.visits = saved["t"], saved["clock"], saved["rows"], saved["visits"]
        self.pending = [(due, Upload(*upload)) for due, upload in saved["pending"]]
        self.server = {k: self._to_device(v) for k, v in saved["server"].items()}
        self.clients.version = saved["versions"]
        self.per_client.version, self.per_client.size = saved["shelf"], saved["shelf_bytes"]

    def _to_device(self, value: Any) -> Any:
        return value.to(self.worker.device) if isinstance(value, Tree | torch.Tensor) else value

    def advance(self) -> Row:
        """One round -> its row."""
        started = time.perf_counter()
        self.t += 1
        drawn = self.fleet.participants(self.t)
        r = Round(self.t, self.run, self.method.invite(drawn, self.fleet.limited), self.per_client)

        # 1. Broadcast: the server decides what each participant gets.
        self.server = self.method.plan(self.server, r)
        messages = [self.method.broadcast(self.server, cid, r) for cid in r.participants]
        planned = time.perf_counter()

        # 2. Visits: the participants train side by side.
        visits = self._visit(r, messages)
        visited = time.perf_counter()

        # 3. Uploads: counted and timed; the late ones wait.
        traffic, links = self._upload(r, messages, visits)
        uploads = [upload for due, upload in self.pending if due <= self.t]
        self.pending = [(due, upload) for due, upload in self.pending if due > self.t]
        arrived = time.perf_counter()

        # 4. Aggregate: the next global model, from what arrived.
        self.server = self.method.aggregate(self.server, uploads, r)
        server_time = planned - started + time.perf_counter() - arrived

        # 5. Test, and write the row.
        loss = sum(visit.loss for visit in visits) / len(visits) if visits else math.nan
        self.diverged = bool(visits) and not math.isfinite(loss)
        row = {"round": self.t, **self._test(r, visits), "train_loss": loss, **traffic}
        row |= {**self.method.columns(self.server, r), "sim_time": self.clock, **self._link_times(links)}
        row["server_bytes"] = nbytes(self.server) + self.per_client.nbytes
        row["server_time"] = server_time
        row["client_time"] = (visited - planned) * self.executor.workers / max(len(visits), 1)
        row["wall_time"] = time.perf_counter() - started
        self.rows.append(row)
        return row

    def _visit(self, r: Round, messages: list[Message]) -> list[Visit]:
        tasks = [
            (r.t, cid, message, self.clients.get(cid), self.visits.get(cid, 0), self.fleet.limited(cid))
            for cid, message in zip(r.participants, messages, strict=True)
        ]
        return self.executor.map("client", tasks)

    def _upload(
        self, r: Round, messages: list[Message], visits: list[Visit]
    ) -> tuple[dict[str, int], list[tuple[float, float]]]:
        """Keeps each client's state, sends its upload on its way and moves the clock -> (bytes of all participants,
        each one's seconds up and down)."""
        traffic: dict[str, int] = dict.fromkeys(("bytes_down", "bytes_up", "buffer_bytes_down", "buffer_bytes_up"), 0)
        duration, links = 0.0, []
        for cid, message, visit in zip(r.participants, messages, visits, strict=True):
            down, buffers_down = count(message)
            up, buffers_up = count(visit.sent)
            for column, size in zip(traffic, (down, up, buffers_down, buffers_up), strict=True):
                traffic[column] += size
            compute, communicate = self.fleet.seconds(r.t, cid, up, down)
            links.append(self.fleet.transfer(r.t, cid, up, down))
            duration = max(duration, compute + communicate)
            self.clients.put(cid, visit.kept, r.t)
            self.visits[cid] = self.visits.get(cid, 0) + 1
            due = r.t + self.fleet.delay(r.t, cid)
            self.pending.append((due, Upload(cid, visit.n, visit.sent, r.t, compute, communicate)))
        self.clock += duration
        return traffic, links

    def _link_times(self, links: list[tuple[float, float]]) -> dict[str, float]:
        """Mean seconds up and down over the participants, if the run has a downlink of its own."""
        if not self.run.download:
            return {}
        means = [sum(way) / len(way) for way in zip(*links, strict=True)] or [math.nan] * 2
        return dict(zip(("time_up", "time_down"), means, strict=True))

    def _test(self, r: Round, visits: list[Visit]) -> dict[str, float]:
        if r.t % (self.run.eval_every or 1) and r.t != self.run.rounds:
            columns = ("accuracy", "loss", "personal_accuracy") if self.run.personal else ("accuracy", "loss")
            return dict.fromkeys(columns, math.nan)
        personal = self._test_personally(r, visits) if self.run.personal else None
        models = self.method.tested(self.server, lambda cid: self.clients.get(cid) or {}, r)
        if personal and not models:
            return {"accuracy": personal[0], "loss": personal[1], "personal_accuracy": personal[0]}
        samples, parts = len(self.worker.data.test_y), self.executor.workers
        batches = -(-samples // TEST_BATCH)
        cuts = itertools.pairwise(batches * i // parts for i in range(parts + 1))
        shares = [range(low, high) for low, high in cuts if low < high]
        scores = self.executor.map("test", [(*model, share) for model in models for share in shares])
        total = samples * max(len(models), 1)
        right, loss = (sum(score[i] for part in scores for score in part) / total for i in (0, 1))
        return {"accuracy": right, "loss": loss} | ({"personal_accuracy": personal[0]} if personal else {})

    def _test_personally(self, r: Round, visits: list[Visit]) -> tuple[float, float]:
        """Mean over clients of the (accuracy, loss) of each one's model on its own test split."""
        cids = range(self.run.clients) if self.run.personal == "all" else r.participants
        if not cids:
            return math.nan, math.nan
        if self.run.personal == "trained":
            models = [self.method.trained_model(visit.sent, visit.kept) for visit in visits]
        else:
            models = [self.method.personal(self.server, self.clients.get(cid) or {}, cid) for cid in cids]
        scores = self.executor.map("test_client", [(*model, cid) for model, cid in zip(models, cids, strict=True)])
        accuracy, loss = (sum(score[i] / score[2] for score in scores) / len(cids) for i in (0, 1))
        return accuracy, loss
