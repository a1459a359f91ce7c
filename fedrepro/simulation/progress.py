"""Progress of many runs, read from their store: one bar over all rounds, or plain lines without a terminal."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fedrepro.simulation.run import Run

PRINT_EVERY = 30  # seconds between two plain lines


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
    terminal = sys.stderr.isatty()
    bar = tqdm(total=total, unit="round", disable=not terminal, smoothing=0.05, file=sys.stderr)
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
        while not stop.wait(2):
            refresh()
            if not terminal and time.monotonic() - printed > PRINT_EVERY:
                printed = time.monotonic()
                print(f"  {bar.n}/{total} rounds{_left(total - bar.n, bar.n - first, printed - started)}", flush=True)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    say = bar.write if terminal else (lambda text: print(text, flush=True))
    try:
        yield say
    finally:
        stop.set()
        watcher.join()
        bar.close()


def _left(rounds: int, gained: int, seconds: float) -> str:
    return f", about {rounds * seconds / gained / 60:.1f} min left" if gained else ""
