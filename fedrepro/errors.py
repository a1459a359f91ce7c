"""What a person typed wrong, said in one line."""


class BadInput(ValueError):
    """Shown as one line without a traceback; the command line exits with code 2."""


class Failure(RuntimeError):
    """The machine failed us (disk, memory); one line says what is safe, and the exit code is 1."""


def bad(field: str, value, allowed: str) -> BadInput:
    shown = repr(value)
    shown = shown if len(shown) <= 100 else f"{shown[:97]}..."
    return BadInput(f"{field}: {shown} is not valid; allowed: {allowed}")
