"""The sections of a table's TOML file, one class per section; measures and claims have modules of their own."""

import itertools
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from fedrepro.errors import BadInput
from fedrepro.evidence import schema
from fedrepro.evidence.schema import AxisName, Label, MeasureName, Selection

ScaleName = Literal["smoke", "reduced", "cpu", "paper"]
SCALES: tuple[str, ...] = get_args(ScaleName)
Fields = dict[str, Any]  # of Run


@dataclass(frozen=True)
class Axis:
    """`[axis.NAME]`: what its labels set, as `choices`, or as `values` of one field."""

    label: str = ""  # what figures and tables call it
    choices: dict[str, Fields] = field(default_factory=dict)
    values: list[Any] = field(default_factory=list)
    format: str = ""  # of a value: "level:{}"
    readings: bool = False  # its labels are readings of the paper, of which the authors had one
    field: str = ""  # that the values set: of Run, or hp.NAME

    def __post_init__(self):
        if bool(self.choices) == bool(self.field and self.values):
            raise BadInput("choices: needed, or field and values")

    @property
    def labels(self) -> dict[str, Fields]:
        """label -> the fields of Run that it sets"""
        if self.choices:
            return self.choices
        given = {schema.label(v): self.format.format(v) if self.format else v for v in self.values}
        return {label: fields_of({self.field: value}) for label, value in given.items()}


@dataclass(frozen=True)
class AxisChange:
    """`[scale.NAME.axis.NAME]`"""

    only: tuple[Label, ...] | None = None  # the labels that this scale has
    choices: dict[str, Fields] = field(default_factory=dict)  # label: fields that are different at this scale


@dataclass(frozen=True)
class Scale:
    """`[scale.NAME]`: what it changes."""

    seeds: list[int] | None = None
    run: Fields = field(default_factory=dict)
    axis: dict[AxisName, AxisChange] = field(default_factory=dict)
    measure: dict[MeasureName, dict[str, Any]] = field(default_factory=dict)
    data_note: str = ""  # for the caption: the data of this scale


@dataclass(frozen=True)
class Override:
    """`[[override]]`: fields of Run for some cells."""

    where: Selection
    run: Fields
    scales: list[ScaleName] = field(default_factory=lambda: list(get_args(ScaleName)))


@dataclass(frozen=True)
class Reported:
    """`[[reported]]`: the paper's numbers in reported/<file>, one line per number."""

    file: str
    columns: dict[AxisName, str]  # the CSV column with an axis's label
    measure: MeasureName | None = None
    measures: dict[MeasureName, dict[str, tuple[Label, ...]]] = field(default_factory=dict)  # by columns' values
    where: dict[str, tuple[Label, ...]] = field(default_factory=dict)  # only these lines
    fixed: dict[AxisName, Label] = field(default_factory=dict)  # labels that no column has

    def __post_init__(self):
        if bool(self.measure) == bool(self.measures):
            raise BadInput("measure: needed, or measures")

    def lines_of(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """measure -> the values that a line's columns must have"""
        own = self.measures or {str(self.measure): {}}
        return {name: self.where | columns for name, columns in own.items()}


@dataclass(frozen=True)
class Groups:
    """`[groups]`: averages over cells whose labels have the same number of parts."""

    title: str
    measure: MeasureName
    axis: AxisName
    separator: str  # of the parts of a label
    file: str  # in reported/
    column: str


@dataclass(frozen=True)
class Deviation:
    """`[[deviation]]`: where we differ from the paper, or it does not say."""

    what: str
    why: str
    erratum: str = ""  # ids in docs/errata.md


@dataclass(frozen=True)
class Tuning:
    """`[tune]`: every method gets the same number of pilot runs, on images and a seed that no verdict uses."""

    grid: dict[str, list[Any]]  # field of Run, or hp.NAME, and the values tried
    grids: dict[str, dict[str, list[Any]]] = field(default_factory=dict)  # method: its own grid instead
    where: Selection = field(default_factory=dict)  # the cells that are tuned
    seed: int = 1000
    holdout: float = 0.1  # share of the training images that scores the pilots
    length: float = 1.0  # of a pilot, as a share of the run's rounds
    column: str = "accuracy"

    def __post_init__(self):
        size = len(self.settings(""))
        if not size:
            raise BadInput("grid: has no point to try: every list needs a value")
        for method in self.grids:
            if len(self.settings(method)) != size:
                raise BadInput(
                    f"grids.{method}: tries {len(self.settings(method))} settings, [tune.grid] {size}: "
                    "every method gets the same number of pilot runs"
                )

    def grid_of(self, method: str) -> dict[str, list[Any]]:
        return self.grids.get(method, self.grid)

    def settings(self, method: str) -> list[dict[str, Any]]:
        """The combinations tried for a method."""
        grid = self.grid_of(method)
        return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def fields_of(setting: dict[str, Any]) -> Fields:
    """{"lr": 0.1, "hp.mu": 1} as fields of Run."""
    plain = {name: value for name, value in setting.items() if not name.startswith("hp.")}
    hp = {name.removeprefix("hp."): value for name, value in setting.items() if name.startswith("hp.")}
    return plain | ({"hp": hp} if hp else {})


def without(fields: Fields, names: set[str]) -> Fields:
    """These fields of Run without the named ones (`lr`, `hp.mu`, ...)."""
    kept = {name: value for name, value in fields.items() if name not in names and name != "hp"}
    hp = {name: value for name, value in fields.get("hp", {}).items() if f"hp.{name}" not in names}
    return kept | ({"hp": hp} if hp else {})


def merge(base: Fields, change: Fields) -> Fields:
    """Later fields win; hyperparameters are merged one by one."""
    merged = {**base, **change}
    if "hp" in base and "hp" in change:
        merged["hp"] = {**base["hp"], **change["hp"]}
    return merged
