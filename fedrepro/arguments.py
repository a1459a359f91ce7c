"""What the command line accepts: one function per command."""

import argparse
import json
import math
import os
from dataclasses import fields
from typing import Any, NoReturn

from fedrepro.errors import bad
from fedrepro.simulation.run import Run

DEFAULT_STORE = "runs"
GIVEN = [f for f in fields(Run) if f.init]
TEXT = {f.name for f in fields(Run) if f.type in ("str", str)} | {"bandwidth", "download", "compute", "personal"}


class Parser(argparse.ArgumentParser):
    """Reports errors in one line, like the rest of the program."""

    def __init__(self, **options: Any):
        super().__init__(allow_abbrev=False, **options)

    def _check_value(self, action: argparse.Action, value: Any) -> None:  # with a suggestion
        if action.choices is not None and value not in action.choices:
            name = str(action.metavar or action.dest).lower()
            self.error(str(bad(name, value, ", ".join(action.choices), action.choices)))

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _run(run: Parser) -> None:
    """Train one federation."""
    _training(run)
    run.add_argument("--store", help="keep results here and resume after an interruption")


def _sweep(sweep: Parser) -> None:
    """Train every combination of the --vary values; finished runs are not trained again."""
    _training(sweep)
    sweep.add_argument("--store", default=DEFAULT_STORE, help="keep results here (default: %(default)s)")
    vary = "a field, or hp.NAME, and the values it takes"
    sweep.add_argument("--vary", action="append", nargs="+", default=[], metavar=("FIELD", "VALUE"), help=vary)


def _methods(methods: Parser) -> None:
    """List the methods, the paper of each, and its hyperparameters with their defaults."""
    methods.add_argument("--json", action="store_true", help="print JSON")


def _data(data: Parser) -> None:
    """Show which data sets are available, check them (exit code 1 if one has changed), or fetch some into the cache
    (FEDREPRO_CACHE). Your own files go into the folder FEDREPRO_DATA."""
    action = "status (the default) or fetch"
    data.add_argument("action", nargs="?", choices=["status", "fetch"], default="status", help=action)
    data.add_argument("name", nargs="*", help="data sets to fetch")
    data.add_argument("--check", action="store_true", help="compare the whole cache with its checksums")
    data.add_argument("--json", action="store_true", help="print JSON")


def _reproduce(reproduce: Parser) -> None:
    """Train what is neither in the store nor in the committed record, execute the paper's notebooks and write the
    results to results/local/SCALE/PAPER. Committed results are not changed."""
    scale = os.environ.get("FEDREPRO_SCALE", "reduced")
    reproduce.add_argument("paper", help="fedbr, ... (`fedrepro papers` lists them)")
    reproduce.add_argument("--scale", default=scale, help="smoke, reduced, cpu or paper (default: %(default)s)")
    seeds = "3: the table's first three; 0,1: these two (default: the table's own)"
    reproduce.add_argument("--seeds", type=seed_list, help=seeds)
    _workers(reproduce)
    _engine(reproduce)
    reproduce.add_argument("--table", help="only this table or figure")
    reproduce.add_argument("--fresh", action="store_true", help="train everything again")


def _tune(tune: Parser) -> None:
    """Give every method of a table the same number of pilot runs, scored on held-out training images, and write what
    was tried and chosen to reproduce/PAPER/tuned/SCALE.csv. Resumes after an interruption."""
    tune.add_argument("table", help="PAPER/TABLE (`fedrepro papers` lists them)")
    tune.add_argument("--scale", default="cpu", help="reduced or cpu (default: %(default)s)")
    _workers(tune)


def _evidence(evidence: Parser) -> None:
    """Work through reproduce/evidence.toml from top to bottom; runs in the store or in the committed record are not
    trained again. At the end, write tables, figures, verdicts and records."""
    evidence.add_argument("--budget", help="time to train for, such as 150m or 2h (default: until all is done)")
    evidence.add_argument("--status", action="store_true", help="only show what is done, missing, and the hours left")
    _workers(evidence)


def _papers(papers: Parser) -> None:
    """List the papers, their tables and figures."""


def _report(report: Parser) -> None:
    """Build index.html in the results folder from the records there: a static page, no server needed."""
    folder = "results (the default), or results/local for your own runs"
    report.add_argument("folder", nargs="?", default="results", help=folder)


def _verify(verify: Parser) -> None:
    """Check that every file of the tables exists and every cell of the CSV files follows from the record beside them
    (runs.json, rounds.csv.gz, manifest.json); with --sample, train some recorded runs again and compare digests. Exit
    code 1 if anything differs."""
    folder = "results, or a folder in it (default: %(default)s)"
    verify.add_argument("folder", nargs="?", default="results", help=folder)
    verify.add_argument("--sample", type=literal, default=0, help="runs to train again (default: %(default)s)")
    verify.add_argument("--seed", type=literal, default=0, help="seed of the sample (default: %(default)s)")
    _workers(verify)


def lab_options(lab: argparse.ArgumentParser) -> None:
    """Open the notebooks in JupyterLab: those of the clone, or a copy of them in the folder notebooks."""
    lab.add_argument("--class", dest="student", metavar="NAME", help="open this student's own copy of the notebooks")
    lab.add_argument("--reset", action="store_true", help="give the student a clean copy; the old one is kept")
    lab.add_argument("--app", action="store_true", help="the lessons without code, with Voila")
    lab.add_argument("--smoke", action="store_true", help="only check that JupyterLab starts and answers")


def _bench(bench: Parser) -> None:
    """Measure speed as ratios to a bare PyTorch loop on this machine."""
    bench.add_argument("--repeats", type=literal, default=3, help="repeats; the median counts (default: %(default)s)")
    bench.add_argument("--quick", action="store_true", help="small settings, only to see that it works")
    bench.add_argument("--only", action="append", help="only the named measurement (may be repeated)")
    bench.add_argument("--out", default="results/bench", help="folder for the results (default: %(default)s)")


def _training(command: Parser) -> None:
    """Every field of a Run, and how to train it."""
    config = "a run as TOML (Run.save); options override its fields"
    command.add_argument("--config", metavar="FILE", help=config)
    for f in GIVEN:
        if f.name == "hp":
            hp = "a hyperparameter of the method (may be repeated)"
            command.add_argument("--hp", action="append", default=[], metavar="NAME=VALUE", help=hp)
        else:
            default = "" if f.default is None else f" (default: {f.default})"
            command.add_argument("--" + f.name.replace("_", "-"), help=f.metadata["help"] + default)
    _workers(command)
    _engine(command)
    command.add_argument("--device", default="auto", help="auto, cpu, cuda (default: %(default)s)")
    command.add_argument("--json", action="store_true", help="one line of JSON at the end, nothing else")


def _workers(command: Parser) -> None:
    command.add_argument("--workers", type=literal, help="worker processes (default: one per core)")


def _engine(command: Parser) -> None:
    command.add_argument("--engine", help="process (this machine, the default) or ray (a Ray cluster)")
    command.add_argument("--address", help="of the Ray cluster, host:port (default: RAY_ADDRESS, else this machine)")


COMMANDS = {  # what it accepts, with its description as docstring; summary, example
    "run": (
        _run,
        "train one federation",
        "fedrepro run --data digits --split dirichlet:0.3 --method fedprox --hp mu=0.1 --store runs",
    ),
    "sweep": (
        _sweep,
        "train a grid of federations side by side",
        "fedrepro sweep --data digits --vary method fedavg fedprox --vary seed 0 1 2 [--engine ray]",
    ),
    "methods": (_methods, "list the methods and their hyperparameters", "fedrepro methods --json"),
    "data": (_data, "show which data sets are available, or fetch some", "fedrepro data fetch mnist cifar10"),
    "reproduce": (
        _reproduce,
        "train a paper's tables, execute its notebooks and judge its claims",
        "fedrepro reproduce fedbr --table table2_temperature --seeds 0,1",
    ),
    "tune": (
        _tune,
        "choose each method's learning rate by pilot runs",
        "fedrepro tune fedmlb/table2_local_objectives --scale cpu",
    ),
    "evidence": (
        _evidence,
        "train the evidence list for as long as a budget lasts",
        "nice -n 19 fedrepro evidence --budget 150m",
    ),
    "papers": (_papers, "list the papers, their tables and figures", "fedrepro papers"),
    "report": (_report, "build results/index.html, an overview, and a page per paper", "fedrepro report"),
    "verify": (
        _verify,
        "check committed results against their record, and train some runs again",
        "fedrepro verify results/ --sample 3 --seed 0",
    ),
    "lab": (lab_options, "open the notebooks in JupyterLab", "fedrepro lab --class ada"),
    "bench": (_bench, "measure speed as ratios to a bare PyTorch loop", "fedrepro bench --quick"),
}


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = Parser(prog="fedrepro", description="Federated-learning papers, reproduced: train, sweep, inspect.")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    for name, (options, summary, example) in COMMANDS.items():
        options(commands.add_parser(name, help=summary, description=options.__doc__, epilog=f"example: {example}"))
    return top


def literal(text: str) -> Any:
    """A number or true/false if the text is one, else the text; Run and build() validate it."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, float) and not math.isfinite(value) else value


def seed_list(text: str) -> Any:
    """`3` is a number of seeds, `0,1` and `7,` are lists of seeds; Plan validates them."""
    return [literal(seed) for seed in text.split(",") if seed] if "," in text else literal(text)


def run_fields(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of a Run: those of the --config file, overridden by those given."""
    named = {f.name: getattr(args, f.name) for f in GIVEN if f.name != "hp"}
    given = {k: literal(v) if k not in TEXT else v for k, v in named.items() if v is not None}
    values = {**_configured(args.config, given), **given}
    values["hp"] = {**values.get("hp", {}), **_hyperparameters(args)}
    return values


def _configured(config: str | None, given: dict[str, Any]) -> dict[str, Any]:
    """A file's fields, without those that depend on what the command line replaces."""
    values = Run.load(config).described if config else {}
    replaced = {name for name, value in given.items() if values.get(name) != value}
    gone = {"method": "hp", "steps": "epochs", "epochs": "steps"}
    left_out = {"code"} | {other for name, other in gone.items() if name in replaced}  # load() checked the code
    return {name: value for name, value in values.items() if name not in left_out}


def _hyperparameters(args: argparse.Namespace) -> dict[str, Any]:
    values = {}
    for item in args.hp:
        name, equals, value = item.partition("=")
        if not equals:
            raise bad("--hp", item, "NAME=VALUE")
        if name in values:
            raise bad("--hp", item, f"{name} once")
        values[name] = literal(value)
    return values
