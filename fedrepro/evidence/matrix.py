"""Methods against baselines: one row per method, panel and scale, one column per baseline."""

from collections.abc import Sequence
from html import escape

from fedrepro.evidence.forest import VERDICTS, Row
from fedrepro.evidence.fragments import css_class, mark


def table(rows: Sequence[Row]) -> str:
    """Differences in accuracy with their interval and state, each linked to its runs."""
    lines: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row, pair in [(row, row.pair) for row in rows]:
        if pair:
            title = row.study.table.title.partition(": ")[0].partition(", ")[2]
            where = ", ".join([title, *row.place, row.contrast.measure.name])
            lines.setdefault((pair[1], where, row.study.scale), {})[pair[2]] = row
    if not lines:
        return ""
    baselines = list(dict.fromkeys(row.pair[2] for row in rows if row.pair))
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in baselines)
    body = "".join(_row(key, cells, baselines) for key, cells in lines.items())
    return (
        '<div class="scroll" tabindex="0"><table class="matrix"><thead><tr><th scope="col">method minus baseline</th>'
        f'<th scope="col">scale</th>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _row(key: tuple[str, str, str], cells: dict[str, Row], baselines: Sequence[str]) -> str:
    method, where, scale = key
    found = "".join(_cell(cells.get(name)) for name in baselines)
    head = f'<th scope="row">{escape(method)}<small>{escape(where)}</small></th>'
    return f'<tr>{head}<td><span class="scale">{scale}</span></td>{found}</tr>'


def _cell(row: Row | None) -> str:
    if row is None:
        return "<td></td>"
    shown = escape(row.contrast.shown(row.effect.mean, row.effect.half))
    runs = escape(f"#runs-{'.'.join(row.runs)}")
    verdict = VERDICTS[row.state]
    words = verdict if row.judged else "not judged: the reference is not trained yet"
    return (
        f'<td class="{css_class(verdict)}"><a href="{runs}">{shown.removesuffix(" points")}</a> '
        f'<b title="{words}" aria-label="{words}">{mark(verdict).strip()}</b></td>'
    )
