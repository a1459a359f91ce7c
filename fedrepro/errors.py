"""Errors that are shown as one line: wrong input, failing machines, diverging runs, a stopped cell."""

import difflib
from collections.abc import Iterable


class OneLine(BaseException):
    """An error that a notebook shows as one line too, without a traceback."""

    def _render_traceback_(self) -> list[str]:  # which IPython asks for
        return [str(self)]


class BadInput(OneLine, ValueError):
    """Shown as one line without a traceback; the command line exits with code 2."""


class Stopped(OneLine, KeyboardInterrupt):
    """The user stopped training in a notebook."""


class Failure(OneLine, RuntimeError):
    """An error that is not the user's (disk, memory): one line says what is safe; the exit code is 1."""


class Diverged(Failure):
    """The training loss of a run is no longer finite."""


def bad(field: str, value: object, allowed: str, names: Iterable[object] = ()) -> BadInput:
    """The error that names the field, the value and what is allowed, and the nearest of `names`."""
    shown = repr(value)
    shown = shown if len(shown) <= 100 else f"{shown[:97]}..."
    return BadInput(f"{field}: {shown} is not valid; {did_you_mean(value, names)}allowed: {allowed}")


def did_you_mean(value: object, names: Iterable[object]) -> str:
    """A suggestion of the closest name, if there is one."""
    near = difflib.get_close_matches(str(value)[:100].lower(), map(str, names), n=1)
    return f"did you mean {near[0]}? " if near else ""
