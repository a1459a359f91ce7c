"""What a person typed wrong, said in one line."""


class BadInput(ValueError):
    """Shown as one line without a traceback; the command line exits with code 2."""


class Failure(RuntimeError):
    """The machine failed us (disk, memory); one line says what is safe, and the exit code is 1."""


def bad(field: str, value, allowed: str) -> BadInput:
    shown = repr(value)
    shown = shown if len(shown) <= 100 else f"{shown[:97]}..."
    return BadInput(f"{field}: {shown} is not valid; allowed: {allowed}")


def choose(field: str, value, options) -> str:
    """`value` if it is one of `options`, else the error that lists them."""
    if value not in options:
        raise bad(field, value, ", ".join(sorted(options)))
    return value


def parse_options(field: str, text: str, defaults: dict) -> tuple[str, dict]:
    """`name:key=value,key=value` -> (name, defaults updated); each value takes its default's type."""
    name, colon, rest = text.partition(":")
    options, given = dict(defaults), set()
    for item in rest.split(",") if colon else ():
        key, equals, value = item.partition("=")
        if not equals or key not in defaults:
            allowed = ", ".join(f"{k}={v}" for k, v in defaults.items()) or "no options"
            raise bad(field, text, f"{name}, or {name}:key=value,... with {allowed}")
        if key in given:
            raise bad(field, text, f"{key} once")
        given.add(key)
        kind = type(defaults[key])
        try:
            options[key] = kind(value)
        except ValueError:
            raise bad(f"{field} option {key}", value, "a whole number" if kind is int else "a number") from None
    return name, options
