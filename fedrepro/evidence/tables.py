"""Results as tables of Markdown."""

import pandas as pd

from fedrepro.evidence.study import Study


def markdown(studies: list[Study]) -> str:
    """The paper on one page: for each table its command, the numbers, the figure, the verdicts, the deviations."""
    first = studies[0]
    lines = [f"# {first.table.paper}: measured at scale {first.scale}", "",
             "Made by `fedrepro reproduce`; do not edit. Verdicts are explained in the project's README."]  # fmt: skip
    shown = []
    for study in studies:
        name = study.table.name
        command = f"make reproduce-{study.table.paper} SCALE={study.scale} SEEDS={len(study.seeds)} TABLE={name}"
        lines += ["", f"## {study.table.title}", "", study.table.question, "", f"    {command}", "", study.caption, "",
                  _markdown_table(study.readable()), "", *_groups(study),
                  f"![{study.table.title}]({name}.png)", "",
                  _markdown_table(study.readable_verdicts()), ""]  # fmt: skip
        new = [d for d in study.table.deviation if d not in shown]
        shown += new
        lines += [f"- {d.what}: {d.why}" + (f" ({d.erratum})" if d.erratum else "") for d in new]
    return "\n".join(lines) + "\n"


def _groups(study: Study) -> list[str]:
    if not study.table.groups:
        return []
    table = study.grouped().round(4).astype(object).fillna("")
    return [study.table.groups.title + ":", "", _markdown_table(table), ""]


def _markdown_table(table: pd.DataFrame) -> str:
    rows = [list(table.columns), ["---"] * table.shape[1], *table.astype(str).to_numpy().tolist()]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
