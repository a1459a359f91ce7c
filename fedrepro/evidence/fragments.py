"""Pieces of the report's pages: verdicts with their intervals, numbers beside the paper's, as HTML."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape

import pandas as pd

from fedrepro.evidence import contrasts, tables
from fedrepro.evidence.claims import Claim
from fedrepro.evidence.contrasts import Contrast
from fedrepro.evidence.study import Study
from fedrepro.evidence.verdict import MARKS, NOT_RUN, Effect, Verdict, word

SHOWN = 8  # comparisons of a claim that are not folded


def css_class(state: str) -> str:
    return state.replace(" ", "-")


def mark(state: str) -> str:
    """The sign of a state; one seed is no kind of undecided, and what is not judged has none."""
    signs = {**MARKS, "one seed": "1"}
    return f"{signs[state]} " if state in signs else ""


def words(state: str, scale: str) -> str:
    return "one seed only" if state == "one seed" else word(state, scale)


def badge(state: str, scale: str) -> str:
    """A verdict with its scale: `✓ holds | cpu`."""
    return pill(state, words(state, scale).removesuffix(f" at {scale} scale").removesuffix(" here"), scale)


def pill(state: str, said: str, scale: str) -> str:
    return f'<span class="badge {css_class(state)}">{mark(state)}{said} <small>{scale}</small></span>'


def button(state: str) -> str:
    """Shows only the claims of this state."""
    name = css_class(state)
    return f'<button class="{name}" data-verdict="{name}" aria-pressed="false">{mark(state)}{state}</button>'


def fold(title: str, number: int, body: str) -> str:
    return f"<details><summary>{title} ({number})</summary>{body}</details>\n"


def total(scale: str, counts: Counter, note: str) -> str:
    """Of one scale: those of different scales are never added up."""
    bars = legend = ""
    for state in MARKS:
        if number := counts[state]:
            shown = words(state, scale)
            bars += f'<i class="{css_class(state)}" data-flex="{number}" title="{number} {shown}"></i>'
            legend += f'<span class="{css_class(state)}"><strong>{number}</strong> {shown}</span>'
    bars, legend = f'<div class="bar" aria-hidden="true">{bars}</div>', f'<div class="legend">{legend}</div>'
    return f'<div class="total"><b>At {scale} scale</b> <span class="soft">{note}</span>{bars}{legend}</div>'


def measured_claims(study: Study) -> str:
    """The claims of a table with their verdicts at one scale; those that no experiment can test stand elsewhere."""
    judged = [(claim, found) for claim, found in study.verdicts if not claim.untestable]
    judged.sort(key=lambda one: list(MARKS).index(one[1].state))
    return "".join(_claim(claim, found, contrasts.measured(study, claim)) for claim, found in judged)


def open_claims(claims: Sequence[Claim]) -> str:
    """Claims of a table that was not measured at any scale."""
    return "".join(_claim(claim, None, []) for claim in claims if not claim.untestable)


def _claim(claim: Claim, found: Verdict | None, made: Sequence[Contrast]) -> str:
    state, id_ = (found.state, f"{claim.id}-{found.scale}") if found else (NOT_RUN, claim.id)
    said, source = escape(claim.says), f"{escape(claim.source)} · {escape(claim.id)}"
    why = f"{_soft(found.reason)}{intervals(made)}" if found else ""
    shown = badge(state, found.scale) if found else NOT_RUN
    return (
        f'<div class="claim {css_class(state)}" id="{escape(id_)}" data-verdict="{css_class(state)}">'
        f"<div>{shown}</div><div><p>{said}</p>"
        f'<span class="soft">{source}</span>{why}{_soft(claim.note)}</div></div>'
    )


def listed_claim(claim: Claim, states: Mapping[str, str], page: str) -> str:
    """One line of the overview: the claim with its verdict at every scale."""
    names = " ".join(css_class(state) for state in states.values()) or css_class(NOT_RUN)
    badges = "".join(badge(state, scale) for scale, state in states.items()) or f'<span class="soft">{NOT_RUN}</span>'
    target = f"{page}#{claim.id}" + (f"-{next(iter(states))}" if states else "")
    return (
        f'<li class="claim" data-verdict="{names}"><a href="{escape(target)}">{escape(claim.says)}</a> '
        f'<span class="soft">{escape(claim.id)}</span><span class="badges">{badges}</span></li>'
    )


def _soft(text: str) -> str:
    return f'<p class="soft">{escape(text)}</p>' if text else ""


def intervals(made: Sequence[Contrast]) -> str:
    """One line per comparison: what, its interval against the borders of what is claimed, the numbers."""
    found = [(one, one.effect) for one in made if one.effect is not None]
    if not found:
        return ""
    ends, lines = [x for _, e in found for x in (*_borders(e), *_ends(e))] or [0.0], ""
    for one, e in found:
        drawn = _interval(e, min(ends), max(ends))
        lines += f"<span>{escape(e.what)}</span>{drawn}<span>{escape(one.numbers)}</span>"
    lines = f'<div class="effects">{lines}</div>'
    return lines if len(found) <= SHOWN else fold("All comparisons", len(found), lines)


def _borders(effect: Effect) -> list[float]:
    return [x for x in (effect.low, effect.high) if abs(x) != float("inf")]


def _ends(effect: Effect) -> list[float]:
    return [] if effect.half is None else [effect.mean - effect.half, effect.mean + effect.half]


def _interval(effect: Effect, low: float, high: float) -> str:
    if effect.half is None:
        return "<span></span>"

    def at(value: float) -> str:
        return f"{4 + 114 * (value - low) / (high - low or 1.0):.1f}"

    borders = "".join(f'<path class="zero" d="M{at(x)} 0V14"/>' for x in _borders(effect))
    left, right = map(at, _ends(effect))
    mean = f'<path d="M{left} 7H{right}"/><circle cx="{at(effect.mean)}" cy="7" r="2"/>'
    return f'<svg class="ci {escape(effect.state)}" viewBox="0 0 122 14" aria-hidden="true">{borders}{mean}</svg>'


def numbers(study: Study) -> str:
    """One row per cell of the table; for each measure the paper's number, where it gives one, and ours."""
    summary, readable = study.summary, tables.readable(study).to_dict("records")
    axes = [axis for axis, labels in study.axes.items() if len(labels) > 1] or list(study.axes)
    rows = {tuple(labels): [runs, ""] for *labels, runs in summary[[*axes, "runs"]].itertuples(index=False)}
    head = second = ""
    for name in study.measures:
        group = [row for measure, row in zip(summary["measure"], readable, strict=True) if measure == name]
        reported, one_name = any(row[tables.PAPER] for row in group), len({row["measure"] for row in group}) == 1
        unit = f" ({group[0]['unit']})" if group[0]["unit"] else ""
        shown = group[0]["measure"] if one_name else name
        head += f'<th class="group" colspan="{1 + reported}">{escape(shown + unit)}</th>'
        second += '<th class="paper">paper</th><th>ours</th>' if reported else '<th class="ours alone">ours</th>'
        found = {tuple(row[axis] for axis in axes): row for row in group}
        for labels, row in rows.items():
            target = "" if one_name or labels not in found else found[labels]["measure"].removeprefix(name)
            row[1] += _cells(study, found.get(labels), reported, target)
    body = ""
    for labels, (runs, cells) in rows.items():
        heads = "".join(f"<th>{escape(label)}</th>" for label in labels)
        body += f"<tr>{heads}{cells}<td>{run_links(runs)}</td></tr>"
    names = "".join(f'<th rowspan="2">{escape(study.table.axis[axis].label or axis)}</th>' for axis in axes)
    top = f'<tr>{names}{head}<th rowspan="2">runs</th></tr><tr>{second}</tr>'
    return f'<div class="scroll"><table class="numbers"><thead>{top}</thead><tbody>{body}</tbody></table></div>'


def _cells(study: Study, row: dict | None, reported: bool, target: str) -> str:
    """The paper's number, where the measure has any, and ours."""
    theirs, ours = (row[tables.PAPER], row[tables.ours(study)]) if row else ("", "")
    note = f' <span class="soft">{escape(target)}</span>' if target else ""
    paper = f'<td class="paper">{escape(theirs)}</td>' * reported
    return f'{paper}<td class="ours{" alone" * (not reported)}">{escape(ours)}{note}</td>'


def run_links(runs: str) -> str:
    return " ".join(f'<a href="#run-{escape(run)}"><code>{escape(run[:6])}</code></a>' for run in runs.split())


def plain(table: pd.DataFrame) -> str:
    html = table.round(4).to_html(index=False, border=0, na_rep="").replace(' style="text-align: right;"', "")
    return f'<div class="scroll">{html}</div>'


def emphasis(text: str) -> str:
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
    return re.sub(r"(?<![\w*])\*([^*]+)\*(?![\w*])", r"<em>\1</em>", text)
