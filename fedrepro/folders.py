"""Where things are: beside the package in a clone; inside it in a wheel, which writes results to the current folder."""

import shutil
from pathlib import Path

from fedrepro.errors import BadInput

PACKAGE = Path(__file__).resolve().parent
SHIPPED = PACKAGE / "home"  # setup.py puts a copy of the folders there when it builds a wheel
INSTALLED = SHIPPED.exists()
HOME = SHIPPED if INSTALLED else PACKAGE.parent  # has reproduce/, notebooks/, docs/ and the committed results/


def work() -> Path:
    """Where the user's results, runs and copies of notebooks go: the clone, or the current folder."""
    return Path.cwd() if INSTALLED else HOME


def results(folder: str) -> Path:
    """The folder that the user named; from an installed wheel, `results` starts as a copy of the committed ones."""
    path = Path(folder)
    if INSTALLED and folder == "results" and not any(path.glob("*/*/runs.json")) and any(HOME.glob(f"{folder}/*/*")):
        shutil.copytree(HOME / folder, path, dirs_exist_ok=True)
        print(f"the committed results were copied to {path}")
    return path


def need_clone(command: str) -> None:
    """Refuse, from an installed wheel, a command that writes into the repository."""
    if INSTALLED:
        raise BadInput(f"{command}: it writes into the repository, and this is an installed package; use a clone")
