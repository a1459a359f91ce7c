"""Checks of user input: they return the value, or raise an error that says what is allowed."""

import math
from numbers import Real
from typing import Any

from fedrepro.errors import bad

HIGHEST = {int: 10**9, float: 1e30}  # if nothing else limits it: what tensors can count and 32-bit floats hold


def number(name: str, value: Any, kind: type, low: float, high: float, closed: bool = True):
    """`value` as `kind` within its range, or the error that names the field, the value and the range."""
    high = min(high, HIGHEST[kind]) if high == math.inf else high
    given: Any = math.nan if isinstance(value, bool) or not isinstance(value, Real) else value
    inside = low <= given <= high and (closed or given > low)  # never true of nan
    if not inside or (kind is int and given != int(given)):
        what = "a whole number" if kind is int else "a number"
        raise bad(name, value, f"{what} in {'[' if closed else '('}{low}, {high}]")
    return kind(given) + 0  # -0.0 is 0.0


def choose(field: str, value, options) -> str:
    """`value` if it is one of `options`, else the error that lists them."""
    if value not in options:
        raise bad(field, value, ", ".join(sorted(options)), options)
    return value


def parse_options(field: str, text: str, defaults: dict) -> tuple[str, dict]:
    """`name:key=value,key=value` -> (name, defaults updated); each value takes its default's type."""
    name, colon, rest = text.partition(":")
    given = {}
    for item in rest.split(",") if colon else ():
        key, equals, value = item.partition("=")
        if not equals or key not in defaults:
            allowed = ", ".join(f"{k}={v}" for k, v in defaults.items()) or "no options"
            raise bad(field, text, f"{name}, or {name}:key=value,... with {allowed}")
        if key in given:
            raise bad(field, text, f"{key} once")
        kind = type(defaults[key])
        try:
            given[key] = kind(value)
        except ValueError:
            raise bad(f"{field} option {key}", value, "a whole number" if kind is int else "a number") from None
    return name, {**defaults, **given}
