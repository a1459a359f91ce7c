"""What notebooks call: trials of other settings, the paper's layout, picked curves, claims and their verdicts."""

import csv
import shutil
import tempfile
from dataclasses import asdict

import pandas as pd
import pytest
from matplotlib import colors

from fedrepro import build, train
from fedrepro.errors import BadInput
from fedrepro.evidence import figures, heatmaps, spec
from fedrepro.evidence.layout import paper_table
from fedrepro.evidence.notebook import standing
from fedrepro.evidence.record import Known, Record
from fedrepro.evidence.study import Study, recorded
from fedrepro.evidence.trial import NOT_THE_PAPERS, Picker, vary


@pytest.fixture
def study(smoke):
    """FedBR's Tables IV and V, trained: the axis tau is the hyperparameter tau."""
    known = Known(smoke / "runs", Record(smoke / "results/smoke/fedbr"))
    return Study("fedbr/table4_5_interval", "smoke", 2, known)


def files(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def dashed(panel):
    return [line for line in panel.lines if line.get_linestyle() == "--"]


# vary


def test_a_varied_cell_is_the_cell_that_has_these_settings(study, smoke):
    """tau = 0 turned into tau = 3 is the table's own tau = 3; nothing is written to the results or the store."""
    first, other = study.axes["tau"][0], study.axes["tau"][-1]
    before = files(smoke)
    trial = vary(study, hp={"tau": int(other)}, cells={"tau": first}, workers=1)
    assert files(smoke) == before
    for labels, mine in trial.rounds.groupby(["reading", "dataset"]):
        own = study.rounds[(study.rounds["tau"] == other) & (study.rounds["seed"] == study.seeds[0])]
        own = own[(own["reading"] == labels[0]) & (own["dataset"] == labels[1])]
        for column in ("accuracy", "ema_accuracy", "loss", "bytes"):
            assert mine[column].tolist() == own[column].tolist()
        assert set(mine["tau"]) == {first}


def test_its_curve_is_dashed_and_says_that_it_is_not_the_papers(study):
    trial = vary(study, rounds=2, lr=0.02, workers=1)
    (panel,) = trial.figure.axes
    (line,) = dashed(panel)
    assert NOT_THE_PAPERS in line.get_label().replace("\n", " ") and "lr=0.02" in line.get_label().replace("\n", " ")
    assert colors.same_color(line.get_color(), "black")
    assert line.get_xdata().tolist() == [1, 2]
    assert line.get_ydata().tolist() == trial.rounds["accuracy"].tolist()
    solid = [other for other in panel.lines if len(other.get_xdata()) and other is not line]
    assert len(solid) >= len(study.axes["tau"])
    assert repr(trial) == "not the paper's: rounds = 2, lr = 0.02 (1 runs, not saved)"


def test_without_cells_the_first_that_takes_the_setting_is_trained(study):
    trial = vary(study, hp={"tau": 2}, rounds=1, workers=1)
    assert len(trial.runs) == 1
    run, own = trial.runs[0], study.cells[0].run(study.seeds[0])
    assert (run.hp["tau"], run.rounds, run.seed) == (2, 1, own.seed)
    assert {**run.described, "hp": {**run.hp, "tau": own.hp["tau"]}, "rounds": own.rounds} == own.described


def test_axes_that_are_not_named_keep_to_one_cell(study):
    trial = vary(study, hp={"tau": 2}, cells={"tau": study.axes["tau"]}, rounds=1, workers=1)
    assert [run.hp["tau"] for run in trial.runs] == [2, 2]
    assert trial.rounds["tau"].tolist() == study.axes["tau"]
    assert all(trial.rounds[axis].nunique() == 1 for axis in ("reading", "dataset"))
    (named,) = vary(study, hp={"tau": 2}, cells={"dataset": "CIFAR10"}, rounds=1, workers=1).runs  # the paper's label
    assert named.id == trial.runs[0].id


def test_a_trial_has_the_columns_of_the_study(study):
    trial = vary(study, rounds=2, lr=0.02, column="paper_bytes", workers=1)
    assert set(study.rounds) <= set(trial.rounds)
    (line,) = dashed(trial.figure.axes[0])
    assert line.get_ydata().tolist() == (trial.rounds["paper_bytes"] / 2**20).tolist()


def test_a_single_round_is_a_point(study):
    (line,) = dashed(vary(study, rounds=1, lr=0.02, workers=1).figure.axes[0])
    assert (len(line.get_xdata()), line.get_marker()) == (1, "o")


def test_another_method_gets_its_own_hyperparameters(study):
    (run,) = vary(study, method="fedprox", hp={"mu": 0.5}, rounds=1, workers=1).runs
    assert (run.method, run.hp) == ("fedprox", asdict(build("fedprox", mu=0.5)))


def test_steps_replace_epochs(study):
    (run,) = vary(study, steps=2, rounds=1, workers=1).runs
    assert (run.steps, run.epochs) == (2, None)


def test_what_was_tried_is_not_trained_again(study, smoke, monkeypatch):
    first = vary(study, rounds=1, lr=0.03, workers=1)
    monkeypatch.setattr("fedrepro.simulation.federation.Federation.advance", lambda self: pytest.fail("trained again"))
    again = vary(study, rounds=1, lr=0.03, workers=1)
    pd.testing.assert_frame_equal(first.rounds, again.rounds)
    assert not (smoke / "runs" / first.runs[0].id).exists()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"hp": {"tauu": 3}}, "vary: unknown hyperparameter 'tauu'; allowed: .*tau"),
        ({"round": 3}, "vary: unknown setting 'round'; allowed: hp, data, .*rounds"),
        ({"seed": 3}, "vary: unknown setting 'seed'"),
        (
            {"hp": {"tau": 3}, "cells": {"tauu": "3"}},
            "cells: 'tauu' is not valid; did you mean tau\\? allowed: ",
        ),
        ({"hp": {"tau": 3}, "cells": {"tau": "99"}}, r"cells\['tau'\]: '99' is not valid; allowed: "),
        ({"rounds": 0}, "rounds: 0 is not valid"),
        ({}, "the table's own settings"),
        ({"lr": 0.01, "column": "acuracy"}, "column: 'acuracy' is not valid; did you mean accuracy"),
    ],
)
def test_what_cannot_be_varied_is_refused_in_one_line(study, asked, message):
    with pytest.raises(BadInput, match=message) as error:
        vary(study, **asked)
    assert "\n" not in str(error.value)


def test_scratch_is_outside_of_store_and_results(study):
    from fedrepro.evidence import trial

    kept = vary(study, rounds=1, lr=0.04, workers=1).runs[0]
    found = trial._kept().name
    assert found.startswith(tempfile.gettempdir())
    assert train(kept, store=found, workers=1).run == kept


# the paper's layout


def made(name, value, seeds=(0, 1), scale="paper"):
    """A study in which the k-th cell measures value(k) with the first seed and 0.02 more with each."""
    study = Study(spec.find(name), scale, seeds)
    at = [(k, cell.labels) for k, cell in enumerate(study.cells)]
    rows = [{**labels, "seed": seed, "value": value(k) + 0.02 * seed} for k, labels in at for seed in seeds]
    study.values = pd.concat([pd.DataFrame(rows).assign(measure=measure) for measure in study.measures])
    return study


def test_the_papers_table_1_as_printed():
    study = made("kapc/table1_full_participation", lambda k: 0.5 + k / 1000)
    table = paper_table(study, across=["dataset", "alpha"], down=["method"]).data.sort_index()
    with open(study.table.path.parent / "reported/table1.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 80
    for line in lines:
        printed = f"{float(line['value']):.2f} ({float(line['std']):.2f})"
        assert table.loc[(line["method"],), (line["dataset"], line["alpha"], "paper")] == printed
    first = study.cells[0].labels
    at = (first["method"],), (first["dataset"], first["alpha"], f"ours (paper), {first['optimiser']}")
    assert table.loc[at] == "51 ± 13"
    assert table.loc[("FedAvg, then trained",), ("MNIST", "0.1", "paper")] == "–"


def test_readings_stand_beside_the_papers_number():
    """It is printed once; ours under each reading follow."""
    table = paper_table(made("kapc/table1_full_participation", lambda k: 0.5), "best mean accuracy").data
    sides = [column[-1] for column in table.columns][:3]
    assert sides == ["paper", "ours (paper), as in [40]", "ours (paper), plain SGD"]


def test_the_last_axis_is_across_by_default():
    study = made("kapc/table3_self_relationship", lambda k: 0.5, seeds=(0,))
    table = paper_table(study, "best mean accuracy").data
    assert list(table.index.names) == [study.table.axis["mu"].label]
    assert list(dict.fromkeys(column[0] for column in table.columns)) == study.axes["cube"]
    assert table.loc[("0.7",), ("printed", "paper")] == "80.02"
    assert table.loc[("0.7",), ("printed", "ours (paper)")] == "50.00"
    down = paper_table(study, "download per round").data
    assert down.loc[("0.7",), ("printed", "paper")] == "327.5"
    turned = paper_table(study, "best mean accuracy", across="mu").data
    assert turned.loc[("printed",), ("0.7", "paper")] == "80.02"


def test_measures_are_where_they_were_put():
    """FedMLB's Table 2: setting by setting, in each the four measures; its traffic, which is only ours, is left out."""
    study = made("fedmlb/table2_local_objectives", lambda k: 0.5, seeds=(0,))
    table = paper_table(study, across=["setting", "measure"]).data
    reported = ["accuracy midway", "accuracy", "rounds to the lower target", "rounds to the higher target"]
    settings = [column[:2] for column in table.columns][::2]
    assert settings == [(setting, measure) for setting in ("moderate", "large") for measure in reported]
    assert table.loc[("FedMLB",), ("large", "rounds to the higher target", "paper")] == "642"
    assert table.loc[("FedAvg",), ("moderate", "rounds to the higher target", "paper")] == "1000+"
    outside = paper_table(study, across="setting").data
    assert [column[:2] for column in outside.columns][:4:2] == [(reported[0], "moderate"), (reported[0], "large")]


def test_numbers_that_are_large_are_written_out():
    table = paper_table(made("dfl/table4_communication", lambda k: 1.0, seeds=(0,)), across="method").data
    assert table.loc[("VGG-16", "CIFAR-10"), ("FedAvg", "paper")] == "275,661"


def test_the_papers_numbers_keep_its_names():
    """At cpu scale Table IV takes generated images: so ours are called, and only ours."""
    study = made("dfl/table4_communication", lambda k: 1.0 + k, seeds=(0,), scale="cpu")
    (measure,) = {row["measure"] for row in study.table.reported_rows()}
    ours, theirs = heatmaps.draw(study, measure, rows=["dataset", "model"], columns="method", mark_best=True).axes
    names = [[label.get_text() for label in panel.get_yticklabels()] for panel in (ours, theirs)]
    assert names[0] == [f"generated images for {name}" for name in names[1]] and "CIFAR-10 VGG-16" in names[1]
    frames = [[frame.get_xy() for frame in panel.patches] for panel in (ours, theirs)]
    assert frames[0] == frames[1] and len(frames[0]) == len(names[1])
    table = paper_table(study, across="method").data
    assert table.loc[("VGG-16", "CIFAR-10 (ours: generated images)"), ("FedAvg", "paper")] == "275,661"


def test_a_figure_says_over_what_it_takes_means():
    study = made("fedbr/fig3_convergence", lambda k: 0.5, scale="cpu")
    whole, part = (figures.bars(study, "method", ["accuracy"], col=col) for col in ("reading", None))
    notes = [figure.texts[-1].get_text() for figure in (whole, part)]
    assert "means over" not in notes[0]
    assert notes[1].endswith(f"means over: {study.table.axis['reading'].label or 'reading'}")


def test_differences_are_taken_seed_by_seed(study):
    """One column per pair, one row per combination of the other axes; a thin line per seed, then their mean, then 0."""
    first, other = study.axes["tau"][0], study.axes["tau"][-1]
    figure = figures.ahead(study, first, axis="tau")
    rows = len(study.axes["reading"]) * len(study.axes["dataset"])
    assert len(figure.axes) == rows * (len(study.axes["tau"]) - 1)
    panel = figure.axes[len(study.axes["tau"]) - 2]
    first_labels = [study.axes[axis][0] for axis in ("reading", "dataset")]
    here = study.rounds[study.rounds[["reading", "dataset"]].eq(first_labels).all(axis=1)]
    by_seed = []
    for line, seed in zip(panel.lines, study.seeds, strict=False):
        a, b = (here[(here["tau"] == tau) & (here["seed"] == seed)]["accuracy"].to_numpy() for tau in (first, other))
        assert line.get_ydata() == pytest.approx(100 * (a - b))
        by_seed.append(100 * (a - b))
    assert panel.lines[len(study.seeds)].get_ydata() == pytest.approx(sum(by_seed) / len(by_seed))
    assert list(panel.lines[-1].get_ydata()) == [0, 0]
    nothing = figures.ahead(study, [("no such", first)], axis="tau")
    assert not nothing.axes and "yet" in nothing.texts[0].get_text()


def test_one_axis_has_its_measures_across():
    table = paper_table(made("kapc/table6_costs", lambda k: 3.0, seeds=(0,))).data
    assert table.loc[("KAPC+BLS",), ("upload per round", "paper")] == "380.9"
    assert table.loc[("KAPC+BLS",), ("download per round", "ours (paper)")] == "3"


def test_targets_that_nobody_or_some_reached():
    study = made("fedmlb/table3_local_iterations", lambda k: 100.0)
    measure = "rounds to the higher target"
    first, second = (cell.labels for cell in study.cells[:2])
    of = study.values["measure"] == measure
    for labels, seeds in ((first, [0, 1]), (second, [1])):
        where = of & (study.values[list(labels)] == pd.Series(labels)).all(axis=1) & study.values["seed"].isin(seeds)
        study.values.loc[where, "value"] = float("nan")
    table = paper_table(study, measure).data
    ours = [table.loc[(c["iterations"],), (c["method"], "ours (paper)")] for c in (first, second)]
    assert ours == ["not reached", "100, 1 of 2 seeds"]
    assert any(text.endswith("+") for text in table.xs("paper", axis=1, level=-1).to_numpy().ravel())


def test_the_studys_own_table(study):
    """At smoke scale: every number we show is the mean of the study's values; the paper's other cells are there."""
    styled = paper_table(study, "accuracy")
    table, scale = styled.data, f"ours ({study.scale})"
    names = {"generated images for CIFAR10": "CIFAR10 (ours: generated images)"}
    values = study.values[study.values["measure"] == "accuracy"].replace(names)
    for (dataset, reading, tau), mean in values.groupby(["dataset", "reading", "tau"])["value"].mean().items():
        ours, _, half = table.loc[(dataset,), (tau, f"{scale}, {reading}")].partition(" ± ")
        decimals = len(half.partition(".")[2])
        assert ours == f"{100 * mean:.{decimals}f}"
    assert "compare order and trend" in styled.to_html()
    with pytest.raises(BadInput, match="measures: 'acc' is not valid; allowed: accuracy"):
        paper_table(study, "acc")
    with pytest.raises(BadInput, match="across: 'x' is not valid; allowed: dataset, measure, tau"):
        paper_table(study, across="x")


# pick


def test_picked_curves_are_means_over_the_picked_seeds(study):
    tau = study.axes["tau"][0]
    where = {axis: labels[:1] for axis, labels in study.axes.items()} | {"tau": [tau]}
    trial = vary(study, rounds=1, lr=0.02, column="accuracy", workers=1)
    (panel,) = trial.picked(where).axes
    rows = study.rounds
    for axis, labels in where.items():
        rows = rows[rows[axis] == labels[0]]
    line = next(line for line in panel.lines if len(line.get_xdata()))
    assert line.get_ydata().tolist() == pytest.approx(rows.groupby("round")["accuracy"].mean().tolist())
    (alone,) = trial.picked({**where, "seed": study.seeds[1:]}).axes
    line = next(line for line in alone.lines if len(line.get_xdata()))
    assert line.get_ydata().tolist() == rows[rows["seed"] == study.seeds[1]]["accuracy"].tolist()


def test_a_picker_draws_before_anybody_moves_it(study):
    trial = vary(study, rounds=1, lr=0.02, workers=1)
    assert {"text/plain", "image/png", "application/vnd.jupyter.widget-view+json"} <= set(trial._repr_mimebundle_())
    picker = Picker(trial)
    first = bytes(picker.image.value)
    assert first.startswith(b"\x89PNG")
    assert "image/png" in picker._repr_mimebundle_()
    picker.controls["tau"].value = (study.axes["tau"][0],)
    assert bytes(picker.image.value) != first
    picker.controls["seed"].value = ()
    assert bytes(picker.image.value).startswith(b"\x89PNG")


# what a method notebook says of the paper's claims


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with neither results nor a committed record."""
    monkeypatch.setattr(spec, "HOME", tmp_path)
    monkeypatch.setenv("FEDREPRO_RESULTS", str(tmp_path / "results"))
    return tmp_path


def test_claims_are_in_the_papers_words_without_a_record(home):
    table = standing("dfl", claims=["dfl-c24", "dfl-c05"]).data
    claims = {claim.id: claim for one in spec.tables("dfl") for claim in one.claims()}
    assert table["claim"].tolist() == ["dfl-c24", "dfl-c05"]
    assert table["the paper says"].tolist() == [claims["dfl-c24"].says, claims["dfl-c05"].says]
    assert set(table["our verdict"]) == {"not run yet"} and "why" not in table
    assert len(standing("dfl").data) == len(claims)
    with pytest.raises(BadInput, match="claims: 'dfl-c99' is not valid"):
        standing("dfl", claims=["dfl-c99"])


def test_claims_have_the_verdict_at_the_largest_scale(home, smoke, as_cpu_scale):
    folder, own = home / "results/cpu/fedbr", spec.find("fedbr/table4_5_interval").claims()
    as_cpu_scale(folder)
    shutil.copytree(smoke / "results/smoke/fedbr", home / "results/smoke/fedbr")
    table = standing("fedbr").data.set_index("claim")
    (study,) = recorded(Record(folder))
    for claim, verdict in study.verdicts:
        assert tuple(table.loc[claim.id, ["our verdict", "why"]]) == (verdict.word, verdict.reason)
    ids = [claim.id for claim in own]
    assert set(table.drop(ids)["our verdict"]) == {"not run yet"}
    assert set(table.drop(ids)["why"]) == {""} and table.loc[ids, "why"].all()
    weaker = home / "results/reduced/fedbr"
    shutil.copytree(folder, weaker)
    (weaker / "table4_5_interval_verdicts.csv").write_text(f"claim,verdict,reason\n{ids[0]},weaker,\n")
    pd.testing.assert_frame_equal(standing("fedbr").data.set_index("claim"), table)
