"""The tables as data: strict parsing, the cells, and what every committed table must satisfy."""

import json
import re
import shutil

import nbformat
import pandas as pd
import pytest

from fedrepro.errors import BadInput
from fedrepro.evidence import schema, sections, spec
from fedrepro.evidence.gate import Rule
from fedrepro.evidence.judge import Measured, judge
from fedrepro.evidence.measures import Measure
from fedrepro.evidence.statements import Pair, Statement
from fedrepro.evidence.study import Study
from fedrepro.evidence.table import Table
from fedrepro.evidence.tune import pilots
from fedrepro.evidence.verdict import Verdict

CLAIMS = {"arena": 0, "ama": 22, "dfl": 29, "fedbr": 40, "fedmlb": 31, "kapc": 40}  # that we found in each paper
TABLES = [f"{paper}/{table.name}" for paper in spec.papers() for table in spec.tables(paper)]


OWN = '[[measure]]\nname = "accuracy"\n'


@pytest.fixture
def edited(tmp_path):
    """edited(find, replace) -> Table II of FedBR with one change."""

    def edit(old: str, new: str):
        folder = tmp_path / "fedbr"
        shutil.copytree(spec.REPRODUCE / "fedbr", folder, dirs_exist_ok=True)
        path = folder / "table2_temperature.toml"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))
        return spec.load(path)

    return edit


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("question =", "quesstion =", "table2_temperature.toml: quesstion: is not a key"),
        ('field = "hp.delta"', 'field = "hp.delat"', "hp.delat.*fedbr has no hyperparameter 'delat'"),
        ('field = "hp.delta"', 'fild = "hp.delta"', "axis.delta.fild: is not a key"),
        ("1.5, 2.0]", "-1.5, 2.0]", "hp.delta .*-1.5.*not valid"),
        (
            "values = [0.75, 1.0, 1.25, 1.5,",
            "values = [0.75, 1.0, 1.25,",
            "the paper's cell .*1.5.* is produced by no run",
        ),
        ('file = "table2.csv"', 'file = "tabel2.csv"', "'tabel2.csv' cannot be read"),
        ("[[reported]]", f'{OWN}kind = "finale"\n[[reported]]', "accuracy.kind: 'finale' is none of final"),
        ("[[reported]]", f'{OWN}unit = "Mib"\n[[reported]]', "accuracy.unit: 'Mib' is not valid; allowed: .*MiB"),
        ("[[reported]]", f"{OWN}window = 3\n[[reported]]", "accuracy.window: is not a key; allowed: better, column"),
        (
            "[[reported]]",
            f'{OWN}seedless = "yes"\n[[reported]]',
            "accuracy.seedless: 'yes' is not valid; allowed: true or false, or labels by axis",
        ),
        (
            "[[reported]]",
            f'{OWN}seedless = {{ dataset = "X" }}\n[[reported]]',
            "seedless: dataset = 'X' is not a label",
        ),
        (
            "[[reported]]",
            f'{OWN}kind = "within_budget"\nspend = "bytes"\nbudget = 50\n[[reported]]',
            "accuracy.budget: 50 is not valid; allowed: text",
        ),
        (
            "[[reported]]",
            f'{OWN}kind = "within_budget"\nspend = "bytes"\nbudget = "50 GB"\n[[reported]]',
            "accuracy.budget: '50 GB' is not valid; allowed: a number and a unit of .*GiB",
        ),
        ("[scale.smoke.axis", "[scale.tiny]\n[scale.smoke.axis", "scale: 'tiny' is not valid; allowed: smoke, reduced"),
        ('each = "delta"', 'each = "reading"', "each: 'reading' needs labels in better and worse"),
        ("delta = 1.25 }", "delta = [1, 1.25, 1.5] }", "each: 'delta' needs labels .* equally many or one"),
        ("delta = 1.25 }", "delta = 1.3 }", "delta = '1.3' is not a label"),
        ('id = "fedbr-c31"', 'id = "fedbr-c30"', "claim fedbr-c30.says: belongs in its first block, and only"),
        ('where = { dataset = "CIFAR10" }', 'where = { dataset = "CIFAR11" }', "dataset = 'CIFAR11' is not a label"),
        ('kind = "compare"', 'kind = "beats"', "'beats' is none of best"),
        (
            "[[claim]]",
            '[[claim]]\nid = "x"\nkind = "trend"\nmeasure = "accuracy"\naxis = "delta"\ndirection = "up"\n[[claim]]',
            "direction: 'up' is not valid; allowed: rises, falls",
        ),
        ("only = [1, 2]", "only = [1, 3]", "'3' is none of"),
        ('"dataset", "accuracy"]', '"datasat", "accuracy"]', "use: 'datasat' is not valid"),
        ('each = ["reading"]', 'each = ["reeding"]', "each: 'reeding' is none of reading, dataset, delta"),
        (
            "[[claim]]",
            '[[claim]]\nid = "x"\nkind = "saving"\nmeasure = "accuracy"\naxis = "delta"\nwinner = "1"\n'
            "tolerance = 0.1\nsaving = { 3 = 0.5 }\n[[claim]]",
            "delta = '3' is not a label",
        ),
        (
            'measure = "accuracy"\ncolumns',
            "measures.accuracie = {}\ncolumns",
            "reported.measures: 'accuracie' is none of",
        ),
        (
            'kind = "compare"\nmeasure = "accuracy"',
            'kind = "compare"\nmeasure = ["accuracy", "loss"]',
            "'loss' is none of accuracy",
        ),
        ("[[claim]]", '[groups]\ntitle = "by delta"\n[[claim]]', "groups.measure: is missing"),
        ("use =", 'curves = ["acuracy"]\nuse =', "curves: 'acuracy' is not valid"),
        ("title =", "title", "table2_temperature.toml: "),
        ("title =", "measure = 3\ntitle =", "table2_temperature.toml: measure: 3 is not valid; allowed: a list"),
        ("title =", "seeds = 3\ntitle =", "seeds: 3 is not valid; allowed: a list, each item a whole number"),
        ('title = "', 'title = 3 # "', "title: 3 is not valid; allowed: text"),
    ],
)
def test_a_mistake_is_named(edited, old, new, message):
    with pytest.raises(BadInput, match=message):
        edited(old, new)


DOCUMENTED = {
    "The file": Table,
    "`[axis.NAME]`": sections.Axis,
    "`[scale.NAME]`": sections.Scale,
    "`[scale.NAME.axis.NAME]`": sections.AxisChange,
    "`[[override]]`": sections.Override,
    "`[[measure]]`": Measure,
    "`[[reported]]`": sections.Reported,
    "`[[claim]]`": Statement,
    "`[[claim.pairs]]`": Pair,
    "`[[deviation]]`": sections.Deviation,
    "`[groups]`": sections.Groups,
    "`[gate]`": Rule,
    "`[tune]`": sections.Tuning,
}


def test_the_documentation_lists_every_key():
    """docs/add-a-paper.md: all keys of all sections and kinds, and which of them are needed."""
    text = (spec.HOME / "docs/add-a-paper.md").read_text().partition("## Every key")[2]
    parts = dict(part.split("\n", 1) for part in text.split("\n### ")[1:])
    assert list(parts) == list(DOCUMENTED)

    def keys(text, indent=""):
        return {key: bool(needed) for key, needed in re.findall(rf"^{indent}- `(\w+)`( \(needed\))?:", text, re.M)}

    for title, kind in DOCUMENTED.items():
        known = dict(schema.keys_of(kind))
        if kinds := getattr(kind, "kinds", {}):
            known["kind"] = True
            documented = dict(re.findall(r'^- `kind = "(\w+)"`.*\n((?:  - .*\n?)*)', parts[title], re.M))
            assert set(documented) == set(kinds)
            for name, lines in documented.items():
                own = {key: needed for key, needed in schema.keys_of(kinds[name]).items() if key not in known}
                assert keys(lines, "  ") == own, name
        assert keys(parts[title]) == known, title


def test_cells_are_the_product_of_the_axes():
    table = spec.find("fedbr/table2_temperature")
    cells = table.cells("paper")
    assert [c.labels for c in cells[:2]] == [
        {"reading": "sampled clients", "dataset": "CIFAR10", "delta": d} for d in ("0.75", "1")
    ]
    assert len(cells) == 20
    run = cells[0].run(3)
    assert (run.hp["delta"], run.data, run.seed, run.model, run.rounds) == (0.75, "cifar10", 3, "resnet18", 200)


def test_shared_cells_are_one_run():
    """The default FedBR run of five tables is trained once."""
    base = {"reading": "sampled clients", "dataset": "CIFAR10", "method": "FedBR", "delta": "1", "tau": "1",
            "epsilon": "7", "lambda1": "1", "lambda2": "1", "system": "homogeneous"}  # fmt: skip
    ids = {cell.run(0).id for name in TABLES if name.startswith("fedbr/") for cell in spec.find(name).cells("reduced")
           if all(base[axis] == label for axis, label in cell.labels.items())}  # fmt: skip
    assert len(ids) == 1


@pytest.mark.parametrize("scale", spec.SCALES)
def test_moon_has_the_mu_of_its_paper_on_each_data_set(scale):
    """Li et al., CVPR 2021, Section 4.1: 5 on CIFAR-10 and 1 on CIFAR-100, whatever the label of the panel."""
    tables = [spec.find(name) for name in TABLES if name.startswith("fedbr/")]
    runs = [cell.run(0) for table in tables for cell in table.cells(scale, tuned=False)]
    moon = {(run.data.partition(":")[0], run.hp["mu"]) for run in runs if run.method == "moon"}
    assert (
        moon
        == {
            "smoke": {("synthetic", 5.0)},
            "reduced": {("fashion_mnist", 5.0)},
            "cpu": {("cifar10", 5.0)},
            "paper": {("cifar10", 5.0), ("cifar100", 1.0)},
        }[scale]
    )


def test_targets_of_each_data_set():
    for name in ("fedbr/fig5_6_resources", "fedbr/fig8_system_heterogeneity"):
        measure = spec.find(name).measures("paper")["time to target"]
        assert [measure.target_at({"dataset": d}) for d in ("CIFAR10", "CIFAR100")] == [0.78, 0.49]


def judged(study, claim_id: str) -> Verdict:
    (claim,) = [claim for claim in study.table.claims() if claim.id == claim_id]
    return judge(claim, Measured(study.values, study.scale, study.axes, study.measures, study.table.reported_rows()))


def as_measured(study, rows) -> list[dict]:
    """Rows of the paper's numbers as if every cell they belong to had been measured so with three seeds."""
    places = [cell.labels for cell in study.cells]
    return [{**place, **row, "seed": seed} for row in rows for place in places for seed in (0, 1, 2)
            if all(row.get(axis, label) == label for axis, label in place.items())]  # fmt: skip


@pytest.mark.parametrize("claim", ["fedbr-c01", "fedbr-c10", "fedbr-c11", "fedbr-c13", "fedbr-c14", "fedbr-c25"])
def test_the_papers_own_numbers_pass_the_judge(claim):
    """And no longer do if FedBR were as FedProx: 1,479 s, 138.3 GB, 70.3%."""
    study = Study("fedbr/fig5_6_resources", "paper")
    study.values = pd.DataFrame(as_measured(study, study.table.reported_rows()))
    assert judged(study, claim).word == "reproduced"
    others = study.values[study.values["method"] != "FedBR"]
    study.values = pd.concat([others, others[others["method"] == "FedProx"].assign(method="FedBR")])
    assert judged(study, claim).word == "contradicted"


def test_fedmlb_under_limited_communication_by_the_papers_own_numbers():  # FB-25
    study = Study("fedbr/fig8_system_heterogeneity", "paper")
    place = {"dataset": "CIFAR10", "measure": "accuracy within the traffic budget"}
    at_50_gb = [{**place, "method": "FedBR", "value": 0.768}, {**place, "method": "FedMLB", "value": 0.723}]
    study.values = pd.DataFrame(as_measured(study, [*study.table.reported_rows(), *at_50_gb]))
    found = judged(study, "fedbr-c39")
    effects = {effect.what: (effect.state, round(effect.mean, 3)) for effect in found.effects}
    assert effects["[time to target] CIFAR10 FedMLB − FedBR"] == ("holds", 1770)
    assert effects["[accuracy within the traffic budget] CIFAR10 FedBR − FedMLB"] == ("holds", 0.045)
    assert judged(study, "fedbr-c26").word == "reproduced"  # 1,034 s and 1,782 s
    assert judged(study, "fedbr-c27").word == judged(study, "fedbr-c28").word == "reproduced"


def test_each_reading_is_judged_on_its_own():
    """3 points above the paper in one reading and 3 below in the other are not "as the paper says" on average."""
    study = Study("fedbr/fig3_convergence", "paper")
    study.values = pd.DataFrame(as_measured(study, study.table.reported_rows()))
    assert study.values["reading"].nunique() == 2
    assert judged(study, "fedbr-c05").word == "reproduced"
    study.values["value"] += study.values["reading"].map({"sampled clients": 0.03, "all clients": -0.03})
    found = judged(study, "fedbr-c05")
    assert found.word == "contradicted"
    assert "all clients CIFAR10 FedAvg" in {effect.what for effect in found.effects if effect.state == "opposite"}


@pytest.mark.parametrize("scale", spec.SCALES)
def test_dfl_thresholds_share_the_runs_of_tables_2_and_3(scale):
    """T = 1 is the FedAvg run and T = 0.6 the DFL run of Tables II (IID) and III (non-IID)."""

    def ids(table, **labels):
        (cell,) = [c for c in spec.find(f"dfl/{table}").cells(scale) if labels.items() <= c.labels.items()]
        return cell.run(0).id

    first = {"targets": "mean softmax"}
    for table, scenario, reading in (("table2_iid", "IID", {}), ("table3_noniid", "non-IID", first)):
        for method, T in (("FedAvg", "1"), ("DFL", "0.6")):
            grid = ids("table5_threshold_grid", scenario=scenario, model="CNN", T=T)
            assert grid == ids(table, dataset="CIFAR-10", model="CNN", method=method, **reading)
    assert ids("fig5_ratio_strategies", method="DFL-DRw/T") == ids(
        "table5_threshold_grid", scenario="IID", model="CNN", T="0"
    )


def test_reported_numbers_are_the_papers():
    rows = {(r["dataset"], r["delta"]): r["value"] for r in spec.find("fedbr/table2_temperature").reported_rows()}
    assert rows[("CIFAR10", "1.25")] == 0.8126
    percent = {(r["lambda1"], r["lambda2"]): r["value"] for r in spec.find("fedbr/table3_loss_weights").reported_rows()}
    assert percent[("1", "1")] == pytest.approx(0.5151)
    several = {(r["server"], r["measure"]): (r["value"], r["censored"])
               for r in spec.find("fedmlb/table1_server_optimizers").reported_rows()
               if (r["dataset"], r["setting"]) == ("CIFAR-100", "moderate")}  # fmt: skip
    assert several[("FedAvg", "accuracy midway")] == (pytest.approx(0.4188), False)
    assert several[("FedAvg", "accuracy")] == (pytest.approx(0.4783), False)
    assert several[("FedAvg", "rounds to the lower target")] == (924, False)
    assert several[("FedAvg", "rounds to the higher target")] == (1000, True)


def test_curves_by_hand():
    """Two seeds, tested in rounds 2 and 4: the mean and the half-width t(0.975, 1) s / sqrt(2) of each."""
    study = Study("fedmlb/table7_loss_weights", "smoke", 2)
    study.table.curves.append("accuracy")
    cell = {"lambda1": "1", "lambda2": "0"}
    study.rounds = pd.DataFrame([{**cell, "seed": s, "round": t, "accuracy": a} for s, accuracies in
                                 enumerate(([None, 0.1, None, 0.4], [None, 0.3, None, 0.4]))
                                 for t, a in enumerate(accuracies, 1)])  # fmt: skip
    second, fourth = study.curves().to_dict("records")
    assert second == {"column": "accuracy", **cell, "round": 2, "mean": pytest.approx(0.2), "seeds": 2,
                      "interval": pytest.approx(12.7062 * 0.1, rel=1e-4)}  # fmt: skip
    assert (fourth["round"], fourth["mean"], fourth["interval"]) == (4, 0.4, 0)


def test_groups_by_hand():
    """Table 6 from Table 5: the cells with equally many paths, whatever the seed."""
    study = Study("fedmlb/table5_6_pathways", "paper")
    of = {"1": [0.1, 0.3], "2": [0.4, 0.4], "1;2": [0.5, 0.7]}
    study.values = pd.DataFrame([{"measure": "accuracy", "paths": paths, "seed": seed, "value": value}
                                 for paths, values in of.items() for seed, value in enumerate(values)])  # fmt: skip
    one, two = study.grouped().to_dict("records")
    assert (one["cells"], one["our mean"], one["paper's mean"]) == (2, pytest.approx(0.3), pytest.approx(0.4789))
    assert one["our deviation over cells"] == pytest.approx(0.2 / 2**0.5)
    assert (two["cells"], two["our mean"]) == (1, pytest.approx(0.6))


@pytest.mark.parametrize("paper", spec.papers())
def test_every_claim_is_judged_by_exactly_one_table(paper):
    judged = sorted(claim.id for table in spec.tables(paper) for claim in table.claims())
    assert judged == [f"{paper}-c{number:02}" for number in range(1, CLAIMS[paper] + 1)]


@pytest.mark.parametrize("name", [name for name in TABLES if name.startswith(("fedbr/", "fedmlb/"))])
def test_what_is_learned_has_a_gate(name):
    table = spec.find(name)
    assert bool(table.gate) == any(measure.learned for measure in table.measure)


@pytest.mark.parametrize("scale", ["reduced", "cpu"])
@pytest.mark.parametrize(
    ("paper", "searches"),
    [
        ("fedbr", ("fig3_convergence", "fig4_gmbs_vs_random")),
        ("fedmlb", ("table1_server_optimizers", "table2_local_objectives")),
    ],
)
def test_every_method_is_tuned_once(paper, searches, scale):
    """On the same pilots in both tables that search, and none of the paper's methods is left out."""
    found = {}
    for table in searches:
        for pilot in pilots(spec.find(f"{paper}/{table}"), scale):
            found.setdefault((pilot.data, pilot.method, json.dumps(pilot.setting)), set()).add(pilot.run.id)
    assert all(len(ids) == 1 for ids in found.values())
    used = {(c.fields["data"], c.fields["method"]) for t in spec.tables(paper) for c in t.cells(scale)}
    assert {(data, method) for data, method, _ in found} == used


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_its_notebook(name):
    notebook = nbformat.read(spec.NOTEBOOKS / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    parameters = [cell.source for cell in code if "parameters" in cell.metadata.get("tags", [])]
    assert len(parameters) == 1
    assert f'table = "{name}"' in parameters[0]
    assert [re.match(r"\w+", line)[0] for line in parameters[0].splitlines()] == [
        "table", "scale", "seeds", "workers", "fresh", "missing", "save"]  # fmt: skip
    assert [cell.source for cell in code].count("study.evidence()") == 1
    assert all(len(cell.source.splitlines()) <= 10 for cell in code)


def test_notebooks_are_committed_without_outputs():
    for path in spec.NOTEBOOKS.rglob("*.ipynb"):
        if ".ipynb_checkpoints" in path.parts:
            continue
        for cell in json.loads(path.read_text())["cells"]:
            assert not cell.get("outputs"), f"{path.name} has outputs"
            assert not cell.get("execution_count"), f"{path.name} was executed"


def test_measures_by_hand():
    def value(table, measure):
        return schema.parse(Measure, {"name": "m", **measure}, "measure", schema.Names()).value(table, {})

    table = pd.DataFrame({"round": [1, 2, 3, 4], "accuracy": [0.1, 0.3, 0.2, 0.4], "bytes": [10, 20, 30, 40]})
    for measure, expected in [
        ({"kind": "final", "column": "accuracy"}, 0.4),
        ({"kind": "best", "column": "accuracy"}, 0.4),
        ({"kind": "mean", "column": "accuracy"}, 0.25),
        ({"kind": "mean", "column": "accuracy", "window": 2}, 0.3),
        ({"kind": "mean", "column": "accuracy", "first": 3}, 0.2),
        ({"kind": "at_round", "column": "accuracy", "round": 3}, 0.2),
        ({"kind": "gain", "column": "accuracy", "round": 2}, 0.1),
        ({"kind": "drop", "column": "accuracy", "round": 2}, -0.1),
        ({"kind": "to_target", "column": "bytes", "target": 0.3}, 20),
        ({"kind": "to_target", "column": "round", "target": 0.35}, 4),
        ({"kind": "within_budget", "column": "accuracy", "spend": "bytes", "budget": "0.035 kB"}, 0.3),
        ({"kind": "total", "column": "bytes", "unit": "kB"}, 0.04),
        ({"kind": "stability", "column": "accuracy", "window": 2}, 100.0),  # 20% and 40%: ±10 around 30
    ]:
        assert value(table, measure) == pytest.approx(expected), measure
    assert pd.isna(value(table, {"kind": "to_target", "column": "bytes", "target": 0.9}))
    smooth = table.assign(ema_accuracy=[0.1, 0.12, 0.13, 0.16])
    assert value(smooth, {"kind": "to_target", "column": "round", "target": 0.13, "of": "ema_accuracy"}) == 3
    assert pd.isna(
        value(table, {"kind": "within_budget", "column": "accuracy", "spend": "bytes", "budget": "0.005 kB"})
    )


def test_how_early_a_target_may_have_been_reached():
    """By hand: tests in rounds 3, 6 and 9, of which the second is the first above 0.3."""
    measure = {"name": "m", "kind": "to_target", "column": "bytes", "target": 0.3}
    found = schema.parse(Measure, measure, "measure", schema.Names())
    accuracy = [float("nan")] * 9
    accuracy[2::3] = [0.1, 0.35, 0.4]
    table = pd.DataFrame({"round": range(1, 10), "accuracy": accuracy, "bytes": range(10, 100, 10)})
    assert (found.value(table, {}), found.limit(table, {})) == (60, 40)  # in round 4, 5 or 6
    assert found.limit(table.assign(accuracy=0.5), {}) == 10  # tested in every round: reached in the first
    early = table.assign(accuracy=[*accuracy[:2], 0.5, *accuracy[3:]])
    assert (found.value(early, {}), found.limit(early, {})) == (30, 10)  # the first test came too late
    assert found.limit(table.assign(accuracy=0.2), {}) == 90  # missed: what was spent in the end


def test_bad_requests():
    with pytest.raises(BadInput, match="table: 'fedbr/table9' is not valid"):
        Study("fedbr/table9")
    with pytest.raises(BadInput, match="scale: 'tiny' is not valid"):
        Study(TABLES[0], "tiny")
    with pytest.raises(BadInput, match="seeds: 0"):
        Study(TABLES[0], "smoke", 0)
    with pytest.raises(BadInput, match="paper: 'fedbx'"):
        spec.tables("fedbx")


@pytest.mark.parametrize("scale", spec.SCALES)
def test_fedmlb_is_one_run_in_all_its_tables(scale):
    """All paths, weights (1, 1) and temperature 1 are the FedMLB of Tables 1, 2 and 4; weights (0, 0) are FedAvg."""

    def run_id(table, **labels):
        cells = [c for c in spec.find(f"fedmlb/{table}").cells(scale) if labels.items() <= c.labels.items()]
        assert len(cells) == 1
        return cells[0].run(0).id

    place = {"dataset": "CIFAR-100", "setting": "moderate"}
    fedmlb = run_id("table1_server_optimizers", server="FedMLB", **place)
    own = {"dataset": "CIFAR-10" if scale == "cpu" else "CIFAR-100", "setting": "moderate"}  # Table 2 has both there
    assert fedmlb == run_id("table2_local_objectives", method="FedMLB", **own)
    assert fedmlb == run_id("table3_local_iterations", method="FedMLB", iterations="K")
    assert fedmlb == run_id("table4_pathway_direction", method="FedMLB_L->G", setting="moderate")
    assert fedmlb == run_id("table5_6_pathways", paths="1;2;3;4;5")
    assert fedmlb == run_id("table7_loss_weights", lambda1="1", lambda2="1")
    assert fedmlb == run_id("table8_temperature", split="Dir(0.3)", temperature="1")
    assert fedmlb == run_id("table9_backbones", method="FedMLB", backbone="ResNet-18")
    fedavg = run_id("table1_server_optimizers", server="FedAvg", **place)
    assert fedavg == run_id("table7_loss_weights", lambda1="0", lambda2="0")
    assert fedavg == run_id("table2_local_objectives", method="FedAvg", **own) != fedmlb


def test_labels_name_what_was_used():
    networks = {cell.labels["backbone"] for cell in spec.find("fedmlb/table9_backbones").named_for("cpu").cells("cpu")}
    assert "small for ResNet-18" in networks
    table = spec.find("dfl/table3_noniid").named_for("cpu")
    assert {cell.labels["dataset"] for cell in table.cells("cpu")} >= {"MNIST for FEMNIST", "CIFAR-10"}
    assert "MNIST for FEMNIST" in {row["dataset"] for row in table.reported_rows()}
    own = spec.find("dfl/table3_noniid").named_for("paper")
    assert "FEMNIST" in {cell.labels["dataset"] for cell in own.cells("paper")}


@pytest.mark.parametrize("name", TABLES)
def test_no_label_names_another_data_set_or_network(name):
    table = spec.find(name)
    paper = {tuple(cell.labels.values()): cell.fields for cell in table.cells("paper")}
    for scale in spec.SCALES:
        named, theirs = table.named_for(scale), table.cells(scale)
        for cell, known in zip(named.cells(scale), theirs, strict=True):
            for axis, label in cell.labels.items():
                choices = table.axis[axis].choices
                about = [f for f in ("data", "model") if any(f in choice for choice in choices.values())][:1]
                meant = {**table.run, **choices.get(known.labels[axis], {})}
                for field in about:
                    same = cell.fields[field] == paper.get(tuple(known.labels.values()), meant)[field]
                    assert (" for " in label) != same


def test_a_seed_that_is_not_complete_is_named_as_such():
    class Some:
        def __init__(self, *missing):
            self.missing = missing

        def has(self, run):
            return (run.seed, run.hp.get("delta")) not in self.missing

    table = "fedbr/table2_temperature"
    first, *others = (cell.run(0).hp.get("delta") for cell in Study(table, "smoke", 1).cells)
    assert others
    for missing, text in (
        ([], "0, 1"),
        ([(1, first)], "0 (in some cells also 1)"),
        ([(0, first), (1, others[0])], "0, 1 (each in some cells)"),
    ):
        assert Study(table, "smoke", 2, Some(*missing)).seeds_text == text
