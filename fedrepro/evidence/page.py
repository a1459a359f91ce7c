"""fedrepro report: an overview, index.html, and a page per paper, from the records beside them.

No server, nothing from elsewhere: style, script and run records are inside, figures and CSV files beside them. The
content security policy lets only this style and this script in.
"""

import base64
import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from string import Template

import mistune

from fedrepro.errors import BadInput, bad
from fedrepro.evidence import appendix, forest, fragments, matrix, note, papers, record, spec, tables
from fedrepro.evidence.export import web_page
from fedrepro.evidence.papers import Paper
from fedrepro.evidence.record import Record
from fedrepro.evidence.study import Study
from fedrepro.evidence.table import Table
from fedrepro.evidence.verdict import MARKS, NOT_RUN
from fedrepro.simulation.store import write_atomically

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
SHOWN = 8  # comparisons of a paper on the overview
ANSWERS = {"holds": "yes", "opposite": "no", "open": "undecided", "one seed": "one seed only", "": "not judged"}
HOME = Path(__file__).parent
_markdown = mistune.create_markdown(escape=True, plugins=["table"])
Say = Callable[[str], None]


def build(folder: Path, say: Say = lambda line: None) -> Path:
    """Write `folder`/index.html and, per paper, its page, note and README.md; executed notebooks become web pages."""
    record.check_path(folder)
    started = time.monotonic()
    found = sorted((Paper(name, folder) for name in spec.papers()), key=lambda paper: not paper.claims)
    if not any(paper.records for paper in found):
        if list(folder.glob(f"smoke/*/{record.RUNS}")):
            only = "has runs at smoke scale only, which mean nothing"
            raise BadInput(f"{folder}: {only}; reproduce at another scale first")
        wanted = f"a folder with <scale>/<paper>/{record.RUNS}, such as results or results/local"
        raise bad("results", str(folder), wanted)
    runs = sum(len(known.runs) for paper in found for known in paper.records.values())
    say(f"read the record of {runs} runs in {time.monotonic() - started:.1f} s; judging claims and writing pages")
    for paper in found:
        begun = time.monotonic()
        for scale, known in paper.records.items():
            tables.write_readme(known.folder, list(paper.studies[scale].values()))
        note.write(folder, paper.id, paper.note)
        size = _write(folder / paper.page, _paper_page(paper, found))
        judged = sum(len(states) for states in paper.states.values())
        say(f"{paper.page}: {judged} verdicts, {size >> 10} KiB, {time.monotonic() - begun:.1f} s")
    size = _write(folder / "index.html", _overview(found))
    say(f"index.html: {size >> 10} KiB; all in {time.monotonic() - started:.1f} s")
    return folder / "index.html"


def _write(target: Path, text: str) -> int:
    write_atomically(target, lambda file: file.write(text.encode()))
    return len(text.encode())


def _page(title: str, header: str, contents: str, main: str, found: Sequence[Paper], runs: dict[str, dict]) -> str:
    """The frame that all pages share; `found`: the papers whose claims can be filtered here."""
    css, js = ((HOME / f"page.{kind}").read_text() for kind in ("css", "js"))
    scales = [scale for scale in papers.SCALES if any(scale in paper.records for paper in found)]
    here = sum((paper.count(scale) for paper in found for scale in scales), Counter())
    options = "".join(f'<option value="{scale}">{scale} scale</option>' for scale in scales)
    return Template((HOME / "page.html").read_text()).substitute(
        css=css,
        js=js,
        policy=f"default-src 'none'; img-src 'self' file:; style-src {_source(css)}; script-src {_source(js)}; "
        "base-uri 'none'; form-action 'none'",
        title=escape(title),
        header=header,
        contents=contents,
        bar="" if any(paper.claims for paper in found) else "hidden",
        buttons="".join(fragments.button(state) for state in MARKS if here[state]),
        scales=f'<select id="scale" aria-label="scale"><option value="">all scales</option>{options}</select>'
        * (len(scales) > 1),
        main=main,
        runs=json.dumps(runs, separators=(",", ":")).replace("<", "\\u003c"),
    )


def _source(text: str) -> str:
    """How a content security policy names an inline style or script; page.html begins each with a new line."""
    digest = hashlib.sha256(b"\n" + text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _linked(links: dict[str, str]) -> str:
    items = (f'<li><a href="{escape(target)}">{escape(name)}</a></li>' for target, name in links.items())
    return f"<ul>{''.join(items)}</ul>"


def _overview(found: Sequence[Paper]) -> str:
    scales = [scale for scale in papers.SCALES if any(scale in paper.records for paper in found)]
    totals = {scale: sum((paper.count(scale) for paper in found), Counter()) for scale in scales}
    runs = {id_ for paper in found for known in paper.records.values() for id_ in known.runs}
    claims = sum(len(paper.claims) for paper in found)
    judged = sum(bool(paper.claims) for paper in found)  # the arena is no paper
    numbers = (judged, "paper"), (claims, "claim"), (len(runs), "training")
    counted = [f"{n} {what}{'s' * (n != 1)}" for n, what in numbers]
    header = (
        "<h1>Federated-learning papers, reproduced</h1>"
        f"<p>{', '.join(counted)}. Does each method beat its baselines, "
        "and how sure are we? First each paper's answer, then every claim.</p>"
    )
    cards = {paper: card for paper in found if (card := _card(paper))}
    listed = "".join(_claim_list(paper) for paper in found if paper.claims)
    bars = "".join(fragments.total(scale, totals[scale], EXPLAINED[scale]) for scale in scales)
    main = (
        f'{_glance(found)}{"".join(cards.values())}<h2 id="totals">All verdicts</h2><div class="totals">{bars}</div>'
        f'<h2 id="claims">All claims</h2>{listed}'
    )
    links = {"#glance": "At a glance"} | {f"#{paper.id}": paper.title for paper in cards}
    links |= {"#totals": "All verdicts", "#claims": "All claims"}
    pages = {paper.page: paper.title for paper in found}
    contents = f"{_linked(links)}<h2>Papers in full</h2>{_linked(pages)}"
    return _page("fedrepro: federated-learning papers, reproduced", header, contents, main, found, {})


def _claim_list(paper: Paper) -> str:
    lines = "".join(fragments.listed_claim(claim, paper.states_of(claim), paper.page) for claim in paper.claims)
    return f'<section class="paper"><h3>{escape(paper.title)}</h3><ul class="list">{lines}</ul></section>'


def _card(paper: Paper) -> str:
    """A paper's main comparisons, those with its reference first."""
    rows = sorted(_main(paper), key=lambda row: (not row.against_reference, row.pair is None))
    if not rows:
        return ""
    more = f"{SHOWN} of {len(rows)} comparisons; all of them, " if len(rows) > SHOWN else ""
    return f"""<section class="card" id="{paper.id}">
<h2><a href="{paper.page}">{escape(paper.title)}</a></h2>{forest.plot([(row, paper.page) for row in rows[:SHOWN]])}
<p>{more}<a href="{paper.page}">{escape(paper.title)} in full: tables, figures, verdicts, runs</a></p>
</section>
"""


def _main(paper: Paper) -> list[forest.Row]:
    """The comparisons whose numbers the paper prints; where it prints none of a table, those of two methods."""
    printed = {row.study.table.name for row in paper.rows if row.paper is not None}
    return [row for row in paper.rows if row.paper is not None or (row.pair and row.study.table.name not in printed)]


def _glance(found: Sequence[Paper]) -> str:
    """The headline of each paper, and the comparisons that it is about."""
    lines, plots = "", []
    for paper in found:
        name = f'<a href="{paper.page}">{escape(paper.title)}</a> <span class="soft">{_cited(paper)}</span>'
        question = _inline(paper.tables[0].question) + ("" if paper.records else " Not run yet.")
        said = _answered(paper, _inline(note.headline(paper.note))) or question
        lines += f"<dt>{name}</dt><dd>{said}</dd>"
        plots += [(row, paper.page) for row in paper.answers]
    plot = forest.plot(plots) if plots else '<p class="soft">No accuracies are compared yet.</p>'
    return f'<section class="card" id="glance"><h2>At a glance</h2><dl>{lines}</dl>{plot}</section>'


def _answered(paper: Paper, text: str) -> str:
    """A note, whose first bold words are the question, with the answers behind them: one per scale, or if the headline
    compares in several panels, one for each."""
    several, badges = Counter(row.study.scale for row in paper.answers), ""
    for row in paper.answers:
        where = [row.study.scale, *(row.place if several[row.study.scale] > 1 else [])]
        badges += f" {fragments.pill(forest.VERDICTS[row.state], ANSWERS[row.state], ', '.join(where))}"
    return text.replace("</strong>", f"</strong>{badges}", 1)


def _cited(paper: Paper) -> str:
    source = escape(paper.source)
    return f'<a href="{escape(paper.link)}" rel="external">{source}</a>' if paper.link else source


def _inline(text: str) -> str:
    return str(_markdown(text)).removeprefix("<p>").removesuffix("</p>\n")


def _paper_page(paper: Paper, found: Sequence[Paper]) -> str:
    totals = "".join(fragments.total(scale, paper.count(scale), EXPLAINED[scale]) for scale in paper.records)
    totals = totals or '<p class="soft">Not measured yet.</p>'
    command = f"<code>make reproduce-{paper.id}</code>"
    header = f'<h1>{escape(paper.title)}</h1><p class="soft">{_cited(paper)} · {command}</p>'
    title = "Reproduction note" if paper.claims else "Note"
    parts = {"note": (title, _note(paper))} if paper.note else {}
    if rows := _main(paper):
        parts["comparisons"] = ("Main comparisons", forest.plot([(row, "") for row in rows]))
    if methods := matrix.table(paper.rows):
        hint = '<p class="soft">Percentage points of accuracy; each number leads to its runs.</p>'
        parts["methods"] = ("Methods against baselines", hint + methods)
    if paper.claims:
        parts["verdicts"] = ("Verdicts by scale", f'<div class="totals">{totals}</div>')
    titles = ("Tables, figures and claims", "Deviations, errata, runs") if paper.claims else ("Tables", "Choices, runs")
    parts["tables"] = (titles[0], "".join(_table(paper, table) for table in paper.tables))
    if paper.untestable:
        parts["untestable"] = ("Claims that no experiment here can test", appendix.untestable(paper))
    parts["more"] = (titles[1], f"{appendix.deviations(paper)}{appendix.errata(paper)}{appendix.runs(paper)}")
    main = "".join(f'<section id="{id_}"><h2>{title}</h2>{body}</section>\n' for id_, (title, body) in parts.items())
    links = {f"#{id_}": title for id_, (title, _) in parts.items()}
    own = {f"#{table.name}": _short(paper, table) for table in paper.tables}
    others = {"index.html": "Overview"} | {other.page: other.title for other in found if other is not paper}
    contents = f"{_linked(links)}<h2>Tables</h2>{_linked(own)}<h2>Elsewhere</h2>{_linked(others)}"
    runs = {id_: run for known in paper.records.values() for id_, run in _runs(known).items()}
    return _page(f"fedrepro: {paper.title}", header, contents, main, [paper], runs)


def _short(paper: Paper, table: Table) -> str:
    """Its title without the paper's."""
    title = table.title.removeprefix(paper.title).lstrip(",: ")
    return title[:1].upper() + title[1:]


def _note(paper: Paper) -> str:
    """Its own title is the page's."""
    text = paper.note.partition("\n")[2] if paper.note.startswith("# ") else paper.note
    body = str(_markdown(text)).replace("<h2>", "<h3>").replace("</h2>", "</h3>")
    body = body.replace("<table>", '<div class="scroll" tabindex="0"><table>').replace("</table>", "</table></div>")
    return f'<div class="note">{_answered(paper, body)}</div>'


def _runs(known: Record) -> dict[str, dict]:
    """The record of each run, with its curve, for the page's own window."""
    found = {}
    for id_, run in known.runs.items():
        tested = [row["accuracy"] for row in known.rounds.get(id_, []) if row["accuracy"] == row["accuracy"]]
        found[id_] = {key: value for key, value in run.items() if key != "id"}
        found[id_] |= {"file": f"{known.scale}/{known.paper}/{record.RUNS}", "curve": [round(x, 4) for x in tested]}
    return found


def _table(paper: Paper, table: Table) -> str:
    here = {scale: found[table.name] for scale, found in paper.studies.items() if table.name in found}
    blocks = [_measured(paper, scale, study) for scale, study in here.items()]
    blocks = blocks or [f'<div class="measured">{fragments.open_claims(table.claims()) or NOT_RUN}</div>']
    head = f"<h3>{escape(table.title)}</h3><p>{escape(table.question)}</p>"
    return f'<section class="table" id="{table.name}">{head}{"".join(blocks)}</section>\n'


def _measured(paper: Paper, scale: str, study: Study) -> str:
    folder, name = paper.records[scale].folder, study.table.name
    path = escape(f"{scale}/{paper.id}/{name}")
    alt = escape(f"Figure: {study.table.title}, measured at {scale} scale; its numbers are in the table below")
    image = f'<img src="{path}.svg" alt="{alt}" loading="lazy">'
    figure = f'<figure><a href="{path}.svg">{image}</a></figure>' if (folder / f"{name}.svg").exists() else ""
    web_page(folder / f"{name}.ipynb")
    files = {suffix: words for suffix, words in LINKS.items() if (folder / f"{name}{suffix}").exists()}
    links = "".join(f"<a href={json.dumps(path + suffix)}>{words}</a>" for suffix, words in files.items())
    numbers = fragments.numbers(study)
    if study.table.groups:
        numbers += f"<h4>{escape(study.table.groups.title)}</h4>{fragments.plain(study.grouped())}"
    title, size = "The paper's numbers beside ours", len(study.summary)
    numbers = f"<h4>{title}</h4>{numbers}" if size <= 20 else fragments.fold(title, size, numbers)
    return (
        f'<div class="measured" data-scale="{scale}"><p class="caption">{escape(tables.caption(study))}</p>'
        f"{figure}<h4>Claims</h4>{fragments.measured_claims(study)}{numbers}"
        f'<div class="links">{links}</div></div>'
    )
