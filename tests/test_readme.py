"""What the README says works: its Python and its commands run. test_docs.py checks its make targets."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from fedrepro.cli import main, parser
from fedrepro.evidence import spec
from fedrepro.simulation.run import Run

README = (spec.HOME / "README.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.S)
COMMANDS = [line.split("#")[0].strip() for kind, block in BLOCKS if not kind for line in block.splitlines()]


def test_the_python_examples(tmp_path):
    """As a user's scripts; the second registers a method, whose source must be in a file."""
    printed = []
    for i, example in enumerate(block for kind, block in BLOCKS if kind == "python"):
        (tmp_path / f"example{i}.py").write_text(example)
        command, settings = [sys.executable, f"example{i}.py"], {**os.environ, "PYTHONPATH": str(spec.HOME)}
        done = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert "accuracy" in printed[0] and len(list((tmp_path / "runs").iterdir())) == 1


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("fedrepro ")])
def test_commands(command, tmp_path, monkeypatch, capsys):
    words = shlex.split(command)[1:]
    args = parser().parse_args(words)
    if args.command in ("methods", "data", "papers"):
        assert main(words) == 0
    elif args.command in ("run", "sweep"):
        monkeypatch.chdir(tmp_path)
        Run(clients=4, per_round=2).save("run.toml")  # what --config reads
        assert main([*words, "--rounds", "1", "--epochs", "1", "--workers", "1"]) == 0
        assert re.search(r"accuracy", capsys.readouterr().out)


def make(*arguments: str) -> str:
    """What `make` would do."""
    done = subprocess.run(["make", "-n", *arguments], cwd=spec.HOME, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ci_runs_the_readmes_test_command():
    assert "make test" in COMMANDS and "make test" in (spec.HOME / ".ci/run").read_text()


def test_every_paper_has_its_make_target():
    for paper in spec.papers():
        assert f"fedrepro reproduce {paper} --scale smoke" in make(f"reproduce-{paper}", "SCALE=smoke")
