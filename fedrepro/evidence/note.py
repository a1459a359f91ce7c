"""reproduce/<paper>/note.md -> results/<paper>.md: handwritten prose, in which the build fills in every number.

A placeholder is `{{kind key=value ...}}`, such as `{{verdict scale=cpu claim=dfl-c14}}`; see docs/add-a-paper.md.
What has not been measured reads "not run yet"; `[[text || otherwise]]` is the text if anything in it is measured. The
first paragraph below the title is the headline of the report.
"""

import inspect
import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from fedrepro.checks import choose
from fedrepro.errors import BadInput
from fedrepro.evidence import contrasts, ranking, spec
from fedrepro.evidence.claims import Claim
from fedrepro.evidence.comparisons import select
from fedrepro.evidence.contrasts import Contrast
from fedrepro.evidence.study import Plan, Study
from fedrepro.evidence.table import Table
from fedrepro.evidence.tables import markdown_table
from fedrepro.evidence.verdict import MARKS, NOT_RUN, Verdict, word
from fedrepro.simulation.store import write_atomically

NOTE = "note.md"
REPORTED = "reported"  # in place of a scale: the paper's own numbers
SHORT = {
    "holds": "hold",
    "holds in part": "hold in part",
    "one seed": "with one seed only",
    "not testable": "not testable here",
}
KINDS = ("measured", "reported", "effect", "verdict", "reason", "gate", "counts", "runs", "seeds", "ranking", "leaders")
MISSING = {"runs": "no run yet", "counts": "no claim is judged yet"}  # in place of "not run yet"
PLACEHOLDER = re.compile(r"\{\{(.*?)\}\}", re.S)
PART = re.compile(r"\[\[(.*?)\]\]", re.S)
Studies = Mapping[str, Mapping[str, Study]]  # by scale and table
Labels = dict[str, str]  # by axis
Given = str | None  # an optional key


def headline(text: str) -> str:
    """The first paragraph of a note below its title, as one line."""
    paragraphs = [part for part in re.split(r"\n\s*\n", text) if part.strip() and not part.lstrip().startswith("#")]
    return " ".join(paragraphs[0].split()) if paragraphs else ""


class Filler:
    """What the placeholders of one paper's note stand for: one method per kind, whose arguments are its keys."""

    def __init__(self, tables: Sequence[Table], studies: Studies):
        self.studies, self.tables = studies, {table.name: table for table in tables}
        self.measurements = 0  # filled in so far
        self.compared: list[tuple] = []  # scale, table and cells of the headline's comparisons
        self.homes = {claim.id: name for name, table in self.tables.items() for claim in table.claims()}
        self.plan = cache(lambda table, scale: Plan(self.tables[table], scale))
        self.planned, self.printed = cache(_of_claim(contrasts.planned)), cache(_of_claim(contrasts.reported))
        self.known = cache(_of_claim(lambda study, claim: contrasts.measured(study, claim, trained=False)))

    def note(self) -> str:
        """The paper's note, every placeholder filled in; empty if it has none."""
        path = next(iter(self.tables.values())).path.with_name(NOTE)
        if not path.exists():
            return ""
        shown = path.relative_to(spec.HOME) if path.is_relative_to(spec.HOME) else path

        def filled(found: re.Match) -> str:
            try:
                return self.text(found[1])
            except BadInput as error:
                raise BadInput(f"{shown}: {' '.join(found[0].split())}: {error}") from None

        def chosen(found: re.Match) -> str:
            """The text if something in it is measured, else the part after ||; both must be valid."""
            text, _, otherwise = found[1].partition("||")
            before = self.measurements
            text, measured = PLACEHOLDER.sub(filled, text), self.measurements > before
            otherwise = PLACEHOLDER.sub(filled, otherwise)
            return text if measured else otherwise

        parts = path.read_text(encoding="utf-8").split("\n\n", 2)  # title, headline, the rest
        texts, counts = [], []
        for part in parts:
            texts.append(PLACEHOLDER.sub(filled, PART.sub(chosen, part)))
            counts.append(len(self.compared))
        self.compared = self.compared[: max(counts[:2])]
        return re.sub(r"\n{3,}", "\n\n", "\n\n".join(texts))

    def text(self, content: str) -> str:
        """The text for `kind key=value ...`."""
        try:
            kind, *words = shlex.split(content) or [""]
        except ValueError as error:
            raise BadInput(f"{error}; put values with blanks in double quotes") from None
        function = getattr(self, choose("placeholder", kind, KINDS))
        given = dict(self._pair(word) for word in words)
        keys = inspect.signature(function).parameters
        needed = [key for key, one in keys.items() if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
        for key in needed:
            if key not in given:
                raise BadInput(f"{key}: is missing; needed: {', '.join(needed)}")
        unknown = [key for key in given if key not in keys]
        if unknown and "labels" not in keys:
            raise BadInput(f"{unknown[0]}: is not a key; allowed: {', '.join(keys)}")
        found = function(**given)
        measured = kind not in ("reported", "runs", "seeds") and given.get("scale") != REPORTED
        self.measurements += measured and found is not None
        return MISSING.get(kind, NOT_RUN) if found is None else found

    @staticmethod
    def _pair(text: str) -> tuple[str, str]:
        key, equal, value = text.partition("=")
        if not equal:
            raise BadInput(f"{text!r} is not valid; allowed: key=value")
        return key, value

    def _plan(self, table: str, scale: str) -> Plan:
        choose("scale", scale, spec.SCALES)
        return self.plan(choose("table", table, self.tables), scale)

    def _home(self, claim: str, scale: str) -> Plan:
        """The plan of the table that has this claim."""
        choose("scale", scale, spec.SCALES)
        return self.plan(self.homes[choose("claim", claim, self.homes)], scale)

    def _study(self, plan: Plan) -> Study | None:
        return self.studies.get(plan.scale, {}).get(plan.table.name)

    @staticmethod
    def _labels(plan: Plan, labels: Labels) -> Labels:
        """The labels as named at this scale; each must be on its axis."""
        named = {}
        for axis, label in labels.items():
            choose("axis", axis, plan.axes)
            named[axis] = choose(axis, plan.table.names.get(label, label), plan.axes[axis])
        return named

    def _cell(self, plan: Plan, measure: str, labels: Labels) -> Labels:
        """The labels of one cell: those given, and those of axes with a single one."""
        choose("measure", measure, plan.measures)
        single = {axis: names[0] for axis, names in plan.axes.items() if len(names) == 1}
        named = single | self._labels(plan, labels)
        if missing := [axis for axis in plan.axes if axis not in named]:
            raise BadInput(f"{missing[0]}: is missing; allowed: {', '.join(plan.axes[missing[0]])}")
        return named

    def measured(self, /, scale: str, table: str, measure: str, **labels: str) -> str | None:
        plan = self._plan(table, scale)
        cell, study = self._cell(plan, measure, labels), self._study(plan)
        rows = [] if study is None else select(study.summary, {"measure": measure, **cell}).to_dict("records")
        if study is None or not rows or pd.isna(rows[0]["measured"]):
            return "target not reached" if rows else None
        return contrasts.value_text(study.measures[measure], rows[0]["measured"], rows[0]["interval"])

    def reported(self, /, table: str, measure: str, **labels: str) -> str:
        plan = self._plan(table, "paper")
        cell = self._cell(plan, measure, labels)
        for row in plan.table.reported_rows():
            if row["measure"] == measure and all(row.get(axis, at) == at for axis, at in cell.items()):
                return contrasts.value_text(plan.measures[measure], row["value"]) + "+" * row["censored"]
        raise BadInput(f"the paper prints no {measure} of {' '.join(cell.values())}")

    def effect(
        self, /, scale: str, claim: str, of: Given = None, over: Given = None, measure: Given = None, **labels: str
    ) -> str | None:
        choose("scale", scale, (*spec.SCALES, REPORTED))
        plan = self._home(claim, "paper" if scale == REPORTED else scale)
        wanted = self._labels(plan, labels)
        sides = [side and plan.table.names.get(side, side) for side in (of, over)]
        asked = self.planned(plan, claim)
        if measure is not None:
            choose("measure", measure, {one.measure.name for one in asked})
        if len(found := _matching(asked, wanted, sides, measure)) != 1:
            names = {label for one in asked for side in one.sides for at in side for label in at.values()}
            raise BadInput(
                f"{len(found)} comparisons of {claim} at {scale} scale match; one is needed, "
                f"by measure, of, over and labels among: {', '.join(sorted(names)) or 'none'}"
            )
        if scale == REPORTED:
            numbers = {one.key: one for one in self.printed(plan, claim)}
            if found[0].key not in numbers:
                raise BadInput("the paper does not print all numbers of this comparison")
            return found[0].shown(numbers[found[0].key].number)
        study = self._study(plan)
        here = _matching(self.known(study, claim) if study else [], wanted, sides, measure)
        effect = here[0].effect if len(here) == 1 else None
        if effect is None:
            return None
        self.compared.append((scale, plan.table.name, here[0].cells))
        return f"{effect.bound} {here[0].shown(effect.mean, effect.half)}".strip()

    def verdict(self, scale: str, claim: str) -> str | None:
        found = self._verdict(scale, claim)
        return found and found.word

    def reason(self, scale: str, claim: str) -> str | None:
        found = self._verdict(scale, claim)
        return found and found.reason

    def _verdict(self, scale: str, claim: str) -> Verdict | None:
        study = self._study(self._home(claim, scale))
        found = _verdicts(study)[claim] if study else None
        return found if found and found.state != NOT_RUN else None

    def gate(self, /, scale: str, table: str, **labels: str) -> str | None:
        plan = self._plan(table, scale)
        if plan.table.gate is None:
            raise BadInput(f"{table} has no [gate]")
        wanted, study = self._labels(plan, labels), self._study(plan)
        gates = study.gates if study else []
        panels = [g for g in gates if all(g.panel.get(axis, label) == label for axis, label in wanted.items())]
        words = [f"{g.words}{' at ' * bool(g.panel) + ' '.join(g.panel.values())}" for g in panels]
        return "; ".join(words) or None

    def ranking(self, scale: str, table: str, measure: str) -> str | None:
        study = self._measuring(scale, table, measure)
        costs = [name for name, one in study.measures.items() if one.better == "lower"] if study else ()
        return study and markdown_table(ranking.ranking(study, measure, costs))

    def leaders(self, scale: str, table: str, measure: str) -> str | None:
        study = self._measuring(scale, table, measure)
        return study and ranking.in_words(study, measure)

    def _measuring(self, scale: str, table: str, measure: str) -> Study | None:
        plan = self._plan(table, scale)
        choose("measure", measure, plan.measures)
        return self._study(plan)

    def counts(self, scale: str) -> str | None:
        choose("scale", scale, spec.SCALES)
        ids = [claim.id for table in self.tables.values() for claim in table.claims() if not claim.untestable]
        here = self.studies.get(scale, {}).values()
        states = {id_: found.state for study in here for id_, found in _verdicts(study).items()}
        counted = Counter(states.get(id_, NOT_RUN) for id_ in ids)
        if counted[NOT_RUN] == len(ids):
            return None
        names = SHORT | {s: word(s, scale) for s in ("holds", "opposite") if scale == "paper"}
        words = ", ".join(f"{counted[s]} {names.get(s, s)}" for s in MARKS if counted[s])
        return f"{words} (of {len(ids)} claims that an experiment can test)"

    def runs(self, scale: str, table: Given = None) -> str | None:
        return _number(len({run.id for study in self._chosen(scale, table) for run in study.runs()}), "run")

    def seeds(self, scale: str, table: Given = None) -> str | None:
        return _number(max((len(study.seeds) for study in self._chosen(scale, table)), default=0), "seed")

    def _chosen(self, scale: str, table: Given) -> list[Study]:
        here = self.studies.get(choose("scale", scale, spec.SCALES), {})
        names = here if table is None else [choose("table", table, self.tables)]
        return [here[name] for name in names if name in here]


def _of_claim(function: Callable[[Any, Claim], list[Contrast]]) -> Callable[[Plan, str], list[Contrast]]:
    """The same function with the claim's id as argument, which can be cached."""
    return lambda plan, id_: function(plan, next(claim for claim in plan.table.claims() if claim.id == id_))


def _number(count: int, what: str) -> str | None:
    return f"{count} {what}{'s' * (count != 1)}" if count else None


def _verdicts(study: Study) -> dict[str, Verdict]:
    return {claim.id: found for claim, found in study.verdicts}


def _matching(found: Sequence[Contrast], labels: Labels, sides: Sequence[Given], measure: Given) -> list[Contrast]:
    """The contrasts that use a cell with each of these labels, with `of` and `over`, if given, on their two sides."""
    kept = []
    for one in found:
        cells = [dict(at) for at in one.weights]
        named = all(any(cell[axis] == label for cell in cells) for axis, label in labels.items())
        right = all(label is None or _all_have(side, label) for side, label in zip(one.sides, sides, strict=True))
        kept += [one] if named and right and measure in (None, one.measure.name) else []
    return kept


def _all_have(cells: list[dict[str, str]], label: str) -> bool:
    return bool(cells) and all(label in cell.values() for cell in cells)


def write(folder: Path, paper: str, text: str) -> None:
    """A filled note as `folder`/<paper>.md."""
    if text:
        made = f"<!-- Made by `make report` from reproduce/{paper}/{NOTE}; do not edit. -->\n"
        write_atomically(folder / f"{paper}.md", lambda file: file.write((made + text).encode()))
