"""Random kills and damaged files: `make storm MINUTES=5`; test_storm.py has a short version.

storm: trainings of every method, on 1 to 3 workers, are killed at random moments until they finish. Every column but
the clocks, the weights and the folder must be those of a run that nobody disturbed; no process or file is left behind.
fuzz: every kind of file in a store and in results has a bit flipped, loses its end, or is deleted. That is refused in
one line, or the file is provably unused: the result is the same.
"""

import contextlib
import io
import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import torch

import results
from fedrepro import Run, rounds, train
from fedrepro.cli import main
from fedrepro.errors import BadInput
from fedrepro.methods import registry
from fedrepro.simulation import store
from fedrepro.simulation.provenance import commit
from fedrepro.simulation.states import Clients
from fedrepro.simulation.store import CLOCKS, read_result

KEPT = {"lock", "run.json", "rounds.csv", "weights.pt", "result.json"}  # of a finished run
METHODS = [*registry(), "fedprox+feddyn"]
KILLS = 12  # of one run at most
SMALL = dict(
    data="digits", split="dirichlet:0.3", clients=8, per_round=3, rounds=6, epochs=1, batch=40, lr=0.1, samples=40
)
DAMAGES: dict[str, Callable[[bytes, random.Random], bytes | None]] = {
    "flip": lambda content, draw: _flip(content, draw.randrange(8 * len(content))),
    "truncate": lambda content, draw: content[: draw.randrange(len(content))],
    "delete": lambda content, draw: None,
}


def _flip(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def same(rows: list[dict], others: list[dict], but: tuple = CLOCKS) -> bool:
    """Equal bit for bit, NaN included."""
    strip = lambda found: [{k: repr(v) for k, v in row.items() if k not in but} for row in found]  # noqa: E731
    return strip(rows) == strip(others)


# storm


def start(words: list[str], log: Path, spill: bool) -> int:
    """`fedrepro words` in a process group of its own, forked because importing torch takes longer than the training."""
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        os.setpgid(0, 0)
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, 1), os.dup2(handle, 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        store.CHECKPOINT_SHARE = 1.0
        tempfile.tempdir = str(log.parent)
        if spill:
            Clients.__init__.__defaults__ = (None, 1)
        code = main(words)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def alive(group: int) -> list[int]:
    """The processes of a group that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its_group = path.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                found.append(int(path.parent.name))
    return found


def strike(child: int, draw: random.Random) -> str:
    """Send a signal to the program, to all its processes as a batch system does, or to one of its workers."""
    sent = draw.choice([signal.SIGKILL, signal.SIGTERM])
    whom = draw.choice(["the program", "all its processes", "one worker"])
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        if whom == "the program":
            os.kill(child, sent)
        elif whom == "all its processes":
            os.killpg(child, sent)
        elif workers := [pid for pid in alive(child) if pid != child]:
            os.kill(draw.choice(workers), sent)
        else:
            return ""
    return f"{sent.name} to {whom}"


def storm(seconds: float, seed: int, home: Path) -> Counter:
    """Counts of what was done; AssertionError where anything differs or is left."""
    torch.set_num_threads(1)
    draw, counts, end = random.Random(seed), Counter(), time.monotonic() + seconds
    for number, method in enumerate(itertools.chain.from_iterable(_shuffled(draw))):
        if time.monotonic() > end:
            break
        seeds = [2 * number, 2 * number + 1] if draw.random() < 0.2 else [number]
        options = {"delay": 0.4, "max_delay": 2} if draw.random() < 0.5 else {}
        runs = [Run(**SMALL, **options, method=method, seed=s) for s in seeds]
        began = time.monotonic()
        whole = [train(run, workers=1) for run in runs]
        length = time.monotonic() - began
        folder, workers, spill = home / str(number), draw.randint(1, 3), draw.random() < 0.3
        folder.mkdir()
        words = ["run" if len(seeds) == 1 else "sweep", "--store", str(folder / "store"), "--workers", str(workers)]
        words += [word for key, value in {**SMALL, **options, "method": method}.items()
                  for word in (f"--{key.replace('_', '-')}", str(value))]  # fmt: skip
        words += ["--seed", str(seeds[0])] if len(seeds) == 1 else ["--vary", "seed", *map(str, seeds)]
        where = f"{method}, seeds {seeds}, {workers} workers, {'spilled, ' * spill}{options}"
        for attempt in itertools.count():
            (folder / "log").touch()  # a child may be killed before it opens it
            child = start(words, folder / "log", spill)
            if attempt < KILLS:
                time.sleep(draw.uniform(0, 1.1 * length))
                counts[strike(child, draw)] += 1
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            _wait_for_the_rest(child, where)
            text = (folder / "log").read_text()
            assert "Traceback" not in text, f"{where}:\n{text}"
            assert code in (0, 143, -signal.SIGKILL, -signal.SIGTERM), f"{where}: exit code {code}\n{text}"
            if code == 0:
                break
            counts["interruptions"] += 1
        for run, result in zip(runs, whole, strict=True):
            summary, rows = read_result(folder / "store" / run.id)
            assert summary["digest"] == result.digest, where
            assert same(rows, result.rows), where
            assert {path.name for path in (folder / "store" / run.id).iterdir()} == KEPT, where
            counts["runs"] += 1
        assert {path.name for path in folder.iterdir()} == {"store", "log"}, where
        counts["methods"] = len(METHODS) if number >= len(METHODS) else number + 1
        shutil.rmtree(folder)
    del counts[""]
    return counts


def _shuffled(draw: random.Random) -> Iterator[list[str]]:
    """Every method once, then every method once more, ..."""
    while True:
        yield draw.sample(METHODS, len(METHODS))


def _wait_for_the_rest(group: int, where: str) -> None:
    """A worker of a killed sweep first finishes its run; nobody may stay longer."""
    until = time.monotonic() + 60
    while left := alive(group):
        assert time.monotonic() < until, f"{where}: processes {left} are left"
        time.sleep(0.01)


# fuzz


def fuzz(seconds: float, seed: int, home: Path) -> Counter:
    """(kind of file, what was found) -> how often; AssertionError where damage went unnoticed and had an effect."""
    torch.set_num_threads(1)
    cases, work = [*_stores(home / "stores"), *_results(home / "results")], home / "work"
    draw, counts, end = random.Random(seed), Counter(), time.monotonic() + seconds
    for place, name, check in itertools.chain.from_iterable(draw.sample(cases, len(cases)) for _ in itertools.count()):
        if time.monotonic() > end:
            break
        shutil.copytree(place, work)
        paths = sorted(path for path in work.glob(name) if path.stat().st_size)
        path, how = draw.choice(paths), draw.choice(list(DAMAGES))
        damaged = DAMAGES[how](path.read_bytes(), draw)
        path.unlink() if damaged is None else path.write_bytes(damaged)
        where = f"{path.relative_to(work)}, {how}, number {counts.total()} of seed {seed}"
        try:
            found = check(work, where)
        except BadInput as error:
            assert len(str(error).splitlines()) == 1, f"{where}: {error}"
            found = "refused"
        counts[name.split("/", 1)[1], found] += 1
        shutil.rmtree(work)
    return counts


def _stores(home: Path) -> Iterator[tuple[Path, str, Callable]]:
    """Stores with one run, in the middle and finished: where, which files, what must hold."""
    for method in ("scaffold", "kapc"):  # states of clients, and what the server keeps of them
        run = Run(**SMALL, method=method)
        with mock.patch.object(Clients.__init__, "__defaults__", (None, 1)):
            going = rounds(run, store=home / method / "half", workers=1)
            next(itertools.islice(going, 3, None))
            going.close()
        whole = train(run, store=home / method / "done", workers=1)

        def half(work: Path, where: str, run=run, whole=whole) -> str:
            found = train(run, store=work, workers=1)
            assert found.digest == whole.digest and same(found.rows, whole.rows), where
            return "unused"

        def done(work: Path, where: str, run=run, whole=whole) -> str:
            found = train(run, store=work, workers=1)
            assert found.digest == whole.digest, where
            if any(row["wall_time"] != old["wall_time"] for row, old in zip(found.rows, whole.rows, strict=True)):
                assert same(found.rows, whole.rows), where
                return "trained again"  # without its result.json the run is not finished
            assert same(found.rows, whole.rows, but=()) and found.provenance == whole.provenance, where
            return "unused"

        states = {path.parent.name for path in (home / method / "half" / run.id).glob("*/*.pt")}
        for name in ("run.json", "rounds.csv", "checkpoint.pt", "lock", *(f"{state}/*.pt" for state in states)):
            yield home / method / "half", f"{run.id}/{name}", half
        for name in sorted(KEPT):
            yield home / method / "done", f"{run.id}/{name}", done


def _results(home: Path) -> Iterator[tuple[Path, str, Callable]]:
    """One table at smoke scale, as `fedrepro reproduce` leaves it."""
    folder = results.make(home.parent / "made", "fedbr/table2_temperature")
    shutil.copytree(folder, home / "smoke/fedbr")

    def verified(work: Path, where: str) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            code = main(["verify", str(work)])
        assert code in (1, 2), f"{where}: not found\n{out.getvalue()}"
        assert code == 1 or len(err.getvalue().splitlines()) == 1, f"{where}: {err.getvalue()}"
        return "found" if code == 1 else "refused"

    for path in sorted(folder.iterdir()):
        yield home, f"smoke/fedbr/{path.name}", verified


def listed(counts: Counter) -> str:
    """One line per kind of file."""
    found = {kind: [] for kind, _ in sorted(counts)}
    for (kind, what), number in sorted(counts.items()):
        found[kind].append(f"{number} {what}")
    return "\n".join(f"  {kind}: {', '.join(words)}" for kind, words in found.items())


if __name__ == "__main__":
    minutes, seed = float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(10**6)
    commit()
    with tempfile.TemporaryDirectory(prefix="storm-") as folder:
        print(f"storm: {minutes:g} minutes, seed {seed}", flush=True)
        kills = storm(0.6 * 60 * minutes, seed, Path(folder))
        print("\n".join(f"  {n} {what}" for what, n in sorted(kills.items())), flush=True)
        damages = fuzz(0.4 * 60 * minutes, seed, Path(folder))
        print(f"fuzz: {damages.total()} damaged files\n{listed(damages)}\nnothing differs, nothing is left")
