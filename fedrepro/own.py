"""What comes from outside the package: found by entry points, told apart by a checksum of its source."""

import dis
import hashlib
import inspect
import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from types import CodeType, FunctionType
from typing import Any

from fedrepro.errors import BadInput

LIBRARIES = {"builtins", "fedrepro", "torch", "typing", "abc"}  # what an own class inherits from, besides own classes
PLAIN = (bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset, type(None))
Found = set[tuple[str, str]]  # a name, and the source or value that belongs to it


def packaged(group: str, check: Callable[[str, Any], object]) -> dict[str, Any]:
    """What installed packages offer as [project.entry-points."fedrepro.<group>"]; `check` refuses what does not fit.

    What cannot be used is named in one line and left out."""
    found = {}
    for point in entry_points(group=f"fedrepro.{group}"):
        try:
            value = point.load()
            check(point.name, value)
        except Exception as error:
            print(f"fedrepro: the entry point {point.name} = {point.value} is left out ({error})", file=sys.stderr)
            continue
        found[point.name] = value
    return found


def fingerprint(*things: Any) -> str:
    """16 hex digits that change with the source of these classes or functions.

    It covers what they inherit from outside fedrepro, and the functions, classes and plain values of their own module,
    package or notebook that they use."""
    found: Found = set()
    seen: set[int] = set()
    for thing in things:
        _collect(thing, found, seen)
    return hashlib.sha256(json.dumps(sorted(found)).encode()).hexdigest()[:16]


def _collect(thing: Any, found: Found, seen: set[int]) -> None:
    if id(thing) in seen:
        return
    seen.add(id(thing))
    for cls in thing.__mro__ if isinstance(thing, type) else ():
        if _package(cls) not in LIBRARIES:
            for name, member in vars(cls).items():
                function = _function(member)
                if function and function.__code__.co_filename != "<string>":  # which is what dataclass() wrote
                    _collect(function, found, seen)
                elif isinstance(member, PLAIN) and not name.startswith("__"):
                    found.add((f"{_name(cls)}.{name}", _plain(member)))
    if isinstance(thing, FunctionType):
        found.add((_name(thing), _source(thing)))
        for name, value in _used(thing):
            if isinstance(value, PLAIN):
                found.add((name, _plain(value)))
            elif isinstance(value, type | FunctionType) and _package(value) == _package(thing):
                _collect(value, found, seen)


def _function(member: Any) -> FunctionType | None:
    """The function behind a method, a class method, a property."""
    for inner in ("__func__", "fget", "func", "__wrapped__"):
        member = getattr(member, inner, member)
    return member if isinstance(member, FunctionType) else None


def _source(function: FunctionType) -> str:
    try:
        return textwrap.dedent(inspect.getsource(function)).rstrip()
    except (OSError, TypeError):
        raise BadInput(
            f"{_name(function)}: its source cannot be read, and the run id must cover it; "
            "define it in a file or in a notebook cell"
        ) from None


def _used(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Global names and outer variables that a function reads, with their values."""
    for name in sorted(_global_names(function.__code__)):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        if isinstance(value, type | FunctionType):
            yield "", value


def _global_names(code: CodeType) -> set[str]:
    names = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return names.union(*(_global_names(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def _plain(value: Any) -> str:
    return repr(sorted(value, key=repr) if isinstance(value, set | frozenset) else value)


def _package(thing: Any) -> str:
    return thing.__module__.partition(".")[0]


def _name(thing: Any) -> str:
    """Without the function that it may be defined in."""
    return thing.__qualname__.rpartition("<locals>.")[2]
