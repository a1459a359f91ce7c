"""Methods by name: build("fedprox", mu=0.1), build("fedmlb+feddyn", alpha=0.1); `@method` adds one of your own."""

import math
import pkgutil
from dataclasses import MISSING, Field, dataclass, fields, make_dataclass
from functools import cache
from importlib import import_module
from itertools import combinations
from typing import Any, TypeVar, dataclass_transform

from fedrepro import own
from fedrepro.checks import choose, number
from fedrepro.errors import BadInput, bad, did_you_mean
from fedrepro.methods.base import FedAvg, Local, Message, Round, State, Upload, Weights, hp

__all__ = ["FedAvg", "Local", "Message", "Round", "State", "Upload", "Weights", "build", "hp", "method", "registry"]
Method = TypeVar("Method", bound=type)
_registered: dict[str, type[FedAvg]] = {}  # by `method`, in this process


def registry() -> dict[str, type[FedAvg]]:
    """All registered methods; a method's name is the class's in lower case."""
    return dict(sorted({**_built_in(), **own.packaged("methods", _check_own), **_registered}.items()))


@dataclass_transform(frozen_default=True, field_specifiers=(hp,))
def method(cls: Method) -> Method:
    """Register a class of yours: `Run(method=...)` takes its name in lower case. A class decorator.

    The class becomes a frozen dataclass; a class of the same name that was registered before is replaced. Ids of its
    runs cover its source, so a changed class gives other runs."""
    if not isinstance(cls, type) or not issubclass(cls, FedAvg):
        raise bad("method", cls, "a class that inherits from fedrepro.FedAvg")
    made: Any = cls if "__dataclass_params__" in vars(cls) else dataclass(frozen=True)(cls)
    name = made.__name__.lower()
    _check_own(name, made)
    _registered[name] = made
    _stack.cache_clear()
    return made


def _check_own(name: str, cls: Any) -> None:
    if not isinstance(cls, type) or not issubclass(cls, FedAvg) or name != cls.__name__.lower():
        raise bad("method", cls, "a class that inherits from fedrepro.FedAvg, under its name in lower case")
    if name in _built_in():
        raise bad("method", name, "another name: fedrepro already has a method of this name")
    for f in fields(cls):
        if f.default is MISSING:
            raise BadInput(f"hp.{f.name}: {name} gives it no default; write {f.name}: float = hp(1.0)")
    own.fingerprint(cls)


def fingerprint(name: str) -> str:
    """Of the classes from outside fedrepro in a method or stack; empty if there is none."""
    parts = [registry()[part] for part in name.split("+")]
    outside = [cls for cls in parts if cls not in _built_in().values()]
    return own.fingerprint(*outside) if outside else ""


@cache
def _built_in() -> dict[str, type[FedAvg]]:
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = import_module(f"{__name__}.{info.name}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, FedAvg) and value.__module__ == module.__name__:
                found[value.__name__.lower()] = value
    return found


@cache
def _stack(name: str) -> type[FedAvg]:
    known = registry()
    for part in name.split("+"):
        if part not in known:
            raise bad("method", part, f"{', '.join(known)}; register one of your own first (@fedrepro.method)", known)
    parts = [known[part] for part in name.split("+")]
    if len(parts) == 1:
        return parts[0]
    for first, second in combinations(parts, 2):
        refused = f"{first.title()} and {second.title()} cannot be stacked:"
        if issubclass(first, second) or issubclass(second, first):
            raise bad("method", name, f"{refused} one already contains the other")
        if steps := sorted(set(first.replaces) & set(second.replaces)):
            raise bad("method", name, f"{refused} both replace the step {steps[0]!r}")
        if options := sorted(set(first.options()) & set(second.options())):
            raise bad("method", name, f"{refused} both have a hyperparameter {options[0]!r}")
    replaces = frozenset().union(*(part.replaces for part in parts))
    return make_dataclass(name, [], bases=tuple(parts), frozen=True, namespace={"replaces": replaces})


def _value(method: str, option: Field, given: object) -> object:
    """The hyperparameter as given, or the error that says what is allowed."""
    name, kind = f"hp.{option.name}", type(option.default)
    limits = option.metadata.get("low", -math.inf), option.metadata.get("high", math.inf)
    if kind in (int, float):
        return number(f"{name} ({method})", given, kind, *limits)
    if kind is bool and isinstance(given, str) and given.lower() in ("true", "false"):
        return given.lower() == "true"
    if not isinstance(given, kind):
        raise bad(f"{name} ({method})", given, "true or false" if kind is bool else f"a {kind.__name__}")
    if choices := option.metadata.get("choices"):
        choose(f"{name} ({method})", given, choices)
    return given


def build(name: str, /, **options) -> FedAvg:
    """The method or stack called `name` with these hyperparameters; refuses what it does not know."""
    if not isinstance(name, str):
        raise bad("method", name, "text, one of " + ", ".join(registry()))
    cls = _stack(name)
    known = {f.name: f for f in fields(cls)}
    for key in options:
        if key not in known:
            allowed = f"{did_you_mean(key, known)}allowed: {', '.join(known) or 'none'}"
            raise BadInput(f"hp.{key}: {name} has no hyperparameter {key!r}; {allowed}")
    return cls(**{key: _value(name, known[key], value) for key, value in options.items()})


def describe() -> list[dict]:
    """One row per method, for `fedrepro methods`."""
    return [
        {
            "method": name,
            "what": (cls.__doc__ or "").strip().splitlines()[0],
            "hyperparameters": {f.name: f.default for f in fields(cls)},
        }
        for name, cls in registry().items()
    ]
