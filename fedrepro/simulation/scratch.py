"""Temporary files and folders named after the machine and process that own them, so that leftovers are recognised."""

import os
import platform
import re
import shutil
import tempfile
from pathlib import Path

FOLDER = "fedrepro-"


def owner() -> str:
    """The part of a name that says whose it is."""
    return f"{platform.node()}-{os.getpid()}-"


def folder() -> tempfile.TemporaryDirectory:
    """A temporary folder; leftovers of killed processes are removed first."""
    tidy()
    return tempfile.TemporaryDirectory(prefix=FOLDER + owner())


def tidy(parent: Path | None = None, prefix: str = FOLDER) -> None:
    """Remove what dead processes of this machine left in `parent` (default: where folder() puts them)."""
    parent = parent or Path(tempfile.gettempdir())
    owned = re.compile(rf"{re.escape(prefix)}.*?{re.escape(platform.node())}-(\d+)-\w+")
    for path in parent.glob(f"{prefix}*"):
        if (found := owned.fullmatch(path.name)) and not _alive(int(found[1])):
            remove(path)


def remove(path: Path) -> None:
    """Remove a file or folder, if it exists and can be removed."""
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
