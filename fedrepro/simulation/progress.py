"""Progress of many runs, read from their store: a bar over all rounds, or plain lines; and friendly interrupts."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
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
def progress(runs: Sequence[Run], store: Path) -> Iterator[Callable[[str], None]]:
    """Show how far these runs are; yields a function that prints a line above the bar."""
    from tqdm import tqdm

    known = {run.id: run for run in runs}
    total = sum(run.rounds for run in known.values())
    done, stop = dict.fromkeys(known, 0), threading.Event()
    terminal, notebook = sys.stderr.isatty(), in_notebook()
    stream = sys.stdout if notebook else sys.stderr
    bar = tqdm(
        total=total, unit="round", disable=not (terminal or notebook), smoothing=0.05, file=stream, leave=not notebook
    )
    started = time.monotonic()

    def refresh() -> None:
        for run_id in known:
            if done[run_id] < known[run_id].rounds:
                done[run_id] = rounds_done(store / run_id)
        bar.n = sum(done.values())
        bar.refresh()

    def watch() -> None:
        refresh()
        first, printed = bar.n, time.monotonic()
        bar.initial = first  # earlier rounds say nothing about the speed
        while not stop.wait(1 if notebook else 2):
            refresh()
            if bar.disable and bar.n < total and time.monotonic() - printed > PRINT_EVERY:
                printed, gained = time.monotonic(), bar.n - first
                left = f", about {(total - bar.n) * (printed - started) / gained / 60:.1f} min left" if gained else ""
                print(f"  {bar.n}/{total} rounds{left}", flush=True)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    say = bar.write if not bar.disable else (lambda text: print(text, flush=True))
    try:
        yield say
    finally:
        stop.set()
        watcher.join()
        bar.close()
