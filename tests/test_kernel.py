"""In a notebook's kernel: progress counts rounds, an interrupted cell says how to resume, errors are one line.

A forked kernel, as the driver uses, is like any other."""

import contextlib
import os
import re
import time
from queue import Empty

import nbformat
import psutil
import pytest
from jupyter_client.manager import start_new_kernel
from jupyter_client.provisioning import KernelProvisionerFactory
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError

from fedrepro.evidence import kernels

PATIENCE = 60  # seconds


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """(manager, client) of a kernel as JupyterLab starts it, that has imported fedrepro."""
    started_by("local-provisioner")
    manager, client = start_new_kernel(cwd=str(tmp_path_factory.mktemp("kernel")), kernel_name="python3")
    try:
        texts, error = execute(manager, client, "import fedrepro\nfrom fedrepro import Run, rounds, sweep, train")
        assert error is None and not texts
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        started_by(*kernels.CHOSEN.values())


def started_by(provisioner: str) -> None:
    KernelProvisionerFactory.instance().default_provisioner_name = provisioner


def execute(manager, client, code, interrupt_at=None):
    """What a cell printed, and its error message; interrupted once what it printed matches a pattern."""
    sent, texts, error, end = client.execute(code), [], None, time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with contextlib.suppress(Empty):
            message = client.get_iopub_msg(timeout=1)
            if message["parent_header"].get("msg_id") != sent:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                texts.append(content["text"])
            if kind == "error":
                error = content
            if kind == "status" and content["execution_state"] == "idle":
                return texts, error
            if interrupt_at and re.search(interrupt_at, "".join(texts)):
                manager.interrupt_kernel()
                interrupt_at = None
    raise AssertionError(f"the cell took more than {PATIENCE} s: {texts}")


LONG = 'Run(data="digits", clients=4, per_round=2, rounds={}, epochs=1, seed={})'


def test_wrong_input_is_one_line(kernel):
    _, error = execute(*kernel, 'Run(method="fedprx")')
    (line,) = error["traceback"]
    assert line.startswith("method: 'fedprx' is not valid; did you mean fedprox?") and "\n" not in line


def test_an_interrupted_cell_says_how_to_resume(kernel):
    code = f"train({LONG.format(100_000, 0)}, store='runs', workers={{}}, progress=lambda row: print(row['round']))"
    _, error = execute(*kernel, code.format(1), interrupt_at=r"\b3\n")
    assert error["traceback"] == ["stopped; run the cell again to resume"]
    texts, error = execute(*kernel, code.format(2), interrupt_at=r"\b\d+\n(.*\n){5}")
    assert error["traceback"] == ["stopped; run the cell again to resume"]
    assert "".join(texts).startswith("1\n2\n3\n")  # it resumed: the rounds that were there come first
    _, error = execute(*kernel, code.format(1).replace("store='runs', ", ""), interrupt_at=r"\b2\n")
    assert error["traceback"] == ["stopped; nothing is kept; with store=... the same cell resumes"]


def test_progress_counts_rounds_and_the_time_left(kernel):
    code = f"""
from pathlib import Path
from fedrepro.simulation.progress import progress
runs = [{LONG.format(100_000, 1)}, {LONG.format(100_000, 2)}]
with progress(runs, Path("runs")):
    sweep(runs, store="runs", workers=2)
"""
    texts, error = execute(*kernel, code, interrupt_at=r"[1-9]\d*/200000 \[00:0[2-9]<\d[\d:]+, ")
    assert error["traceback"] == ["stopped; run the cell again to resume"]
    assert "nan" not in "".join(texts)


STATE = "import os, sys; print(os.getcwd(), os.environ.get('GIVEN'), 'torch' in sys.modules, os.getpid(), sep='|')"
FIGURE = "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()"


def run_cells(folder, *sources):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    return [cell.outputs for cell in notebook.cells]


def test_a_forked_kernel_is_like_another_and_ends(tmp_path, monkeypatch):
    monkeypatch.setenv("GIVEN", "yes")
    seen = {}
    for provisioner in ("local-provisioner", *kernels.CHOSEN.values()):
        started_by(provisioner)
        (state,), (figure,) = run_cells(tmp_path, STATE, FIGURE)
        *seen[provisioner], loaded, pid = state.text.strip().split("|")
        seen[provisioner].append(figure.data["image/png"])
        assert loaded == str(provisioner != "local-provisioner")
        assert not psutil.pid_exists(int(pid))
    plain, forked = seen.values()
    assert plain == forked and plain[:2] == [os.path.realpath(tmp_path), "yes"]


def test_a_forked_kernel_needs_no_port_that_another_program_could_take(tmp_path, monkeypatch):
    """Jupyter looks for free TCP ports and gives them to the kernel, which binds them a moment later."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        sockets = {str(path) for path in tmp_path.glob("kernel-*/*")}
        assert manager.transport == "ipc" and sockets == {f"{manager.ip}-{port}" for port in manager.ports}
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert not list(tmp_path.glob("kernel-*"))


def test_a_forked_kernel_that_dies_is_noticed(tmp_path):
    with pytest.raises(DeadKernelError):
        run_cells(tmp_path, "import os; os._exit(3)")


def test_an_installation_without_the_entry_point_starts_kernels_as_usual(monkeypatch):
    assert kernels.chosen() == kernels.CHOSEN
    monkeypatch.setattr(kernels, "entry_points", lambda **group: ())
    assert kernels.chosen() == {}
