"""A claim: what a paper says in one sentence, in one or more blocks `[[claim]]` with the same id."""

from dataclasses import dataclass

from fedrepro.errors import BadInput
from fedrepro.evidence.statements import Statement, Untestable


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and the statements it makes."""

    id: str
    says: str
    source: str
    note: str
    most: bool
    statements: tuple[Statement, ...]

    @property
    def untestable(self) -> str:
        """Why no experiment can test it at any scale; empty if one can."""
        return next((statement.why for statement in self.statements if isinstance(statement, Untestable)), "")


def claims_of(statements: list[Statement]) -> list[Claim]:
    """One claim per id."""
    found: dict[str, list[Statement]] = {}
    for statement in statements:
        found.setdefault(statement.id, []).append(statement)
    claims = []
    for id_, (first, *others) in found.items():
        for key in ("says", "source"):
            if not getattr(first, key) or any(getattr(other, key) for other in others):
                raise BadInput(f"claim {id_}.{key}: belongs in its first block, and only there")
        note = " ".join(statement.note for statement in (first, *others) if statement.note)
        claims.append(Claim(id_, first.says, first.source, note, first.most, (first, *others)))
    return claims
