"""A study as tables: CSV files, tables for readers, and the README.md beside the results."""

from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

import pandas as pd

from fedrepro.evidence import contrasts, record, verdict
from fedrepro.evidence.measures import ToTarget
from fedrepro.evidence.study import Study
from fedrepro.simulation import metrics, scratch
from fedrepro.simulation.store import write_atomically

PAPER = "paper (its scale)"  # the column of the paper's numbers
SHOWN_EFFECTS = 8  # of a claim in the notebook and the README; the CSV file has all


def write(folder: Path, studies: Sequence[Study]) -> None:
    """Everything in a folder of results but figures and notebooks: CSV files, the record of their runs, README.md."""
    folder.mkdir(parents=True, exist_ok=True)
    scratch.tidy(folder, ".")
    runs, rounds, tables = {}, {}, {}
    for study in studies:
        for name, text in csv_files(study).items():
            _write_text(folder / name, text)
        tables[study.table.name] = [run.id for run in study.runs()]
        for run in study.runs():
            costs = study.costs.get(run.id)
            known = runs.get(run.id) or study.source.summary(run)
            runs[run.id] = {**known, "costs": costs} if costs else known
            rounds[run.id] = study.source.rows(run)
    record.write(folder, runs, {run_id: rounds[run_id] for run_id in sorted(rounds)}, tables)
    write_readme(folder, studies)


def write_readme(folder: Path, studies: Sequence[Study]) -> None:
    if studies:
        _write_text(folder / record.README, markdown(studies))


def _write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda file: file.write(text.encode()))


def csv_files(study: Study) -> dict[str, str]:
    """file name -> text: the summary, the values, the verdicts and the effects behind them, the groups of cells, the
    gate, the curves."""
    tables = {"": study.summary, "_values": study.values, "_verdicts": verdicts(study), "_effects": effects(study)}
    if study.gates:
        tables["_gate"] = gates(study)
    if study.table.curves:
        tables["_curves"] = study.curves()
    if study.table.groups:
        tables["_groups"] = study.grouped()
    texts = {suffix: table.to_csv(index=False, float_format="%.10g") for suffix, table in tables.items()}
    return {f"{study.table.name}{suffix}.csv": text for suffix, text in texts.items()}


def verdicts(study: Study) -> pd.DataFrame:
    """One row per claim: the verdict and, in a line, why."""
    columns = ["claim", "the paper says", "source", "verdict", "reason", "how it is judged"]
    judged = [(c.id, c.says, c.source, found.word, found.reason, c.note) for c, found in study.verdicts]
    return pd.DataFrame(judged, columns=columns).assign(scale=study.scale, seeds=len(study.seeds))


def effects(study: Study) -> pd.DataFrame:
    """One row per comparison of every claim that was judged."""
    rows = [{"claim": claim.id, **asdict(effect)} for claim, found in study.verdicts for effect in found.effects]
    return pd.DataFrame(rows, columns=["claim", *(field.name for field in fields(verdict.Effect))])


def gates(study: Study) -> pd.DataFrame:
    """One row per panel: the reference beside central training of the same network."""
    rows = []
    for found in study.gates:
        row = {**found.panel, "reference": found.rule.name, "accuracy": found.accuracy}
        row |= {"central": found.central, "share": found.accuracy / found.central, "needed": found.rule.share}
        row |= {"rise over the last third": found.rise, "allowed": found.rule.rise, "passed": found.passed}
        rows.append(row | {"run": found.run})
    return pd.DataFrame(rows)


def tuning(study: Study) -> pd.DataFrame:
    """Every pilot run of this table's methods on its data sets, the chosen ones marked."""
    used = {(cell.fields["data"], cell.fields.get("method")) for cell in study.cells}
    lines = study.table.tuning_rows(study.scale)
    return pd.DataFrame([line for line in lines if (line["data"], line["method"]) in used])


def run_ids(study: Study) -> pd.DataFrame:
    return study.values.filter(["run", *study.axes, "seed"]).drop_duplicates(ignore_index=True)


def caption(study: Study) -> str:
    note = study.table.at(study.scale).data_note
    text = f"Scale {study.scale}, seeds {study.seeds_text}. {note}"
    if study.scale != "paper":
        text += " The paper's numbers are of its own scale: compare order and trend, not values."
    return text


def readable(study: Study) -> pd.DataFrame:
    """The summary for readers: the paper's number beside ours, with its interval over seeds; accuracy in %."""
    rows, table = study.summary.to_dict("records"), study.summary.copy()
    shown = [contrasts.displayed(study.measures[row["measure"]]) for row in rows]
    table["unit"] = [unit for _, unit in shown]
    table["measured"] = [_measured(study, row, times) for row, (times, _) in zip(rows, shown, strict=True)]
    table["measure"] = [_named(study, row) for row in rows]
    table["reported"] = [_reported(row, times) for row, (times, _) in zip(rows, shown, strict=True)]
    dropped = ["interval", "reported_more", "not_reached", "runs", "scale"]
    return table.drop(columns=dropped).rename(columns={"reported": PAPER, "measured": ours(study)})


def ours(study: Study) -> str:
    """The column of our numbers."""
    return f"ours ({study.scale})"


def _reported(row: dict, times: float) -> str:
    if pd.isna(row["reported"]):
        return ""
    return contrasts.with_interval(times * row["reported"], None) + "+" * row["reported_more"]


def _named(study: Study, row: dict) -> str:
    measure = study.measures[row["measure"]]
    return row["measure"] + (f" ({measure.target_at(row):.0%})" if isinstance(measure, ToTarget) else "")


def _measured(study: Study, row: dict, times: float) -> str:
    """`47.31 ± 0.26`; says if seeds missed a target, for rounds in the papers' notation "1000+"."""
    half = None if pd.isna(row["interval"]) else times * row["interval"]
    text = contrasts.with_interval(times * row["measured"], half)
    if not row["not_reached"]:
        return text
    in_rounds = study.measures[row["measure"]].column == "round"
    missed = metrics.format_rounds(None, study.cells[0].run(0).rounds) if in_rounds else "not reached"
    if row["not_reached"] == row["seeds"]:
        return missed
    return f"{text}; {missed} with {row['not_reached']} of {row['seeds']} seeds"


def readable_verdicts(study: Study) -> pd.DataFrame:
    """The verdicts for readers, with the effects behind them: first those that do not hold."""
    rows = []
    for claim, found in study.verdicts:
        made = [(one, one.effect) for one in contrasts.measured(study, claim) if one.effect]
        ordered = sorted(made, key=lambda pair: ("opposite", "open", "holds").index(pair[1].state))
        shown = [f"{effect.what}: {one.numbers}" for one, effect in ordered[:SHOWN_EFFECTS]]
        if len(ordered) > SHOWN_EFFECTS:
            shown.append(f"{len(ordered) - SHOWN_EFFECTS} more in {study.table.name}_effects.csv")
        evidence = f"{found.reason}. {'; '.join(shown)}" if shown else found.reason
        rows.append((claim.id, claim.says, f"{verdict.MARKS[found.state]} {found.word}", evidence, claim.note))
    return pd.DataFrame(rows, columns=["claim", "the paper says", "verdict", "evidence", "how it is judged"])


def markdown(studies: Sequence[Study]) -> str:
    """The paper on one page: for each table its command, the numbers, the figure, the verdicts, the deviations."""
    first = studies[0]
    lines = [f"# {first.table.paper}: measured at scale {first.scale}", ""]
    lines += ["Made by `fedrepro reproduce`; do not edit. Verdicts are explained in the project's README."]
    shown = []
    for study in studies:
        name, count = study.table.name, len(study.seeds)
        seeds = count if study.seeds == [*range(count)] else ",".join(map(str, study.seeds))
        command = f"make reproduce-{study.table.paper} SCALE={study.scale} SEEDS={seeds} TABLE={name}"
        lines += ["", f"## {study.table.title}", "", study.table.question, "", f"    {command}", ""]
        lines += [caption(study), "", markdown_table(readable(study)), ""]
        if study.table.groups:
            groups = study.grouped().round(4).astype(object).fillna("")
            lines += [f"{study.table.groups.title}:", "", markdown_table(groups), ""]
        lines += [f"![{study.table.title}]({name}.png)", "", markdown_table(readable_verdicts(study)), ""]
        new = [d for d in study.table.deviation if d not in shown]
        shown += new
        lines += [f"- {d.what}: {d.why}" + (f" ({d.erratum})" if d.erratum else "") for d in new]
    return "\n".join(lines) + "\n"


def markdown_table(table: pd.DataFrame) -> str:
    rows = [list(table.columns), ["---"] * table.shape[1], *table.astype(str).to_numpy().tolist()]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
