"""The methods of a table, best first, each beside the gate's reference."""

import json
from collections.abc import Sequence

import numpy as np
import pandas as pd

from fedrepro.evidence.comparisons import Cells, linear
from fedrepro.evidence.contrasts import value_text, with_interval
from fedrepro.evidence.statistics import better_or_worse, estimate
from fedrepro.evidence.study import Study

FOUND = "which is"  # the column that says how a method compares


def ranking(study: Study, gain: str, costs: Sequence[str] = (), axis: str = "method") -> pd.DataFrame:
    """One line per method: its accuracy, how far it is ahead of the reference, paired by seed, how many times the
    reference's costs it has, and what its pilots chose. "better" and "worse" are significant at 5% after Holm's
    correction."""
    means = study.summary.pivot(index=axis, columns="measure", values="measured").sort_values(gain, ascending=False)
    own = study.summary.set_index(["measure", axis]).loc[gain, ["measured", "interval"]]
    table = pd.DataFrame(index=means.index)
    table[gain] = [value_text(study.measures[gain], *own.loc[label]) for label in means.index]
    reference = reference_of(study, axis)
    if reference not in means.index:
        return table.reset_index()
    others = [label for label in means.index if label != reference]
    ahead, words = _compared(study, gain, axis, reference, others)
    table[f"points ahead of {reference}"], table[FOUND] = pd.Series(ahead, others), pd.Series(words, others)
    for cost in costs:
        table[f"{cost}, times {reference}'s"] = (means[cost] / means[cost][reference]).map("{:.2f}".format)
    if chosen := tuned(study, axis):
        table["tuned to"] = pd.Series(chosen)
    return table.reset_index().fillna("")


def reference_of(study: Study, axis: str = "method") -> str:
    return study.table.gate.reference[axis] if study.table.gate else ""


def tuned(study: Study, axis: str = "method") -> dict[str, str]:
    """What the pilots of each method chose, and whether that is the smallest or largest value tried."""
    lines = [line for line in study.table.tuning_rows(study.scale) if line["chosen"]]
    chosen = {(line["data"], line["method"]): line for line in lines}
    found = {}
    for cell in study.cells:
        if line := chosen.get((cell.fields["data"], cell.fields["method"])):
            setting = json.loads(line["setting"]).items()
            words = ", ".join(f"{name.removeprefix('hp.')} = {value:g}" for name, value in setting)
            found[cell.labels[axis]] = words + " (border)" * bool(line["at the border"])
    return found


def in_words(study: Study, gain: str, axis: str = "method") -> str:
    """`better than FedAvg: SCAFFOLD; worse: FedProx; undecided: MOON`; labels with a comma in quotes"""
    table = ranking(study, gain, axis=axis)
    names = table[axis].where(~table[axis].str.contains(","), '"' + table[axis] + '"')
    found = names.groupby(table[FOUND]).agg(", ".join) if FOUND in table else {}
    kinds = [kind for kind in ("better", "worse", "undecided", "one seed") if kind in found]
    first = f" than {reference_of(study, axis)}"
    return "; ".join(f"{kind}{first * (not i)}: {found[kind]}" for i, kind in enumerate(kinds))


def _compared(study: Study, gain: str, axis: str, reference: str, others: Sequence[str]) -> tuple[list[str], list[str]]:
    """By how many points each of the others is ahead, and whether it is better, worse or undecided."""
    cells = Cells(study.of(gain), study.axes)
    position = {label: i for i, label in enumerate(cells.labels[axis])}
    weights = [cells.weights({position[label]: 1.0, position[reference]: -1.0}) for label in others]
    found = estimate([linear(cells, "", each) for each in weights], cells, study.measures[gain])
    mean, error, df = (np.array([getattr(one, name) for one in found]) for name in ("mean", "error", "df"))
    ahead = [with_interval(100 * one.mean, 100 * one.half, "+") for one in found]
    words = np.where([one.seeds > 1 for one in found], better_or_worse(mean, error, df), "one seed")
    return ahead, words.tolist()
