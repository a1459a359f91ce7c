"""What docs/ says works: its Python runs, its commands parse, its make targets and links exist."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib

import nbformat
import pytest
from nbclient import NotebookClient
from test_readme import make

import fedrepro
from fedrepro.cli import parser
from fedrepro.evidence import spec

PAGES = sorted((spec.HOME / "docs").glob("*.md"))
TEXTS = [spec.HOME / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + PAGES


def blocks(page, kind):
    """Fenced blocks of a kind, without the indent of a list."""
    found = re.findall(rf"^( *)```{kind}\n(.*?)^ *```", page.read_text(), re.S | re.M)
    return [re.sub(rf"^{indent}", "", block, flags=re.M) for indent, block in found]


def notebook_of(page, folder):
    """A page's Python, executed cell by cell in a kernel that starts in `folder` -> what the cells printed."""
    cells = [nbformat.v4.new_code_cell(block) for block in blocks(page, "python")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    return [output.get("text", "") for cell in cells for output in cell.outputs]


def test_add_a_method(tmp_path):
    """The worked example in a notebook: its proofs hold, and the method is 20 lines at most."""
    page = spec.HOME / "docs/add-a-method.md"
    assert len(blocks(page, "python")[0].splitlines()) <= 20
    printed = "".join(notebook_of(page, tmp_path))
    (stored,) = (tmp_path / "runs").iterdir()
    assert stored.name in printed and json.loads((stored / "run.json").read_text())["code"].keys() == {"method"}


def test_follow_a_run(tmp_path, monkeypatch):
    """With the real packages, the extra `track`: what the examples logged is what the run gave."""
    for name in ("tensorboard", "mlflow"):
        pytest.importorskip(name, reason=f"{name} is not installed: pip install -e '.[track]'")
    from mlflow import MlflowClient
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.chdir(tmp_path)
    known = {}
    for block in blocks(spec.HOME / "docs/track.md", "python"):
        exec(block, known)
    rows = known["result"].rows
    events = EventAccumulator(f"tensorboard/{known['run'].id}").Reload()
    assert [event.value for event in events.Scalars("accuracy")] == pytest.approx([row["accuracy"] for row in rows])
    assert [event.step for event in events.Scalars("bytes_up")] == [1, 2, 3]
    client = MlflowClient("sqlite:///mlflow.db")
    (logged,) = client.search_runs(["0"])
    history = client.get_metric_history(logged.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(row["round"], row["loss"]) for row in rows]
    assert logged.data.params["mu"] == str(known["run"].hp["mu"])
    assert logged.data.tags["digest"] == known["result"].digest


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_links(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


COMMANDS = [line.split("#")[0].split(" | ")[0].strip() for page in TEXTS for kind in ("", "bash")
            for block in blocks(page, kind) for line in block.splitlines()]  # fmt: skip


@pytest.mark.parametrize("command", sorted({c for c in COMMANDS if c.startswith("fedrepro ")}))
def test_commands(command):
    args = parser().parse_args(shlex.split(command)[1:])
    if args.command == "reproduce":
        spec.tables(args.paper)


@pytest.mark.parametrize("command", sorted({c for c in COMMANDS if c.startswith("make ")}))
def test_make_targets(command):
    _, target, *variables = command.split()
    made = make(target, *variables)
    for variable in variables:
        name, _, value = variable.partition("=")
        assert (f"--{name.lower()}" if value == "1" else value) in made  # APP=1 is --app
        if name == "TABLE":
            spec.find(f"fedbr/{value}")


def test_the_table_of_the_example_is_a_table(tmp_path):
    """docs/add-a-paper.md: with FedBR's base the TOML it shows is read without complaint."""
    text = "\n".join(blocks(spec.HOME / "docs/add-a-paper.md", "toml"))
    example = tomllib.loads(text)
    folder = tmp_path / "fedbr"
    shutil.copytree(spec.REPRODUCE / "fedbr", folder)
    (folder / "table.toml").write_text(text)
    table = spec.load(folder / "table.toml")
    assert table.title == example["title"]
    assert len(table.cells("paper")) == len(table.reported_rows()) == 10
    assert (table.gate.reference, table.tune.length) == ({"delta": "1"}, 0.4)


def test_github_runs_what_ci_runs():
    assert "run: .ci/run" in (spec.HOME / ".github/workflows/ci.yml").read_text()


def test_the_api_reference_is_built_without_a_network(tmp_path):
    """make docs: a page per module, every name of the API, no warning, nothing from elsewhere."""
    command = [sys.executable, "-W", "error::UserWarning:pdoc", str(spec.HOME / "docs/api.py"), str(tmp_path)]
    path = os.pathsep.join([str(spec.HOME), *filter(None, [os.environ.get("PYTHONPATH")])])
    made = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert made.returncode == 0 and "Warn" not in made.stderr, made.stderr
    text = (tmp_path / "fedrepro.html").read_text()
    assert all(f'id="{name}"' in text or f"fedrepro/{name}.html" in text for name in fedrepro.__all__)
    assert (tmp_path / "fedrepro/simulation/federation.html").exists() and (
        tmp_path / "fedrepro/methods/fedmlb.html"
    ).exists()
    loaded = re.findall(r"""(?:src|@import|url\()\s*[="']+(https?:[^"')]*)""", text)
    assert not loaded
