"""fedrepro report: results/index.html, one static page of all papers, from committed files alone.

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

import pandas as pd

from fedrepro.checks import choose
from fedrepro.errors import BadInput, bad
from fedrepro.evidence import record, spec
from fedrepro.evidence.driver import web_page
from fedrepro.evidence.study import Study
from fedrepro.evidence.verdict import MARKS, Effect, text, word
from fedrepro.simulation.store import write_atomically

SCALES = spec.SCALES[:0:-1]  # the paper's own first; smoke is for CI
EXPLAINED = {
    "paper": "the papers' own settings",
    "cpu": "up to two hours a notebook and seed on two CPU cores",
    "reduced": "real data, small networks, minutes on two CPU cores: order and trend only",
}
LINKS = {".html": "executed notebook", ".ipynb": "the same as .ipynb", ".csv": "summary CSV",
         "_values.csv": "every value CSV", "_verdicts.csv": "verdicts CSV", "_effects.csv": "effects CSV",
         "_curves.csv": "curves CSV", "_gate.csv": "gate CSV"}  # fmt: skip
NOT_RUN = "not run yet"
STATES = [*MARKS, NOT_RUN]
ERRATUM = re.compile(r"^\*\*([A-Z]+-\d+)\.\s*(.*?)\*\*(.*)$", re.M)


def build(folder: Path) -> Path:
    """Write `folder`/index.html and each paper's README.md; executed notebooks become web pages beside them."""
    record.check_path(folder)
    places = sorted({path.parent for path in folder.glob("*/*/*_values.csv")})
    if not places:
        raise bad(
            "results", str(folder), "a folder with <scale>/<paper>/*_values.csv, as `fedrepro reproduce` makes them"
        )
    papers = [Paper(name, folder) for name in spec.papers()]
    for known in record.find(folder):
        record.write_readme(known.folder)
    for path in (path for place in places for path in place.glob("*.csv")):
        _try_reading(path)
    try:
        text = _page(papers)
    except BadInput:
        raise
    except (LookupError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        raise BadInput(
            f"results: a file in {folder} is not as it was made ({why}); `fedrepro verify` says which"
        ) from error
    target = folder / "index.html"
    write_atomically(target, lambda file: file.write(text.encode()))
    return target


def _try_reading(path: Path) -> None:
    try:
        pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read ({error})") from None


class Paper:
    def __init__(self, name: str, results: Path):
        self.id, self.tables = name, spec.tables(name)
        self.title = self.tables[0].title.partition(",")[0]
        self.source = self.tables[0].source.partition(", Fig")[0].partition(", Table")[0].partition(", Section")[0]
        self.folders = {s: results / s / name for s in SCALES if any((results / s / name).glob("*_values.csv"))}
        self.claims = [claim.id for table in self.tables for claim in table.claims()]

    def verdicts(self, scale: str, table: spec.Table) -> list[dict]:
        """The verdicts of a table's claims at a scale, each with its state and effects; all "not run yet" where it was
        not measured."""
        path = self.folders.get(scale, Path()) / f"{table.name}_verdicts.csv"
        if scale not in self.folders or not path.exists():
            return [{"claim": c.id, "the paper says": c.says, "source": c.source, "verdict": NOT_RUN,
                     "reason": "", "how it is judged": c.note, "state": NOT_RUN, "effects": []}
                    for c in table.claims()]  # fmt: skip
        found = pd.read_csv(path, dtype=str, keep_default_na=False).to_dict("records")
        states, effects = {word(state, scale): state for state in MARKS}, _effects(path)
        for line in found:
            choose(f"{path}: verdict of {line['claim']}", line["verdict"], states)
            line |= {"state": states[line["verdict"]], "effects": effects.get(line["claim"], [])}
        return found

    def count(self, scale: str) -> Counter:
        found = {c["claim"]: c["state"] for table in self.tables for c in self.verdicts(scale, table)}
        return Counter(found.get(claim, NOT_RUN) for claim in self.claims)


def _effects(verdicts: Path) -> dict[str, list[Effect]]:
    """claim -> its effects, from the file beside its verdicts."""
    path, texts = verdicts.with_name(verdicts.name.replace("_verdicts", "_effects")), ["what", "unit", "bound"]
    table, found = pd.read_csv(path, dtype=dict.fromkeys(texts, str)), {}
    table[texts] = table[texts].fillna("")
    for line in table.to_dict("records"):
        half = None if pd.isna(line["half"]) else line["half"]
        found.setdefault(line.pop("claim"), []).append(Effect(**{**line, "half": half}))
    return found


def _page(papers: list[Paper]) -> str:
    home = Path(__file__).parent
    scales = [scale for scale in SCALES if any(scale in paper.folders for paper in papers)]
    totals = {scale: sum((paper.count(scale) for paper in papers), Counter()) for scale in scales}
    found = sum(totals.values(), Counter())
    runs = {id_: run for paper in papers for folder in paper.folders.values() for id_, run in _runs(folder).items()}
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
    return (f'<div class="total"><b>At {scale} scale</b> <span class="soft">{note}</span>'
            f'<div class="bar">{bars}</div><div class="legend">{words}</div></div>')  # fmt: skip


def _runs(folder: Path) -> dict[str, dict]:
    """The record of each run, with its curve, for the page's own window."""
    known, place = record.Record(folder), f"{folder.parent.name}/{folder.name}/{record.RUNS}"
    return {
        id_: {**{k: v for k, v in run.items() if k != "id"}, "file": place,
              "curve": [round(r["accuracy"], 4) for r in known.rounds.get(id_, []) if r["accuracy"] == r["accuracy"]]}
        for id_, run in (known.runs if (folder / record.RUNS).exists() else {}).items()
    }  # fmt: skip


def _paper(paper: Paper) -> str:
    totals = "".join(_total(scale, paper.count(scale), "") for scale in paper.folders)
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
    blocks = [_measured(paper, table, scale) for scale, folder in paper.folders.items()
              if (folder / f"{table.name}.csv").exists()]  # fmt: skip
    if not blocks:
        blocks = [f'<div class="measured">{_claims(paper.verdicts("", table))}</div>']
    return (f'<section class="table" id="{paper.id}-{table.name}"><h3>{escape(table.title)}</h3>'
            f"<p>{escape(table.question)}</p>{''.join(blocks)}</section>\n")  # fmt: skip


def _measured(paper: Paper, table: spec.Table, scale: str) -> str:
    folder, name = paper.folders[scale], table.name
    place = escape(f"{scale}/{paper.id}/{name}")
    values = pd.read_csv(folder / f"{name}_values.csv")
    study = Study(f"{paper.id}/{name}", scale, [int(seed) for seed in values["seed"].unique()])
    summary, axes = pd.read_csv(folder / f"{name}.csv"), list(study.axes)
    summary[axes] = pd.read_csv(folder / f"{name}.csv", dtype=str, keep_default_na=False)[axes]  # a label may be "None"
    image = f'<img src="{place}.svg" alt="{escape(table.title)}" loading="lazy">'
    figure = f'<figure><a href="{place}.svg">{image}</a></figure>'
    web_page(folder / f"{name}.ipynb")
    links = [(place + suffix, text) for suffix, text in LINKS.items() if (folder / f"{name}{suffix}").exists()]
    numbers = _numbers(study, summary)
    if table.groups and (folder / f"{name}_groups.csv").exists():
        groups = pd.read_csv(folder / f"{name}_groups.csv", dtype={0: str})
        numbers += f"<h4>{escape(table.groups.title)}</h4>{_plain(groups)}"
    title = "The paper's numbers beside ours"
    numbers = f"<h4>{title}</h4>{numbers}" if len(summary) <= 20 else _fold(title, len(summary), numbers)
    return (
        f'<div class="measured" data-scale="{scale}"><p class="caption">{escape(study.caption)}</p>'
        f"{figure if (folder / f'{name}.svg').exists() else ''}"
        f"<h4>Claims</h4>{_claims(paper.verdicts(scale, table))}{numbers}"
        f'<div class="links">{"".join(f"<a href={json.dumps(href)}>{text}</a>" for href, text in links)}</div></div>'
    )


def _claims(found: list[dict]) -> str:
    return "".join(
        f'<div class="claim {_class(c["state"])}" data-verdict="{_class(c["state"])}">'
        f"<div>{_mark(c['state'])}{c['verdict']}</div><div><p>{escape(c['the paper says'])}</p>"
        f'<span class="soft">{escape(c["source"])} · {escape(c["claim"])}</span>'
        f"{_note(c['reason'])}{_drawn(c['effects'])}"
        f"{_note(c.get('how it is judged', ''))}</div></div>"
        for c in sorted(found, key=lambda c: STATES.index(c["state"]))
    )


def _note(text: str) -> str:
    return f'<p class="soft">{escape(text)}</p>' if text else ""


def _drawn(effects: list[Effect]) -> str:
    """One line per comparison: what, its interval against the borders of what is claimed, the numbers."""
    if not effects:
        return ""
    places = [x for e in effects for x in (*_borders(e), *_ends(e))] or [0.0]
    lines = "".join(f"<span>{escape(e.what)}</span>{_interval(e, min(places), max(places))}"
                    f"<span>{escape(text(e).removeprefix(e.what + ': '))}</span>" for e in effects)  # fmt: skip
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
    return (f'<svg class="ci {escape(effect.state)}" viewBox="0 0 122 14">{borders}<path d="M{left} 7H{right}"/>'
            f'<circle cx="{at(effect.mean)}" cy="7" r="2"/></svg>')  # fmt: skip


def _numbers(study: Study, summary: pd.DataFrame) -> str:
    """One row a cell of the table; for each measure the paper's number, where it gives one, and ours."""
    readable = study.readable(summary.copy())
    theirs, ours = "paper (its scale)", f"ours ({study.scale})"
    axes = [axis for axis in study.axes if summary[axis].nunique() > 1] or list(study.axes)
    head = second = ""
    rows = {tuple(labels): [runs, ""] for *labels, runs in summary[[*axes, "runs"]].itertuples(index=False)}
    for name, group in readable.groupby(summary["measure"], sort=False):
        reported, one_name = bool(group[theirs].any()), group["measure"].nunique() == 1
        unit = f" ({group['unit'].iloc[0]})" if isinstance(group["unit"].iloc[0], str) and group["unit"].iloc[0] else ""
        shown = group["measure"].iloc[0] if one_name else name
        head += f'<th class="group" colspan="{1 + reported}">{escape(shown + unit)}</th>'
        second += '<th class="paper">paper</th><th>ours</th>' if reported else '<th class="ours alone">ours</th>'
        found = {tuple(row[axis] for axis in axes): row for row in group.to_dict("records")}
        for labels, row in rows.items():
            cell = found.get(labels, {theirs: "", ours: "", "measure": name})
            target = "" if one_name else f' <span class="soft">{escape(cell["measure"].removeprefix(name))}</span>'
            row[1] += f'<td class="paper">{escape(cell[theirs])}</td>' * reported
            row[1] += f'<td class="ours{" alone" * (not reported)}">{escape(cell[ours])}{target}</td>'
    body = ""
    for labels, (runs, texts) in rows.items():
        heads = "".join(f"<th>{escape(label)}</th>" for label in labels)
        body += f"<tr>{heads}{texts}<td>{_run_links(runs)}</td></tr>"
    names = "".join(f'<th rowspan="2">{escape(study.table.axis[axis].label or axis)}</th>' for axis in axes)
    top = f'<tr>{names}{head}<th rowspan="2">runs</th></tr><tr>{second}</tr>'
    return f'<div class="scroll"><table class="numbers"><thead>{top}</thead><tbody>{body}</tbody></table></div>'


def _run_links(runs: str) -> str:
    return " ".join(f'<a href="#run-{escape(run)}"><code>{escape(run[:6])}</code></a>' for run in runs.split())


def _plain(table: pd.DataFrame) -> str:
    html = table.round(4).to_html(index=False, border=0, na_rep="").replace(' style="text-align: right;"', "")
    return f'<div class="scroll">{html}</div>'


def _deviations(paper: Paper) -> str:
    unique = {(d.what, d.why, d.erratum): None for table in paper.tables for d in table.deviation}
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
    for scale, folder in paper.folders.items():
        ids = sorted(_runs(folder))
        links = "".join(f"<div>{_run_links(run)}</div>" for run in ids)
        text += _fold(f"All runs at {scale} scale", len(ids), f'<div class="runs">{links}</div>')
    return text
