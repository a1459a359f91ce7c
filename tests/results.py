"""Results of one table in a folder, as the driver leaves them, but without executing the notebook."""

from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import nbformat
from matplotlib.figure import Figure

from fedrepro import Run
from fedrepro.evidence import tables
from fedrepro.evidence.driver import kept
from fedrepro.evidence.record import DRAWN, Known, Record
from fedrepro.evidence.study import Plan, Study, in_order, recorded
from fedrepro.simulation.store import checksum, rounds_digest
from fedrepro.simulation.sweep import sweep


def make(home: Path, table: str, seeds: int = 2) -> Path:
    """Trained at smoke scale into home/runs, written to home/results/smoke/<paper>."""
    plan = Plan(table, "smoke", seeds)
    known = Known(home / "runs", Record(home / "nothing"))
    sweep(plan.runs(), store=known.store, workers=1)
    folder = home / "results/smoke" / plan.table.paper
    write(folder, Study(table, "smoke", seeds, known))
    return folder


def write(folder: Path, study: Study) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    draw(folder, study.table.name)
    tables.write(folder, in_order([*kept(folder, [study.table.name]), study]))


def draw(folder: Path, name: str) -> None:
    for kind in DRAWN:
        path = folder / f"{name}{kind}"
        nbformat.write(nbformat.v4.new_notebook(), path) if kind == ".ipynb" else Figure().savefig(path)


def rewrite(folder: Path) -> None:
    """Make everything again from the record that is there."""
    known = Record(folder)
    known.refuse_damage()
    tables.write(folder, recorded(known))


class Made:
    """Has every run, with rows that nobody trained: `level(run)` is the accuracy that a run comes to."""

    ROUNDS = 12

    def __init__(self, record: Record, level: Callable[[Run], float]):
        self.summaries, self.level = record.runs, level
        self.model = next(iter(record.runs))
        self.row = record.rounds[self.model][-1]

    def has(self, run: Run) -> bool:
        return True

    def rows(self, run: Run) -> list[dict]:
        name = f"{run.method} {run.split} {run.clients} {run.seed}"  # not the id, which tuning changes
        noise = (crc32(name.encode()) % 1000 - 500) / 1e5  # up to half a point
        end, made = self.level(run) + noise, []
        for t in range(1, self.ROUNDS + 1):
            accuracy = end * (1 - 0.5**t)
            row = {"round": t, "accuracy": accuracy, "personal_accuracy": accuracy, "loss": 2.3 * (1 - accuracy)}
            made.append({**self.row, **row})
        return made

    def summary(self, run: Run) -> dict:
        known = {**self.summaries[self.model], "run": run.described, "id": run.id}
        known["rounds_digest"] = rounds_digest(self.rows(run))
        return {**known, "checksum": checksum(known)}

    def costs(self, run: Run) -> dict[str, int]:
        return {"visit_flops": 10**9, "client_flops": 10**9, "server_flops": 10**6}


class AtAnotherScale:
    """Has every run but for central training, with the rows of a run at smoke scale and an accuracy of its own."""

    def __init__(self, record: Record):
        self.record, self.model = record, next(iter(record.runs))

    def has(self, run: Run) -> bool:
        return run.clients > 1

    def rows(self, run: Run) -> list[dict]:
        noise = int(run.id[:4], 16) / 2**20
        return [{**row, "accuracy": row["accuracy"] + noise} for row in self.record.rounds[self.model]]

    def summary(self, run: Run) -> dict:
        known = {**self.record.runs[self.model], "run": run.described, "id": run.id}
        known["rounds_digest"] = rounds_digest(self.rows(run))
        return {**known, "checksum": checksum(known)}

    def costs(self, run: Run) -> dict[str, int]:
        raise NotImplementedError
