"""`make reproduce-<paper>`: trains what is missing, executes notebooks, writes results and prints a summary."""

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from fedrepro.errors import BadInput, bad
from fedrepro.evidence import forest, kernels, spec, tables
from fedrepro.evidence.record import Known, Record
from fedrepro.evidence.study import Plan, Study, committed, in_kernels, in_order, known_runs, recorded, results_folder
from fedrepro.simulation.progress import progress
from fedrepro.simulation.session import count_workers
from fedrepro.simulation.store import check_root
from fedrepro.simulation.sweep import sweep

MOST_LEADS = 4  # lines per table of the summary
LOCAL = "local"  # a subfolder of the results, not tracked by git: the user's own
STYLED = re.compile(r"\bT_[0-9a-f]{5}(?=[_\W])")  # pandas' random name of a table
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def main(paper: str, scale: str, seeds, workers: int | None, table: str | None, fresh: bool) -> int:
    plans = _plans(paper, scale, seeds, workers, table)
    known, folder = known_runs(scale, paper), results_folder() / LOCAL / scale / paper
    check_root(known.store)
    others = kept(folder, [plan.table.name for plan in plans])
    todo = {run.id: run for run in known.to_train((run for plan in plans for run in plan.runs()), fresh)}
    studies, failures = [], []
    with progress(list(todo.values()), known.store) if todo else nullcontext(print) as say:
        for plan in plans:
            started = time.monotonic()
            try:
                sweep([run for run in plan.runs() if run.id in todo], store=known.store, workers=workers)
                study = judged(plan, known)  # first, so that a table that cannot be judged leaves no files
                execute(plan, folder, workers)
                studies.append(study)
                say(f"{plan.table.name}: done in {time.monotonic() - started:.0f} s")
            except Exception as error:
                failures.append(plan.table.name)
                say(f"{plan.table.name}: FAILED: {short(error)}")
    if studies:
        tables.write(folder, in_order([*others, *studies]))
        shown = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
        print(*_summary(studies, known), f"results in {shown}; what is committed stays as it is", sep="\n")
    if failures:
        print(f"FAILED: {', '.join(failures)}", file=sys.stderr)
    return 1 if failures else 0


def _plans(paper: str, scale: str, seeds, workers, table: str | None) -> list[Plan]:
    count_workers(workers)
    found = spec.tables(paper)
    names = [one.name for one in found]
    if table is not None and table not in names:
        raise bad("table", table, ", ".join(names), names)
    plans = [Plan(one, scale, seeds) for one in found if table in (None, one.name)]
    for plan in plans:
        if not notebook(plan).exists():
            raise BadInput(f"{plan.table.name}: its notebook {notebook(plan).relative_to(spec.HOME)} is missing")
    return plans


def kept(folder: Path, names: Sequence[str]) -> list[Study]:
    """The tables that an earlier command left in a folder, except those with these names."""
    record = Record(folder)
    record.refuse_damage()
    return [study for study in recorded(record) if study.table.name not in names]


def notebook(plan: Plan) -> Path:
    return spec.NOTEBOOKS / plan.table.paper / f"{plan.table.name}.ipynb"


def judged(plan: Plan, known: Known) -> Study:
    """The study of a plan, with its claims judged: errors appear here."""
    study = Study(plan.loaded, plan.scale, plan.seeds, known)
    study.verdicts  # noqa: B018
    return study


def execute(plan: Plan, folder: Path, workers: int | None = None) -> None:
    """Run a table's notebook with papermill; the executed copy, HTML and figure go to a folder of results."""
    import nbformat
    import papermill

    from fedrepro.evidence.export import web_page

    given = {"table": plan.name, "scale": plan.scale, "seeds": plan.seeds, "workers": workers, "fresh": False}
    given |= {"missing": "leave", "save": str(folder.relative_to(results_folder()))}
    source = notebook(plan)
    if unknown := set(given) - set(papermill.inspect_notebook(str(source))):
        raise BadInput(f"{source.name}: its parameters cell lacks {', '.join(sorted(unknown))}")
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.update(in_kernels() | kernels.chosen())
    target = folder / f"{plan.table.name}.ipynb"
    options = {"progress_bar": False, "kernel_name": "python3", "cwd": str(source.parent)}
    asked = nbformat.read(source, as_version=4)
    asked.cells = [cell for cell in asked.cells if "try" not in cell.metadata.get("tags", [])]  # never in the results
    papermill.execute_notebook(asked, str(target), parameters=given, **options)
    executed = nbformat.read(target, as_version=4)
    _tidy(executed)
    nbformat.write(executed, target)
    web_page(target)


def _tidy(executed) -> None:
    """Remove paths of this machine, times and random names, so that equal results give equal files; of a progress bar
    keep only its last state."""
    known = executed.metadata.papermill
    executed.metadata.papermill = {key: known[key] for key in ("parameters", "version")}
    names = {}

    def named(found: re.Match) -> str:
        return names.setdefault(found[0], f"T_{len(names)}")

    for cell in executed.cells:
        if "injected-parameters" in cell.metadata.get("tags", []):
            cell.id = "injected-parameters"
        for key in ("execution", "papermill"):
            cell.metadata.pop(key, None)
        if cell.cell_type == "code":
            cell.outputs = _joined(cell.outputs)
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                output.text = "\n".join(line.rsplit("\r", 1)[-1] for line in output.text.split("\n"))
            elif page := output.get("data", {}).get("text/html"):
                plain = ADDRESS.sub("", output.data["text/plain"])
                output.data |= {"text/html": STYLED.sub(named, page), "text/plain": plain}


def _joined(outputs: list) -> list:
    """Consecutive pieces of printed text, such as a progress bar's, joined."""
    joined = []
    for output in outputs:
        if output.output_type == "stream" and joined and joined[-1].get("name") == output.name:
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


def _summary(studies: list[Study], known: Known) -> list[str]:
    """Each table's new verdicts, beside those committed at the largest scale; then the totals."""
    fresh, paper = _counts(studies), studies[0].table.paper
    largest = filter(None, (recorded(committed(scale, paper)) for scale in reversed(spec.SCALES)))
    best = [study for study in next(largest, []) if study.table.name in fresh]
    beside, lines = _counts(best), []
    for study in studies:
        name = study.table.name
        lines += [f"{name:28} {_listed(fresh[name])}", *_leads(study)]
        if name in beside:
            lines.append(f"{'  committed':28} {_listed(beside[name])}")
    lines.append(f"claims at {_at(studies)}: {_listed(sum(fresh.values(), Counter()))}")
    if best:
        lines.append(f"committed at {_at(best)}: {_listed(sum(beside.values(), Counter()))}")
    else:
        lines.append("no results of these tables are committed yet")
    return [*lines, *_compared(studies, known)]


def _leads(study: Study) -> list[str]:
    """How far methods are ahead of the reference in accuracy, beside the paper's numbers."""
    rows = {row.name: row for row in reversed(forest.rows(study)) if row.against_reference}
    lines = []
    for name, row in list(reversed(rows.items()))[:MOST_LEADS]:
        notes = [] if row.paper is None else [f"the paper: {row.contrast.shown(row.paper)}"]
        notes += [] if row.judged else ["not judged: the reference is not trained"]
        shown = row.contrast.shown(row.effect.mean, row.effect.half)
        lines.append(f"    {name}: {shown}" + (f" ({'; '.join(notes)})" if notes else ""))
    return lines


def _counts(studies: list[Study]) -> dict[str, Counter]:
    return {study.table.name: Counter(found.word for _, found in study.verdicts) for study in studies}


def _at(studies: list[Study]) -> str:
    most = max(len(study.seeds) for study in studies)
    return f"{studies[0].scale} scale with {most} seed{'s' * (most > 1)}"


def _compared(studies: list[Study], known: Known) -> list[str]:
    """How many runs have the same digest in the store and in the committed record."""
    runs = {run.id: run for study in studies for run in study.runs()}
    recorded = [run for id_, run in runs.items() if id_ in known.record.runs]
    here = [run for run in recorded if known.stored(run)]
    if not here:
        words = f"{len(recorded)} of {len(runs)} runs are the committed record's"
        return [f"{words}; FRESH=1 trains them again and compares"] if recorded else []
    others = [run.id for run in here if known.summary(run)["digest"] != known.record.summary(run)["digest"]]
    words = f"{len(here) - len(others)} of {len(here)} runs equal the committed record, bit by bit"
    return [words + (f"; these do not: {', '.join(others)}" if others else "")]


def _listed(counts: Counter) -> str:
    return ", ".join(f"{number} {word}" for word, number in counts.most_common()) or "none judged"


def short(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
