"""JupyterLab on the notebooks, for `make lab`; with --smoke, for `make lab-smoke`, only a look whether it answers."""

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

from fedrepro.errors import Failure
from fedrepro.evidence.spec import NOTEBOOKS

START = "/lab/tree/index.ipynb"
WIDGETS = "/lab/extensions/@jupyter-widgets/jupyterlab-manager/package.json"
PATIENCE = 60  # seconds for the server to answer


def command(folder: Path, *more: str) -> list[str]:
    root = ["--allow-root"] if os.geteuid() == 0 else []
    return [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={folder}", f"--LabApp.default_url={START}",
            *root, *more]  # fmt: skip


def environment(**more: str) -> dict[str, str]:
    """With our defaults: JupyterLab asks nobody about its news and updates while a class is watching."""
    paths = [str(NOTEBOOKS / ".jupyter"), *filter(None, [os.environ.get("JUPYTER_CONFIG_PATH")])]
    return {**os.environ, "JUPYTER_CONFIG_PATH": os.pathsep.join(paths), **more}


class Server:
    def __init__(self, url: str, token: str):
        self.url, self.token = url, token

    def ask(self, path: str, method: str = "GET", body: dict | None = None) -> bytes:
        headers = {"Authorization": f"token {self.token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(self.url + path, data, headers, method=method), timeout=30) as answer:
            return answer.read()

    def sessions(self) -> list[str]:
        """The open notebooks that have a kernel."""
        return [session["id"] for session in json.loads(self.ask("/api/sessions"))]


@contextlib.contextmanager
def serve(folder: Path, log: Path | None = None) -> Iterator[Server]:
    """A server without a browser, on a free port of this machine; it ends with the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Server(f"http://127.0.0.1:{port}", secrets.token_hex(16))
    words = command(folder, "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0")
    with open(log or os.devnull, "wb") as output:
        process = subprocess.Popen(words, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
                                   env=environment(JUPYTER_TOKEN=server.token))  # fmt: skip
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
        with contextlib.suppress(URLError, OSError):
            server.ask("/api/status")
            return
        time.sleep(0.2)
    raise Failure(f"JupyterLab {'ended' if process.poll() is not None else 'did not answer'}; try: make lab")


def smoke() -> None:
    """The start page, the widgets' extension and a kernel answer."""
    with serve(NOTEBOOKS) as server:
        for path in (START, WIDGETS, "/api/contents/index.ipynb"):
            server.ask(path)
        kernel = json.loads(server.ask("/api/kernels", "POST", {}))["id"]
        server.ask(f"/api/kernels/{kernel}")
        server.ask(f"/api/kernels/{kernel}", "DELETE")
    print("JupyterLab answers: the index, the widgets, a kernel")


if __name__ == "__main__":
    if sys.argv[1:] == ["--smoke"]:
        smoke()
    else:
        os.execve(sys.executable, command(NOTEBOOKS, *sys.argv[1:]), environment())
