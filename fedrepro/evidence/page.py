"""fedrepro report: results/index.html, one static page of all papers, from the records beside it.

No server, nothing from elsewhere: style, script and run records are inside, figures and CSV files beside it.
Its content security policy lets only this style and this script in.
"""

import base64
import csv
import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path
from string import Template

import pandas as pd

from fedrepro.errors import bad
from fedrepro.evidence import record, spec, tables
from fedrepro.evidence.driver import web_page
from fedrepro.evidence.record import Record
from fedrepro.evidence.study import Study, recorded
from fedrepro.evidence.verdict import MARKS, Effect, Verdict, text, word
from fedrepro.simulation.store import write_atomically

SCALES = spec.SCALES[:0:-1]  # the paper's own first; smoke is for CI
EXPLAINED = {
    "paper": "the papers' own settings",
    "cpu": "up to two hours per notebook and seed on two CPU cores",
    "reduced": "real data, small networks, minutes on two CPU cores: order and trend only",
}
LINKS = {
    ".html": "executed notebook",
    ".ipynb": "the same as .ipynb",
    ".csv": "summary CSV",
    "_values.csv": "every value CSV",
    "_verdicts.csv": "verdicts CSV",
    "_effects.csv": "effects CSV",
    "_curves.csv": "curves CSV",
    "_gate.csv": "gate CSV",
}
NOT_RUN = "not run yet"
STATES = [*MARKS, NOT_RUN]
ERRATUM = re.compile(r"^\*\*([A-Z]+-\d+)\.\s*(.*?)\*\*(.*)$", re.M)
Judged = tuple[dict, Verdict | None]  # a claim, and its verdict where its table was measured


def build(folder: Path) -> Path:
    """Write `folder`/index.html and each paper's README.md; executed notebooks become web pages beside them."""
    record.check_path(folder)
    papers = [Paper(name, folder) for name in spec.papers()]
    if not any(paper.records for paper in papers):
        wanted = f"a folder with <scale>/<paper>/{record.RUNS}, such as results or results/local"
        raise bad("results", str(folder), wanted)
    for known, studies in ((paper.records[scale], paper.studies[scale]) for paper in papers for scale in paper.records):
        tables.write_readme(known.folder, list(studies.values()))
    page = _page(papers)
    target = folder / "index.html"
    write_atomically(target, lambda file: file.write(page.encode()))
    return target


class Paper:
    """A paper's tables and claims, with what is recorded of them at each scale."""

    def __init__(self, name: str, results: Path):
        self.id, self.tables = name, spec.tables(name)
        self.title = self.tables[0].title.partition(",")[0]
        self.source = self.tables[0].source.partition(", Fig")[0].partition(", Table")[0].partition(", Section")[0]
        folders = {scale: results / scale / name for scale in SCALES}
        self.records = {scale: Record(path) for scale, path in folders.items() if (path / record.RUNS).exists()}
        for known in self.records.values():
            known.refuse_damage()
        found = {scale: recorded(known) for scale, known in self.records.items()}
        self.studies = {scale: {study.table.name: study for study in studies} for scale, studies in found.items()}
        with open(spec.REPRODUCE / name / "claims.csv", newline="") as file:
            self.claims = [line["id"] for line in csv.DictReader(file)]

    def count(self, scale: str) -> Counter:
        judged = [one for study in self.studies[scale].values() for one in study.verdicts]
        states = {claim["id"]: verdict.state for claim, verdict in judged}
        return Counter(states.get(claim, NOT_RUN) for claim in self.claims)


def _page(papers: list[Paper]) -> str:
    home = Path(__file__).parent
    scales = [scale for scale in SCALES if any(scale in paper.records for paper in papers)]
    totals = {scale: sum((_counted(paper, scale) for paper in papers), Counter()) for scale in scales}
    found = sum(totals.values(), Counter())
    runs = {id_: run for paper in papers for known in paper.records.values() for id_, run in _runs(known).items()}
    counted = (len(papers), "paper"), (sum(len(paper.claims) for paper in papers), "claim"), (len(runs), "training")
    options = "".join(f'<option value="{scale}">{scale} scale</option>' for scale in scales)
    css, js = ((home / f"page.{kind}").read_text() for kind in ("css", "js"))
    return Template((home / "page.html").read_text()).substitute(
        css=css,
        js=js,
        policy=f"default-src 'none'; img-src 'self' file:; style-src {_source(css)}; script-src {_source(js)}; "
        "base-uri 'none'; form-action 'none'",
        counted=", ".join(f"{n} {what}{'s' * (n != 1)}" for n, what in counted),
        totals="".join(_total(scale, totals[scale], EXPLAINED[scale]) for scale in scales),
        links="".join(f'<a href="#{paper.id}">{escape(paper.title)}</a>' for paper in papers),
        buttons="".join(
            f'<button class="{_class(v)}" data-verdict="{_class(v)}" aria-pressed="false">{_mark(v)}{v}</button>'
            for v in STATES
            if found[v]
        ),
        scales=f'<select id="scale"><option value="">all scales</option>{options}</select>' if len(scales) > 1 else "",
        papers="".join(map(_paper, papers)),
        runs=json.dumps(runs, separators=(",", ":")).replace("<", "\\u003c"),
    )


def _counted(paper: Paper, scale: str) -> Counter:
    return paper.count(scale) if scale in paper.records else Counter({NOT_RUN: len(paper.claims)})


def _source(text: str) -> str:
    """How a content security policy names an inline style or script; page.html begins each with a new line."""
    digest = hashlib.sha256(b"\n" + text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _class(state: str) -> str:
    return state.replace(" ", "-")


def _mark(state: str) -> str:
    return f"{MARKS[state]} " if state in MARKS else ""


def _fold(title: str, number: int, body: str) -> str:
    return f"<details><summary>{title} ({number})</summary>{body}</details>\n"


def _total(scale: str, counts: Counter, note: str) -> str:
    """Of one scale: those of different scales are never added up."""
    bars = words = ""
    for state in STATES:
        if number := counts[state]:
            bars += f'<i class="{_class(state)}" data-flex="{number}" title="{number} {word(state, scale)}"></i>'
            words += f'<span class="{_class(state)}"><strong>{number}</strong> {word(state, scale)}</span>'
    bars, words = f'<div class="bar">{bars}</div>', f'<div class="legend">{words}</div>'
    return f'<div class="total"><b>At {scale} scale</b> <span class="soft">{note}</span>{bars}{words}</div>'


def _runs(known: Record) -> dict[str, dict]:
    """The record of each run, with its curve, for the page's own window."""
    found = {}
    for id_, run in known.runs.items():
        tested = [row["accuracy"] for row in known.rounds.get(id_, []) if row["accuracy"] == row["accuracy"]]
        found[id_] = {key: value for key, value in run.items() if key != "id"}
        found[id_] |= {"file": f"{known.scale}/{known.paper}/{record.RUNS}", "curve": [round(x, 4) for x in tested]}
    return found


def _paper(paper: Paper) -> str:
    totals = "".join(_total(scale, paper.count(scale), "") for scale in paper.records)
    totals = totals or '<p class="soft">Not measured yet.</p>'
    return f"""<section class="paper" id="{paper.id}">
<h2>{escape(paper.title)}</h2>
<p class="soft">{escape(paper.source)} · <code>make reproduce-{paper.id}</code></p>
<div class="totals">{totals}</div>
{"".join(_table(paper, table) for table in paper.tables)}
{_deviations(paper)}{_errata(paper)}{_run_list(paper)}
</section>
"""


def _table(paper: Paper, table: spec.Table) -> str:
    blocks = [
        _measured(paper, scale, found[table.name]) for scale, found in paper.studies.items() if table.name in found
    ]
    if not blocks:
        blocks = [f'<div class="measured">{_claims([(claim, None) for claim in table.claims()])}</div>']
    head = f"<h3>{escape(table.title)}</h3><p>{escape(table.question)}</p>"
    return f'<section class="table" id="{paper.id}-{table.name}">{head}{"".join(blocks)}</section>\n'


def _measured(paper: Paper, scale: str, study: Study) -> str:
    folder, name = paper.records[scale].folder, study.table.name
    path = escape(f"{scale}/{paper.id}/{name}")
    image = f'<img src="{path}.svg" alt="{escape(study.table.title)}" loading="lazy">'
    figure = f'<figure><a href="{path}.svg">{image}</a></figure>' if (folder / f"{name}.svg").exists() else ""
    web_page(folder / f"{name}.ipynb")
    files = {suffix: words for suffix, words in LINKS.items() if (folder / f"{name}{suffix}").exists()}
    links = "".join(f"<a href={json.dumps(path + suffix)}>{words}</a>" for suffix, words in files.items())
    numbers = _numbers(study)
    if study.table.groups:
        numbers += f"<h4>{escape(study.table.groups['title'])}</h4>{_plain(study.grouped())}"
    title, size = "The paper's numbers beside ours", len(study.summary)
    numbers = f"<h4>{title}</h4>{numbers}" if size <= 20 else _fold(title, size, numbers)
    return (
        f'<div class="measured" data-scale="{scale}"><p class="caption">{escape(tables.caption(study))}</p>'
        f"{figure}<h4>Claims</h4>{_claims(study.verdicts)}{numbers}"
        f'<div class="links">{links}</div></div>'
    )


def _claims(judged: Sequence[Judged]) -> str:
    states = [verdict.state if verdict else NOT_RUN for _, verdict in judged]
    ordered = sorted(zip(states, judged, strict=True), key=lambda one: STATES.index(one[0]))
    return "".join(_claim(state, claim, verdict) for state, (claim, verdict) in ordered)


def _claim(state: str, claim: dict, verdict: Verdict | None) -> str:
    said, source = escape(claim["claim"]), f"{escape(claim['said in'])} · {escape(claim['id'])}"
    why = f"{_note(verdict.reason)}{_drawn(verdict.effects)}" if verdict else ""
    return (
        f'<div class="claim {_class(state)}" data-verdict="{_class(state)}">'
        f"<div>{_mark(state)}{verdict.word if verdict else NOT_RUN}</div><div><p>{said}</p>"
        f'<span class="soft">{source}</span>{why}{_note(claim.get("note", ""))}</div></div>'
    )


def _note(text: str) -> str:
    return f'<p class="soft">{escape(text)}</p>' if text else ""


def _drawn(effects: Sequence[Effect]) -> str:
    """One line per comparison: what, its interval against the borders of what is claimed, the numbers."""
    if not effects:
        return ""
    ends, lines = [x for e in effects for x in (*_borders(e), *_ends(e))] or [0.0], ""
    for e in effects:
        numbers = escape(text(e).removeprefix(e.what + ": "))
        lines += f"<span>{escape(e.what)}</span>{_interval(e, min(ends), max(ends))}<span>{numbers}</span>"
    lines = f'<div class="effects">{lines}</div>'
    return lines if len(effects) <= 20 else _fold("All comparisons", len(effects), lines)


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
    return f'<svg class="ci {escape(effect.state)}" viewBox="0 0 122 14">{borders}{mean}</svg>'


def _numbers(study: Study) -> str:
    """One row per cell of the table; for each measure the paper's number, where it gives one, and ours."""
    summary, readable = study.summary, tables.readable(study)
    axes = [axis for axis, labels in study.axes.items() if len(labels) > 1] or list(study.axes)
    rows = {tuple(labels): [runs, ""] for *labels, runs in summary[[*axes, "runs"]].itertuples(index=False)}
    head = second = ""
    for name, group in readable.groupby(summary["measure"], sort=False):
        reported, one_name = bool(group[tables.PAPER].any()), group["measure"].nunique() == 1
        unit = f" ({group['unit'].iloc[0]})" if group["unit"].iloc[0] else ""
        shown = group["measure"].iloc[0] if one_name else name
        head += f'<th class="group" colspan="{1 + reported}">{escape(shown + unit)}</th>'
        second += '<th class="paper">paper</th><th>ours</th>' if reported else '<th class="ours alone">ours</th>'
        found = {tuple(row[axis] for axis in axes): row for row in group.to_dict("records")}
        for labels, row in rows.items():
            target = "" if one_name or labels not in found else found[labels]["measure"].removeprefix(name)
            row[1] += _cells(study, found.get(labels), reported, target)
    body = ""
    for labels, (runs, cells) in rows.items():
        heads = "".join(f"<th>{escape(label)}</th>" for label in labels)
        body += f"<tr>{heads}{cells}<td>{_run_links(runs)}</td></tr>"
    names = "".join(f'<th rowspan="2">{escape(study.table.axis[axis].get("label", axis))}</th>' for axis in axes)
    top = f'<tr>{names}{head}<th rowspan="2">runs</th></tr><tr>{second}</tr>'
    return f'<div class="scroll"><table class="numbers"><thead>{top}</thead><tbody>{body}</tbody></table></div>'


def _cells(study: Study, row: dict | None, reported: bool, target: str) -> str:
    """The paper's number, where the measure has any, and ours."""
    theirs, ours = (row[tables.PAPER], row[tables.ours(study)]) if row else ("", "")
    note = f' <span class="soft">{escape(target)}</span>' if target else ""
    paper = f'<td class="paper">{escape(theirs)}</td>' * reported
    return f'{paper}<td class="ours{" alone" * (not reported)}">{escape(ours)}{note}</td>'


def _run_links(runs: str) -> str:
    return " ".join(f'<a href="#run-{escape(run)}"><code>{escape(run[:6])}</code></a>' for run in runs.split())


def _plain(table: pd.DataFrame) -> str:
    html = table.round(4).to_html(index=False, border=0, na_rep="").replace(' style="text-align: right;"', "")
    return f'<div class="scroll">{html}</div>'


def _deviations(paper: Paper) -> str:
    unique = {(d["what"], d["why"], d.get("erratum", "")): None for table in paper.tables for d in table.deviation}
    known = {id_ for id_, *_ in errata().get(paper.id, [])}

    def link(ids: str) -> str:
        found = [f'<a href="#{i}">{i}</a>' if i in known else escape(i) for i in ids.split(", ") if i]
        return f" ({', '.join(found)})" if found else ""

    items = "".join(f"<li><b>{escape(what)}.</b> {escape(why)}{link(ids)}</li>" for what, why, ids in unique)
    return _fold("Where we differ from the paper, and why", len(unique), f"<ul>{items}</ul>")


@cache
def errata() -> dict[str, list[tuple[str, str, str]]]:
    """paper -> (id, where, what), from docs/errata.md."""
    path, found = spec.HOME / "docs" / "errata.md", {}
    for section in re.split(r"^## \d+\. ", path.read_text(), flags=re.M)[1:] if path.exists() else []:
        paper = re.split(r"\W", section, maxsplit=1)[0].lower()
        found[paper] = [(m[1], m[2].strip(), m[3].strip()) for m in ERRATUM.finditer(section)]
    return found


def _errata(paper: Paper) -> str:
    found = errata().get(paper.id, [])
    if not found:
        return ""
    items = "".join(f'<li id="{id_}"><b>{id_}</b> {escape(where)} {_emphasis(what)}</li>' for id_, where, what in found)
    return _fold("Errata and ambiguities found in the paper", len(found), f"<ul>{items}</ul>")


def _emphasis(text: str) -> str:
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
    return re.sub(r"(?<![\w*])\*([^*]+)\*(?![\w*])", r"<em>\1</em>", text)


def _run_list(paper: Paper) -> str:
    text = ""
    for scale, known in paper.records.items():
        links = "".join(f"<div>{_run_links(run)}</div>" for run in sorted(known.runs))
        text += _fold(f"All runs at {scale} scale", len(known.runs), f'<div class="runs">{links}</div>')
    return text
