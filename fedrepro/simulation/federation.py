"""The round, written once: broadcast, visits, uploads (some late), aggregate, test."""

import contextlib
import itertools
import math
import time
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from fedrepro.methods import Round, State, Upload
from fedrepro.simulation.client import TEST_BATCH, Visit, Worker
from fedrepro.simulation.executor import Executor
from fedrepro.simulation.fleet import Fleet
from fedrepro.simulation.ledger import count, nbytes
from fedrepro.simulation.means import Waiting
from fedrepro.simulation.run import Row, Run
from fedrepro.simulation.states import ROUND_MEMORY, Clients
from fedrepro.simulation.tree import Tree

WAITING = 64 << 20  # bytes of uploads that may wait for that of an earlier participant


class _Inbox:
    """What has arrived from one round's participants."""

    def __init__(self, r: Round, averages_late: bool, spill: Clients):
        self._r, self._averages_late = r, averages_late
        self.spill = spill  # holds the models among the uploads
        self.uploads: list[Upload] = []  # without the parts that are in the round's means
        self.traffic = dict.fromkeys(("bytes_down", "bytes_up", "buffer_bytes_down", "buffer_bytes_up"), 0)
        self.links: list[tuple[float, float]] = []  # each participant's seconds up and down
        self.down: dict[int, tuple[int, int]] = {}  # bytes sent to each participant: learned, BatchNorm statistics
        self.losses: list[float] = []
        self.trained: list[Waiting] = []  # each participant's "w" and "b", if they are tested
        self.duration = 0.0  # virtual seconds of the slowest participant
        self.cpu_times: list[float] = []  # of each visit

    def put(self, upload: Upload) -> None:
        if self._averages_late or upload.round == self._r.t:
            upload = upload._replace(sent=self._r.means.fold(upload.sent, upload.n))
        self.uploads.append(upload._replace(sent=Waiting(upload.sent, self.spill, self._r.t)))


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
        self.serving = 0.0  # CPU seconds of the server in this round
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
            "shelf": self.per_client.version,  # the key in existing checkpoints
            "shelf_bytes": self.per_client.size,
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        self.t, self.clock, self.rows, self.visits = saved["t"], saved["clock"], saved["rows"], saved["visits"]
        self.pending = [(due, Upload(*upload)) for due, upload in saved["pending"]]
        device = self.worker.device
        self.server = {k: v.to(device) if isinstance(v, Tree | Tensor) else v for k, v in saved["server"].items()}
        self.clients.version = saved["versions"]
        self.per_client.version, self.per_client.size = saved["shelf"], saved["shelf_bytes"]

    def advance(self) -> Row:
        """One round -> its row."""
        started, self.serving = time.perf_counter(), 0.0
        self.t += 1
        due = [upload for when, upload in self.pending if when <= self.t]
        self.pending = [(when, upload) for when, upload in self.pending if when > self.t]
        r = self._round(due)

        # 1. Broadcast: the server decides what each participant gets, and makes its message when its visit starts.
        with self._serving():
            self.server = self.method.plan(self.server, r)

        # 2. Visits: the participants train side by side; the server takes them in the order of participants.
        # 3. Uploads: counted, timed and folded into the round's means one by one; the late ones wait.
        inbox = _Inbox(r, self.method.averages_late, self._spill())
        with self._serving():
            while due:
                inbox.put(due.pop(0))
        visits = self._visits(r, inbox)
        for cid in r.participants:
            self._upload(r, cid, next(visits), inbox)
        self.clock += inbox.duration

        # 4. Aggregate: the next global model, from what arrived.
        with self._serving():
            self.server = self.method.aggregate(self.server, inbox.uploads, r)

        # 5. Test, and write the row.
        losses = inbox.losses
        loss = sum(losses) / len(losses) if losses else math.nan
        self.diverged = bool(losses) and not math.isfinite(loss)
        row = {"round": self.t, **self._test(r, inbox.trained), "train_loss": loss, **inbox.traffic}
        row |= {**self.method.columns(self.server, r), "sim_time": self.clock, **self._link_times(inbox.links)}
        row["server_bytes"] = nbytes(self.server) + self.per_client.nbytes
        row["server_cpu_time"] = self.serving
        row["client_cpu_time"] = sum(inbox.cpu_times) / max(len(inbox.cpu_times), 1)
        row["wall_time"] = time.perf_counter() - started
        self.rows.append(row)
        for spill in (r.spill, inbox.spill):
            spill.close()
        return row

    @contextlib.contextmanager
    def _serving(self) -> Iterator[None]:
        """Counts what the block takes as the server's work."""
        started = self.worker.clock()
        yield
        self.serving += self.worker.clock() - started

    def _spill(self) -> Clients:
        """Room for what waits for the end of a round: in memory while it fits, then in files; on a GPU, memory only."""
        return Clients(memory=ROUND_MEMORY if self.worker.device.type == "cpu" else math.inf)

    def _round(self, due: list[Upload]) -> Round:
        """The round with its participants and the sizes of the uploads to be averaged, which are known in advance."""
        t, method = self.t, self.method
        participants = method.invite(self.fleet.participants(t), self.fleet.limited)
        sizes = [upload.n for upload in due if method.averages_late]
        sizes += [len(self.worker.parts[cid]) for cid in participants if not self.fleet.delay(t, cid)]
        return Round(
            t, self.run, participants, self.per_client, means=method.means(self.run, sizes), spill=self._spill()
        )

    def _visits(self, r: Round, inbox: _Inbox) -> Iterator[Visit]:
        """Every participant's visit, in order; its message is made and its state read when the visit starts."""
        find = self.clients.find if self.executor.same_files else self.clients.get

        def task(cid: int) -> tuple:
            with self._serving():
                message = self.method.broadcast(self.server, cid, r)
            inbox.down[cid] = count(message)
            return r.t, cid, message, find(cid), self.visits.get(cid, 0), self.fleet.limited(cid)

        self.executor.share(self.server)
        ahead = max(2 * self.executor.workers, WAITING // max(self.server["w"].nbytes, 1))
        return self.executor.ordered("client", map(task, r.participants), ahead)

    def _upload(self, r: Round, cid: int, visit: Visit, inbox: _Inbox) -> None:
        """Keep the client's state, count its bytes and seconds, and pass on its upload, now or late."""
        down, buffers_down = inbox.down.pop(cid)
        up, buffers_up = count(visit.sent)
        for column, size in zip(inbox.traffic, (down, up, buffers_down, buffers_up), strict=True):
            inbox.traffic[column] += size
        compute, communicate = self.fleet.seconds(r.t, cid, up, down)
        inbox.links.append(self.fleet.transfer(r.t, cid, up, down))
        inbox.duration = max(inbox.duration, compute + communicate)
        inbox.losses.append(visit.loss)
        inbox.cpu_times.append(visit.cpu_time)
        if self.run.personal == "trained" and self._tested(r.t):
            w, b = self.method.trained_model(visit.sent, visit.kept)
            inbox.trained.append(Waiting({"w": w, "b": b}, inbox.spill, r.t))
        self.clients.put(cid, visit.kept, r.t)
        self.visits[cid] = self.visits.get(cid, 0) + 1
        upload = Upload(cid, visit.n, visit.sent, r.t, compute, communicate)
        if late := self.fleet.delay(r.t, cid):
            self.pending.append((r.t + late, upload))
        else:
            with self._serving():
                inbox.put(upload)

    def _link_times(self, links: list[tuple[float, float]]) -> dict[str, float]:
        """Mean seconds up and down over the participants, if the run has a downlink of its own."""
        if not self.run.download:
            return {}
        means = [sum(way) / len(way) for way in zip(*links, strict=True)] or [math.nan] * 2
        return dict(zip(("time_up", "time_down"), means, strict=True))

    def _tested(self, t: int) -> bool:
        """Whether round t ends with a test."""
        return t % (self.run.eval_every or 1) == 0 or t == self.run.rounds

    def _test(self, r: Round, trained: list[Waiting]) -> dict[str, float]:
        if not self._tested(r.t):
            columns = ("accuracy", "loss", "personal_accuracy") if self.run.personal else ("accuracy", "loss")
            return dict.fromkeys(columns, math.nan)
        self.executor.share(self.server)
        personal = self._test_personally(r, trained) if self.run.personal else None
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

    def _test_personally(self, r: Round, trained: list[Waiting]) -> tuple[float, float]:
        """Mean over clients of the (accuracy, loss) of each one's model on its own test split."""
        cids = range(self.run.clients) if self.run.personal == "all" else r.participants
        if not cids:
            return math.nan, math.nan
        models = ((model["w"], model["b"]) for model in trained)
        if self.run.personal != "trained":
            models = (self.method.personal(self.server, self.clients.get(cid) or {}, cid) for cid in cids)
        scores = self.executor.map("test_client", ((*model, cid) for model, cid in zip(models, cids, strict=True)))
        accuracy, loss = (sum(score[i] / score[2] for score in scores) / len(cids) for i in (0, 1))
        return accuracy, loss
