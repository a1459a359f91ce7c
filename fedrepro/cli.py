"""The command line: one function per command, of the same name."""

import itertools
import json
import os
import signal
import sys
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from fedrepro import folders
from fedrepro.arguments import TEXT, literal, parser, run_fields
from fedrepro.errors import BadInput, Failure, bad
from fedrepro.simulation import scratch
from fedrepro.simulation.run import Row, Run


def _choose_engine(args: Namespace) -> None:
    """Set it in the environment, which notebooks inherit; if something is missing, fail before anything starts."""
    from fedrepro.simulation.session import pick_engine

    engine = pick_engine(args.engine)
    if args.address:
        if engine != "ray":
            raise bad("--address", args.address, "only with --engine ray")
        os.environ["RAY_ADDRESS"] = args.address
    if engine == "ray":
        from fedrepro.simulation.cluster import connect

        connect()
    if args.engine:
        os.environ["FEDREPRO_ENGINE"] = engine


def _progress(total: int, unit: str, quiet: bool) -> Any:
    """A progress bar on a terminal; elsewhere disabled, and plain lines are printed."""
    from tqdm import tqdm

    return tqdm(total=total, unit=unit, disable=quiet or not sys.stderr.isatty(), file=sys.stderr, leave=False)


def run(args: Namespace) -> None:
    from fedrepro import train
    from fedrepro.simulation.ledger import MIB

    described = Run.from_dict(run_fields(args))
    with _progress(described.rounds, "round", args.json) as bar:

        def show(row: Row) -> None:
            bar.update()
            bar.set_postfix(accuracy=f"{row['accuracy']:.4f}", loss=f"{row['loss']:.4f}")
            if bar.disable and not args.json:
                traffic = f"{(row['bytes_down'] + row['bytes_up']) / MIB:.2f} MiB"
                done = f"round {row['round']:>{len(str(described.rounds))}}/{described.rounds}"
                print(f"{done}  accuracy {row['accuracy']:.4f}  loss {row['loss']:.4f}  {traffic}", flush=True)

        result = train(described, store=args.store, workers=args.workers, device=args.device, progress=show)
    last = result.rows[-1]
    if args.json:
        _print_json({"id": described.id, "digest": result.digest, **last})
    else:
        done = f"{last['round']} round{'s' * (last['round'] > 1)}"
        print(f"{described.method} on {described.data}: accuracy {last['accuracy']:.4f} after {done}")
        print(f"run {described.id}  digest {result.digest[:16]}" + (f"  kept in {args.store}" if args.store else ""))


def _grid(args: Namespace) -> list[Run]:
    """One run per combination of the --vary values."""
    base, grids = run_fields(args), []
    for name, *values in args.vary:
        if not values:
            raise bad("--vary", name, "FIELD VALUE [VALUE ...]")
        if name == "hp":
            raise bad("--vary", name, "hp.NAME, a hyperparameter of the method")
        if any(name == grid[0][0] for grid in grids):
            raise bad("--vary", name, "each field once, with all its values")
        grids.append([(name, v if name in TEXT else literal(v)) for v in values])
    runs = []
    for cell in itertools.product(*grids):
        values = {**base, "hp": dict(base["hp"])}
        for name, value in cell:
            if name.startswith("hp."):
                values["hp"][name[3:]] = value
            else:
                values[name] = value
        runs.append(Run.from_dict(values))
    return runs


def sweep(args: Namespace) -> None:
    from fedrepro import sweep as train_all
    from fedrepro.simulation.store import read_result

    runs = _grid(args)
    with _progress(len({r.id for r in runs}), "run", args.json) as bar:

        def show(finished: Run) -> None:
            bar.update()
            if bar.disable and not args.json:
                print(f"done {finished.id}  {finished.method}  seed {finished.seed}", flush=True)

        digests = train_all(runs, store=args.store, workers=args.workers, device=args.device, progress=show)
    table = []
    for r in {r.id: r for r in runs}.values():
        last = read_result(Path(args.store) / r.id)[1][-1]
        fields = {name: getattr(r, name) for name in ("method", "hp", "data", "split", "seed")}
        scores = {name: last[name] for name in ("accuracy", "loss")}
        table.append({"run": r.id, **fields, **scores, "digest": digests[r.id]})
    _print_json(table) if args.json else print(_columns(table))


def _print_json(value: Any) -> None:
    """In one line; JSON has no NaN, so numbers that are not finite become null."""
    finite = json.loads(json.dumps(value), parse_constant=lambda name: None)
    print(json.dumps(finite))


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{k}={v}" for k, v in value.items())
    text = f"{value:.4f}" if isinstance(value, float) else str(value)
    return text[:16] if len(text) == 64 else text


def _columns(table: list[dict[str, Any]]) -> str:
    """The rows as aligned text."""
    rows = [list(row) for row in table[:1]] + [[_cell(v) for v in row.values()] for row in table]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def methods(args: Namespace) -> None:
    from fedrepro.methods import describe

    print(json.dumps(describe()) if args.json else _columns(describe()))


def data(args: Namespace) -> int:
    from fedrepro import data as sets

    if args.action == "fetch":
        if args.check:
            raise BadInput("data fetch: it checks what it fetches; --check is for status")
        if not args.name:
            raise BadInput(f"data fetch: name a data set; allowed: {', '.join(sets.names())}")
        for name in args.name:
            print(f"{name}: {sets.fetch(name)}")
        return 0
    if args.name:
        raise bad("data status", " ".join(args.name), "no names; it shows all data sets")
    status = sets.status(verify=args.check)
    print(json.dumps(status) if args.json else _columns(status))
    return int(args.check and any(row["where"] == "changed" for row in status))


def reproduce(args: Namespace) -> int:
    from fedrepro.evidence import driver

    return driver.main(args.paper, args.scale, args.seeds, args.workers, args.table, args.fresh)


def tune(args: Namespace) -> int:
    folders.need_clone("tune")
    from fedrepro.evidence import tune as search
    from fedrepro.evidence.study import run_store

    return search.main(args.table, args.scale, args.workers, run_store())


def evidence(args: Namespace) -> int:
    folders.need_clone("evidence")
    from fedrepro.evidence import campaign

    return campaign.main(args.budget, args.status, args.workers)


def papers(args: Namespace) -> None:
    from fedrepro.evidence import spec

    print(_columns([{"paper": p, "table": t.name, "title": t.title} for p in spec.papers() for t in spec.tables(p)]))


def report(args: Namespace) -> None:
    from fedrepro.evidence import page

    print(f"wrote {page.build(folders.results(args.folder), say=print)}")


def verify(args: Namespace) -> int:
    from fedrepro.evidence import verify as checks

    return checks.main(str(folders.results(args.folder)), args.sample, args.seed, args.workers)


def lab(args: Namespace) -> None:
    from fedrepro.lessons import lab as notebooks

    notebooks.open_notebooks(args)


def bench(args: Namespace) -> int:
    from fedrepro import bench as measurements

    return measurements.main(repeats=args.repeats, quick=args.quick, only=args.only, out=args.out)


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM, so that the program ends as with Ctrl-C: files are closed, temporary folders removed."""


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM raises Terminated, and once more if Python swallowed it."""

    def end(*_: object) -> NoReturn:
        raise Terminated

    def dropped(what: Any) -> None:
        if issubclass(what.exc_type, KeyboardInterrupt):  # in a callback of fork() or of the garbage collector
            signal.setitimer(signal.ITIMER_REAL, 0.01)
        else:
            sys.__unraisablehook__(what)

    if threading.current_thread() is not threading.main_thread():  # only that one may set handlers
        yield
        return
    before = {sent: signal.signal(sent, end) for sent in (signal.SIGTERM, signal.SIGALRM)}
    hook, sys.unraisablehook = sys.unraisablehook, dropped
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for sent, handler in before.items():
            signal.signal(sent, handler)


def main(argv: list[str] | None = None) -> int:
    """Run one command -> its exit code."""
    args = parser().parse_args(argv)
    if args.command is None:
        parser().print_help()
        return 0
    scratch.tidy()
    try:
        with _terminable():
            if "engine" in args:
                _choose_engine(args)
            return globals()[args.command](args) or 0
    except (BadInput, Failure) as error:
        return _say(error, 2 if isinstance(error, BadInput) else 1)
    except BrokenPipeError:  # the reader of our output, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (OSError, MemoryError) as error:
        return _say(error, 1)
    except RuntimeError as error:
        if "allocate memory" not in str(error):
            raise
        return _say("memory is short; a smaller model, batch or number of workers needs less", 1)
    except KeyboardInterrupt as stop:
        ended, code = ("terminated", 143) if isinstance(stop, Terminated) else ("interrupted", 130)
        lost = "store" in args and args.store is None  # all other commands that train keep their runs
        advice = "nothing is kept; with --store the same command resumes" if lost else "the same command resumes"
        return _say(f"{ended}; {advice}", code)


def _say(error: object, code: int) -> int:
    text = " ".join(str(error).split()) or type(error).__name__
    print(f"fedrepro: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
