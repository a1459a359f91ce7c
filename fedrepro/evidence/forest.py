"""The forest plot: every main comparison of a paper, its own difference and ours with its 95% interval.

Each line is a row of a table with a small drawing of its own, all on one axis: it can be read aloud, searched, printed
and shown on a narrow screen.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

import numpy as np

from fedrepro.evidence import contrasts
from fedrepro.evidence.contrasts import Contrast
from fedrepro.evidence.fragments import css_class, mark
from fedrepro.evidence.study import Study
from fedrepro.evidence.verdict import Effect

WIDTH, HEIGHT, EDGE = 320, 22, 16  # of a row's drawing; what lies beyond the axis has an arrow in the edge
WORDS = {"holds": "as claimed", "opposite": "opposite", "open": "undecided", "one seed": "one seed", "": "not judged"}
HOLM = (
    "An interval left of 0 can still be undecided: to speak against a claim, it must be so even after correction "
    "for the number of comparisons that the claim makes."
)
VERDICTS = {**{state: state for state in WORDS}, "open": "undecided", "": "not testable"}  # states of verdicts


@dataclass(frozen=True)
class Row:
    """A comparison of accuracies at one scale."""

    study: Study
    contrast: Contrast
    effect: Effect
    paper: float | None  # the paper's difference
    judged: bool  # the reference of its panel is trained
    runs: tuple[str, ...]
    claims: tuple[str, ...]  # that make this comparison

    @property
    def state(self) -> str:
        if not self.judged:
            return ""
        return "one seed" if self.effect.half is None and self.effect.state == "open" else self.effect.state

    def settles(self, other: "Row") -> bool:
        """Whether it is decided in its claim, while the same comparison is open in another: a claim with more
        comparisons corrects for more, and one about an average waits for all its cells."""
        same_region = (self.effect.low, self.effect.high) == (other.effect.low, other.effect.high)
        return same_region and other.state == "open" and self.state in ("holds", "opposite")

    @property
    def held_back(self) -> bool:
        """Whether its interval lies left of the claimed region, and yet it does not speak against the claim."""
        return self.state == "open" and self.effect.mean + (self.effect.half or math.inf) < self.effect.low

    @property
    def pair(self) -> tuple[str, str, str] | None:
        """The axis of methods and the labels of both sides, where two cells differ on that axis alone."""
        plus, minus = self.contrast.sides
        if len(plus) != 1 or len(minus) != 1:
            return None
        differing = [axis for axis in plus[0] if plus[0][axis] != minus[0][axis]]
        if len(differing) != 1:
            return None
        (axis,) = differing
        sets_method = any("method" in fields for fields in self.study.table.axis[axis].labels.values())
        return (axis, plus[0][axis], minus[0][axis]) if sets_method else None

    @property
    def place(self) -> list[str]:
        """The labels that both sides share, on axes that vary in the study."""
        cells = [cell for side in self.contrast.sides for cell in side]
        varied = [axis for axis, labels in self.study.axes.items() if len(labels) > 1]
        shared = {axis: cells[0][axis] for axis in varied if cells and len({cell[axis] for cell in cells}) == 1}
        return [f"{axis} {at}" if at.replace(".", "").isdigit() else at for axis, at in shared.items()]

    @property
    def name(self) -> str:
        """DFL − FedAvg, CIFAR-10"""
        return ", ".join([" − ".join(self.pair[1:]), *self.place]) if self.pair else self.contrast.what

    @property
    def against_reference(self) -> bool:
        """Whether it says by how much a method is ahead of the table's reference, usually FedAvg."""
        rule, (_, minus) = self.study.table.gate, self.contrast.sides
        if rule is None or rule.run or self.pair is None:
            return False
        return all(rule.is_reference(cell) for cell in minus)


def rows(study: Study) -> list[Row]:
    """One for every comparison of accuracies that a claim makes; those that several claims make once."""
    found: dict[tuple, Row] = {}
    for claim in study.table.claims():
        judged = {one.key: one for one in contrasts.measured(study, claim)}
        everything = contrasts.measured(study, claim, trained=False) if study.untrained else list(judged.values())
        paper = {one.key: one.number for one in contrasts.reported(study, claim)}
        for one in [judged.get(one.key, one) for one in everything]:
            if not one.is_main or one.effect is None or math.isnan(one.effect.mean):
                continue
            runs = tuple(contrasts.runs_of(study, one))
            row = Row(study, one, one.effect, paper.get(one.key), one.key in judged, runs, (claim.id,))
            same = found.get(one.cells, row)
            shown, other = (row, same) if row.settles(same) else (same, row)
            found[one.cells] = replace(shown, claims=tuple(dict.fromkeys((*shown.claims, *other.claims))))
    return list(found.values())


def plot(found: Sequence[tuple[Row, str]]) -> str:
    """Rows as a table; each with the page to whose claims and runs it links, empty for the same page."""
    low, high = _range([row for row, _ in found])
    ticks = _ticks(low, high)
    body = "".join(_row(row, low, high, ticks, page) for row, page in found)
    axis = "".join(
        f'<text x="{_at(x, low, high):.1f}" y="12">{f"{x:+g}".replace("-", "−") if x else "0"}</text>' for x in ticks
    )
    foot = (
        f'<tr><td colspan="2"></td><td><svg class="axis" viewBox="0 0 {WIDTH} 16" aria-hidden="true">{axis}</svg></td>'
        '<td colspan="3" class="soft">points; right of 0: as claimed</td></tr>'
    )
    head = "".join(
        f'<th scope="col">{name}</th>'
        for name in ("comparison", "scale", "difference in accuracy, points", "ours ± 95%", "paper", "found")
    )
    parts = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody><tfoot>{foot}</tfoot>"
    corrected = f'<p class="soft">{HOLM}</p>' if any(row.held_back for row, _ in found) else ""
    return f'<table class="forest">{parts}</table><p class="key soft">{SAMPLES}</p>{corrected}'


def _sample(shapes: str, words: str) -> str:
    return f'<span><svg viewBox="0 0 40 14" aria-hidden="true">{shapes}</svg> {words}</span>'


LINE, CIRCLE = '<path class="ours" d="M4 7H36"/>', '<circle class="ours{}" cx="20" cy="7" r="4.5"/>'
SAMPLES = (
    _sample(LINE + CIRCLE.format(""), "ours, trained")
    + _sample(LINE + CIRCLE.format(" hollow"), "ours, before the reference is trained: not judged")
    + _sample('<path class="theirs" d="M20 1.5L25.5 7L20 12.5L14.5 7Z"/>', "the paper, at its own scale")
)


def _row(row: Row, low: float, high: float, ticks: Sequence[float], page: str) -> str:
    one, effect, scale = row.contrast, row.effect, row.study.scale
    ours, theirs = one.shown(effect.mean, effect.half), one.shown(row.paper or 0.0)
    said = f"ours {ours}" + ("" if row.paper is None else f", the paper {theirs}")
    ours, theirs = ours.removesuffix(" points"), "–" if row.paper is None else theirs.removesuffix(" points")
    runs = f"{page}#runs-{'.'.join(row.runs)}"
    claim = f"{page}#{row.claims[0]}-{scale}"
    where = escape(f"{row.study.table.title.partition(': ')[0]}, {one.measure.name}; {', '.join(row.claims)}")
    verdict = VERDICTS[row.state]
    return (
        f'<tr><th scope="row"><a href="{escape(claim)}">{escape(row.name)}</a><small>{where}</small></th>'
        f'<td><span class="scale">{scale}</span></td><td>{_drawing(row, low, high, ticks, said)}</td>'
        f'<td><a href="{escape(runs)}">{escape(ours)}</a></td><td>{escape(theirs)}</td>'
        f'<td class="{css_class(verdict)}"><b>{mark(verdict)}{WORDS[row.state]}</b></td></tr>'
    )


def _drawing(row: Row, low: float, high: float, ticks: Sequence[float], said: str) -> str:
    times, middle = row.contrast.display[0], HEIGHT / 2
    mean, half = row.effect.mean * times, (row.effect.half or 0.0) * times
    grid = "".join(
        f'<path class="{"zero" if x == 0 else "tick"}" d="M{_at(x, low, high):.1f} 0V{HEIGHT}"/>' for x in ticks
    )
    left, right = _at(mean - half, low, high), _at(mean + half, low, high)
    line = f'<path class="ours" d="M{left:.1f} {middle}H{right:.1f}"/>' if half else ""
    point = _point(mean, low, high, f'class="ours{"" if row.judged else " hollow"}"', round_=True)
    theirs = "" if row.paper is None else _point(row.paper * times, low, high, 'class="theirs"', round_=False)
    title = f"<title>{escape(row.name)}: {escape(said)}</title>"
    return f'<svg class="row" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{title}{grid}{theirs}{line}{point}</svg>'


def _point(value: float, low: float, high: float, style: str, round_: bool) -> str:
    x, y = _at(value, low, high), HEIGHT / 2
    if not low <= value <= high:  # an arrow at the edge
        tip = 8 if value > high else -8
        return f'<path {style} d="M{x:.1f} {y - 5}L{x + tip:.1f} {y}L{x:.1f} {y + 5}Z"/>'
    if round_:
        return f'<circle {style} cx="{x:.1f}" cy="{y}" r="4.5"/>'
    return f'<path {style} d="M{x:.1f} {y - 5.5}L{x + 5.5:.1f} {y}L{x:.1f} {y + 5.5}L{x - 5.5:.1f} {y}Z"/>'


def _at(value: float, low: float, high: float) -> float:
    inside = min(max(value, low), high)
    return EDGE + (WIDTH - 2 * EDGE) * (inside - low) / (high - low)


def _range(found: Sequence[Row]) -> tuple[float, float]:
    """The axis: all of it, but for a few that lie far beyond the others, which get an arrow."""
    ends = [0.0]
    for row in found:
        times, half = row.contrast.display[0], row.effect.half or 0.0
        numbers = (row.effect.mean - half, row.effect.mean + half, row.effect.mean if row.paper is None else row.paper)
        ends += [times * number for number in numbers]
    limit = max(4 * float(np.median(np.abs(ends))), 0.5)
    step = _step(limit)
    low, high = max(min(ends), -limit), min(max(ends), limit)
    return step * math.floor(low / step), max(step * math.ceil(high / step), step)


def _step(size: float) -> float:
    """1, 2 or 5 times a power of ten, about a third of the size."""
    power = 10.0 ** math.floor(math.log10(size / 3))
    return next(power * times for times in (1, 2, 5, 10) if power * times >= size / 3)


def _ticks(low: float, high: float) -> list[float]:
    step = _step(max(abs(low), abs(high)))
    return [round(step * i, 10) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
