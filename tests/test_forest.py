"""The forest plot and the matrix: the paper's difference by its own CSV, ours by hand from the values."""

import csv
import re
from dataclasses import replace
from types import SimpleNamespace as Namespace

import pytest

import results
from fedrepro.evidence import driver, forest, matrix, page, spec, statements
from fedrepro.evidence.contrasts import with_interval
from fedrepro.evidence.record import Record
from fedrepro.evidence.study import Study

LEVELS = {"fedavg": 0.50, "fedprox": 0.503, "fedmlb": 0.518, "fedbr": 0.49, "moon": 0.495}


def level(run):
    """Central training comes to 62%; where the same ten clients always take part nothing is trained."""
    if run.clients == 1:
        return 0.62
    return LEVELS.get(run.method, 0.5) - 0.3 * (run.clients == 10)


@pytest.fixture(scope="module")
def source(smoke):
    return results.Made(Record(smoke / "results/smoke/fedbr"), level)


@pytest.fixture(scope="module")
def fedmlb(source):
    return Study("fedmlb/table2_local_objectives", "cpu", 3, source)


@pytest.fixture(scope="module")
def fedbr(source):
    return Study("fedbr/fig3_convergence", "cpu", 3, source)


def accuracies(study, **labels):
    rows = study.of("accuracy")
    for axis, label in labels.items():
        rows = rows[rows[axis] == label]
    return rows.set_index("seed")["value"]


def test_the_papers_difference_is_that_of_its_table(fedmlb):
    with open(spec.REPRODUCE / "fedmlb/reported/table2.csv", newline="") as file:
        printed = {
            line["method"]: float(line["value"])
            for line in csv.DictReader(file)
            if line["clients"] == "100" and line["round"] == "1000" and line["metric"].startswith("test_accuracy")
        }
    rows = [row for row in forest.rows(fedmlb) if row.pair and row.contrast.measure.name == "accuracy"]
    own = [row for row in rows if "CIFAR-100" in row.place]
    found = {row.pair[2]: row for row in own if row.pair[1] == "FedMLB"}
    assert set(found) == set(fedmlb.axes["method"]) - {"FedMLB"}
    assert all(row.paper is None for row in rows if row not in own)  # the paper has no CIFAR-10
    for row in own:
        _, method, baseline = row.pair
        assert 100 * row.paper == pytest.approx(printed[method] - printed[baseline])
    assert round(100 * found["FedAvg"].paper, 2) == 6.75  # 54.58 - 47.83


def test_ours_is_the_mean_difference_over_seeds(fedmlb):
    for row in forest.rows(fedmlb):
        if row.pair and row.contrast.measure.name == "accuracy":
            (dataset,) = row.place
            sides = [accuracies(fedmlb, method=method, dataset=dataset) for method in row.pair[1:]]
            ours = sides[0] - sides[1]
            assert row.effect.mean == pytest.approx(ours.mean(), abs=1e-12)
            assert len(row.runs) == 2 * 3 and row.judged
            assert ("fedmlb-c08" in row.claims) == (row.pair[1] == "FedMLB")


def test_what_the_gate_refused_is_hollow(fedbr):
    """Both readings are drawn; only the trained one is judged, and only it is in the verdict."""
    rows = [row for row in forest.rows(fedbr) if row.contrast.measure.name == "accuracy"]
    assert {row.place[0]: row.judged for row in rows} == {"sampled clients": True, "all clients": False}
    verdict = dict((claim.id, found) for claim, found in fedbr.verdicts)["fedbr-c04"]
    assert not any("all clients" in effect.what for effect in verdict.effects)
    drawn = forest.plot([(row, "") for row in rows])
    assert drawn.count('<circle class="ours hollow"') - 1 == sum(
        not row.judged for row in rows
    )  # and one in the legend
    assert drawn.count("– not judged") == sum(not row.judged for row in rows)


def test_every_row_has_words_and_leads_to_its_claim_and_runs(fedmlb):
    rows = forest.rows(fedmlb)
    drawn = forest.plot([(row, "fedmlb.html") for row in rows])
    assert drawn.count('role="img"><title>') == len(rows)
    for row in rows:
        assert f'href="fedmlb.html#{row.claims[0]}-cpu"' in drawn and f"#runs-{'.'.join(row.runs)}" in drawn
    assert "FedMLB − FedAvg, CIFAR-100: ours +" in drawn and "the paper +6.75 points" in drawn


@pytest.mark.parametrize("state, mean, said", [("open", -0.02, True), ("open", 0.0, False), ("opposite", -0.02, False)])
def test_an_interval_left_of_zero_that_is_undecided_is_explained(fedmlb, state, mean, said):
    row = forest.rows(fedmlb)[0]
    row = replace(row, effect=replace(row.effect, state=state, mean=mean, half=0.01, low=0.0))
    assert (forest.HOLM in forest.plot([(row, "")])) is said


def test_points_lie_where_their_numbers_say(fedmlb):
    (row,) = [row for row in forest.rows(fedmlb) if row.pair == ("method", "FedMLB", "FedAvg") and row.paper][:1]
    drawn = forest._drawing(row, -2.0, 8.0, [-2.0, 0.0, 8.0], "")
    left, width = forest.EDGE, forest.WIDTH - 2 * forest.EDGE

    def at(value):
        return pytest.approx(left + width * (value + 2) / 10, abs=0.06)

    assert float(re.search(r'circle class="ours" cx="([\d.]+)"', drawn)[1]) == at(100 * row.effect.mean)
    assert float(re.search(r'class="theirs" d="M([\d.]+)', drawn)[1]) == at(100 * row.paper)
    ends = re.search(r'path class="ours" d="M([\d.]+) [\d.]+H([\d.]+)"', drawn)
    assert float(ends[1]) == at(100 * (row.effect.mean - row.effect.half))
    assert float(ends[2]) == at(100 * (row.effect.mean + row.effect.half))
    assert "L" in forest._point(20.0, -2.0, 8.0, "", round_=True)  # beyond the axis: an arrow, no circle


def test_a_comparison_of_several_claims_is_shown_as_the_one_that_it_decides(fedmlb):
    """Open in one claim, which corrects for more comparisons, and opposite in another, which claims the same."""
    row = forest.rows(fedmlb)[0]
    still, against, other = (
        replace(row, effect=replace(row.effect, state=state, low=low))
        for state, low in (("open", 0.0), ("opposite", 0.0), ("opposite", 0.01))
    )
    assert against.settles(still) and not still.settles(against)
    assert not other.settles(still)  # it claims something else


def test_the_matrix_has_methods_against_baselines(fedbr):
    rows = forest.rows(fedbr)
    table = matrix.table(rows)
    heads = re.findall(r'<th scope="col">([^<]+)</th>', table)[2:]
    assert set(heads) == set(fedbr.axes["method"]) - {"FedBR"}
    for row in rows:
        shown = with_interval(100 * row.effect.mean, 100 * row.effect.half, "+")
        assert f'href="#runs-{".".join(row.runs)}">{shown}</a>' in table
    assert table.count("not judged: the reference is not trained yet") == 2 * sum(not row.judged for row in rows)
    assert matrix.table([]) == ""


def test_one_seed_is_its_own_state(source):
    rows = forest.rows(Study("fedmlb/table2_local_objectives", "cpu", 1, source))
    assert {row.state for row in rows} == {"one seed"} and "1 one seed" in forest.plot([(rows[0], "")])


def test_the_drivers_summary_says_how_far_methods_are_ahead_of_the_reference(fedmlb, fedbr):
    own = {"dataset": "CIFAR-100"}
    ahead = accuracies(fedmlb, method="FedMLB", **own) - accuracies(fedmlb, method="FedAvg", **own)
    line = next(line for line in driver._leads(fedmlb) if "CIFAR-100" in line)
    assert line.strip().startswith(f"FedMLB − FedAvg, CIFAR-100: +{100 * ahead.mean():.2f}")
    assert line.endswith("points (the paper: +6.75 points)")
    sampled, everyone = driver._leads(fedbr)
    assert "FedBR − FedAvg, sampled clients: −" in sampled and "not judged" not in sampled
    assert "all clients" in everyone and everyone.endswith("(not judged: the reference is not trained)")


def test_numbers_read_without_powers_of_ten():
    assert [with_interval(x, None) for x in (269164.2, 3742.1, 61.52, -0.5)] == ["269,164", "3,742", "61.52", "−0.5"]
    assert [with_interval(x, None, "+") for x in (3742.1, 61.52)] == ["+3,742", "+61.5"]


def test_a_value_has_no_sign_and_a_difference_has(fedmlb):
    row = forest.rows(fedmlb)[0]
    assert re.match(r"[+−]\d+\.\d+ ± \d+\.\d+ points$", row.contrast.shown(row.effect.mean, row.effect.half))
    level = statements.Above(id="x", measure=("accuracy",), than=0.4)
    assert replace(row.contrast, statement=level).shown(0.471, 0.002) == "47.10 ± 0.20 %"


@pytest.mark.parametrize(("state", "said"), page.ANSWERS.items())
def test_the_answer_stands_behind_the_question(fedmlb, state, said):
    row = Namespace(state=state, study=fedmlb)
    shown = page._answered(Namespace(answers=[row]), "<strong>Does it?</strong> <strong>So</strong>")
    assert re.fullmatch(
        rf"<strong>Does it\?</strong> <span class=\"badge .*?\">\W*\d?\W*{said} <small>cpu</small></span> .*So.*", shown
    )
