"""Three people: one in a fresh clone, one with the wheel in a folder of her own, one with a notebook beside the clone.

Each gets a virtual environment that has our packages, but for fedrepro. `make people` plays the long parts too.
"""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import torch

from fedrepro.evidence import spec

PACKAGES = Path(torch.__file__).parents[1]
SHARED = {  # what Jupyter's packages put beside site-packages
    "JUPYTER_PATH": str(Path(sys.prefix, "share/jupyter")),
    "JUPYTERLAB_DIR": str(Path(sys.prefix, "share/jupyter/lab")),
}
ALL = os.environ.get("FEDREPRO_PEOPLE") == "all"
long = pytest.mark.skipif(not ALL, reason="a long part: make people")
OWN = """
import fedrepro, torch
from torch import nn
from fedrepro import FedAvg, Run, hp, sweep, train


@fedrepro.method
class Slow(FedAvg):
    share: float = hp(0.5)

    def aggregate(self, server, uploads, r):
        new = super().aggregate(server, uploads, r)
        return {**new, "w": server["w"].lerp(new["w"], self.share)}


@fedrepro.model
def tiny(*, classes, channels, size):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size**2, classes))


x, y = torch.rand(120, 3, 8, 8), torch.arange(120) % 4
fedrepro.data.register("mine", train=(x[:80], y[:80]), test=(x[80:], y[80:]))
runs = [Run(data="mine", model="tiny", method="slow", clients=4, per_round=2, rounds=3, seed=seed) for seed in (0, 1)]
found = sweep(runs, store="runs", workers=2)
assert train(runs[0], workers=2).digest == train(runs[0], workers=1).digest == found[runs[0].id]
print("own method, model and data:", len(found), "runs")
"""


def environment(folder: Path) -> Path:
    """The Python of a new virtual environment with our packages; what is installed there does not touch ours."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    (where,) = (folder / "lib").glob("python*/site-packages")
    (where / "ours.pth").write_text(f"{PACKAGES}\n")  # not a site folder: no .pth file of it is read, nor our fedrepro
    return python


def call(*words: object, cwd: Path, code: int = 0, **more: str) -> subprocess.CompletedProcess:
    known = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHONPATH", "FEDREPRO_"))}
    settings = {**known, "FEDREPRO_SCALE": "smoke", **SHARED, **more}
    done = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True, env=settings)
    assert done.returncode == code, (words, done.stdout[-2000:], done.stderr[-4000:])
    return done


def install(python: Path, *words: object, cwd: Path) -> None:
    own = ("--no-deps", "--no-build-isolation", "--ignore-installed", "--no-index")
    call(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *own, *words, cwd=cwd)


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """~/fedrepro: the files that git tracks, or would if they were added."""
    home = tmp_path_factory.mktemp("home")
    listed = call("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=spec.HOME).stdout
    for name in filter(None, listed.split("\0")):
        if (spec.HOME / name).is_file():
            (home / "fedrepro" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(spec.HOME / name, home / "fedrepro" / name)
    return home / "fedrepro"


@pytest.fixture(scope="module")
def developer(clone) -> Path:
    """The Python of somebody who ran `make setup` in the clone."""
    python = environment(clone.parent / "venv")
    install(python, "-e", clone, cwd=clone)
    return python


def test_a_script_in_the_parent_folder_of_the_clone(clone, developer):
    (clone.parent / "mine.py").write_text(OWN)
    assert call(developer, "mine.py", cwd=clone.parent).stdout == "own method, model and data: 2 runs\n"
    found = call(developer, "-c", "import fedrepro; print(fedrepro.__file__)", cwd=clone.parent).stdout.strip()
    assert Path(found) == clone / "fedrepro" / "__init__.py"


@long
def test_a_notebook_in_the_parent_folder_of_the_clone(clone, developer):
    """The template, executed where somebody copied it: in the folder that has the clone."""
    shutil.copy(clone / "notebooks/your_method.ipynb", clone.parent)
    words = ("--to", "notebook", "--execute", "--output", "executed.ipynb", "your_method.ipynb")
    call(developer, "-m", "nbconvert", *words, cwd=clone.parent)
    assert "undecided" in (clone.parent / "executed.ipynb").read_text()


@long
def test_the_tutorial_leaves_git_clean(clone, developer):
    """A fresh clone, the table of docs/start.md at smoke scale, the report of one's own runs."""
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org")
    call(*git, "init", "-q", cwd=clone)
    call(*git, "add", "-A", cwd=clone)
    call(*git, "commit", "-qm", "as cloned", cwd=clone)
    fedrepro = clone.parent / "venv/bin/fedrepro"
    found = call(fedrepro, "reproduce", "fedbr", "--table", "table2_temperature", cwd=clone).stdout
    assert "results in results/local/smoke/fedbr; what is committed stays as it is" in found
    call(fedrepro, "verify", "results/local", cwd=clone)
    assert call(*git, "status", "--porcelain", cwd=clone).stdout == ""


@pytest.fixture(scope="module")
def wheel_user(clone, tmp_path_factory, smoke, as_cpu_scale) -> tuple[Path, Path]:
    """The command of somebody who installed the wheel, which has committed records, and an empty folder."""
    as_cpu_scale(clone / "results/cpu/fedbr")
    shutil.copytree(smoke / "results/smoke", clone / "results/smoke")
    home = tmp_path_factory.mktemp("elsewhere")
    python = environment(home / "venv")
    words = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    call(python, "-m", "pip", "wheel", "-q", *words, "-w", home, clone, cwd=home)
    (wheel,) = home.glob("*.whl")
    install(python, wheel, cwd=home)
    folder = home / "work"
    folder.mkdir()
    return home / "venv/bin/fedrepro", folder


def test_the_wheel_works_in_any_folder(wheel_user):
    fedrepro, folder = wheel_user
    (folder / "mine.py").write_text(OWN)
    assert call(fedrepro.with_name("python"), "mine.py", cwd=folder).stdout == "own method, model and data: 2 runs\n"
    assert "table4_5_interval" in call(fedrepro, "papers", cwd=folder).stdout
    (line,) = call(fedrepro, "evidence", "--status", cwd=folder, code=2).stderr.splitlines()
    assert line.endswith("evidence: it writes into the repository, and this is an installed package; use a clone")
    assert {path.name for path in folder.iterdir()} == {"mine.py", "runs"}


@long
def test_the_wheel_brings_the_committed_results(wheel_user):
    fedrepro, folder = wheel_user
    assert call(fedrepro, "report", cwd=folder).stdout.endswith("wrote results/index.html\n")
    assert (folder / "results/cpu/fedbr/runs.json").exists()
    assert "verified: nothing differs" in call(fedrepro, "verify", "results/smoke", cwd=folder).stdout


@long
def test_the_wheel_reproduces_a_table_and_opens_the_lab(wheel_user):
    fedrepro, folder = wheel_user
    found = call(fedrepro, "reproduce", "fedbr", "--table", "table2_temperature", "--workers", 1, cwd=folder).stdout
    assert "results in results/local/smoke/fedbr" in found
    made = {path.name for path in (folder / "results/local/smoke/fedbr").iterdir()}
    assert {"table2_temperature.html", "table2_temperature.svg", "table2_temperature.csv", "runs.json"} <= made
    assert "verified: nothing differs" in call(fedrepro, "verify", "results/local", cwd=folder).stdout
    assert "JupyterLab answers" in call(fedrepro, "lab", "--smoke", cwd=folder).stdout
    (site,) = (fedrepro.parents[1] / "lib").glob("python*/site-packages/fedrepro/home")
    assert not [path for name in ("runs", "results/local") for path in [site / name] if path.exists()]
