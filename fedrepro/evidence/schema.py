"""Parses TOML tables into dataclasses, strictly: an error names the unknown key, missing key or wrong value.

list[X] takes a list, tuple[X, ...] a list or a single X. White space in text is collapsed, so prose may span lines.
"""

import dataclasses
from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, dataclass_transform, get_args, get_origin, get_type_hints

from fedrepro.errors import BadInput

Label = Annotated[str, "a label"]  # of an axis; TOML may write it as a number
AxisName = Annotated[str, "the name of an axis"]
MeasureName = Annotated[str, "the name of a measure"]
Selection = dict[AxisName, tuple[Label, ...]]  # of cells: those that have one of these labels on each of these axes
OWN = (Label, tuple[Label, ...], float | dict[Label, float])  # labels of the axis named beside them
PLAIN = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}


@dataclasses.dataclass(frozen=True)
class Names:
    """The names of a table's axes, with their labels, and of its measures."""

    axes: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    measures: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def check(self, where: str, axis: str, labels: Any) -> None:
        """Refuse a label, or one of several, that is not on the axis."""
        for name in [labels] if isinstance(labels, str) else labels if isinstance(labels, tuple | dict) else []:
            if name not in self.axes.get(axis, ()):
                raise BadInput(f"{where}: {axis} = {name!r} is not a label in this table")


def label(value: Any) -> str:
    """TOML and CSV may write one number in several ways: 1, 1.0, "1"."""
    try:
        return f"{float(value):g}"
    except ValueError:
        return str(value)


def matches(where: Selection, labels: Mapping[str, str]) -> bool:
    """Whether a cell with these labels is selected."""
    return all(labels[axis] in wanted for axis, wanted in where.items())


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Tagged:
    """Base of a family of frozen dataclasses: a table's key `kind` says which of them it is."""

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type]]

    def __init_subclass__(cls, kind: str = ""):
        if Tagged in cls.__bases__:
            cls.kinds = {}
        elif kind:
            cls.kind, cls.kinds[kind] = kind, cls
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)


def parse(kind: Any, value: Any, where: str, names: Names) -> Any:
    """`value`, as tomllib gives it, as a `kind`; `where` is its key."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if not _fits(kind, value):
        raise BadInput(f"{where}: {value!r} is not valid; allowed: {_allowed(kind)}")
    if origin in (Union, UnionType):
        return parse(next(part for part in parts if _fits(part, value)), value, where, names)
    if dataclasses.is_dataclass(kind):
        return _parse_class(kind, value, where, names)
    if origin is dict:
        return _parse_dict(parts, value, where, names)
    if origin in (list, tuple):
        items = value if isinstance(value, list) else [value]
        return origin(parse(parts[0], item, _item(where, item), names) for item in items)
    if kind in (AxisName, MeasureName):
        _check_name(kind, value, where, names)
    if kind == Label:
        return label(value)
    return " ".join(value.split()) if isinstance(value, str) else float(value) if kind is float else value


def _item(where: str, item: Any) -> str:
    """The key of a list's item, with its name if it has one."""
    names = [item[key] for key in ("id", "name", "table") if key in item] if isinstance(item, dict) else []
    return f"{where} {names[0]}" if names else where


def _parse_dict(parts: tuple[Any, ...], value: dict, where: str, names: Names) -> dict:
    found = {}
    for key, part in value.items():
        if parts[0] in (AxisName, MeasureName):
            _check_name(parts[0], key, where, names)
        elif not _fits(parts[0], key):
            raise BadInput(f"{where}: {key!r} is not valid; allowed: {_allowed(parts[0])}")
        found[key] = parse(parts[1], part, f"{where}.{key}", names)
        if parts[0] == AxisName and parts[1] in OWN:
            names.check(where, key, found[key])
    return found


def _parse_class(kind: Any, value: dict, where: str, names: Names) -> Any:
    if issubclass(kind, Tagged):
        tag = value.get("kind")
        if tag not in kind.kinds:
            raise BadInput(f"{where}.kind: {tag!r} is none of {', '.join(kind.kinds)}")
        kind, value = kind.kinds[tag], {key: part for key, part in value.items() if key != "kind"}
    found = parse_keys(kind, value, where, names)
    try:
        for key, needed in keys_of(kind).items():
            if needed and key not in found:
                raise BadInput(f"{key}: is missing")
        return kind(**found)
    except BadInput as error:
        raise BadInput(f"{where}.{error}".lstrip(".")) from None


def parse_keys(kind: Any, value: dict, where: str, names: Names) -> dict[str, Any]:
    """The keys that are given, parsed as fields of a dataclass; labels must be on the `axis` named beside them."""
    hints, found = get_type_hints(kind, include_extras=True), {}
    prefix = f"{where}." if where else ""
    for key in value:
        if key not in keys_of(kind):
            raise BadInput(f"{prefix}{key}: is not a key; allowed: {', '.join(sorted(keys_of(kind)))}")
    for key in [key for key in keys_of(kind) if key in value]:
        found[key] = parse(hints[key], value[key], prefix + key, names)
        if "axis" in found and hints[key] in OWN:
            names.check(prefix + key, found["axis"], found[key])
    return found


@cache
def keys_of(kind: Any) -> dict[str, bool]:
    """The TOML keys of a dataclass, and whether each is required."""
    missing, keys = dataclasses.MISSING, [f for f in dataclasses.fields(kind) if f.metadata.get("toml", True)]
    return {f.name: f.default is missing and f.default_factory is missing for f in keys}


def _check_name(kind: Any, name: str, where: str, names: Names) -> None:
    known = names.axes if kind == AxisName else names.measures
    if name not in known:
        raise BadInput(f"{where}: {name!r} is none of {', '.join(known)}")


def _fits(kind: Any, value: Any) -> bool:
    """Whether the outermost type is right."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return value in parts
    if origin in (Union, UnionType):
        return any(_fits(part, value) for part in parts)
    if origin is tuple:
        return isinstance(value, list) or _fits(parts[0], value)
    if kind in (int, float, Label):
        types = int if kind is int else int | float if kind is float else int | float | str
        return isinstance(value, types) and not isinstance(value, bool)
    if kind in (str, AxisName, MeasureName):
        return isinstance(value, str)
    return isinstance(value, dict if dataclasses.is_dataclass(kind) else origin or kind)


def _allowed(kind: Any) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return ", or ".join(_allowed(part) for part in parts if part is not NoneType)
    if origin is Literal:
        return ", ".join(map(str, parts))
    if origin in (list, tuple):
        return f"a list, each item {_allowed(parts[0])}" + (", or one such" if origin is tuple else "")
    if origin is Annotated:
        return kind.__metadata__[0]
    return "labels by axis" if kind == Selection else PLAIN.get(kind, "a table")
