"""The end of a paper's page: claims that nothing here can test, deviations, errata, and all runs."""

from html import escape

from fedrepro.evidence import fragments, papers
from fedrepro.evidence.papers import Paper


def untestable(paper: Paper) -> str:
    items = "".join(
        f'<li id="{claim.id}"><b>{escape(claim.says)}</b> <span class="soft">{escape(claim.source)} · {claim.id}</span>'
        f"<br>{escape(claim.untestable)}</li>"
        for claim in paper.untestable
    )
    return f"<ul>{items}</ul>"


def deviations(paper: Paper) -> str:
    unique = {(d.what, d.why, d.erratum): None for table in paper.tables for d in table.deviation}
    known = {id_ for id_, *_ in papers.errata().get(paper.id, [])}

    def link(ids: str) -> str:
        found = [f'<a href="#{i}">{i}</a>' if i in known else escape(i) for i in ids.split(", ") if i]
        return f" ({', '.join(found)})" if found else ""

    items = "".join(f"<li><b>{escape(what)}.</b> {escape(why)}{link(ids)}</li>" for what, why, ids in unique)
    title = "Where we differ from the paper, and why" if paper.claims else "What we chose, and why"
    return fragments.fold(title, len(unique), f"<ul>{items}</ul>")


def errata(paper: Paper) -> str:
    found = papers.errata().get(paper.id, [])
    if not found:
        return ""
    texts = [(id_, f"<b>{id_}</b> {escape(where)} {fragments.emphasis(what)}") for id_, where, what in found]
    items = "".join(f'<li id="{id_}">{text}</li>' for id_, text in texts)
    return fragments.fold("Errata and ambiguities found in the paper", len(found), f"<ul>{items}</ul>")


def runs(paper: Paper) -> str:
    text = ""
    for scale, known in paper.records.items():
        links = "".join(f"<div>{fragments.run_links(run)}</div>" for run in sorted(known.runs))
        text += fragments.fold(f"All runs at {scale} scale", len(known.runs), f'<div class="runs">{links}</div>')
    return text
