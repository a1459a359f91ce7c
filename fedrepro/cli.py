"""The command line: fedrepro run | sweep | methods | data | papers | tune | reproduce | report | verify | bench."""

import argparse
import itertools
import json
import math
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

from fedrepro.errors import BadInput, Failure, bad
from fedrepro.simulation import scratch
from fedrepro.simulation.run import Run

DEFAULT_STORE = "runs"


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as the rest of the program does."""

    def __init__(self, **options):
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str):
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def parser() -> argparse.ArgumentParser:
    top = Parser(prog="fedrepro", description="Federated-learning papers, reproduced: train, sweep, inspect.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run", help="train one federation", description="Train one federation.",
        epilog="example: fedrepro run --data digits --split dirichlet:0.3 --method fedprox --hp mu=0.1 --store runs",
    )  # fmt: skip
    _run_options(run)
    run.add_argument("--store", help="keep results here and go on after an interruption")

    many = commands.add_parser(
        "sweep", help="train a grid of federations side by side",
        description="Train every combination of the --vary values; finished runs are not computed again.",
        epilog="example: fedrepro sweep --data digits --vary method fedavg fedprox --vary seed 0 1 2 [--engine ray]",
    )  # fmt: skip
    _run_options(many)
    many.add_argument("--store", default=DEFAULT_STORE, help="where results are kept (default: %(default)s)")
    many.add_argument("--vary", action="append", nargs="+", default=[], metavar=("FIELD", "VALUE"),
                      help="a field, or hp.NAME, and the values it takes")  # fmt: skip

    methods = commands.add_parser(
        "methods", help="list the methods and their hyperparameters",
        description="List the methods, the paper of each, and its hyperparameters with their defaults.",
    )  # fmt: skip
    methods.add_argument("--json", action="store_true", help="for machines")

    data = commands.add_parser(
        "data", help="show which data sets are here, or fetch one",
        description="Show which data sets are here, check them (exit code 1 if one was changed), or fetch some into "
        "the cache (FEDREPRO_CACHE).",
        epilog="A folder of your own files goes into FEDREPRO_DATA. example: fedrepro data fetch mnist cifar10",
    )  # fmt: skip
    data.add_argument("action", nargs="?", choices=["status", "fetch"], default="status",
                      help="status (the default) or fetch")  # fmt: skip
    data.add_argument("name", nargs="*", help="data sets to fetch")
    data.add_argument("--check", action="store_true", help="compare all of the cache with its checksums")
    data.add_argument("--json", action="store_true", help="for machines")

    again = commands.add_parser(
        "reproduce", help="train a paper's tables, execute its notebooks and judge its claims",
        description="Train what is neither in the store nor in the committed record, execute the paper's notebooks and "
        "write the results to results/local/SCALE/PAPER. What is committed is not changed.",
    )  # fmt: skip
    again.add_argument("paper", help="fedbr, ... (`fedrepro papers` lists them)")
    again.add_argument("--scale", default="reduced", help="smoke, reduced, cpu or paper (default: %(default)s)")
    again.add_argument("--seeds", type=_literal, help="number of seeds (default: the table's own)")
    again.add_argument("--workers", type=_literal, help="worker processes (default: one a core)")
    _engine_options(again)
    again.add_argument("--table", help="only this table or figure")
    again.add_argument("--fresh", action="store_true", help="compute everything again")

    pilot = commands.add_parser(
        "tune",
        help="choose each method's learning rate by pilot runs",
        description="Give every method of a table the same number of pilot runs, scored on held-out training images, "
        "and write what was tried and chosen to reproduce/PAPER/tuned/SCALE.csv. Resumes after an interruption.",
        epilog="example: fedrepro tune fedmlb/table2_local_objectives --scale cpu",
    )
    pilot.add_argument("table", help="PAPER/TABLE (`fedrepro papers` lists them)")
    pilot.add_argument("--scale", default="cpu", help="reduced or cpu (default: %(default)s)")
    pilot.add_argument("--workers", type=_literal, help="worker processes (default: one per core)")

    campaign = commands.add_parser(
        "evidence",
        help="train the evidence list for as long as a budget lasts",
        description="Work through reproduce/evidence.toml, one seed after the other; what is in the store or in the "
        "committed record is not trained again. At the end, write tables, figures, verdicts and records.",
        epilog="example: nice -n 19 fedrepro evidence --budget 150m",
    )
    campaign.add_argument("--budget", help="time to train for, such as 150m or 2h (default: until all is done)")
    campaign.add_argument("--status", action="store_true", help="only say what is there, what is missing, hours left")
    campaign.add_argument("--workers", type=_literal, help="worker processes (default: one per core)")

    commands.add_parser(
        "papers", help="list the papers, their tables and figures",
        description="List the papers, their tables and figures.",
    )  # fmt: skip

    page = commands.add_parser(
        "report", help="build results/index.html, one page of all papers",
        description="Build index.html in the results folder from the records there: a static page, no server needed.",
    )  # fmt: skip
    page.add_argument("folder", nargs="?", default="results",
                      help="results (the default), or results/local for those of your own runs")  # fmt: skip

    check = commands.add_parser(
        "verify", help="check committed results against their record, and train some runs again",
        description="Check that every file of the tables is there and every cell of the CSV files follows from the "
        "record beside them (runs.json, rounds.csv.gz, manifest.json); with --sample, train runs drawn from it again "
        "and compare digests. Exit code 1 if anything differs.",
        epilog="example: fedrepro verify results/ --sample 3 --seed 0",
    )  # fmt: skip
    check.add_argument("folder", nargs="?", default="results", help="results, or a folder in it (default: %(default)s)")
    check.add_argument("--sample", type=_literal, default=0, help="runs to train again (default: %(default)s)")
    check.add_argument("--seed", type=_literal, default=0, help="of the draw (default: %(default)s)")
    check.add_argument("--workers", type=_literal, help="worker processes (default: one a core)")

    bench = commands.add_parser(
        "bench", help="measure speed as ratios to a bare PyTorch loop",
        description="Measure speed as ratios to a bare PyTorch loop on this machine.",
    )  # fmt: skip
    bench.add_argument("--repeats", type=_literal, default=3, help="repeats; the median counts (default: %(default)s)")
    bench.add_argument("--quick", action="store_true", help="small settings, to see that it works")
    bench.add_argument("--only", action="append", help="run only the named measurement (may be repeated)")
    bench.add_argument("--out", default="results/bench", help="folder for the results (default: %(default)s)")
    return top


def _run_options(command: argparse.ArgumentParser) -> None:
    for f in fields(Run):
        if f.name == "hp":
            command.add_argument("--hp", action="append", default=[], metavar="NAME=VALUE",
                                 help="a hyperparameter of the method (may be repeated)")  # fmt: skip
        else:
            shown = "" if f.default is None else f" (default: {f.default})"
            command.add_argument("--" + f.name.replace("_", "-"), help=f.metadata["help"] + shown)
    command.add_argument("--workers", type=_literal, help="worker processes (default: one a core)")
    _engine_options(command)
    command.add_argument("--device", default="auto", help="auto, cpu, cuda (default: auto)")
    command.add_argument("--json", action="store_true", help="one line of JSON at the end, nothing else")


def _engine_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--engine", help="process (this machine, the default) or ray (a Ray cluster)")
    command.add_argument("--address", help="of the Ray cluster, host:port (default: RAY_ADDRESS, else this machine)")


def _choose_engine(args: argparse.Namespace) -> None:
    """By environment, which the notebooks' kernels inherit. What cannot be had is said before anything starts."""
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


def _literal(text: str):
    """A number or true/false where the text is one, else the text; Run and build() judge it."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, float) and not math.isfinite(value) else value


def _fields(args: argparse.Namespace) -> dict:
    given = {f.name: getattr(args, f.name) for f in fields(Run) if f.name != "hp"}
    values = {k: _literal(v) if k not in TEXT else v for k, v in given.items() if v is not None}
    values["hp"] = {}
    for item in args.hp:
        name, equals, value = item.partition("=")
        if not equals:
            raise bad("--hp", item, "NAME=VALUE")
        if name in values["hp"]:
            raise bad("--hp", item, f"{name} once")
        values["hp"][name] = _literal(value)
    return values


TEXT = {f.name for f in fields(Run) if f.type in ("str", str)} | {"bandwidth", "download", "compute", "personal"}


def _progress(total: int, unit: str, quiet: bool):
    """tqdm on a terminal, plain lines otherwise."""
    from tqdm import tqdm

    return tqdm(total=total, unit=unit, disable=quiet or not sys.stderr.isatty(), file=sys.stderr, leave=False)


def run(args: argparse.Namespace) -> int:
    from fedrepro import train

    described = Run.from_dict(_fields(args))
    with _progress(described.rounds, "round", args.json) as bar:

        def show(row: dict) -> None:
            bar.update()
            bar.set_postfix(accuracy=f"{row['accuracy']:.4f}", loss=f"{row['loss']:.4f}")
            if bar.disable and not args.json:
                print(f"round {row['round']:>{len(str(described.rounds))}}/{described.rounds}  "
                      f"accuracy {row['accuracy']:.4f}  loss {row['loss']:.4f}  "
                      f"{(row['bytes_down'] + row['bytes_up']) / 2**20:.2f} MiB", flush=True)  # fmt: skip

        result = train(described, store=args.store, workers=args.workers, device=args.device, progress=show)
    last = result.rows[-1]
    if args.json:
        _print_json({"id": described.id, "digest": result.digest, **last})
    else:
        print(f"{described.method} on {described.data}: accuracy {last['accuracy']:.4f} after {last['round']} rounds")
        print(f"run {described.id}  digest {result.digest[:16]}" + (f"  kept in {args.store}" if args.store else ""))
    return 0


def sweep(args: argparse.Namespace) -> int:
    from fedrepro import sweep as train_all

    base, grids = _fields(args), []
    for name, *values in args.vary:
        if not values:
            raise bad("--vary", name, "FIELD VALUE [VALUE ...]")
        if any(name == grid[0][0] for grid in grids):
            raise bad("--vary", name, "each field once, with all its values")
        grids.append([(name, v if name in TEXT else _literal(v)) for v in values])
    runs = []
    for cell in itertools.product(*grids):
        values = {**base, "hp": dict(base["hp"])}
        for name, value in cell:
            if name.startswith("hp."):
                values["hp"][name[3:]] = value
            else:
                values[name] = value
        runs.append(Run.from_dict(values))
    with _progress(len({r.id for r in runs}), "run", args.json) as bar:

        def show(finished: Run) -> None:
            bar.update()
            if bar.disable and not args.json:
                print(f"done {finished.id}  {finished.method}  seed {finished.seed}", flush=True)

        digests = train_all(runs, store=args.store, workers=args.workers, device=args.device, progress=show)
    table = _sweep_table(runs, args.store, digests)
    _print_json(table) if args.json else print(_columns(table))
    return 0


def _print_json(value) -> None:
    """One line; what is not a finite number is null, as JSON knows no NaN."""

    def strict(item):
        if isinstance(item, dict):
            return {k: strict(v) for k, v in item.items()}
        if isinstance(item, list):
            return [strict(v) for v in item]
        return None if isinstance(item, float) and not math.isfinite(item) else item

    print(json.dumps(strict(value), allow_nan=False))


def _sweep_table(runs: list[Run], store: str, digests: dict) -> list[dict]:
    from pathlib import Path

    from fedrepro.simulation.store import read_result

    table = []
    for r in {r.id: r for r in runs}.values():
        last = read_result(Path(store) / r.id)[1][-1]
        table.append({"run": r.id, "method": r.method, "hp": r.hp, "data": r.data, "split": r.split, "seed": r.seed,
                      "accuracy": last["accuracy"], "loss": last["loss"], "digest": digests[r.id]})  # fmt: skip
    return table


def _cell(value) -> str:
    if isinstance(value, dict):
        return " ".join(f"{k}={v}" for k, v in value.items())
    text = f"{value:.4f}" if isinstance(value, float) else str(value)
    return text[:16] if len(text) == 64 else text


def _columns(table: list[dict]) -> str:
    if not table:
        return ""
    rows = [list(table[0])] + [[_cell(v) for v in row.values()] for row in table]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def methods(args: argparse.Namespace) -> int:
    from fedrepro.methods import describe

    print(json.dumps(describe()) if args.json else _columns(describe()))
    return 0


def data(args: argparse.Namespace) -> int:
    from fedrepro import data as sets

    if args.action == "fetch":
        if args.check:
            raise BadInput("data fetch: checks what it fetches; --check is for status")
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


def reproduce(args: argparse.Namespace) -> int:
    from fedrepro.evidence import driver

    return driver.main(args.paper, args.scale, args.seeds, args.workers, args.table, args.fresh)


def tune(args: argparse.Namespace) -> int:
    from fedrepro.evidence import tune as search
    from fedrepro.evidence.study import run_store

    return search.main(args.table, args.scale, args.workers, run_store())


def evidence(args: argparse.Namespace) -> int:
    from fedrepro.evidence import campaign

    return campaign.main(args.budget, args.status, args.workers)


def papers(args: argparse.Namespace) -> int:
    from fedrepro.evidence import spec

    print(_columns([{"paper": p, "table": t.name, "title": t.title} for p in spec.papers() for t in spec.tables(p)]))
    return 0


def report(args: argparse.Namespace) -> int:
    from pathlib import Path

    from fedrepro.evidence import page

    print(f"wrote {page.build(Path(args.folder))}")
    return 0


def verify(args: argparse.Namespace) -> int:
    from fedrepro.evidence import verify as checks

    return checks.main(args.folder, args.sample, args.seed, args.workers)


def bench(args: argparse.Namespace) -> int:
    from fedrepro import bench as measurements

    return measurements.main(repeats=args.repeats, quick=args.quick, only=args.only, out=args.out)


class Terminated(KeyboardInterrupt):
    """By SIGTERM, which ends the program as Ctrl-C does: what is open is closed, temporary folders are removed."""


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM raises Terminated. What is raised where Python drops exceptions is raised again just after."""

    def end(*_) -> None:
        raise Terminated

    def dropped(what) -> None:
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
    args = parser().parse_args(argv)
    scratch.tidy()
    try:
        with _terminable():
            if "engine" in args:
                _choose_engine(args)
            return globals()[args.command](args)
    except (BadInput, Failure) as error:
        return _say(error, 2 if isinstance(error, BadInput) else 1)
    except BrokenPipeError:  # whoever read our output, such as `head`, has seen enough
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
        print(f"fedrepro: {ended}; with --store the same command goes on from here", file=sys.stderr)
        return code


def _say(error, code: int) -> int:
    text = " ".join(str(error).split()) or type(error).__name__
    print(f"fedrepro: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
