"""make evidence: trains the runs of reproduce/evidence.toml from top to bottom, and those of an item seed by seed.

Runs in the store or in the committed record are not trained again, so it resumes after any interruption and on
another machine: every finished run goes to the record at once, and a method's rate to the tuned ones as soon as its
pilots are done. When the budget is spent, notebooks and figures follow.
"""

import contextlib
import re
import signal
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from fedrepro.errors import BadInput, bad
from fedrepro.evidence import driver, schema, spec, tables, tune
from fedrepro.evidence.record import Known, Record
from fedrepro.evidence.study import Plan, committed, in_order, results_folder, run_store
from fedrepro.evidence.table import Table
from fedrepro.simulation.progress import progress
from fedrepro.simulation.run import Run
from fedrepro.simulation.session import count_workers
from fedrepro.simulation.sweep import sweep

LIST = spec.REPRODUCE / "evidence.toml"
UNITS = {"s": 1, "m": 60, "h": 3600}


class BudgetSpent(Exception):
    pass


@dataclass(frozen=True)
class Queued:
    run: Run
    minutes: float  # CPU minutes it is expected to take
    then: Callable[[], object]  # writes what it gives once it is done


Queue = dict[str, Queued]  # by run id


@dataclass(frozen=True)
class Item:
    """One entry of the list: some cells of a table at one scale, with some seeds."""

    table: str
    scale: str
    seeds: list[int]
    minutes: float  # CPU minutes per run, an estimate until the first is done
    decides: str
    cells: dict[str, str | list[str]] = field(default_factory=dict)

    @cached_property
    def plan(self) -> Plan:
        plan = Plan(self.table, self.scale, self.seeds, self.cells)
        if not plan.cells:
            raise BadInput(f"{LIST.name}: {self.table}: no cell at scale {self.scale} has {self.cells}")
        return plan

    @cached_property
    def committed(self) -> Record:
        return committed(self.scale, self.table.partition("/")[0])

    def pilots(self) -> list[tune.Pilot]:
        """The runs that tune its methods, if the table is tuned at this scale and its grids are not searched yet."""
        table = spec.find(self.table)
        if not table.tune or self.scale not in tune.TUNED:
            return []
        wanted = {(cell.fields["data"], cell.fields.get("method")) for cell in self.plan.cells}
        return [pilot for pilot in tune.missing(table, self.scale) if (pilot.data, pilot.method) in wanted]

    def runs(self) -> list[Run]:
        """All cells of one seed before the next seed; central training comes with the first."""
        by_seed = [self.plan.runs_of(seed) for seed in self.seeds]
        return [run for group in (by_seed[0], self.plan.central.values(), *by_seed[1:]) for run in group]

    def todo(self, store: Path) -> list[Run]:
        return [run for run in self.runs() if not is_done(self, run, store)]


@dataclass(frozen=True)
class Evidence:
    item: list[Item]


def load(path: Path = LIST) -> list[Item]:
    try:
        return schema.parse(Evidence, tomllib.loads(path.read_text()), "", schema.Names()).item
    except (OSError, tomllib.TOMLDecodeError, BadInput) as error:
        raise BadInput(f"{path.name}: {error}") from None


def seconds(text: str) -> float:
    """150m, 2h, 90s"""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if not found or not float(found[1]):
        raise bad("budget", text, "a time such as 150m, 2h or 90s")
    return float(found[1]) * UNITS[found[2]]


def is_done(item: Item, run: Run, store: Path) -> bool:
    return Known(store, item.committed).has(run)


def minutes_per_run(item: Item, store: Path) -> float:
    """The estimate, averaged with the times of the item's finished runs."""
    known = Known(store, item.committed)
    here = [run for run in item.runs() if known.stored(run)]
    return (item.minutes + sum(known.summary(run)["wall_time"] for run in here) / 60) / (1 + len(here))


def pilot_length(item: Item) -> float:
    """As a part of a run's length."""
    rule = spec.find(item.table).tune
    return rule.length if rule else 0


def hours_left(item: Item, store: Path, counted: set[str]) -> float:
    """CPU hours of its runs and pilots that are not counted yet."""
    known = Known(store, item.committed)
    pilots = {pilot.run.id for pilot in item.pilots() if not known.stored(pilot.run)} - counted
    runs = {run.id for run in item.todo(store)} - counted
    counted |= pilots | runs
    return minutes_per_run(item, store) / 60 * (len(runs) + len(pilots) * pilot_length(item))


def status(items: list[Item], store: Path, workers: int) -> str:
    """One line per item, then the plan for the next hour; a run that several items need counts with the first."""
    lines, total, next_hour, counted = [f"{'done':>9}  {'CPU h left':>10}  item"], 0.0, [], set()
    for item in items:
        runs, left = item.runs(), hours_left(item, store, counted)
        if left and total < workers:
            next_hour.append(f"{item.table} at {item.scale} scale: {item.decides}")
        total += left
        done = len(runs) - len(item.todo(store))
        lines.append(f"{done:>4}/{len(runs):<4}  {left:10.1f}  {item.table} at {item.scale} scale")
    lines.append(f"{total:.1f} CPU hours left, {total / workers:.1f} on {workers} workers")
    return "\n".join(lines + [f"the next hour works on {what}" for what in next_hour])


@contextlib.contextmanager
def deadline(budget: float) -> Iterator[None]:
    """Stops the block when the time is over; unfinished runs keep their last checkpoint."""

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
        train(items, store, workers)
    print(f"trained for {(time.monotonic() - started) / 60:.0f} min; writing what is there", flush=True)
    return write(items, store)


def train(items: list[Item], store: Path, workers: int) -> None:
    """All items in one queue, split only where an item's runs must wait for its tuning."""
    todo: Queue = {}
    for item in items:
        minutes = minutes_per_run(item, store)
        if pilots := item.pilots():
            table = spec.find(item.table)
            for pilot in pilots:
                own = [one for one in pilots if (one.data, one.method) == (pilot.data, pilot.method)]
                choose = partial(_choose, table, item.scale, own, store)
                todo[pilot.run.id] = Queued(pilot.run, minutes * pilot_length(item), choose)
            _sweep(todo, store, workers)
            tune.keep(table, item.scale, pilots, store)
            for one in items:
                one.__dict__.pop("plan", None)  # made again with the chosen settings
            todo = {}
        same_table = [one for one in items if (one.table, one.scale) == (item.table, item.scale)]
        for run in item.todo(store):
            todo.setdefault(run.id, Queued(run, minutes, partial(write, same_table, store, draw=False)))
    _sweep(todo, store, workers)


def _choose(table: Table, scale: str, pilots: list[tune.Pilot], store: Path) -> None:
    """Write what was tried and chosen for a method as soon as all its pilots are done."""
    if all((store / pilot.run.id / "result.json").exists() for pilot in pilots):
        tune.keep(table, scale, pilots, store)


def _sweep(todo: Queue, store: Path, workers: int) -> None:
    if not todo:
        return
    runs = [queued.run for queued in todo.values()]
    with progress(runs, store, {run_id: queued.minutes for run_id, queued in todo.items()}) as say:

        def keep(run: Run) -> None:
            todo[run.id].then()
            say(f"  done: {_name(run)}")

        sweep(runs, store=store, workers=workers, progress=keep)


def _name(run: Run) -> str:
    return f"{run.method} on {run.data.partition(':')[0]}, seed {run.seed} ({run.id})"


def write(items: list[Item], store: Path, draw: bool = True) -> int:
    """Write the tables that have a trained run: CSV files, record and README; with `draw` notebooks and figures too."""
    failures, written = [], {}
    for (table, scale), seeds in _tables(items, store).items():
        plan = Plan(table, scale, seeds)
        folder, known = results_folder() / scale / plan.table.paper, Known(store, committed(scale, plan.table.paper))
        try:
            study = driver.judged(plan, known)
            if draw:
                driver.execute(plan, folder)
                print(f"{table} at {scale} scale: written", flush=True)
            written.setdefault(folder, []).append(study)
        except Exception as error:  # another table may still be written
            failures.append(table)
            print(f"{table} at {scale} scale: FAILED: {driver.short(error)}", flush=True)
    for folder, studies in written.items():
        others = driver.kept(folder, [study.table.name for study in studies])
        tables.write(folder, in_order([*others, *studies]))
    return 1 if failures else 0


def _tables(items: list[Item], store: Path) -> dict[tuple[str, str], list[int]]:
    """(table, scale) -> the seeds that have a trained run. A seed that is not complete is recorded too: verdicts
    compare cells only with the seeds that all of them have."""
    found: dict[tuple[str, str], set[int]] = {}
    for item in items:
        begun = {seed for seed in item.seeds if any(is_done(item, c.run(seed), store) for c in item.plan.cells)}
        if begun:
            found[item.table, item.scale] = found.get((item.table, item.scale), set()) | begun
    return {table: sorted(seeds) for table, seeds in found.items()}
