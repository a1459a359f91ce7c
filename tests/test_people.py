"""Three people: one in a fresh clone, one with the wheel in a folder of her own, one with a notebook beside the clone.

Each gets a virtual environment that has our packages, but for fedrepro. `make people` plays the long parts too.
"""

import os
import shutil
import subprocess
import venv
from pathlib import Path

import pytest
import torch

from fedrepro.evidence import spec

PACKAGES = Path(torch.__file__).parents[1]
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
    settings = {**known, "FEDREPRO_SCALE": "smoke", **more}
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
