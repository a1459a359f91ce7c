"""What docs/ says works: its Python runs, its commands parse, its make targets and links exist."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib

import pytest
from test_readme import make

import fedrepro
import fedrepro.methods as methods
from fedrepro.cli import parser
from fedrepro.evidence import spec

PAGES = sorted((spec.HOME / "docs").glob("*.md"))
TEXTS = [spec.HOME / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + PAGES


def blocks(page, kind):
    """Fenced blocks of a kind, without the indent of a list."""
    found = re.findall(rf"^( *)```{kind}\n(.*?)^ *```", page.read_text(), re.S | re.M)
    return [re.sub(rf"^{indent}", "", block, flags=re.M) for indent, block in found]


@pytest.fixture
def own_methods(tmp_path, monkeypatch):
    """A folder whose files count as fedrepro/methods/*.py."""
    caches = (methods.registry, methods._stack)
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    for cache in caches:
        cache.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    for cache in caches:
        cache.cache_clear()


def test_add_a_method(own_methods):
    """The worked example: the file is written where methods live, its proofs hold, and it is 20 lines at most."""
    page = spec.HOME / "docs/add-a-method.md"
    file, proof = blocks(page, "python")
    assert len(file.splitlines()) <= 20
    (own_methods / "flatclip.py").write_text(file)
    exec(compile(proof, str(page), "exec"), {})
    assert methods.build("flatclip+fedprox", bound=0.5).bound == 0.5


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_links(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


COMMANDS = [line.split("#")[0].split(" | ")[0].strip() for page in PAGES for kind in ("", "bash")
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
        assert variable.partition("=")[2] in made


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
