"""The gate by hand: a reference must come close to central training, and be flat."""

import dataclasses

import pandas as pd
import pytest

from fedrepro import train
from fedrepro.errors import BadInput
from fedrepro.evidence import gate, spec, tables
from fedrepro.evidence.gate import Rule, central, judge
from fedrepro.evidence.record import Known, Record
from fedrepro.evidence.study import Plan, Study
from fedrepro.simulation.sweep import sweep

nan = float("nan")


def rows(accuracies):
    return [{"round": t, "accuracy": a} for t, a in enumerate(accuracies, 1)]


FLAT = rows([0.1, 0.3, 0.4, 0.45, 0.48, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5])
RISING = rows([0.1, 0.15, 0.2, 0.25, 0.3, 0.32, 0.35, 0.38, 0.4, 0.43, 0.46, 0.5])
POOLED = rows([0.3, 0.62, 0.6])
RULE = Rule({"method": "FedAvg"})


def test_flat_and_close_to_central_training_passes():
    found = judge({}, RULE, [FLAT], POOLED, "id")
    assert (found.accuracy, found.central, found.rise) == (0.5, 0.62, 0)
    assert found.passed  # 0.5 >= 0.7 x 0.62 = 0.434
    assert found.words == "trained (0.50 of 0.62, flat)"


def test_what_still_rises_does_not():
    found = judge({}, RULE, [RISING], POOLED, "id")
    # the last sixth (rounds 11, 12): 0.48; the sixth before two thirds (rounds 7, 8): 0.365
    assert found.accuracy == pytest.approx(0.48)
    assert found.rise == pytest.approx((0.48 - 0.365) / 0.48)
    assert not found.passed
    assert found.words == "not trained yet (0.48 of 0.62, still rising)"


def test_what_is_flat_too_low_does_not():
    found = judge({}, Rule({}, share=0.9), [FLAT], POOLED, "id")
    assert (found.passed, found.words) == (False, "not trained yet (0.50 of 0.62, flat)")


def test_the_mean_over_seeds_counts_and_untested_rounds_do_not():
    seldom = [{**row, "accuracy": row["accuracy"] if row["round"] % 3 == 0 else nan} for row in FLAT]
    assert judge({}, RULE, [seldom], POOLED, "id").accuracy == 0.5
    lower = [{**row, "accuracy": row["accuracy"] / 2} for row in FLAT]
    assert judge({}, RULE, [FLAT, lower], POOLED, "id").accuracy == 0.375


def test_central_training_has_the_network_the_recipe_and_the_pooled_data(small):
    run = small(method="fedprox", hp={"mu": 0.1}, momentum=0.9, lr=0.05, clip=3.0, personal="selected")
    pooled = central(run, epochs=4)
    assert {name: getattr(pooled, name) for name in gate.RECIPE} == {name: getattr(run, name) for name in gate.RECIPE}
    assert (pooled.clients, pooled.samples, pooled.rounds, pooled.epochs) == (1, 640, 4, 1)
    assert (pooled.method, pooled.split, pooled.personal) == ("fedavg", "iid", None)
    reached = train(pooled, workers=1).rounds["accuracy"].max()
    assert reached > 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reference": {"method": "FedSGD"}}, "gate.reference: method = 'FedSGD' is not a label"),
        ({"reference": {"method": "FedAvg"}, "share": 1.2}, "gate.share: 1.2 is not valid"),
        ({"reference": {"method": "FedAvg"}, "floor": 0.5}, "gate.floor: is not a key"),
        ({"share": 0.5}, "gate.reference: is missing"),
        ({"reference": {"method": "FedBR"}, "run": {"method": "fedavg", "rate": 1}}, "rate"),
    ],
)
def test_bad_gates_are_refused_in_one_line(change, message):
    path = spec.REPRODUCE / "fedbr/fig3_convergence.toml"
    with pytest.raises(BadInput, match=r"fig3_convergence\.toml") as error:
        spec.build(path, {**spec.content_of(path), "gate": change})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """FedBR's Fig. 3 at a cpu scale of digits that trains in seconds; its reference is FedAvg."""
    path = spec.REPRODUCE / "fedbr/fig3_convergence.toml"
    small = dict(
        data="digits", split="iid", clients=6, per_round=3, model="lenet", rounds=6, epochs=1, batch=20, lr=0.1
    )
    axes = {"method": {"choices": {"FedAvg": {"method": "fedavg"}, "FedBR": {"method": "fedprox"}}}}
    claim = {"id": "fedbr-c38", "kind": "compare", "measure": "accuracy", "says": "better", "source": "Fig. 3"}
    claim["pairs"] = [{"better": {"method": "FedBR"}, "worse": {"method": "FedAvg"}}]
    content = {
        **spec.content_of(path),
        "use": [],
        "run": small,
        "axis": axes,
        "override": [],
        "reported": [],
        "claim": [claim],
    }
    content |= {"scale": {scale: {} for scale in spec.SCALES}, "gate": {"reference": {"method": "FedAvg"}, "epochs": 4}}
    del content["tune"]
    content["measure"] = [{"name": "accuracy", "kind": "final", "column": "accuracy"}]
    home = tmp_path_factory.mktemp("gate")

    def make(**rule):
        table = spec.build(path, {**content, "gate": {**content["gate"], **rule}})
        plan, known = Plan(table, "cpu", 2), Known(home / "runs", Record(home / "nothing"))
        sweep(plan.runs(), store=known.store, workers=1)
        return Study(table, "cpu", 2, known)

    return make


def test_a_study_judges_what_is_learned_only_behind_the_gate(study, tmp_path):
    trained = study(share=0.1, rise=1.0)
    (found,) = trained.gates
    assert found.passed and found.run in {run.id for run in trained.runs()}
    assert trained.verdicts[0][1].state != "not testable"
    tables.write(tmp_path / "cpu/fedbr", [trained])
    saved = pd.read_csv(tmp_path / "cpu/fedbr/fig3_convergence_gate.csv")
    assert saved["accuracy"][0] == pytest.approx(found.accuracy) and saved["run"][0] == found.run
    assert found.run in Record(tmp_path / "cpu/fedbr").runs
    untrained = study(share=1.0, rise=0.0)
    ((_, verdict),) = untrained.verdicts
    assert verdict.word == "not testable here"
    assert verdict.reason.startswith("the reference is not trained yet (0.")


def test_a_reference_may_be_no_cell_of_the_table(study, tmp_path):
    """FedBR's cell, trained as FedAvg: the gate is the same as with FedAvg's own cell, and its runs are recorded."""
    (own,) = study(share=0.1, rise=1.0).gates
    trained = study(reference={"method": "FedBR"}, run={"method": "fedavg", "lr": 0.1}, share=0.1, rise=1.0)
    (found,) = trained.gates
    assert (found.accuracy, found.central, found.run) == (own.accuracy, own.central, own.run)
    other = study(reference={"method": "FedBR"}, run={"method": "fedavg", "lr": 0.05}, share=0.1, rise=1.0)
    references = {run.id for run in other.runs() if run.lr == 0.05}
    assert len(references) == 3  # two seeds and central training
    assert other.gates[0].accuracy < own.accuracy
    tables.write(tmp_path / "cpu/fedbr", [other])
    assert references <= set(Record(tmp_path / "cpu/fedbr").runs)
    assert pd.read_csv(tmp_path / "cpu/fedbr/fig3_convergence_gate.csv")["reference"][0] == "fedavg"
    assert [cell.labels["method"] for cell in other.cells] == ["FedAvg", "FedBR"]  # no more cells than before


def test_a_panel_without_a_reference_is_withheld(study):
    trained = study(share=0.1, rise=1.0)
    (found,) = trained.gates
    trained.gates = [dataclasses.replace(found, panel={"method": "FedAvg"})]  # as if FedBR's panel had no reference
    assert trained.untrained == [({"method": "FedBR"}, "runs are still missing at FedBR")]


def test_without_the_reference_a_claim_reads_not_run_yet(study):
    trained = study(share=0.1, rise=1.0)
    trained.gates = []  # as if central training, or the reference itself, were still to come
    ((_, verdict),) = trained.verdicts
    assert (verdict.word, verdict.reason) == ("not run yet", "runs are still missing")
