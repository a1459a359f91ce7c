"""Verdicts from hand-made values: three seeds, differences whose intervals can be worked out on paper."""

import itertools

import pandas as pd
import pytest

from fedrepro.verdict import NOT_TESTABLE, conclude, judge, together

AXES = {"method": ["A", "B"], "level": ["0", "5", "9"]}


def values(a, b):
    """a[level][seed], b[level][seed]"""
    rows = []
    for method, table in (("A", a), ("B", b)):
        for (i, level), seed in itertools.product(enumerate(AXES["level"]), range(len(table[0]))):
            rows.append({"method": method, "level": level, "seed": seed, "value": table[i][seed]})
    return pd.DataFrame(rows)


CLEAR = values([[0.50, 0.51, 0.52], [0.50, 0.51, 0.52], [0.50, 0.51, 0.52]],
               [[0.49, 0.50, 0.51], [0.47, 0.48, 0.49], [0.45, 0.46, 0.47]])  # fmt: skip
NOISY = values([[0.50, 0.40, 0.60]] * 3, [[0.49, 0.50, 0.51]] * 3)
BEST = {"id": "x", "kind": "best", "measure": "m", "axis": "method", "winner": "A"}


def verdict(claim, table, scale="reduced", better="higher", reported=()):
    return judge(claim, table, scale, AXES, better, reported)["verdict"]


def test_paired_by_seed():
    # A - B is exactly 0.01, 0.03, 0.05 with every seed, though the values themselves overlap
    assert verdict(BEST, CLEAR) == "reproduced"
    assert verdict({**BEST, "winner": "B"}, CLEAR) == "contradicted"
    assert verdict(BEST, CLEAR, better="lower") == "contradicted"
    assert verdict(BEST, NOISY) == "inconclusive"


def test_above_a_number():
    claim = {"id": "x", "kind": "above", "measure": "m", "than": 0.495, "where": {"level": "5"}}
    assert verdict({**claim, "where": {"level": "5", "method": "A"}}, CLEAR) == "inconclusive"  # 0.51 +- 0.025
    assert verdict({**claim, "than": 0.48, "where": {"level": "5", "method": "A"}}, CLEAR) == "reproduced"
    assert verdict({**claim, "than": 0.6}, CLEAR) == "contradicted"
    assert verdict({**claim, "than": 0.6}, CLEAR, better="lower") == "reproduced"
    assert verdict({**claim, "where": {"level": "7"}}, CLEAR) == NOT_TESTABLE
    evidence = judge({**claim, "than": 0.48}, CLEAR, "reduced", AXES, "higher", ())["evidence"]
    assert evidence == "A − 0.48: +0.03 ± 0.0248; B − 0.48: +0 ± 0.0248"


def test_evidence_of_a_cost_is_positive_where_the_claim_holds():
    found = judge({**BEST, "winner": "B"}, CLEAR, "reduced", AXES, "lower", ())
    assert found["verdict"] == "reproduced"
    assert "0 A − B: +0.01" in found["evidence"]


def test_one_place_is_the_sum_of_others():
    table = values([[2.0, 2.2]] * 3, [[1.0, 1.1]] * 3)
    claim = {"id": "x", "kind": "sum", "axis": "method", "total": "A", "parts": ["B", "B"], "margin": 1e-6}
    assert verdict(claim, table) == "reproduced"
    assert verdict({**claim, "parts": ["B"]}, table) == "contradicted"
    assert verdict({**claim, "total": "C"}, table) == NOT_TESTABLE


def test_an_absolute_number_that_does_not_depend_on_the_scale():
    claim = {"id": "x", "kind": "absolute", "measure": "m", "tolerance": 0.1, "where": {"method": "A", "level": "0"}}
    reported = [{"method": "A", "level": "0", "measure": "m", "value": 0.52, "censored": False}]
    assert verdict(claim, CLEAR, reported=reported) == NOT_TESTABLE
    assert verdict({**claim, "any_scale": True}, CLEAR, reported=reported) == "reproduced"
    assert verdict({**claim, "any_scale": True, "tolerance": 0.001}, CLEAR, reported=reported) != "reproduced"


def test_one_seed_never_reproduces():
    one = CLEAR[CLEAR["seed"] == 0]
    assert verdict(BEST, one) == "inconclusive"


def test_interval_by_hand():
    # differences 1, 2, 3: mean 2, s = 1, t(0.975, 2) = 4.3027, half-width 4.3027 / sqrt(3) = 2.484
    found = conclude([("d", [1.0, 2.0, 3.0])])
    assert found == {"verdict": "inconclusive", "evidence": "d: +2 ± 2.48"}
    # differences 2, 2.5, 3: s = 0.5, half-width 1.242 < 2.5
    assert conclude([("d", [2.0, 2.5, 3.0])])["verdict"] == "reproduced"


def test_one_clear_contradiction_outweighs():
    assert conclude([("a", [1.0, 1.1, 1.2]), ("b", [-1.0, -1.1, -1.2])])["verdict"] == "contradicted"
    assert conclude([("a", [1.0, 1.1, 1.2]), ("b", [-1.0, 1.0, 0.0])])["verdict"] == "inconclusive"


def test_a_target_not_reached_is_inconclusive():
    found = conclude([("a", [1.0, float("nan"), 1.2])])
    assert found["verdict"] == "inconclusive"
    assert "not reached with 1 of 3 seeds" in found["evidence"]


def test_trends():
    falls = {
        "id": "x",
        "kind": "trend",
        "measure": "m",
        "axis": "level",
        "direction": "falls",
        "where": {"method": "B"},
    }
    assert verdict(falls, CLEAR) == "reproduced"
    assert verdict({**falls, "direction": "rises"}, CLEAR) == "contradicted"
    # A does not change with the level: slope 0 with every seed
    assert verdict({**falls, "where": {"method": "A"}}, CLEAR) == "inconclusive"


def test_a_gap_that_grows():
    gap = {"id": "x", "kind": "gap_trend", "measure": "m", "axis": "level", "direction": "rises",
           "of": {"method": "A"}, "over": {"method": "B"}}  # fmt: skip
    assert verdict(gap, CLEAR) == "reproduced"
    assert verdict({**gap, "direction": "falls"}, CLEAR) == "contradicted"
    # with a cost, B's lower values are better: its lead grows
    assert verdict({**gap, "of": {"method": "B"}, "over": {"method": "A"}}, CLEAR, better="lower") == "reproduced"


def test_nearly_equal():
    near = {**BEST, "kind": "near", "margin": 0.02, "where": {"level": "0"}}
    assert verdict(near, CLEAR) == "reproduced"
    assert verdict({**near, "where": {"level": "9"}}, CLEAR) == "contradicted"


def test_comparisons_and_lists_of_labels():
    pairs = [{"better": {"method": "A", "level": "5"}, "worse": {"method": "B", "level": ["5", "9"]}}]
    assert verdict({"id": "x", "kind": "compare", "measure": "m", "pairs": pairs}, CLEAR) == "reproduced"


def test_a_comparison_does_not_leave_out_missed_targets():
    missed = CLEAR.copy()
    missed.loc[(missed["method"] == "A") & (missed["level"] == "9") & (missed["seed"] == 1), "value"] = float("nan")
    pairs = [{"better": {"method": "B"}, "worse": {"method": "A"}}]
    found = judge({"id": "x", "kind": "compare", "measure": "m", "pairs": pairs}, missed, "cpu", AXES, "lower", [])
    assert found == {"verdict": "inconclusive", "evidence": "A − B: target not reached with 1 of 3 seeds"}


def test_a_margin_says_gains_little():
    pairs = [{"better": {"method": "B", "level": "0"}, "worse": {"method": "A", "level": "0"}, "what": "B − A"}]
    claim = {"id": "x", "kind": "compare", "measure": "m", "pairs": pairs, "margin": 0.2}
    assert verdict(claim, CLEAR) == "reproduced"
    assert judge(claim, CLEAR, "cpu", AXES, "higher", [])["evidence"].startswith("B − A + 0.2")


def test_ratio():
    claim = {"id": "x", "kind": "ratio", "measure": "m", "of": {"method": "A", "level": "0"},
             "over": {"method": "A", "level": "0"}, "ratio": 1.0, "tolerance": 0.01}  # fmt: skip
    assert verdict(claim, CLEAR) == "reproduced"
    assert verdict({**claim, "ratio": 1.5}, CLEAR) == "contradicted"
    assert verdict({**claim, "of": {"method": "C"}}, CLEAR) == NOT_TESTABLE


def test_absolute_numbers_only_at_paper_scale():
    claim = {"id": "x", "kind": "absolute", "measure": "m", "tolerance": 0.02, "where": {"method": "A", "level": "0"}}
    reported = [{"method": "A", "level": "0", "measure": "m", "value": 0.51, "censored": False}]
    assert verdict(claim, CLEAR, "cpu", reported=reported) == NOT_TESTABLE
    assert verdict(claim, CLEAR, "paper", reported=reported) == "inconclusive"  # 0.01, 0.02, 0.01 inside, n = 3
    assert verdict({**claim, "tolerance": 0.1}, CLEAR, "paper", reported=reported) == "reproduced"
    reported[0]["value"] = 0.9
    assert verdict(claim, CLEAR, "paper", reported=reported) == "contradicted"
    reported[0]["censored"] = True  # "1000+" is no number to be near to
    assert verdict(claim, CLEAR, "paper", reported=reported) == NOT_TESTABLE


@pytest.mark.parametrize("claim", [{**BEST, "winner": "C"}, {"id": "x", "kind": "untestable", "why": "because"}])
def test_what_cannot_be_tested(claim):
    assert verdict(claim, CLEAR) == NOT_TESTABLE


def test_each_place_is_a_comparison_of_its_own():
    table = values([[0.5, 0.51], [0.5, 0.51], [0.3, 0.31]], [[0.4, 0.41], [0.4, 0.41], [0.4, 0.41]])
    claim = {
        "id": "x",
        "kind": "compare",
        "measure": "m",
        "pairs": [{"better": {"method": "A"}, "worse": {"method": "B"}}],
    }
    assert verdict(claim, table) == "reproduced"  # the mean over the levels: 0.433 against 0.4
    found = judge({**claim, "each": ["level"]}, table, "reduced", AXES, "higher", ())
    assert found["verdict"] == "contradicted"
    assert "level=9 A − B: -0.1" in found["evidence"]


def test_several_measures_make_one_verdict():
    yes, no, open_, out = (
        {"verdict": v, "evidence": v} for v in ("reproduced", "contradicted", "inconclusive", NOT_TESTABLE)
    )
    assert together({"a": yes, "b": yes}) == {"verdict": "reproduced", "evidence": "[a] reproduced; [b] reproduced"}
    for parts, expected in [
        ((yes, no), "contradicted"), ((open_, no), "contradicted"), ((yes, open_), "inconclusive"),
        ((yes, out), "inconclusive"), ((out, out), NOT_TESTABLE),
    ]:  # fmt: skip
        assert together(dict(enumerate(parts)))["verdict"] == expected


def test_savings_by_hand():
    # A costs 75 where B costs 100: 25% saved on every level; a mean over one other is that other's
    table = values([[75.0, 75.0]] * 3, [[100.0, 100.0]] * 3)
    claim = {"id": "x", "kind": "saving", "axis": "method", "winner": "A", "tolerance": 0.01}
    for saving in ({"B": 0.25}, 0.25, {"B": 0.245}):
        assert verdict({**claim, "saving": saving}, table, "paper", "lower") == "reproduced"
        assert verdict({**claim, "saving": saving}, table, "cpu", "lower") == NOT_TESTABLE
    assert verdict({**claim, "saving": {"B": 0.33}}, table, "paper", "lower") == "contradicted"  # 100 / 75 - 1
    # against 100 and 150 the savings are 25% and 50%, their mean 37.5%; 75 / mean(100, 150) would save 40%
    more = pd.concat([table, table[table["method"] == "B"].assign(method="C", value=150.0)])
    axes = {**AXES, "method": ["A", "B", "C"]}
    for saving, expected in ((0.375, "reproduced"), (0.4, "contradicted")):
        assert judge({**claim, "saving": saving}, more, "paper", axes, "lower", ())["verdict"] == expected
    missed = table.assign(value=table["value"].where(table["method"] != "B"))
    assert verdict({**claim, "saving": 0.25}, missed, "paper", "lower") == "inconclusive"  # target not reached


def test_a_relative_gap_is_a_quotient():
    # A = 50, 72, 92 and B = 40, 60, 80 over the levels: the difference rises (10, 12, 12), the quotient falls (1.25,
    # 1.2, 1.15)
    table = values([[50.0, 50.0], [72.0, 72.0], [92.0, 92.0]], [[40.0, 40.0], [60.0, 60.0], [80.0, 80.0]])
    claim = {"id": "x", "kind": "gap_trend", "axis": "level", "direction": "falls", "of": {"method": "A"},
             "over": {"method": "B"}}  # fmt: skip
    assert verdict(claim, table) == "contradicted"
    assert verdict({**claim, "relative": True}, table) == "reproduced"
    assert verdict({**claim, "relative": True}, table, better="lower") == "reproduced"  # a quotient has no better side
    # every other one is a comparison of its own: against C, whose cost falls, A's rises
    more = pd.concat([table, table[table["method"] == "B"].assign(method="C", value=[3.0, 3.0, 2.0, 2.0, 1.0, 1.0])])
    found = judge({**claim, "relative": True, "over": {"method": ["B", "C"]}}, more, "cpu",
                  {**AXES, "method": ["A", "B", "C"]}, "lower", ())  # fmt: skip
    assert found["verdict"] == "contradicted"
    # sum (x - 14/3)(y - 1.2) = -0.45, sum (x - 14/3)^2 = 40.667: slope -0.0111
    assert (
        found["evidence"].startswith("B −slope over level: +0.0111") and "; C −slope over level: -" in found["evidence"]
    )


def test_a_tolerance_for_each_measure():
    claim = {"id": "x", "kind": "absolute", "measure": "m", "tolerance": {"m": 0.1, "other": 1e-6}, "any_scale": True}
    reported = [{"method": "A", "level": "0", "measure": "m", "value": 0.52, "censored": False}]
    assert verdict(claim, CLEAR, reported=reported) == "reproduced"
    assert verdict({**claim, "tolerance": {"m": 1e-6}}, CLEAR, reported=reported) != "reproduced"
