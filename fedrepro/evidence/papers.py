"""A paper's tables, claims and reproduction note, with what a folder of results has of them at each scale."""

import re
from collections import Counter
from functools import cache, cached_property
from pathlib import Path

from fedrepro.evidence import forest, record, spec
from fedrepro.evidence.claims import Claim
from fedrepro.evidence.forest import Row
from fedrepro.evidence.note import Filler
from fedrepro.evidence.record import Record
from fedrepro.evidence.study import recorded
from fedrepro.evidence.verdict import NOT_RUN

SCALES = spec.SCALES[:0:-1]  # paper scale first, without smoke, which is for CI
ERRATUM = re.compile(r"^\*\*([A-Z]+-\d+)\.\s*(.*?)\*\*(.*)$", re.M)
PLACE = re.compile(r", (?:Figs?\b|Tables?\b|Section\b).*")


class Paper:
    def __init__(self, name: str, results: Path):
        self.id, self.tables = name, spec.tables(name)
        self.title = re.split("[,:]", self.tables[0].title)[0]
        self.source, self.link = PLACE.sub("", self.tables[0].source), self.tables[0].link
        folders = {scale: results / scale / name for scale in SCALES}
        self.records = {scale: Record(path) for scale, path in folders.items() if (path / record.RUNS).exists()}
        for known in self.records.values():
            known.refuse_damage()
        found = {scale: recorded(known) for scale, known in self.records.items()}
        self.studies = {scale: {study.table.name: study for study in studies} for scale, studies in found.items()}
        claims = [claim for table in self.tables for claim in table.claims()]
        self.claims = [claim for claim in claims if not claim.untestable]
        self.untestable = [claim for claim in claims if claim.untestable]

    @cached_property
    def states(self) -> dict[str, dict[str, str]]:
        """scale -> claim id -> the state of its verdict."""
        judged = {scale: [one for s in found.values() for one in s.verdicts] for scale, found in self.studies.items()}
        return {scale: {claim.id: verdict.state for claim, verdict in found} for scale, found in judged.items()}

    def count(self, scale: str) -> Counter:
        """The number of testable claims in each state."""
        states = self.states.get(scale, {})
        return Counter(states.get(claim.id, NOT_RUN) for claim in self.claims)

    def states_of(self, claim: Claim) -> dict[str, str]:
        """scale -> state, for scales at which the claim's table was measured."""
        return {scale: states[claim.id] for scale, states in self.states.items() if claim.id in states}

    @cached_property
    def rows(self) -> list[Row]:
        """The comparisons of accuracies in the paper's order; for each table the largest scale first."""
        studies = [found[table.name] for table in self.tables for found in self.studies.values() if table.name in found]
        return [row for study in studies for row in forest.rows(study)]

    @cached_property
    def note(self) -> str:
        return self._filler.note()

    @cached_property
    def _filler(self) -> Filler:
        return Filler(self.tables, self.studies)

    @property
    def answers(self) -> list[Row]:
        """The comparisons in the note's headline."""
        named = self._filler.compared if self.note else []
        return [r for r in self.rows if (r.study.scale, r.study.table.name, r.contrast.cells) in named]

    @property
    def page(self) -> str:
        return f"{self.id}.html"


@cache
def errata() -> dict[str, list[tuple[str, str, str]]]:
    """paper -> (id, where, what), from docs/errata.md."""
    path, found = spec.HOME / "docs" / "errata.md", {}
    for section in re.split(r"^## \d+\. ", path.read_text(), flags=re.M)[1:] if path.exists() else []:
        paper = re.split(r"\W", section, maxsplit=1)[0].lower()
        found[paper] = [(m[1], m[2].strip(), m[3].strip()) for m in ERRATUM.finditer(section)]
    return found
