"""Methods by name: build("fedprox", mu=0.1), build("fedmlb+feddyn", alpha=0.1)."""

import pkgutil
from dataclasses import Field, fields, make_dataclass
from functools import cache
from importlib import import_module

from fedrepro.checks import choose, number
from fedrepro.errors import BadInput, bad, did_you_mean
from fedrepro.methods.base import FedAvg, Local, Message, Round, State, Upload, Weights, hp

__all__ = ["FedAvg", "Local", "Message", "Round", "State", "Upload", "Weights", "build", "hp", "registry"]


@cache
def registry() -> dict[str, type[FedAvg]]:
    """Every method of this package; its name is the class's in lower case."""
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = import_module(f"{__name__}.{info.name}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, FedAvg) and value.__module__ == module.__name__:
                found[value.__name__.lower()] = value
    return dict(sorted(found.items()))


@cache
def _stack(name: str) -> type[FedAvg]:
    parts = [registry()[choose("method", part, registry())] for part in name.split("+")]
    if len(parts) == 1:
        return parts[0]
    for i, first in enumerate(parts):
        for second in parts[i + 1 :]:
            both = f"{first.title()} and {second.title()}"
            if issubclass(first, second) or issubclass(second, first):
                raise bad("method", name, f"{both} cannot be stacked: one already contains the other")
            for what, a, b in (
                ("both replace the step", first.replaces, second.replaces),
                ("both have a hyperparameter", first.options(), second.options()),
            ):
                if common := sorted(set(a) & set(b)):
                    raise bad("method", name, f"{both} cannot be stacked: {what} {common[0]!r}")
    replaces = frozenset().union(*(part.replaces for part in parts))
    return make_dataclass(name, [], bases=tuple(parts), frozen=True, namespace={"replaces": replaces})


def _value(method: str, option: Field, given: object) -> object:
    """The hyperparameter as given, or the error that says what is allowed."""
    name, kind = f"hp.{option.name}", type(option.default)
    if kind in (int, float):
        return number(f"{name} ({method})", given, kind, option.metadata["low"], option.metadata["high"])
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
