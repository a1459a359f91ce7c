"""Kernels that start at once: forked from a process that has imported the large packages.

Jupyter finds the class by its entry point, and uses it where JUPYTER_DEFAULT_PROVISIONER_NAME asks for it."""

import multiprocessing
import os
import signal
from importlib.metadata import entry_points
from multiprocessing.context import ForkServerProcess
from typing import Any

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning import LocalProvisioner

CHOSEN = {"JUPYTER_DEFAULT_PROVISIONER_NAME": "fedrepro-forked"}  # as pyproject.toml names it
PACKAGES = ["torch", "pandas", "seaborn", "ipykernel.kernelapp", "ipywidgets"]
LAUNCHER = "ipykernel_launcher"


def chosen() -> dict[str, str]:
    """The variable that asks for forked kernels; none if fedrepro was installed before it had them."""
    (name,) = CHOSEN.values()
    return CHOSEN if entry_points(group="jupyter_client.kernel_provisioners", name=name) else {}


class Forked(LocalProvisioner):
    """A kernel of this Python, forked; any other is started as usual."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        if LAUNCHER not in cmd:
            return await super().launch_kernel(cmd, **kwargs)
        server = multiprocessing.get_context("forkserver")
        server.set_forkserver_preload(PACKAGES)
        arguments = cmd[cmd.index(LAUNCHER) + 1 :]
        process = server.Process(target=_serve, args=(arguments, kwargs.get("cwd"), kwargs["env"]))
        process.start()
        self.process = _Handle(process)  # pyright: ignore[reportAttributeAccessIssue] - all that is used of a Popen
        self.pid = self.pgid = process.pid
        return self.connection_info


class _Handle:
    """The process, with the methods of a Popen that a provisioner calls."""

    stdin = stdout = stderr = None

    def __init__(self, process: ForkServerProcess):
        self._process = process

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self._process.pid or 0, number)

    def kill(self) -> None:
        self._process.kill()

    def terminate(self) -> None:
        self._process.terminate()


def _serve(arguments: list[str], folder: str | None, environment: dict[str, str]) -> None:
    """The kernel's process."""
    import matplotlib
    from ipykernel.kernelapp import IPKernelApp

    os.setsid()  # a group of its own, which is what gets signals
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    if folder:
        os.chdir(folder)
    matplotlib.rcParams["backend"] = "module://matplotlib_inline.backend_inline"  # a kernel tells it when imported
    parent = f"--IPKernelApp.parent_handle={os.getppid()}"  # the kernel ends when the process it came from does
    IPKernelApp.launch_instance([*arguments, parent])
