"""What notebooks show of tables and claims. Trains missing runs when a user executes a notebook; writes no results."""

import csv
from collections.abc import Sequence
from contextlib import nullcontext

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import HTML, Markdown, display
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler

from fedrepro.checks import choose
from fedrepro.evidence import figures, layout, spec, tables, trial
from fedrepro.evidence.record import Known
from fedrepro.evidence.sections import SCALES
from fedrepro.evidence.study import Plan, Study, committed, known_runs, results_folder
from fedrepro.simulation.progress import progress
from fedrepro.simulation.run import Run
from fedrepro.simulation.sweep import sweep

VERDICT_WORDS = """A claim *holds* at this scale if the 95% interval of every comparison it makes lies where the claim
puts it; the *opposite* is found if one lies elsewhere, also after Holm's correction for their number. With one seed
only what no seed changes, such as bytes, is judged. docs/verdicts.md has the rules."""


def open_study(
    table: str,
    scale: str | None = None,
    seeds: int | Sequence[int] | None = None,
    workers: int | None = None,
    fresh: bool = False,
    missing: str = "train",
    save: str | None = None,
) -> "Shown":
    """A table's study. Runs neither in the store nor in the committed record are trained (`missing="train"`) or
    left out (`"leave"`); `fresh` trains everything again. `save`: a subfolder of the results, for the figure."""
    choose("missing", missing, ("train", "leave"))
    plan = Plan(table, scale, seeds)
    known = known_runs(plan.scale, plan.table.paper)
    todo = known.to_train(plan.runs(), fresh) if missing == "train" else []
    with progress(todo, known.store) if todo else nullcontext():
        sweep(todo, store=known.store, workers=workers)
    print(f"{plan.table.question}\n{_counted(plan, known, todo, missing)}")
    return Shown(plan, known, workers, save)


def _counted(plan: Plan, known: Known, trained: list[Run], missing: str) -> str:
    """40 runs at cpu scale: 4 trained now, 36 from the store. Where runs are left out, the words are the same on every
    machine: they become part of the results."""
    runs = {run.id: run for run in plan.runs()}
    others = [run for id_, run in runs.items() if id_ not in {run.id for run in trained} and known.has(run)]
    stored = sum(map(known.stored, others))
    counts = {"trained now": len(trained), "from the store": stored, "from the committed record": len(others) - stored}
    if missing == "leave":
        counts = {"trained": len(others), "not trained": len(runs) - len(others)}
    words = ", ".join(f"{number} {where}" for where, number in counts.items() if number)
    return f"{len(runs)} runs at {plan.scale} scale: {words}"


class Shown(Study):
    """A study in a notebook."""

    def __init__(self, plan: Plan, known: Known, workers: int | None, save: str | None):
        super().__init__(plan.loaded, plan.scale, plan.seeds, known)
        self.store, self.workers, self._save = known.store, workers, save

    def show(self, figure: Figure | None = None) -> None:
        """The paper's numbers beside ours, then the figure, which the driver keeps as PNG and SVG."""
        table = tables.readable(self).style.hide(axis="index").set_caption(tables.caption(self))
        display(HTML(f'<div style="max-height: 30em; overflow: auto">{table.to_html()}</div>'))
        if figure is None or self._save is None:
            return
        folder = results_folder() / self._save
        folder.mkdir(parents=True, exist_ok=True)
        for kind, metadata in (("png", None), ("svg", {"Date": None})):
            path = folder / f"{self.table.name}.{kind}"
            figure.savefig(path, dpi=110, bbox_inches="tight", metadata=metadata)

    paper_table = layout.paper_table
    vary = trial.vary

    def evidence(self) -> None:
        """What the numbers are based on: data, gate, tuning, verdicts, deviations, run ids."""
        split = figures.split(self)
        display(split)
        plt.close(split)
        ids = "Every number above comes from these runs; the store and the record know them by id."
        parts = {
            "Is the reference trained?": (_gate_words(self), tables.gates(self)),
            "How each method was tuned": (_tuning_words(self), tables.tuning(self)),
            "Verdicts": (VERDICT_WORDS, tables.readable_verdicts(self)),
            "Where this differs from the paper": ("", pd.DataFrame(self.table.deviation)),
            "Run ids": (ids, tables.run_ids(self)),
        }
        for title, (words, table) in parts.items():
            display(Markdown(f"## {title}\n\n{words}"))
            if len(table):
                display(_wrapped(table))


def _gate_words(study: Study) -> str:
    if study.scale == "smoke":
        return "Smoke scale only shows that everything runs: nothing that is learned is judged."
    if not study.table.gate:
        return "Nothing in this table is learned."
    words = "A reference is trained if it comes close to central training of the same network and its curve is flat. "
    if study.scale == "paper":
        return words + "At paper scale this withholds no verdict."
    return words + "Where it is not, accuracy, ranking and speed of convergence are not judged."


def _tuning_words(study: Study) -> str:
    if study.scale == "paper":
        return "As the paper states; what it does not state is a deviation below."
    if not len(tables.tuning(study)):
        return "Not at all: every method uses the settings under deviations."
    return (
        "Every method got the same number of pilot runs, on a seed and on held-out training images that no verdict "
        "uses; the score is their accuracy over the last third of the rounds. A chosen value at the border of its grid "
        "is flagged: a wider grid might have found a better one."
    )


def standing(paper: str, claims: Sequence[str] = ()) -> Styler:
    """A paper's claims (by default all) in its own words, each with the committed verdict at the largest scale."""
    known = {claim.id: claim for table in spec.tables(paper) for claim in table.claims()}
    found: dict[str, dict[str, str]] = {}
    for scale in SCALES[1:]:  # the largest comes last; smoke scale judges nothing
        for path in sorted(committed(scale, paper).folder.glob("*_verdicts.csv")):
            with open(path, newline="", encoding="utf-8") as file:
                found |= {line["claim"]: line for line in csv.DictReader(file)}
    rows = []
    for claim in (known[choose("claims", name, known)] for name in claims or known):
        judged = found.get(claim.id, {"verdict": "not run yet", "reason": ""})
        rows.append((claim.id, claim.source, claim.says, judged["verdict"], judged["reason"]))
    table = pd.DataFrame(rows, columns=["claim", "where", "the paper says", "our verdict", "why"])
    return _wrapped(table if any(why for *_, why in rows) else table.drop(columns="why"))


def _wrapped(table: pd.DataFrame) -> Styler:
    return (
        table.style.hide(axis="index")
        .set_properties(**{"text-align": "left", "white-space": "normal"})
        .set_table_styles([{"selector": "th", "props": [("text-align", "left")]}])
    )
