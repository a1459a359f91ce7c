"""JupyterLab on the notebooks (`make lab`), on a student's own copy of them (CLASS=name), or the lessons as an app
without code (APP=1)."""

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.request import Request, urlopen

from fedrepro import folders
from fedrepro.arguments import lab_options
from fedrepro.errors import BadInput, Failure, bad
from fedrepro.evidence.spec import NOTEBOOKS
from fedrepro.evidence.study import in_kernels

START = "/doc/tree/index.ipynb"  # "doc": JupyterLab's simple mode, one document and no side bar
WIDGETS = "/lab/extensions/@jupyter-widgets/jupyterlab-manager/package.json"
PATIENCE = 60  # seconds for the server to answer
CLASSES = folders.work() / "class"  # students' copies, which git does not track
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
METADATA = {"kernelspec": KERNEL, "language_info": {"name": "python"}}


def without_outputs(model: dict, **_) -> None:
    """Jupyter's pre_save_hook: a notebook that was only run is saved unchanged, so that git sees no change."""
    if model["type"] != "notebook" or model["content"]["nbformat"] != 4:
        return
    model["content"]["metadata"].pop("widgets", None)
    model["content"]["metadata"].update(METADATA)
    for cell in model["content"]["cells"]:
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)


def student(name: str, reset: bool = False) -> Path:
    """A student's own copy of the notebooks, kept from lesson to lesson; a reset sets the old one aside."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise bad("CLASS", name, "a name of letters, digits, and any of . _ -")
    folder = CLASSES / name
    if reset and folder.exists():
        asides = (CLASSES / f"{name}.before-reset-{n}" for n in itertools.count(1))
        folder.rename(next(aside for aside in asides if not aside.exists()))
    return copied(folder)


def copied(folder: Path) -> Path:
    """Copy the notebooks to a folder, unless it exists."""
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as half:
            copy = Path(half) / folder.name
            shutil.copytree(NOTEBOOKS, copy, ignore=shutil.ignore_patterns(".ipynb_checkpoints", ".jupyter"))
            copy.rename(folder)
    return folder


def command(folder: Path, *more: str) -> list[str]:
    root = ["--allow-root"] if os.geteuid() == 0 else []
    clean = ["--FileContentsManager.pre_save_hook=fedrepro.lessons.lab.without_outputs"] if folder == NOTEBOOKS else []
    where = [f"--ServerApp.root_dir={folder}", f"--LabApp.default_url={START}"]
    return [sys.executable, "-m", "jupyterlab", *where, *clean, *root, *more]


def app(*more: str) -> list[str]:
    """Voila shows the lessons without their code and executes them when they are opened."""
    if not importlib.util.find_spec("voila"):
        raise Failure("voila is not installed; try: make lab APP=1")
    return [sys.executable, "-m", "voila", str(NOTEBOOKS / "explore"), *more]


def environment(**more: str) -> dict[str, str]:
    """With our defaults: large text for a projector, and no prompts about news and updates during a class."""
    paths = [str(NOTEBOOKS / ".jupyter"), *filter(None, [os.environ.get("JUPYTER_CONFIG_PATH")])]
    return {**os.environ, **in_kernels(), "JUPYTER_CONFIG_PATH": os.pathsep.join(paths), **more}


class Server:
    def __init__(self, url: str, token: str):
        self.url, self.token = url, token

    def ask(self, path: str, method: str = "GET", data: bytes | None = None) -> bytes:
        headers = {"Authorization": f"token {self.token}", "Content-Type": "application/json"}
        with urlopen(Request(self.url + path, data, headers, method=method), timeout=30) as answer:
            return answer.read()

    def sessions(self) -> list[str]:
        """The open notebooks that have a kernel."""
        return [session["id"] for session in json.loads(self.ask("/api/sessions"))]


@contextlib.contextmanager
def serve(folder: Path, log: Path | None = None) -> Iterator[Server]:
    """A server without a browser, on a free port of this machine; it ends with the block."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = Server(f"http://127.0.0.1:{port}", secrets.token_hex(16))
    words = command(folder, "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0")
    settings = environment(JUPYTER_TOKEN=server.token)
    with open(log or os.devnull, "wb") as output:
        process = subprocess.Popen(words, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=settings)
        try:
            _wait(server, process)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(server: Server, process: subprocess.Popen) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError):
            server.ask("/api/status")
            return
        time.sleep(0.2)
    raise Failure(f"JupyterLab {'ended' if process.poll() is not None else 'did not answer'}; try: make lab")


def smoke() -> None:
    """Check that the start page, the widgets' extension and a kernel answer."""
    with serve(NOTEBOOKS) as server:
        for path in (START, WIDGETS, "/api/contents/index.ipynb"):
            server.ask(path)
        kernel = json.loads(server.ask("/api/kernels", "POST", b"{}"))["id"]
        server.ask(f"/api/kernels/{kernel}")
        server.ask(f"/api/kernels/{kernel}", "DELETE")
    print("JupyterLab answers: the index, the widgets, a kernel")


def open_notebooks(chosen: argparse.Namespace, more: Sequence[str] = ()) -> None:
    """Open the notebooks of the clone or of a student; from a wheel, a copy in the current folder."""
    if chosen.smoke:
        return smoke()
    if chosen.student:
        folder = student(chosen.student, chosen.reset)
    else:
        folder = copied(folders.work() / "notebooks") if folders.INSTALLED else NOTEBOOKS
    start = app(*more) if chosen.app else command(folder, *more)
    os.execve(sys.executable, start, environment())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m fedrepro.lessons.lab", description=__doc__)
    lab_options(parser)
    try:
        open_notebooks(*parser.parse_known_args())
    except (BadInput, Failure) as error:
        sys.exit(f"lab: {error}")
