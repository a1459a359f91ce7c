"""What pyproject.toml cannot say: a wheel also has the papers' tables, the notebooks and the committed results."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
SHIPPED = ("reproduce", "notebooks", "results", "docs")
NOT = ("local", "bench", "*.html", ".ipynb_checkpoints", "__pycache__")


class WithHome(build_py):
    """Copies the folders into fedrepro/home, where fedrepro/folders.py finds them."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        home = Path(self.build_lib) / "fedrepro" / "home"
        shutil.rmtree(home, ignore_errors=True)
        for name in SHIPPED:
            if (ROOT / name).exists():
                shutil.copytree(ROOT / name, home / name, ignore=shutil.ignore_patterns(*NOT))


setup(cmdclass={"build_py": WithHome})
