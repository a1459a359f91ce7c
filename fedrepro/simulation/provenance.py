"""What a result came from: code, data, versions, machine."""

import contextlib
import functools
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import torch

from fedrepro import __version__, folders
from fedrepro.simulation.client import Worker
from fedrepro.simulation.run import Row

ISA_VARIABLES = ("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR")  # pin instruction sets


@functools.cache
def commit() -> str | None:
    """The commit of the running code, with + if it was changed since; None outside a clone."""
    if folders.INSTALLED:
        return None
    git = functools.partial(subprocess.run, cwd=folders.PACKAGE, capture_output=True, text=True, check=False)
    try:
        head = git(["git", "rev-parse", "--short=12", "HEAD"])
        dirty = git(["git", "--no-optional-locks", "status", "--porcelain", "--untracked-files=no", "."])
    except OSError:
        return None
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "") if head.returncode == 0 else None


@functools.cache
def machine() -> dict[str, str]:
    """What decides the last bits of a result: the processor and the instruction set that torch uses on it."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        found = dict(
            re.findall(r"^(vendor_id|model name)\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        )
        model = " ".join(found.values()) or model
    pinned = [f"{name}={os.environ[name]}" for name in ISA_VARIABLES if os.environ.get(name)]
    instructions = " ".join([torch.backends.cpu.get_cpu_capability(), *pinned])
    return {"processor": platform.machine(), "cpu": model, "instructions": instructions}


def provenance(worker: Worker, rows: list[Row]) -> dict[str, Any]:
    """Data, versions and machine of a run, and the seconds it took."""
    return {
        "data": worker.data.provenance,
        "fedrepro": __version__,
        "commit": commit(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "machine": {**machine(), "cores": os.cpu_count(), "device": str(worker.device)},
        "wall_time": sum(row["wall_time"] for row in rows),
    }
