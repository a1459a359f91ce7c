"""Errors that are shown as one line: wrong input, failing machines, diverging runs."""


class BadInput(ValueError):
    """Shown as one line without a traceback; the command line exits with code 2."""


class Failure(RuntimeError):
    """Something went wrong that is no input error (disk, memory): one line says what is safe; the exit code is 1."""


class Diverged(Failure):
    """The training loss of a run is no longer a finite number."""


def bad(field: str, value: object, allowed: str) -> BadInput:
    """The error that names the field, the value and what is allowed."""
    shown = repr(value)
    shown = shown if len(shown) <= 100 else f"{shown[:97]}..."
    return BadInput(f"{field}: {shown} is not valid; allowed: {allowed}")
