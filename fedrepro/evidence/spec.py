"""reproduce/<paper>/<table>.toml -> Table: the runs behind a table or figure, the paper's numbers, the claims.

Parsed strictly: an unknown key, a value no field takes, a reported cell that no run produces is an error that
names the file and the key.
"""

import csv
import dataclasses
import itertools
import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from fedrepro.checks import choose, number
from fedrepro.errors import BadInput
from fedrepro.evidence import gate
from fedrepro.simulation.run import Run

HOME = Path(__file__).resolve().parents[2]
REPRODUCE, NOTEBOOKS = HOME / "reproduce", HOME / "notebooks"
SCALES = ("smoke", "reduced", "cpu", "paper")
MEASURE_KINDS = {  # kind: options it needs
    "final": {"column"},
    "best": {"column"},
    "mean": {"column"},
    "at_round": {"column", "round"},
    "gain": {"column", "round"},
    "to_target": {"column", "target"},
    "within_budget": {"column", "budget"},
    "total": {"column"},
    "stability": {"column", "window"},
}
CLAIM_KINDS = {  # kind: options it needs
    "best": {"axis", "winner"},
    "compare": {"pairs"},
    "trend": {"axis", "direction"},
    "gap_trend": {"axis", "direction", "of", "over"},
    "near": {"axis", "winner", "margin"},
    "ratio": {"of", "over", "ratio", "tolerance"},
    "saving": {"axis", "winner", "saving", "tolerance"},
    "absolute": {"tolerance"},
    "sum": {"axis", "total", "parts", "margin"},
    "above": {"than"},
    "untestable": {"why"},
}
DIRECTIONS = ("rises", "falls")
TOP = {"title", "question", "source", "seeds", "use", "run", "axis", "override", "scale", "measure", "reported",
       "groups", "curves", "gate", "tune", "varies", "claim", "deviation"}  # fmt: skip
LABELLED = ("axis", "scale", "override", "claim", "gate", "tune", "measure", "reported")  # where labels stand
DATA_NAMES = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100",
              "cifar100_coarse": "CIFAR-100", "tiny_imagenet": "Tiny-ImageNet", "femnist": "FEMNIST",
              "synthetic": "generated images", "digits": "digits"}  # fmt: skip
LISTS = ("override", "claim", "deviation", "reported", "measure", "curves", "varies")
CURVES = ("accuracy", "ema_accuracy", "personal_accuracy", "loss")  # columns that may be saved round by round
BASE = "_base.toml"  # a paper's shared settings: run, axis, scale, deviation; a table names the axes it uses
SCALE_KEYS = {"seeds", "run", "axis", "measure", "data_note"}


@dataclass(frozen=True)
class Cell:
    """One place of the table: a label on every axis, and the run behind it but for the seed."""

    labels: dict[str, str]
    fields: dict

    def run(self, seed: int) -> Run:
        return Run.from_dict({**self.fields, "seed": seed})


@dataclass(frozen=True)
class Tuning:
    """`[tune]`: every method of a table gets the same number of pilot runs, on images and a seed no verdict uses."""

    grid: dict[str, list]  # field of Run, or hp.NAME, and the values tried
    grids: dict[str, dict[str, list]] = dataclasses.field(default_factory=dict)  # method: its own grid instead
    where: dict[str, str | list[str]] = dataclasses.field(default_factory=dict)  # the cells that are tuned
    seed: int = 1000
    holdout: float = 0.1  # share of the training images that scores the pilots
    length: float = 1.0  # of a pilot, as a share of the run's rounds
    column: str = "accuracy"

    def grid_of(self, method: str) -> dict[str, list]:
        return self.grids.get(method, self.grid)

    def settings(self, method: str) -> list[dict]:
        """The combinations tried for a method."""
        grid = self.grid_of(method)
        return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


@dataclass(frozen=True)
class Table:
    paper: str
    name: str
    path: Path
    content: dict
    names: dict[str, str] = dataclasses.field(default_factory=dict)  # label -> what it is called at a scale

    def __getattr__(self, key: str):
        if key in TOP:
            return self.content.get(key, [] if key in LISTS else {})
        raise AttributeError(key)

    def fail(self, key: str, why: str) -> BadInput:
        return BadInput(f"{self.path.relative_to(HOME) if self.path.is_relative_to(HOME) else self.path}: {key}: {why}")

    def at(self, scale: str) -> dict:
        choose("scale", scale, SCALES)
        if scale not in self.scale:
            raise self.fail(f"scale.{scale}", "is missing")
        return self.scale[scale]

    def seeds_at(self, scale: str) -> list[int]:
        return self.at(scale).get("seeds", self.seeds)

    def choices(self, scale: str) -> dict[str, dict[str, dict]]:
        """axis -> label -> fields of Run, with what the scale changes or leaves out."""
        chosen, changes = {}, self.at(scale).get("axis", {})
        for axis, definition in self.axis.items():
            labels = _labels(definition)
            change = changes.get(axis, {})
            wanted = [str(v) for v in change.get("only", labels)]
            for label in wanted:
                if label not in labels:
                    raise self.fail(f"scale.{scale}.axis.{axis}.only", f"{label!r} is none of {', '.join(labels)}")
            chosen[axis] = {v: {**labels[v], **change.get("choices", {}).get(v, {})} for v in wanted}
        return chosen

    def cells(self, scale: str, tuned: bool = True) -> list[Cell]:
        choices, result, tuning = self.choices(scale), [], self.tuned(scale) if tuned else {}
        for labels in itertools.product(*choices.values()):
            fields = merge(self.content.get("run", {}), self.at(scale).get("run", {}))
            for axis, label in zip(choices, labels, strict=True):
                fields = merge(fields, choices[axis][label])
            place = dict(zip(choices, labels, strict=True))
            for override in self.override:
                if scale in override.get("scales", SCALES) and matches(override["where"], place):
                    if "method" in override["run"]:  # another method has other hyperparameters
                        fields = {**fields, "hp": {}}
                    fields = merge(fields, override["run"])
            fields = merge(fields, _but(tuning.get((fields.get("data"), fields.get("method")), {}), self._swept))
            result.append(Cell(place, fields))
        return result

    def named_for(self, scale: str) -> "Table":
        """This table with labels that name what the scale uses, such as "CIFAR-10 for CIFAR-100"."""
        names = self.substitutes(scale)
        changed = {key: _renamed(self.content[key], names) for key in LABELLED if key in self.content}
        return dataclasses.replace(self, content={**self.content, **changed}, names=names)

    def substitutes(self, scale: str) -> dict[str, str]:
        """label -> what it must be called where this scale uses other data or another network than the paper's."""
        paper = {tuple(cell.labels.items()): cell.fields for cell in self.cells("paper", tuned=False)}
        used = {}  # label -> what its cells use in place of the paper's
        for cell in self.cells(scale, tuned=False):
            for axis, label in cell.labels.items():
                choices = _labels(self.axis[axis])
                field = next((f for f in ("data", "model") if any(f in choice for choice in choices.values())), None)
                meant = {**self.run, **choices[label]}
                if field and cell.fields[field] != paper.get(tuple(cell.labels.items()), meant)[field]:
                    used.setdefault(label, set()).add(_called(field, cell.fields[field]))
        return {label: f"{' or '.join(sorted(names))} for {label}" for label, names in used.items()}

    @property
    def _swept(self) -> set[str]:
        """What the table varies and tuning must leave alone: the fields of its axes, and those under `varies`."""
        return {definition["field"] for definition in self.axis.values() if "field" in definition} | set(self.varies)

    def tuned(self, scale: str) -> dict[tuple[str, str], dict]:
        """(data, method) -> the fields of Run that `fedrepro tune` chose at this scale."""
        return {(line["data"], line["method"]): fields_of(json.loads(line["setting"]))
                for line in self.tuning_rows(scale) if line["chosen"] == "yes"}  # fmt: skip

    def tuning_rows(self, scale: str) -> list[dict]:
        """Every pilot run of the paper at this scale, as committed."""
        return read_tuned(self.tuned_file(scale))

    def tuned_file(self, scale: str) -> Path:
        return self.path.parent / "tuned" / f"{scale}.csv"

    @property
    def gate_rule(self) -> gate.Rule | None:
        return gate.Rule(**self.gate) if self.gate else None

    @property
    def tuning(self) -> Tuning | None:
        return Tuning(**self.tune) if self.tune else None

    def measures(self, scale: str) -> dict[str, dict]:
        changes = self.at(scale).get("measure", {})
        return {m["name"]: {**m, **changes.get(m["name"], {})} for m in self.measure}

    def reported_rows(self) -> list[dict]:
        """The paper's numbers: labels by axis, the measure's name, value and deviation over seeds (NaN where none is
        printed) in the measure's unit, "1000+" or not."""
        rows = []
        for block in self.reported:
            path = self.path.parent / "reported" / block["file"]
            try:
                with open(path, newline="") as file:
                    lines = list(csv.DictReader(file))
            except OSError as error:
                raise self.fail("reported.file", f"{block['file']!r} cannot be read ({error.strerror})") from None
            for measure, where in _lines_of(block).items():
                for line in lines:
                    if any(line.get(column) not in values for column, values in where.items()):
                        continue
                    labels = {axis: _number_label(line[column]) for axis, column in block["columns"].items()}
                    labels = {axis: self.names.get(label, label) for axis, label in labels.items()}
                    labels |= block.get("fixed", {})
                    times = block.get("times", 0.01 if line.get("unit") == "%" else 1.0)
                    value, std = (float(line.get(key) or "nan") * times for key in ("value", "std"))
                    censored = line.get("censored") == "true"  # the paper's "1000+"
                    rows.append({**labels, "measure": measure, "value": value, "std": std, "censored": censored})
        return rows

    def claims(self) -> list[dict]:
        """The table's claims, with the paper's words from reproduce/<paper>/claims.csv. A claim in several blocks, one
        for each thing that it says, is the first of them with the others under `also`."""
        with open(self.path.parent / "claims.csv", newline="") as file:
            words = {line["id"]: line for line in csv.DictReader(file)}
        for claim in self.claim:
            if claim["id"] not in words:
                raise self.fail(f"claim {claim['id']}", "is not in claims.csv")
        found = {}
        for claim in self.claim:
            line = words[claim["id"]]
            if claim["id"] in found:
                found[claim["id"]]["also"].append(claim)
                notes = [block["note"] for block in (found[claim["id"]], claim) if block.get("note")]
                found[claim["id"]] |= {"note": " ".join(notes)} if notes else {}
            else:
                found[claim["id"]] = {**claim, "claim": line["claim"], "said in": line["where"], "also": []}
        return list(found.values())


def read_tuned(path: Path) -> list[dict]:
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def fields_of(setting: dict) -> dict:
    """{"lr": 0.1, "hp.mu": 1} as fields of Run."""
    plain = {name: value for name, value in setting.items() if not name.startswith("hp.")}
    hp = {name.removeprefix("hp."): value for name, value in setting.items() if name.startswith("hp.")}
    return plain | ({"hp": hp} if hp else {})


def _but(fields: dict, names: set[str]) -> dict:
    """These fields of Run without those called `lr`, `hp.mu`, ..."""
    kept = {name: value for name, value in fields.items() if name not in names and name != "hp"}
    hp = {name: value for name, value in fields.get("hp", {}).items() if f"hp.{name}" not in names}
    return kept | ({"hp": hp} if hp else {})


def target(measure: dict, labels: dict) -> float:
    """The accuracy to reach at this place of the table: the first of `targets` that applies, else `target`."""
    for case in measure.get("targets", []):
        if matches(case["where"], labels):
            return case["target"]
    return measure.get("target", float("nan"))


def measures_of(claim: dict) -> list[str]:
    """The names of the measures that judge a claim: none, one or several."""
    name = claim.get("measure", [])
    return [name] if isinstance(name, str) else name


def _table(value) -> dict:
    """What may be one number or one for each label."""
    return value if isinstance(value, dict) else {}


def _lines_of(block: dict) -> dict[str, dict[str, list[str]]]:
    """For each measure of a block of reported numbers, the values that a line's columns must have."""
    every = block.get("where", {})
    places = {name: every | own for name, own in block.get("measures", {block.get("measure"): {}}).items()}
    return {name: {column: list(map(str, value if isinstance(value, list) else [value])) for column, value in w.items()}
            for name, w in places.items()}  # fmt: skip


def matches(where: dict, labels: dict) -> bool:
    """Whether a place has these labels; a list means any of them."""
    return all(labels[axis] in map(str, label if isinstance(label, list) else [label]) for axis, label in where.items())


def _called(field: str, value: str) -> str:
    name = value.partition(":")[0]
    return DATA_NAMES[name] if field == "data" else name


def _renamed(value, names: dict[str, str]):
    """A piece of TOML with these labels renamed, wherever they stand."""
    if isinstance(value, dict):
        return {names.get(key, key): _renamed(part, names) for key, part in value.items()}
    if isinstance(value, list):
        return [_renamed(part, names) for part in value]
    return names.get(value, value) if isinstance(value, str) else value


def _number_label(text: str) -> str:
    """CSV and TOML may write one number in two ways: 1 and 1.0."""
    try:
        return f"{float(text):g}"
    except ValueError:
        return text


def _labels(definition: dict) -> dict[str, dict]:
    if "choices" in definition:
        return definition["choices"]
    field = definition["field"]
    head, _, name = field.partition(".")
    return {f"{v:g}" if isinstance(v, int | float) else str(v): {head: {name: v}} if name
            else {field: definition.get("format", "{}").format(v) if "format" in definition else v}
            for v in definition["values"]}  # fmt: skip


def merge(base: dict, change: dict) -> dict:
    """Later fields win; hyperparameters are merged one by one."""
    merged = {**base, **change}
    if "hp" in base and "hp" in change:
        merged["hp"] = {**base["hp"], **change["hp"]}
    return merged


def papers() -> list[str]:
    return sorted(p.name for p in REPRODUCE.iterdir() if any(p.glob("*.toml"))) if REPRODUCE.exists() else []


def tables(paper: str) -> list[Table]:
    choose("paper", paper, papers())
    return [load(path) for path in _files(paper)]


def _files(paper: str) -> list[Path]:
    """A paper's tables, table10 after table2."""
    natural = lambda path: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", path.stem)]  # noqa: E731
    return sorted((REPRODUCE / paper).glob("[!_]*.toml"), key=natural)


def find(name: str) -> Table:
    """`fedbr/table2_temperature` -> its Table."""
    path = REPRODUCE / f"{name}.toml"
    if not path.exists():
        known = [f"{p}/{f.stem}" for p in papers() for f in _files(p)]
        choose("table", name, known)
    return load(path)


def load(path: Path) -> Table:
    content, base = _read(path), path.parent / BASE
    if base.exists():
        content = _on_base(_read(base), content)
    table = Table(path.parent.name, path.stem, path, content)
    _check(table)
    return table


def _read(path: Path) -> dict:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"{path.name}: {error}") from None


def _on_base(base: dict, content: dict) -> dict:
    """The paper's shared settings under the table's own; of the shared axes only those it uses."""
    merged = {**base, **content, "run": merge(base.get("run", {}), content.get("run", {}))}
    shared = base.get("axis", {})
    for name in content.get("use", []):
        choose("use", name, shared)
    merged["axis"] = _join({a: shared[a] for a in content.get("use", [])}, content.get("axis", {}))
    merged["override"] = [
        *[o for o in base.get("override", []) if set(o["where"]) <= set(content.get("use", []))],
        *content.get("override", []),
    ]
    merged["deviation"] = [*base.get("deviation", []), *content.get("deviation", [])]
    merged["scale"] = {}
    for scale in SCALES:
        below, above = base.get("scale", {}).get(scale, {}), content.get("scale", {}).get(scale, {})
        used = {a: v for a, v in below.get("axis", {}).items() if a in content.get("use", [])}
        merged["scale"][scale] = {**below, **above, "run": merge(below.get("run", {}), above.get("run", {})),
                                  "axis": _join(used, above.get("axis", {}))}  # fmt: skip
    return merged


def _join(shared: dict, own: dict) -> dict:
    """The table's axes over the shared ones; its choices join those of a shared axis that it uses."""
    joined = {**shared, **own}
    for axis in set(shared) & set(own):
        joined[axis] = {**shared[axis], **own[axis]}
        if "choices" in shared[axis] and "choices" in own[axis]:
            joined[axis]["choices"] = {**shared[axis]["choices"], **own[axis]["choices"]}
    return joined


def _keys(table: Table, where: str, found: dict, allowed, needed=()) -> None:
    for key in found:
        if key not in allowed:
            raise table.fail(f"{where}{key}", f"is not a key; allowed: {', '.join(sorted(allowed))}")
    for key in needed:
        if key not in found:
            raise table.fail(f"{where}{key}", "is missing")


def _check(table: Table) -> None:
    _keys(table, "", table.content, TOP, ("title", "question", "source", "seeds", "run", "axis", "scale", "measure"))
    for axis, definition in table.axis.items():
        _keys(table, f"axis.{axis}.", definition, {"field", "values", "choices", "label", "format"})
        if ("choices" in definition) == ("field" in definition and "values" in definition):
            raise table.fail(f"axis.{axis}", "needs either choices, or field and values")
    for override in table.override:
        _keys(table, "override.", override, {"where", "run", "scales"}, ("where", "run"))
        for scale in override.get("scales", []):
            choose("override.scales", scale, SCALES)
        for axis, labels in override["where"].items():
            for label in labels if isinstance(labels, list) else [labels]:
                _known_label(table, "override.where", axis, label)
    for measure in table.measure:
        kind = measure.get("kind")
        if kind not in MEASURE_KINDS:
            raise table.fail(f"measure {measure.get('name')!r}.kind", f"{kind!r} is none of {', '.join(MEASURE_KINDS)}")
        _keys(table, f"measure {measure.get('name')!r}.", measure,
              {"name", "kind", "unit", "times", "target", "targets", "of", "budget", "round", "window", "column",
               "spend", "better", "seedless"},
              {"name", *(MEASURE_KINDS[kind] - {"target", "budget", "round", "window"})})  # fmt: skip
        _check_seedless(table, measure)
    names = {measure["name"] for measure in table.measure}
    for scale in SCALES:
        _keys(table, f"scale.{scale}.", table.at(scale), SCALE_KEYS)
        for axis, change in table.at(scale).get("axis", {}).items():
            if axis not in table.axis:
                raise table.fail(f"scale.{scale}.axis.{axis}", f"no such axis; there are {', '.join(table.axis)}")
            _keys(table, f"scale.{scale}.axis.{axis}.", change, {"only", "choices"})
        for name in table.at(scale).get("measure", {}):
            if name not in names:
                raise table.fail(f"scale.{scale}.measure.{name}", f"no such measure; there are {', '.join(names)}")
        for name, measure in table.measures(scale).items():
            given = set(measure) | ({"target"} if measure.get("targets") else set())
            for option in MEASURE_KINDS[measure["kind"]] - given:
                raise table.fail(f"measure {name!r}.{option}", f"is missing at scale {scale}")
            for case in measure.get("targets", []):
                _keys(table, f"measure {name!r}.targets.", case, {"where", "target"}, ("where", "target"))
                for axis, label in case["where"].items():
                    _known_label(table, f"measure {name!r}.targets", axis, label)
        for cell in table.cells(scale):
            try:
                cell.run(table.seeds_at(scale)[0])
            except BadInput as error:
                raise table.fail(f"scale.{scale} {cell.labels}", str(error)) from None
    _check_gate(table)
    _check_tuning(table)
    _check_claims(table, names)
    if table.groups:
        keys = ("title", "measure", "axis", "separator", "file", "column")
        _keys(table, "groups.", table.groups, keys, keys)
        for key, known in (("measure", names), ("axis", table.axis)):
            if table.groups[key] not in known:
                raise table.fail(f"groups.{key}", f"{table.groups[key]!r} is none of {', '.join(known)}")
    for column in table.curves:
        choose("curves", column, CURVES)
    _check_reported(table, names)
    for deviation in table.deviation:
        _keys(table, "deviation.", deviation, {"what", "why", "erratum"}, ("what", "why"))


def _check_seedless(table: Table, measure: dict) -> None:
    """`seedless`: the measure is the same with every seed: everywhere (true), or at these labels only."""
    where, places = f"measure {measure['name']!r}.seedless", measure.get("seedless", False)
    if not isinstance(places, bool | dict):
        raise table.fail(where, f"{places!r} is neither true nor labels by axis")
    for axis, labels in places.items() if isinstance(places, dict) else []:
        for label in labels if isinstance(labels, list) else [labels]:
            _known_label(table, where, axis, label)


def _check_gate(table: Table) -> None:
    if not table.gate:
        return
    _keys(table, "gate.", table.gate, [f.name for f in dataclasses.fields(gate.Rule)], ("reference",))
    rule = table.gate_rule
    for axis, label in rule.reference.items():
        _known_label(table, "gate.reference", axis, label)
    for key, kind, low, high in (("share", float, 0, 1), ("rise", float, 0, 1), ("epochs", int, 1, 10**6)):
        try:
            number(key, getattr(rule, key), kind, low, high)
        except BadInput as error:
            raise table.fail("gate", str(error)) from None
    for scale in SCALES:
        if not any(matches(rule.reference, cell.labels) for cell in table.cells(scale)):
            raise table.fail("gate.reference", f"{rule.reference} is no cell at scale {scale}")


def _check_tuning(table: Table) -> None:
    if not table.tune:
        return
    _keys(table, "tune.", table.tune, [f.name for f in dataclasses.fields(Tuning)], ("grid",))
    rule = table.tuning
    for axis, labels in rule.where.items():
        for label in labels if isinstance(labels, list) else [labels]:
            _known_label(table, "tune.where", axis, label)
    sizes = {method: len(rule.settings(method)) for method in ["grid", *rule.grids]}
    for method, size in sizes.items():
        if not size:
            raise table.fail(f"tune.{method}", "has no point to try: every list needs a value")
        if size != sizes["grid"]:
            raise table.fail(f"tune.grids.{method}", f"tries {size} settings, [tune.grid] {sizes['grid']}: "
                             "every method gets the same number of pilot runs")  # fmt: skip
    if rule.seed in {seed for scale in SCALES for seed in table.seeds_at(scale)}:
        raise table.fail("tune.seed", f"{rule.seed} is a seed that verdicts use")
    from fedrepro.evidence.tune import pilots

    for scale in ("reduced", "cpu"):
        try:
            pilots(table, scale)
        except BadInput as error:
            raise table.fail("tune", str(error)) from None


def _check_claims(table: Table, names: set[str]) -> None:
    for claim in table.claim:
        where, kind = f"claim {claim.get('id')}.", claim.get("kind")
        if kind not in CLAIM_KINDS:
            raise table.fail(f"{where}kind", f"{kind!r} is none of {', '.join(CLAIM_KINDS)}")
        if "direction" in claim and claim["direction"] not in DIRECTIONS:
            raise table.fail(f"{where}direction", f"{claim['direction']!r} is none of {', '.join(DIRECTIONS)}")
        every = {"id", "kind", "measure", "where", "note", "among", "margin", "any_scale", "most", *CLAIM_KINDS[kind]}
        every |= {"compare": {"each"}, "absolute": {"each"}, "gap_trend": {"relative"}}.get(kind, set())
        needed = {"id", *CLAIM_KINDS[kind]} | ({"measure"} if kind != "untestable" else set())
        _keys(table, where, claim, every, needed)
        for name in [*measures_of(claim), *_table(claim.get("tolerance"))]:
            if name not in names:
                raise table.fail(f"{where}measure", f"{name!r} is none of {', '.join(names)}")
        for axis in claim.get("each", []):
            if axis not in table.axis:
                raise table.fail(f"{where}each", f"{axis!r} is none of {', '.join(table.axis)}")
        places = [claim.get(key, {}) for key in ("where", "of", "over")]
        for pair in claim.get("pairs", []):
            _keys(table, f"{where}pairs.", pair, {"better", "worse", "what", "most", "by"}, ("better", "worse"))
            if "most" in pair and not isinstance(pair["better"].get(pair["most"]), list):
                raise table.fail(f"{where}pairs.most", f"{pair['most']!r} has no list of labels in better")
            places += [pair["better"], pair["worse"]]
        for place in places:
            for axis, labels in place.items():
                for label in labels if isinstance(labels, list) else [labels]:
                    _known_label(table, where, axis, label)
        several = [*claim.get("parts", []), *_table(claim.get("saving"))]
        for label in [*(claim[key] for key in ("winner", "total") if key in claim), *several]:
            _known_label(table, where, claim["axis"], label)


def _known_label(table: Table, where: str, axis: str, label: str) -> None:
    if axis not in table.axis or str(label) not in _labels(table.axis[axis]):
        raise table.fail(where, f"{axis} = {label!r} is no place of the table")


def _check_reported(table: Table, names: set[str]) -> None:
    for block in table.reported:
        named = "measures" if "measures" in block else "measure"
        _keys(table, "reported.", block, {"file", named, "columns", "fixed", "where", "times"},
              ("file", named, "columns"))  # fmt: skip
        for measure in _lines_of(block):
            if measure not in names:
                raise table.fail(f"reported.{named}", f"{measure!r} is none of {', '.join(names)}")
    places = [cell.labels for cell in table.cells("paper")]
    for row in table.reported_rows():
        labels = {k: v for k, v in row.items() if k in table.axis}
        if not any(all(place[k] == v for k, v in labels.items()) for place in places):
            raise table.fail("reported", f"the paper's cell {labels} is produced by no run at paper scale")
