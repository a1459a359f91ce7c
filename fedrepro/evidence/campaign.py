"""make evidence: trains reproduce/evidence.toml in its order, one seed after the other, for as long as a budget lasts.

What is in the store or in the committed record is not trained again, so that it resumes after any interruption and on
another machine. At the end it writes tables, figures, verdicts and records of what is there.
"""

import contextlib
import re
import signal
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path

from fedrepro.checks import choose
from fedrepro.errors import BadInput, bad
from fedrepro.evidence import driver, record, spec, tune
from fedrepro.evidence.schema import matches
from fedrepro.evidence.study import Study, run_store
from fedrepro.simulation.progress import progress
from fedrepro.simulation.run import Run
from fedrepro.simulation.session import count_workers
from fedrepro.simulation.store import read_result
from fedrepro.simulation.sweep import sweep

LIST = spec.REPRODUCE / "evidence.toml"
UNITS = {"s": 1, "m": 60, "h": 3600}


class BudgetSpent(Exception):
    pass


@dataclass(frozen=True)
class Item:
    """One entry of the list: some cells of a table at one scale, with some seeds."""

    table: str
    scale: str
    seeds: list[int]
    minutes: float  # CPU minutes per run, as far as anyone knows before the first is done
    decides: str
    tier: int  # everything of a tier comes before the next one
    cells: dict[str, str | list[str]] = field(default_factory=dict)

    @cached_property
    def study(self) -> Study:
        study = Study(self.table, self.scale, self.seeds, missing="leave")
        names = study.table.names
        wanted = {axis: [names.get(v, v) for v in ([value] if isinstance(value, str) else value)]
                  for axis, value in self.cells.items()}  # fmt: skip
        study.cells = [cell for cell in study.cells if matches(wanted, cell.labels)]
        if not study.cells:
            raise BadInput(f"{LIST.name}: {self.table}: no cell at scale {self.scale} has {self.cells}")
        return study

    def pilots(self) -> list[Run]:
        """The runs of its tuning, where the table is tuned at this scale and the choice is not there yet."""
        table = spec.find(self.table)
        if not table.tune or self.scale not in tune.TUNED:
            return []
        search, known = tune.pilots(table, self.scale), table.tuned(self.scale)
        return [pilot.run for pilot in search if (pilot.data, pilot.method) not in known]

    def runs(self, seed: int | None = None) -> list[Run]:
        """Those of one seed, or of all; central training goes with the first."""
        chosen = self.seeds if seed is None else [seed]
        runs = [cell.run(number) for number in chosen for cell in self.study.cells]
        return runs + (list(self.study.central.values()) if self.seeds[0] in chosen else [])


def ordered(items: list[Item]) -> list[tuple[Item, int]]:
    """Tier by tier, and in a tier the first seed of every item before any second one."""
    places = [(item.tier, i, n, seed) for n, item in enumerate(items) for i, seed in enumerate(item.seeds)]
    return [(items[n], seed) for _, _, n, seed in sorted(places)]


def load(path: Path = LIST) -> list[Item]:
    try:
        entries = tomllib.loads(path.read_text())["item"]
        if not isinstance(entries, list):
            raise KeyError("item")
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"{path.name}: it must hold a list of [[item]] ({error})") from None
    known = {f.name for f in fields(Item)}
    items = []
    for entry in entries:
        for key in entry:
            choose(f"{path.name}: {entry.get('table')}", key, known)
        if missing := known - {"cells"} - set(entry):
            raise BadInput(f"{path.name}: {entry.get('table')}: {', '.join(sorted(missing))} is missing")
        items.append(Item(**entry))
    return items


def seconds(text: str) -> float:
    """150m, 2h, 90s"""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if not found or not float(found[1]):
        raise bad("budget", text, "a time such as 150m, 2h or 90s")
    return float(found[1]) * UNITS[found[2]]


def is_done(item: Item, run: Run, store: Path) -> bool:
    return (store / run.id / "result.json").exists() or item.study.committed.offers(run)


def hours_left(item: Item, store: Path) -> float:
    """CPU hours, from the item's own finished runs where there are any."""
    runs = item.runs()
    here = [run for run in runs if (store / run.id / "result.json").exists()]
    each = sum(read_result(store / run.id)[0]["wall_time"] for run in here) / len(here) / 60 if here else item.minutes
    return each / 60 * sum(not is_done(item, run, store) for run in runs)


def status(items: list[Item], store: Path, workers: int) -> str:
    """One line per item, then what an hour decides."""
    lines, total, next_hour = [f"{'done':>9}  {'CPU h left':>10}  item"], 0.0, []
    for item in items:
        runs, left = item.runs(), hours_left(item, store)
        done = sum(is_done(item, run, store) for run in runs)
        if left and total < workers and item.tier == min(i.tier for i in items):
            next_hour.append(f"{item.table} at {item.scale} scale: {item.decides}")
        total += left
        lines.append(f"{done:>4}/{len(runs):<4}  {left:10.1f}  {item.table} at {item.scale} scale")
    lines.append(f"{total:.1f} CPU hours left, {total / workers:.1f} on {workers} workers")
    return "\n".join(lines + [f"the next hour works on {what}" for what in next_hour])


@contextlib.contextmanager
def deadline(budget: float) -> Iterator[None]:
    """Raises BudgetSpent in the main thread when the time is over; runs under way keep their last checkpoint."""

    def stop(*_) -> None:
        raise BudgetSpent

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, budget)
    try:
        yield
    except BudgetSpent:
        print("the budget is spent; the same command resumes", flush=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def main(budget: str | None, only_status: bool, workers: int | None, store: Path | None = None) -> int:
    workers, store, items = count_workers(workers), store or run_store(), load()
    limit = seconds(budget) if budget else None
    print(status(items, store, workers), flush=True)
    if only_status:
        return 0
    started = time.monotonic()
    with deadline(limit) if limit else contextlib.nullcontext():
        for item, seed in ordered(items):
            _train(item, seed, store, workers)
    print(f"trained for {(time.monotonic() - started) / 60:.0f} min; writing what is there", flush=True)
    return write(items, store)


def _train(item: Item, seed: int, store: Path, workers: int) -> None:
    if pilots := item.pilots():
        with progress(pilots, store):
            sweep(pilots, store=store, workers=workers)
        tune.keep(spec.find(item.table), item.scale, store)
        item.__dict__.pop("study", None)  # its cells take what was chosen
    todo = [run for run in item.runs(seed) if not is_done(item, run, store)]
    if todo:
        print(f"{item.table} at {item.scale} scale, seed {seed}: {len(todo)} runs", flush=True)
        with progress(todo, store) as say:
            sweep(
                todo, store=store, workers=workers, progress=lambda run: say(f"  done: {run.method}, seed {run.seed}")
            )


def write(items: list[Item], store: Path) -> int:
    """Executes the notebook of every table of which something is trained, and writes the records."""
    failures, folders = [], []
    for (table, scale), seeds in _tables(items, store).items():
        study = Study(table, scale, seeds, missing="leave")
        try:
            driver.execute(study, seeds, None, fresh=False)
            print(f"{table} at {scale} scale: written", flush=True)
            folders.append(study.folder)
        except Exception as error:  # another table may still be written
            failures.append(table)
            print(f"{table} at {scale} scale: FAILED: {driver.short(error)}", flush=True)
    for folder in dict.fromkeys(folders):
        record.write(folder, store)
    return 1 if failures else 0


def _tables(items: list[Item], store: Path) -> dict[tuple[str, str], list[int]]:
    """(table, scale) -> the seeds of which something is trained."""
    found: dict[tuple[str, str], set[int]] = {}
    for item in items:
        for cell in item.study.cells:
            for seed in item.seeds:
                if is_done(item, cell.run(seed), store):
                    found.setdefault((item.table, item.scale), set()).add(seed)
    return {place: sorted(seeds) for place, seeds in found.items()}
