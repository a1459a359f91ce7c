"""Temporary files and folders named after the machine and process that made them: what a dead one left can be told."""

import os
import platform
import re
import shutil
import tempfile
from pathlib import Path

FOLDER = "fedrepro-"


def owner() -> str:
    return f"{platform.node()}-{os.getpid()}-"


def folder() -> tempfile.TemporaryDirectory:
    """A temporary folder; those that killed processes left are removed first."""
    tidy()
    return tempfile.TemporaryDirectory(prefix=FOLDER + owner())


def tidy(parent: Path | None = None, prefix: str = FOLDER) -> None:
    """Remove what processes of this machine that are gone left in `parent` (default: where folder() makes them)."""
    parent = parent or Path(tempfile.gettempdir())
    owned = re.compile(rf"{re.escape(prefix)}.*?{re.escape(platform.node())}-(\d+)-\w+")
    for path in parent.glob(f"{prefix}*"):
        if (found := owned.fullmatch(path.name)) and not _alive(int(found[1])):
            remove(path)


def remove(path: Path) -> None:
    """A file or a folder, if it is there and can be removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        pass
    return True
