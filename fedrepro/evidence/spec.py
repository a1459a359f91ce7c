"""reproduce/<paper>/<table>.toml -> Table.

Parsing is strict: an unknown key, an invalid value or a reported cell that no run produces is an error that names the
file and the key. docs/add-a-paper.md lists the keys.
"""

import dataclasses
import re
import tomllib
from pathlib import Path
from typing import Any

from fedrepro.checks import choose
from fedrepro.errors import BadInput
from fedrepro.evidence import schema
from fedrepro.evidence.sections import SCALES, Axis, merge
from fedrepro.evidence.table import Table
from fedrepro.folders import HOME

REPRODUCE, NOTEBOOKS = HOME / "reproduce", HOME / "notebooks"
BASE = "_base.toml"  # what a paper's tables share
MERGED = {  # keys that are merged with the base
    "run": dict[str, Any],
    "axis": dict[str, dict[str, Any]],
    "scale": dict[str, dict[str, Any]],
    "measure": list[dict[str, Any]],
    "override": list[dict[str, Any]],
    "deviation": list[dict[str, Any]],
    "use": list[str],
}


def papers() -> list[str]:
    return sorted(p.name for p in REPRODUCE.iterdir() if any(p.glob("*.toml"))) if REPRODUCE.exists() else []


def tables(paper: str) -> list[Table]:
    choose("paper", paper, papers())
    return [load(path) for path in _files(paper)]


def _files(paper: str) -> list[Path]:
    return sorted((REPRODUCE / paper).glob("[!_]*.toml"), key=lambda path: natural(path.stem))


def natural(name: str) -> list[Any]:
    """To sort table10 after table2."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def find(name: str) -> Table:
    """`fedbr/table2_temperature` -> its Table."""
    path = REPRODUCE / f"{name}.toml"
    if not path.exists():
        known = [f"{p}/{f.stem}" for p in papers() for f in _files(p)]
        choose("table", name, known)
    return load(path)


def load(path: Path) -> Table:
    return build(path, content_of(path))


def content_of(path: Path) -> dict[str, Any]:
    """The content of a table's file, merged with what the paper's tables share."""
    content, base = _parse(path), path.parent / BASE
    return _on_base(_parse(base), content) if base.exists() else content


def build(path: Path, content: dict[str, Any]) -> Table:
    try:
        axes = schema.parse(dict[str, Axis], content.get("axis", {}), "axis", schema.Names())
        measures = {measure.get("name"): measure for measure in content.get("measure", [])}
        names = schema.Names({name: axis.labels for name, axis in axes.items()}, measures)
        table = dataclasses.replace(schema.parse(Table, content, "", names), path=path)
        _check(table)
    except BadInput as error:
        raise BadInput(f"{path.relative_to(HOME) if path.is_relative_to(HOME) else path}: {error}") from None
    return table


def _parse(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text())
        for key in MERGED.keys() & content.keys():
            schema.parse(MERGED[key], content[key], key, schema.Names())
    except (OSError, tomllib.TOMLDecodeError, BadInput) as error:
        raise BadInput(f"{path.name}: {error}") from None
    return content


def _on_base(base: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    """The paper's shared settings, overridden by the table's own; only those shared axes and measures that it uses."""
    used, axes = content.get("use", []), base.get("axis", {})
    measures = {measure.get("name"): measure for measure in base.get("measure", [])}
    for name in used:
        choose("use", name, {**axes, **measures})
    own = {measure.get("name"): measure for measure in content.get("measure", [])}
    shared = {name: measures[name] for name in used if name in measures}
    scales = {}
    for scale in {**base.get("scale", {}), **content.get("scale", {})}:
        below, above = base.get("scale", {}).get(scale, {}), content.get("scale", {}).get(scale, {})
        scales[scale] = {**below, **above, "run": merge(below.get("run", {}), above.get("run", {}))}
        for key in ("axis", "measure"):
            changes = {name: change for name, change in below.get(key, {}).items() if name in used}
            scales[scale][key] = _join(changes, above.get(key, {}))
    return {
        **base,
        **content,
        "run": merge(base.get("run", {}), content.get("run", {})),
        "axis": _join({name: axes[name] for name in used if name in axes}, content.get("axis", {})),
        "measure": list(_join(shared, own).values()),
        "override": [o for o in base.get("override", []) if set(o.get("where", {})) <= set(used)]
        + content.get("override", []),
        "deviation": base.get("deviation", []) + content.get("deviation", []),
        "scale": scales,
    }


def _join(shared: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """The table's axes or measures over the shared ones, key by key; its choices join those of a shared axis."""
    joined = {**shared, **own}
    for name in set(shared) & set(own):
        joined[name] = {**shared[name], **own[name]}
        if "choices" in shared[name] and "choices" in own[name]:
            joined[name]["choices"] = {**shared[name]["choices"], **own[name]["choices"]}
    return joined


def _check(table: Table) -> None:
    """Checks that involve several sections of the file."""
    for scale in SCALES:
        for axis, change in table.at(scale).axis.items():
            for label in change.only or ():
                if label not in table.axis[axis].labels:
                    known = ", ".join(table.axis[axis].labels)
                    raise BadInput(f"scale.{scale}.axis.{axis}.only: {label!r} is none of {known}")
        table.measures(scale)
        seed, references = table.seeds_at(scale)[0], []
        for cell in table.cells(scale):
            try:
                cell.run(seed)
                references.append(table.reference(cell, scale, seed))
            except BadInput as error:
                raise BadInput(f"scale.{scale} {cell.labels}: {error}") from None
        if table.gate and not any(references):
            raise BadInput(f"gate.reference: {table.gate.reference} is no cell at scale {scale}")
    _check_tuning(table)
    _check_reported(table)
    table.claims()


def _check_tuning(table: Table) -> None:
    if not table.tune:
        return
    if table.tune.seed in {seed for scale in SCALES for seed in table.seeds_at(scale)}:
        raise BadInput(f"tune.seed: {table.tune.seed} is a seed that verdicts use")
    from fedrepro.evidence.tune import pilots

    for scale in ("reduced", "cpu"):
        try:
            pilots(table, scale)
        except BadInput as error:
            raise BadInput(f"tune: {error}") from None


def _check_reported(table: Table) -> None:
    cells = [cell.labels for cell in table.cells("paper")]
    try:
        rows = table.reported_rows()
    except OSError as error:
        raise BadInput(f"reported.file: {Path(error.filename).name!r} cannot be read ({error.strerror})") from None
    for row in rows:
        labels = {axis: label for axis, label in row.items() if axis in table.axis}
        if not any(labels.items() <= cell.items() for cell in cells):
            raise BadInput(f"reported: the paper's cell {labels} is produced by no run at paper scale")
