"""The driver of `make reproduce-<paper>`: executes a paper's notebooks and says how it went."""

import csv
import re
import sys
import time
from collections import Counter
from pathlib import Path

from fedrepro.errors import BadInput, bad
from fedrepro.evidence import record, spec
from fedrepro.evidence.study import Study, results_folder
from fedrepro.simulation.progress import progress
from fedrepro.simulation.session import count_workers
from fedrepro.simulation.store import check_root, read_result

STYLED = re.compile(r"\bT_[0-9a-f]{5}(?=[_\W])")  # pandas' random name of a table
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def main(paper: str, scale: str, seeds, workers: int | None, table: str | None, fresh: bool) -> int:
    studies = _studies(paper, scale, seeds, workers, table, fresh)
    failures = []
    runs = [run for study in studies for run in study.runs()]
    with progress(runs, studies[0].store) as say:
        for study in studies:
            started = time.monotonic()
            try:
                execute(study, seeds, workers, fresh)
                say(f"{study.table.name}: done in {time.monotonic() - started:.0f} s")
            except Exception as error:
                failures.append(study.table.name)
                say(f"{study.table.name}: FAILED: {short(error)}")
    _summary([study for study in studies if study.table.name not in failures], failures)
    return 1 if failures else 0


def _studies(paper: str, scale: str, seeds, workers, table: str | None, fresh: bool) -> list[Study]:
    count_workers(workers)
    names = [t.name for t in spec.tables(paper)]
    if table is not None and table not in names:
        raise bad("table", table, ", ".join(names), names)
    studies = [Study(f"{paper}/{name}", scale, seeds, workers, fresh) for name in names if table in (None, name)]
    check_root(studies[0].store)
    for study in studies:
        if not notebook(study).exists():
            raise BadInput(f"{study.table.name}: its notebook {notebook(study).relative_to(spec.HOME)} is missing")
    return studies


def notebook(study: Study) -> Path:
    return spec.NOTEBOOKS / study.table.paper / f"{study.table.name}.ipynb"


def execute(study: Study, seeds, workers: int | None, fresh: bool) -> None:
    """Run one notebook with papermill; its executed copy and HTML go to results/<scale>/<paper>/."""
    import nbformat
    import papermill
    from traitlets.config import Config

    given = {"table": f"{study.table.paper}/{study.table.name}", "scale": study.scale, "seeds": seeds,
             "workers": workers, "fresh": fresh, "missing": study.missing}  # fmt: skip
    known = papermill.inspect_notebook(str(notebook(study)))
    if unknown := set(given) - set(known):
        raise BadInput(f"{notebook(study).name}: its parameters cell lacks {', '.join(sorted(unknown))}")
    study.folder.mkdir(parents=True, exist_ok=True)
    target = study.folder / f"{study.table.name}.ipynb"
    papermill.execute_notebook(
        str(notebook(study)), str(target), parameters=given, progress_bar=False, kernel_name="python3",
        cwd=str(notebook(study).parent), config=Config(KernelManager={"transport": "ipc"}),
    )  # fmt: skip
    executed = nbformat.read(target, as_version=4)
    _tidy(executed)
    nbformat.write(executed, target)
    web_page(target)


def web_page(executed: Path) -> Path | None:
    """An executed notebook as HTML beside it, made if it is not there or older; None without the notebook."""
    from nbconvert import HTMLExporter

    if not executed.exists():
        return None
    page = executed.with_suffix(".html")
    if not page.exists() or page.stat().st_mtime < executed.stat().st_mtime:
        page.write_text(HTMLExporter(template_name="classic").from_filename(str(executed))[0])
    return page


def _tidy(executed) -> None:
    """No paths of this machine, no clocks and no random names, so that the same results are the same file; of a
    progress bar only what stood there last."""
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
                lines = [line.rsplit("\r", 1)[-1] for line in output.text.split("\n")]
                output.text = "\n".join(lines)
            elif page := output.get("data", {}).get("text/html"):
                plain = ADDRESS.sub("", output.data["text/plain"])
                output.data |= {"text/html": STYLED.sub(named, page), "text/plain": plain}


def _joined(outputs: list) -> list:
    """What was printed piece by piece, as a progress bar is, in one piece."""
    joined = []
    for output in outputs:
        if output.output_type == "stream" and joined and joined[-1].get("name") == output.name:
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


def _summary(studies: list[Study], failures: list[str]) -> None:
    counts = Counter()
    for study in studies:
        found = Counter(verdict.word for _, verdict in study.verdicts)
        counts += found
        print(f"{study.table.name:28} {_listed(found)}")
    print(f"claims at {studies[0].scale} scale: {_listed(counts)}" if studies else "claims: none judged")
    if studies:
        print(_standing(studies[0]), _compared(studies), sep="\n")
        folder = studies[0].folder
        record.write(folder, studies[0].store)
        print(f"results in {folder.relative_to(Path.cwd()) if _below() else folder}")
    if failures:
        print(f"FAILED: {', '.join(failures)}", file=sys.stderr)


def _compared(studies: list[Study]) -> str:
    """How many of the runs that are in the store and in the committed record have one digest."""
    store, committed = studies[0].store, studies[0].committed
    known = committed.runs if committed.has(record.RUNS) else {}
    runs = {run.id for study in studies for run in study.runs()}
    here = [run for run in runs & set(known) if (store / run / "result.json").exists()]
    equal = sum(read_result(store / run)[0]["digest"] == known[run]["digest"] for run in here)
    if not here:
        taken = len(runs & set(known))
        return f"{taken} of {len(runs)} runs are the committed record's; FRESH=1 trains them again and compares"
    return f"{equal} of {len(here)} runs equal the committed record, bit by bit"


def _standing(study: Study) -> str:
    """The committed verdicts of the strongest scale, beside which fresh ones are to be read."""
    for scale in ("paper", "cpu"):
        files = sorted((spec.HOME / "results" / scale / study.table.paper).glob("*_verdicts.csv"))
        if files and scale != study.scale:
            words = [line["verdict"] for path in files for line in csv.DictReader(path.read_text().splitlines())]
            return f"claims at {scale} scale (committed): {_listed(Counter(words))}"
    return "no stronger scale is committed yet: `make evidence` trains it"


def _listed(counts: Counter) -> str:
    return ", ".join(f"{number} {word}" for word, number in counts.most_common()) or "none judged"


def _below() -> bool:
    return results_folder().is_relative_to(Path.cwd())


def short(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
