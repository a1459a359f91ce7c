"""fedrepro report: results/index.html, one static page of all papers, from the records beside it.

No server, nothing from elsewhere: style, script and run records are inside, figures and CSV files beside it.
Its content security policy lets only this style and this script in.
"""

import base64
import hashlib
import json
import re
from collections import Counter
from functools import cache
from html import escape
from pathlib import Path
from string import Template

from fedrepro.errors import bad
from fedrepro.evidence import fragments, record, spec, tables
from fedrepro.evidence.driver import web_page
from fedrepro.evidence.fragments import NOT_RUN, STATES
from fedrepro.evidence.record import Record
from fedrepro.evidence.study import Study, recorded
from fedrepro.evidence.table import Table
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
ERRATUM = re.compile(r"^\*\*([A-Z]+-\d+)\.\s*(.*?)\*\*(.*)$", re.M)


def build(folder: Path) -> Path:
    """Write `folder`/index.html and each paper's README.md; executed notebooks become web pages beside them."""
    record.check_path(folder)
    papers = [Paper(name, folder) for name in spec.papers()]
    if not any(paper.records for paper in papers):
        wanted = f"a folder with <scale>/<paper>/{record.RUNS}, such as results or results/local"
        raise bad("results", str(folder), wanted)
    for paper in papers:
        for scale, known in paper.records.items():
            tables.write_readme(known.folder, list(paper.studies[scale].values()))
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
        self.claims = [claim.id for table in self.tables for claim in table.claims()]

    def count(self, scale: str) -> Counter:
        judged = [one for study in self.studies[scale].values() for one in study.verdicts]
        states = {claim.id: verdict.state for claim, verdict in judged}
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
        totals="".join(fragments.total(scale, totals[scale], EXPLAINED[scale]) for scale in scales),
        links="".join(f'<a href="#{paper.id}">{escape(paper.title)}</a>' for paper in papers),
        buttons="".join(fragments.button(state) for state in STATES if found[state]),
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


def _runs(known: Record) -> dict[str, dict]:
    """The record of each run, with its curve, for the page's own window."""
    found = {}
    for id_, run in known.runs.items():
        tested = [row["accuracy"] for row in known.rounds.get(id_, []) if row["accuracy"] == row["accuracy"]]
        found[id_] = {key: value for key, value in run.items() if key != "id"}
        found[id_] |= {"file": f"{known.scale}/{known.paper}/{record.RUNS}", "curve": [round(x, 4) for x in tested]}
    return found


def _paper(paper: Paper) -> str:
    totals = "".join(fragments.total(scale, paper.count(scale), "") for scale in paper.records)
    totals = totals or '<p class="soft">Not measured yet.</p>'
    return f"""<section class="paper" id="{paper.id}">
<h2>{escape(paper.title)}</h2>
<p class="soft">{escape(paper.source)} · <code>make reproduce-{paper.id}</code></p>
<div class="totals">{totals}</div>
{"".join(_table(paper, table) for table in paper.tables)}
{_deviations(paper)}{_errata(paper)}{_run_list(paper)}
</section>
"""


def _table(paper: Paper, table: Table) -> str:
    here = {scale: found[table.name] for scale, found in paper.studies.items() if table.name in found}
    blocks = [_measured(paper, scale, study) for scale, study in here.items()]
    if not blocks:
        blocks = [f'<div class="measured">{fragments.claims([(claim, None) for claim in table.claims()])}</div>']
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
    numbers = fragments.numbers(study)
    if study.table.groups:
        numbers += f"<h4>{escape(study.table.groups.title)}</h4>{fragments.plain(study.grouped())}"
    title, size = "The paper's numbers beside ours", len(study.summary)
    numbers = f"<h4>{title}</h4>{numbers}" if size <= 20 else fragments.fold(title, size, numbers)
    return (
        f'<div class="measured" data-scale="{scale}"><p class="caption">{escape(tables.caption(study))}</p>'
        f"{figure}<h4>Claims</h4>{fragments.claims(study.verdicts)}{numbers}"
        f'<div class="links">{links}</div></div>'
    )


def _deviations(paper: Paper) -> str:
    unique = {(d.what, d.why, d.erratum): None for table in paper.tables for d in table.deviation}
    known = {id_ for id_, *_ in errata().get(paper.id, [])}

    def link(ids: str) -> str:
        found = [f'<a href="#{i}">{i}</a>' if i in known else escape(i) for i in ids.split(", ") if i]
        return f" ({', '.join(found)})" if found else ""

    items = "".join(f"<li><b>{escape(what)}.</b> {escape(why)}{link(ids)}</li>" for what, why, ids in unique)
    return fragments.fold("Where we differ from the paper, and why", len(unique), f"<ul>{items}</ul>")


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
    texts = [(id_, f"<b>{id_}</b> {escape(where)} {fragments.emphasis(what)}") for id_, where, what in found]
    items = "".join(f'<li id="{id_}">{text}</li>' for id_, text in texts)
    return fragments.fold("Errata and ambiguities found in the paper", len(found), f"<ul>{items}</ul>")


def _run_list(paper: Paper) -> str:
    text = ""
    for scale, known in paper.records.items():
        links = "".join(f"<div>{fragments.run_links(run)}</div>" for run in sorted(known.runs))
        text += fragments.fold(f"All runs at {scale} scale", len(known.runs), f'<div class="runs">{links}</div>')
    return text
