"""Table: the runs behind a table or figure of a paper, the paper's numbers, the claims."""

import csv
import dataclasses
import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedrepro.checks import choose
from fedrepro.errors import BadInput
from fedrepro.evidence import schema, sections
from fedrepro.evidence.claims import Claim, claims_of
from fedrepro.evidence.gate import Rule
from fedrepro.evidence.measures import Measure
from fedrepro.evidence.schema import Names, matches
from fedrepro.evidence.sections import SCALES, Fields, fields_of, merge, without
from fedrepro.evidence.statements import Statement
from fedrepro.simulation.run import Run

LABELLED = ("axis", "scale", "override", "claim", "gate", "tune", "measure", "reported")  # keys that contain labels
DATA_NAMES = {
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "cifar100_coarse": "CIFAR-100",
    "tiny_imagenet": "Tiny-ImageNet",
    "femnist": "FEMNIST",
    "synthetic": "generated images",
    "digits": "digits",
}


@dataclass(frozen=True)
class Cell:
    """One cell of the table: a label on every axis, and the fields of its run without the seed."""

    labels: dict[str, str]
    fields: Fields

    def run(self, seed: int) -> Run:
        return Run.from_dict({**self.fields, "seed": seed})


@dataclass(frozen=True, kw_only=True)
class Table:
    """One file <table>.toml, together with the paper's _base.toml."""

    title: str
    question: str  # it answers
    source: str  # the paper, and where in it
    link: str = ""  # to the paper: https://doi.org/..., https://arxiv.org/abs/...
    seeds: list[int]
    use: list[str] = field(default_factory=list)  # the axes and measures of _base.toml that it has
    run: Fields
    axis: dict[str, sections.Axis]
    measure: list[Measure]
    scale: dict[sections.ScaleName, sections.Scale]
    override: list[sections.Override] = field(default_factory=list)
    reported: list[sections.Reported] = field(default_factory=list)
    claim: list[Statement] = field(default_factory=list)
    deviation: list[sections.Deviation] = field(default_factory=list)
    groups: sections.Groups | None = None
    curves: list[Literal["accuracy", "ema_accuracy", "personal_accuracy", "loss"]] = field(default_factory=list)
    gate: Rule | None = None
    tune: sections.Tuning | None = None
    varies: list[str] = field(default_factory=list)  # fields that overrides vary and tuning must leave alone
    path: Path = field(default=Path(), metadata={"toml": False})
    names: dict[str, str] = field(default_factory=dict, metadata={"toml": False})  # label -> its name at a scale

    @property
    def paper(self) -> str:
        return self.path.parent.name

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def readings(self) -> str:
        """The axis of readings of the paper, if there is one."""
        return next((name for name, axis in self.axis.items() if axis.readings), "")

    def at(self, scale: str) -> sections.Scale:
        choose("scale", scale, SCALES)
        if scale not in self.scale:
            raise BadInput(f"scale.{scale}: is missing")
        return self.scale[scale]

    def seeds_at(self, scale: str) -> list[int]:
        return self.at(scale).seeds or self.seeds

    def choices(self, scale: str) -> dict[str, dict[str, Fields]]:
        """axis -> label -> fields of Run, as changed or left out by the scale."""
        chosen, changes = {}, self.at(scale).axis
        for name, axis in self.axis.items():
            labels, change = axis.labels, changes.get(name, sections.AxisChange())
            only = labels if change.only is None else change.only
            chosen[name] = {label: {**labels[label], **change.choices.get(label, {})} for label in only}
        return chosen

    def cells(self, scale: str, tuned: bool = True) -> list[Cell]:
        choices, result, tuning = self.choices(scale), [], self.tuned(scale) if tuned else {}
        for labels in itertools.product(*choices.values()):
            at, fields = dict(zip(choices, labels, strict=True)), merge(self.run, self.at(scale).run)
            for axis, label in at.items():
                fields = merge(fields, choices[axis][label])
            for override in self.override:
                if scale in override.scales and matches(override.where, at):
                    if "method" in override.run:  # another method has other hyperparameters
                        fields = {**fields, "hp": {}}
                    fields = merge(fields, override.run)
            chosen = tuning.get((fields.get("data", ""), fields.get("method", "")), {})
            result.append(Cell(at, merge(fields, without(chosen, self._swept))))
        return result

    def reference(self, cell: Cell, scale: str, seed: int) -> Run | None:
        """The run that the gate wants trained before it lets the panel of this cell be judged; None for other cells."""
        if not self.gate or not self.gate.is_reference(cell.labels):
            return None
        if not self.gate.run:
            return cell.run(seed)
        fields = merge({**cell.fields, "hp": {}}, self.gate.run)  # another method has other hyperparameters
        chosen = self.tuned(scale).get((fields.get("data", ""), fields.get("method", "")), {})
        return Cell(cell.labels, merge(fields, chosen)).run(seed)

    def named_for(self, scale: str) -> "Table":
        """This table with labels that name the data or network that the scale uses in place of the paper's, such as
        "CIFAR-10 for CIFAR-100"."""
        paper = {tuple(cell.labels.items()): cell.fields for cell in self.cells("paper", tuned=False)}
        used = {}  # label -> what its cells use in place of the paper's
        for cell in self.cells(scale, tuned=False):
            for axis, label in cell.labels.items():
                labels = self.axis[axis].labels
                key = next((f for f in ("data", "model") if any(f in fields for fields in labels.values())), None)
                meant = {**self.run, **labels[label]}
                if key and cell.fields[key] != paper.get(tuple(cell.labels.items()), meant)[key]:
                    name = cell.fields[key].partition(":")[0]
                    used.setdefault(label, set()).add(DATA_NAMES[name] if key == "data" else name)
        names = {label: f"{' or '.join(sorted(others))} for {label}" for label, others in used.items()}
        return dataclasses.replace(self, names=names, **{key: _renamed(getattr(self, key), names) for key in LABELLED})

    @property
    def _swept(self) -> set[str]:
        """What tuning must leave alone because the table varies it: the fields of its axes, and those in `varies`."""
        return {axis.field for axis in self.axis.values() if axis.field} | set(self.varies)

    def tuned(self, scale: str) -> dict[tuple[str, str], Fields]:
        """(data, method) -> the fields of Run that `fedrepro tune` chose at this scale."""
        chosen = [line for line in self.tuning_rows(scale) if line["chosen"] == "yes"]
        return {(line["data"], line["method"]): fields_of(json.loads(line["setting"])) for line in chosen}

    def tuning_rows(self, scale: str) -> list[dict[str, str]]:
        """Every pilot run of the paper at this scale, as committed."""
        return read_tuned(self.tuned_file(scale))

    def tuned_file(self, scale: str) -> Path:
        return self.path.parent / "tuned" / f"{scale}.csv"

    def measures(self, scale: str) -> dict[str, Measure]:
        """By name, with what the scale changes."""
        names = Names({name: axis.labels for name, axis in self.axis.items()}, {m.name: m for m in self.measure})
        found = {}
        for name, measure in names.measures.items():
            change, where = self.at(scale).measure.get(name, {}), f"scale.{scale}.measure.{name}"
            found[name] = dataclasses.replace(measure, **schema.parse_keys(type(measure), change, where, names))
        return found

    def reported_rows(self) -> list[dict[str, Any]]:
        """The paper's numbers: labels by axis, the measure's name, value and standard deviation over seeds (NaN if not
        printed) in the measure's unit, and whether the value is censored ("1000+")."""
        rows = []
        for block in self.reported:
            with open(self.path.parent / "reported" / block.file, newline="") as file:
                lines = list(csv.DictReader(file))
            for measure, where in block.lines_of().items():
                for line in lines:
                    if any(line.get(column) not in values for column, values in where.items()):
                        continue
                    labels = {axis: schema.label(line[column]) for axis, column in block.columns.items()}
                    labels = {axis: self.names.get(label, label) for axis, label in labels.items()} | block.fixed
                    times = 0.01 if line.get("unit") == "%" else 1.0
                    value, std = (float(line.get(key) or "nan") * times for key in ("value", "std"))
                    censored = line.get("censored") == "true"  # the paper's "1000+"
                    rows.append({**labels, "measure": measure, "value": value, "std": std, "censored": censored})
        return rows

    def claims(self) -> list[Claim]:
        return claims_of(self.claim)


def read_tuned(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def _renamed(value: Any, names: dict[str, str]) -> Any:
    """A part of a table with these labels renamed wherever they occur."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: _renamed(getattr(value, f.name), names) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **changed)
    if isinstance(value, dict):
        return {names.get(key, key): _renamed(part, names) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_renamed(part, names) for part in value)
    return names.get(value, value) if isinstance(value, str) else value
