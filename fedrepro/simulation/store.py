"""Results on disk: one folder per run, atomic writes, a lock, resume.

<store>/<run.id>/run.json        the description
                 rounds.csv      one row per round, as far as the checkpoint
                 checkpoint.pt   server state, pending uploads, rows; replaced atomically
                 clients/        the state of each client that has one: <client>-<round>.pt
                 server/         what the server keeps about each client, likewise
                 weights.pt      the final weights
                 result.json     digest and provenance; present when the run is finished
"""

import contextlib
import csv
import errno
import fcntl
import hashlib
import json
import os
import shutil
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrepro.errors import BadInput, Failure, bad
from fedrepro.simulation import scratch
from fedrepro.simulation.files import damaged, load_tensors, save_tensors, write_atomically, write_json
from fedrepro.simulation.ledger import MIB
from fedrepro.simulation.run import Row, Run, identify
from fedrepro.simulation.tree import Tree

if TYPE_CHECKING:
    from fedrepro.simulation.federation import Federation
    from fedrepro.simulation.result import Result

CHECKPOINT_SHARE = 0.05  # of the time that may go into checkpoints
SNAPSHOT = ("t", "clock", "rows", "visits", "pending", "server", "versions", "shelf", "shelf_bytes")
CLOCKS = ("wall_time", "server_cpu_time", "client_cpu_time", "server_time", "client_time")  # columns that the machine
# decides, not the run; the last two, in older records, were read off the wall
LONG_NAME = "n" * 120  # no shorter than that of any temporary file of ours
SUMMARY = {"run": dict, "id": str, "digest": str, "rounds_digest": str, "data": dict, "fedrepro": str}
SUMMARY |= {"commit": str | None, "versions": dict, "machine": dict, "wall_time": int | float}  # of result.json
_locks = weakref.WeakSet()  # a forked worker must not keep its parent's locks alive
os.register_at_fork(after_in_child=lambda: [lock.close() for lock in list(_locks)])


def digest(weights: Tree, buffers: Tree, rows: list[Row]) -> str:
    """sha256 over the weights and over the accuracy and loss of every round."""
    sha = hashlib.sha256()
    for tree in (weights, buffers):
        for name in sorted(tree):
            sha.update(name.encode())
            sha.update(tree[name].detach().cpu().contiguous().numpy().tobytes())
    for row in rows:
        sha.update(repr((row["accuracy"], row["loss"])).encode())
    return sha.hexdigest()


def rounds_digest(rows: list[Row]) -> str:
    """sha256 over every column of every round, clocks included, independent of the order of the columns."""
    lines = (",".join(f"{column}={row[column]!r}" for column in sorted(row)) for row in rows)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


class Store:
    """The folder of one run, locked while open. A second process waits for the first."""

    def __init__(self, root: str | os.PathLike, run: Run):
        root = check_root(root)
        self.run, self.path = run, root / run.id
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path / "lock", "ab+")  # noqa: SIM115 - held until close()
        except (OSError, ValueError) as error:
            raise _unwritable(root, error) from None
        self._wait()
        self._check()
        self._tidy()  # whoever worked on it before may have been killed at any moment
        self._saved_at, self._cost, self.safe = time.monotonic(), 0.0, 0

    def _wait(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.seek(0)
            if self._lock.read() == str(os.getpid()).encode():
                raise BadInput(f"store: run {self.run.id} is already under way in this process") from None
            print(f"fedrepro: another process works on run {self.run.id}; waiting for it", file=sys.stderr)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._lock.truncate(0)
        self._lock.write(str(os.getpid()).encode())
        self._lock.flush()
        _locks.add(self._lock)

    def _check(self) -> None:
        file, described = self.path / "run.json", self.run.described
        if not file.exists():
            return write_json(file, described)
        try:
            found = json.loads(file.read_text())
        except (ValueError, RecursionError):
            found = None
        if found != json.loads(json.dumps(described)):
            self.close()
            raise BadInput(f"store: {self.path} was made by another run; give another store or remove that folder")

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").exists()

    def result(self) -> tuple[dict[str, Any], list[Row], dict[str, Any]]:
        """(summary, rows, weights) of a finished run; its files must still give the digest they were written with."""
        (summary, rows), weights = read_result(self.path), load_tensors(self.path / "weights.pt")
        try:
            found = digest(weights["w"], weights["b"], rows)
        except (LookupError, TypeError, AttributeError):
            found = None
        if found != summary["digest"]:
            raise damaged(self.path / "weights.pt", "with rounds.csv it no longer gives the digest of result.json")
        return summary, rows, weights

    def resume(self) -> dict[str, Any] | None:
        """The last checkpoint, if there is one."""
        file = self.path / "checkpoint.pt"
        if not file.exists():
            return None
        snapshot = load_tensors(file)
        if not isinstance(snapshot, dict) or not set(SNAPSHOT) <= set(snapshot):
            raise damaged(file, "something is missing")
        self.safe = snapshot["t"]
        return snapshot

    def due(self) -> bool:
        """Whether a checkpoint now keeps within its share of the time."""
        return (time.monotonic() - self._saved_at) * CHECKPOINT_SHARE >= self._cost

    def save(self, federation: "Federation") -> None:
        """Write a checkpoint; the one before it stays whole until then."""
        start = time.monotonic()
        snapshot, states = federation.snapshot(), (federation.clients, federation.per_client)
        with self._disk():
            for clients in states:
                clients.flush()
            save_tensors(self.path / "checkpoint.pt", snapshot)
            self.safe = snapshot["t"]
            self._rows(snapshot["rows"])
            for clients in states:
                clients.prune()
        self._saved_at = time.monotonic()
        self._cost = self._saved_at - start

    def finish(self, result: "Result") -> None:
        """Write the result; the checkpoint goes."""
        summary, weights = result.summary, {"w": result.weights, "b": result.buffers, "record": result.record}
        with self._disk():
            self._rows(result.rows)
            save_tensors(self.path / "weights.pt", weights)
            write_json(self.path / "result.json", {**summary, "checksum": checksum(summary)})
        self._tidy()

    def _tidy(self) -> None:
        """Remove leftovers of killed writers and what a finished run no longer needs. We hold the lock."""
        left = [path for parent in (".", "clients", "server") for path in (self.path / parent).glob(".*")]
        for path in left + [self.path / name for name in ("checkpoint.pt", "clients", "server") if self.finished]:
            scratch.remove(path)

    def _rows(self, rows: list[Row]) -> None:
        lines = [",".join(rows[0])] + [",".join(map(repr, row.values())) for row in rows] if rows else []
        write_atomically(self.path / "rounds.csv", lambda f: f.write(("\n".join(lines) + "\n").encode()))

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        """A failing disk is reported in one line."""
        try:
            yield
        except OSError as error:
            full = error.errno == errno.ENOSPC or shutil.disk_usage(self.path).free < MIB
            why = "the disk is full" if full else str(error)
            raise Failure(
                f"{why}; rounds 1 to {self.safe} of run {self.run.id} are safe in {self.path}: "
                "make room and run the same command again"
            ) from error

    def close(self) -> None:
        self._lock.close()


def check_root(root: str | os.PathLike) -> Path:
    """The folder of a store, which need not exist yet."""
    if not isinstance(root, str | os.PathLike) or not os.fspath(root):
        raise bad("store", root, "the path of a folder")
    root = Path(root)
    try:
        (root / "0123456789abcdef" / "clients" / LONG_NAME).exists()
        one_run = (root / "run.json").exists()
    except OSError as error:  # the path is too long
        raise _unwritable(root, error) from None
    if one_run:
        raise BadInput(f"store: {str(root)!r} is the folder of one run; give the folder that holds such folders")
    return root


def _unwritable(root: Path, error: Exception) -> BadInput:
    shown = repr(str(root)) if len(str(root)) <= 100 else f"{str(root)[:97]!r}..."
    return BadInput(f"store: {shown} is not a folder that can be written ({getattr(error, 'strerror', error)})")


def checksum(summary: dict[str, Any]) -> str:
    """sha256 over what result.json must hold, as it is copied into runs.json."""
    return hashlib.sha256(json.dumps({key: summary[key] for key in SUMMARY}, sort_keys=True).encode()).hexdigest()


def check_summary(summary: dict[str, Any], run_id: str) -> None:
    """ValueError unless this result.json, or its copy in runs.json, is whole and that of the run."""
    for key, kind in SUMMARY.items():
        if not isinstance(summary, dict) or not isinstance(summary.get(key, ...), kind):
            raise ValueError(f"{key} is missing or of the wrong kind")
    if identify(summary["run"]) != run_id:
        raise ValueError(f"its description is that of run {identify(summary['run'])}")
    if summary["id"] != run_id:
        raise ValueError(f"its id says {summary['id']}")
    if summary.get("checksum", checksum(summary)) != checksum(summary):  # the oldest runs have none
        raise ValueError("it no longer has the checksum that it was written with")


def read_result(folder: Path) -> tuple[dict[str, Any], list[Row]]:
    """(summary, rows) of one finished run, without its weights."""
    file = folder / "result.json"
    try:
        summary = json.loads(file.read_text())
        check_summary(summary, folder.name)
        file = folder / "rounds.csv"
        with open(file) as lines:
            rows = [{k: to_number(v) for k, v in row.items()} for row in csv.DictReader(lines)]
        if rounds_digest(rows) != summary["rounds_digest"]:
            raise ValueError("its rows are not those that result.json was written with")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, csv.Error) as error:
        raise damaged(file, str(error) if type(error) is ValueError else type(error).__name__) from None
    return summary, rows


def to_number(text: str) -> int | float:
    """What repr() wrote into rounds.csv."""
    return int(text) if text.lstrip("-").isdigit() else float(text)
