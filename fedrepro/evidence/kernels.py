"""Kernels that start at once: forked from a process that has imported torch and fedrepro.

Jupyter finds the class by its entry point, and uses it where JUPYTER_DEFAULT_PROVISIONER_NAME asks for it."""

import multiprocessing
import os
import signal
import tempfile
from importlib.metadata import entry_points
from multiprocessing.context import ForkServerProcess
from typing import Any

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning import LocalProvisioner

CHOSEN = {"JUPYTER_DEFAULT_PROVISIONER_NAME": "fedrepro-forked"}  # as pyproject.toml names it
PACKAGES = ["torch", "ipykernel.kernelapp", "fedrepro.evidence.notebook", "fedrepro.lessons.widgets"]
LAUNCHER = "ipykernel_launcher"


def chosen() -> dict[str, str]:
    """The variable that asks for forked kernels; none if fedrepro was installed before it had them."""
    (name,) = CHOSEN.values()
    return CHOSEN if entry_points(group="jupyter_client.kernel_provisioners", name=name) else {}


class Forked(LocalProvisioner):
    """A kernel of this Python, forked; any other is started as usual."""

    sockets: tempfile.TemporaryDirectory | None = None

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """With sockets in a folder of its own: another program may take a TCP port before the kernel binds it."""
        if self.parent and LAUNCHER in self.kernel_spec.argv and not self.sockets:
            self.sockets = tempfile.TemporaryDirectory(prefix="kernel-")
            self.parent.transport, self.parent.ip = "ipc", os.path.join(self.sockets.name, "socket")
        return await super().pre_launch(**kwargs)

    async def cleanup(self, restart: bool = False) -> None:
        await super().cleanup(restart)
        if self.sockets and not restart:
            self.sockets.cleanup()

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        if LAUNCHER not in cmd:
            return await super().launch_kernel(cmd, **kwargs)
        multiprocessing.get_context("forkserver").set_forkserver_preload(PACKAGES)
        arguments = cmd[cmd.index(LAUNCHER) + 1 :]
        process = _Kernel(target=_serve, args=(arguments, kwargs.get("cwd"), kwargs["env"]))
        process.start()
        self.process = process  # pyright: ignore[reportAttributeAccessIssue] - all that is used of a Popen
        self.pid = self.pgid = process.pid
        return self.connection_info


class _Kernel(ForkServerProcess):
    """A process with the methods of a Popen that a provisioner calls."""

    stdin = stdout = stderr = None

    def poll(self) -> int | None:
        return self.exitcode

    def wait(self) -> int | None:
        self.join()
        return self.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid or 0, number)


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
