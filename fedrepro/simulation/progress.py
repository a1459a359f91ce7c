"""Progress of many runs, read from their store: a bar over all rounds, or plain lines; and friendly interrupts."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from fedrepro.errors import Stopped
from fedrepro.simulation.run import Run

PRINT_EVERY = 30  # seconds between two plain lines


def in_notebook() -> bool:
    """Whether the kernel of a notebook runs this process."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


@contextlib.contextmanager
def stoppable(kept: bool) -> Iterator[None]:
    """A notebook's cell that is interrupted says in one line what to do, without a traceback."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if type(stop) is not KeyboardInterrupt or not in_notebook():
            raise
        advice = "run the cell again to resume" if kept else "nothing is kept; with store=... the same cell resumes"
        raise Stopped(f"stopped; {advice}") from None


def rounds_done(folder: Path) -> int:
    """How many rounds of one run are on disk."""
    with contextlib.suppress(OSError), open(folder / "rounds.csv") as file:
        return max(sum(1 for _ in file) - 1, 0)
    return 0


@contextlib.contextmanager
def progress(
    runs: Sequence[Run], store: Path, minutes: Mapping[str, float] | None = None
) -> Iterator[Callable[[str], None]]:
    """Show how far these runs are; yields a function that prints a line above the bar.

    It counts rounds, or CPU minutes if given how many each run (by its id) is expected to take: rounds of different
    models take different times."""
    from tqdm import tqdm

    known = {run.id: run for run in runs}
    worth = {id_: minutes[id_] / run.rounds if minutes else 1 for id_, run in known.items()}  # of one round
    total = sum(worth[id_] * run.rounds for id_, run in known.items())
    done, stop = dict.fromkeys(known, 0), threading.Event()
    terminal, notebook = sys.stderr.isatty(), in_notebook()
    stream, unit = sys.stdout if notebook else sys.stderr, "CPU min" if minutes else "round"
    shown = {"disable": not (terminal or notebook), "file": stream, "leave": not notebook, "smoothing": 0.05}
    bar = tqdm(total=round(total), unit=unit, **shown)
    started = time.monotonic()

    def refresh() -> float:
        for run_id in known:
            if done[run_id] < known[run_id].rounds:
                done[run_id] = rounds_done(store / run_id)
        work = sum(worth[run_id] * rounds for run_id, rounds in done.items())
        bar.n = round(work)
        bar.refresh()
        return work

    def watch() -> None:
        first, printed = refresh(), time.monotonic()
        bar.initial = bar.n  # earlier rounds say nothing about the speed
        while not stop.wait(1 if notebook else 2):
            work = refresh()
            if bar.disable and work < total and time.monotonic() - printed > PRINT_EVERY:
                printed = time.monotonic()
                left = (total - work) * (printed - started) / (work - first) / 60 if work > first else None
                about = f", about {left:.1f} min left" if left else ""
                print(f"  {bar.n}/{bar.total} {unit}{'' if minutes else 's'}{about}", flush=True)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    say = bar.write if not bar.disable else (lambda text: print(text, flush=True))
    try:
        yield say
    finally:
        stop.set()
        watcher.join()
        bar.close()
