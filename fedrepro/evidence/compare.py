"""A method of your own against baselines: each tuned with the same number of pilot runs, then compared seed by seed."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from fedrepro.errors import BadInput
from fedrepro.evidence import figures, tune
from fedrepro.evidence.sections import Tuning, fields_of, merge
from fedrepro.evidence.statistics import better_or_worse
from fedrepro.simulation.metrics import mean_interval
from fedrepro.simulation.progress import progress
from fedrepro.simulation.run import Run
from fedrepro.simulation.store import read_result
from fedrepro.simulation.sweep import sweep


def compare(
    method: str,
    baselines: Sequence[str],
    setting: Mapping[str, Any],
    grid: Mapping[str, list],
    grids: Mapping[str, Mapping[str, list]] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    store: str | os.PathLike[str] = "runs",
    workers: int | None = None,
) -> "Comparison":
    """Tune every method by the same rule as in the papers' tables, then train it with each seed.

    `setting` holds the fields of Run that all share. `grid` says what pilot runs try ({"lr": [0.03, 0.1]}); `grids`
    gives a method a grid of its own, of the same size ({"fedprox": {"lr": [0.1], "hp.mu": [0.01, 0.1]}}). Pilots use
    held-out training images and a separate seed. Runs in the store are not trained again.
    """
    names = list(dict.fromkeys([method, *baselines]))
    rule = Tuning(dict(grid), {name: dict(own) for name, own in (grids or {}).items()})
    if rule.seed in seeds or not seeds:
        raise BadInput(f"seeds: {list(seeds)} is not valid; allowed: at least one seed, not {rule.seed}, the pilots'")
    bases = {name: {"rounds": Run.rounds, **setting, "method": name} for name in names}
    pilots = [pilot for name, base in bases.items() for pilot in tune.search(rule, Run(**setting).data, name, base)]
    _train([pilot.run for pilot in pilots], store, workers)
    tried = tune.chosen(rule, pilots, Path(store))
    chosen = {line["method"]: json.loads(line["setting"]) for line in tried if line["chosen"]}
    runs = {
        (name, seed): Run.from_dict(merge(merge(base, fields_of(chosen[name])), {"seed": seed}))
        for name, base in bases.items()
        for seed in seeds
    }
    _train(list(runs.values()), store, workers)
    rows = {key: pd.DataFrame(read_result(Path(store) / run.id)[1]) for key, run in runs.items()}
    frames = [frame.assign(method=name, seed=seed, run=runs[name, seed].id) for (name, seed), frame in rows.items()]
    return Comparison(names, list(seeds), pd.DataFrame(tried), pd.concat(frames, ignore_index=True))


def _train(runs: list[Run], store: str | os.PathLike[str], workers: int | None) -> None:
    with progress(runs, Path(store)):
        sweep(runs, store=store, workers=workers)


@dataclass(frozen=True, eq=False)
class Comparison:
    """What `compare` found; a notebook shows `table` and `figure()`."""

    methods: list[str]  # the method of interest first
    seeds: list[int]
    tried: pd.DataFrame  # one row per pilot run: its setting, its score on held-out images, whether it was chosen
    rounds: pd.DataFrame  # one row per round, with method, seed and run id

    def __repr__(self) -> str:
        return f"<Comparison: {self.methods[0]} against {', '.join(self.methods[1:])}; seeds {self.seeds}>"

    def _repr_html_(self) -> str:
        return self.table.to_html(index=False, na_rep="", float_format=lambda value: f"{value:.4f}")

    @property
    def scores(self) -> pd.DataFrame:
        """One row per method, one column per seed: mean test accuracy over the last third of the rounds."""
        runs = self.rounds.groupby(["method", "seed"])[["round", "accuracy"]]
        found = runs.apply(lambda rows: tune.score(rows.to_dict("records"), "accuracy")).unstack("seed")
        return found.loc[self.methods, self.seeds]

    @property
    def table(self) -> pd.DataFrame:
        """Accuracy with its 95% interval, and by how much the first method is ahead of each other one.

        Differences are paired by seed; "better" and "worse" are significant at 5% after Holm's correction."""
        scores = self.scores
        chosen = self.tried[self.tried.chosen == "yes"].set_index("method")["setting"]
        ahead = [mean_interval(scores.iloc[0] - scores.loc[name]) for name in self.methods[1:]]
        lines, words = [], ["", *self._words(scores)]
        for name, word, (lead, width) in zip(self.methods, words, [(np.nan, None), *ahead], strict=True):
            accuracy, half = mean_interval(scores.loc[name])
            line = {"method": name, "tuned": chosen[name], "accuracy": accuracy, "±": half}
            lines.append({**line, f"{self.methods[0]} is ahead by": lead, "± ": width, "which is": word})
        return pd.DataFrame(lines)

    def _words(self, scores: pd.DataFrame) -> list[str]:
        """better, worse or undecided: the first method beside each other one."""
        if len(self.seeds) == 1:
            return ["one seed"] * (len(self.methods) - 1)
        ahead = scores.iloc[0].to_numpy() - scores.iloc[1:].to_numpy()
        return better_or_worse(ahead.mean(1), ahead.std(1, ddof=1) / np.sqrt(len(self.seeds)), len(self.seeds) - 1)

    def figure(self) -> Figure:
        """Accuracy by round: the mean over seeds with its 95% interval."""
        figures.style()
        figure, panel = plt.subplots(figsize=(9, 5))
        error = figures.interval if len(self.seeds) > 1 else None
        tested = self.rounds.dropna(subset="accuracy")
        look: dict[str, Any] = {"hue_order": self.methods, "errorbar": error, "err_kws": {"alpha": 0.1}}
        sns.lineplot(tested, x="round", y="accuracy", hue="method", ax=panel, **look)
        panel.set(xlabel=figures.LABELS["round"], ylabel=figures.LABELS["accuracy"])
        panel.lines[0].set_linewidth(4)
        panel.legend(title="", frameon=False, bbox_to_anchor=(1.01, 1), loc="upper left")
        plt.close(figure)
        return figure
