"""Verdicts from hand-made values: intervals and degrees of freedom that can be worked out on paper."""

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

from fedrepro.evidence import schema
from fedrepro.evidence.claims import Claim, claims_of
from fedrepro.evidence.judge import Measured, judge
from fedrepro.evidence.measures import Measure
from fedrepro.evidence.statements import Statement
from fedrepro.evidence.statistics import decide, pooled
from fedrepro.evidence.verdict import Effect, Verdict, claimed, word

AXES = {"method": ["A", "B"], "level": ["0", "5", "9"]}
NAN = float("nan")


class Anything(dict):
    """Any name is known: a claim may be about cells that a table does not have."""

    def __contains__(self, name):
        return True

    def get(self, name, default=None):
        return self


KNOWN = schema.Names(Anything(), Anything())


def text(effect: Effect) -> str:
    """FedBR − FedMLB: -0.0361 ± 0.0133"""
    if np.isnan(effect.mean):
        return f"{effect.what}: target not reached"
    value = f"{effect.mean:+.3g}" + ("" if effect.half is None else f" ± {effect.half:.3g}")
    unit = f" {effect.unit}" if effect.unit else ""
    return f"{effect.what}: {effect.bound} {value}{unit}{claimed(effect)}".replace(":  ", ": ")


def claim_of(*blocks) -> Claim:
    """A claim as a table's TOML would have it."""
    first = {"says": "so", "source": "there", "measure": "m"}
    blocks = [{**(first if i == 0 else {"measure": "m"}), **block} for i, block in enumerate(blocks)]
    (claim,) = claims_of(schema.parse(list[Statement], blocks, "claim", KNOWN))
    return claim


def measure_of(**keys) -> Measure:
    return schema.parse(Measure, {"name": "m", "column": "accuracy", "kind": "final", **keys}, "measure", KNOWN)


def values(a, b):
    """a[level][seed], b[level][seed]"""
    rows = []
    for method, table in (("A", a), ("B", b)):
        for (i, level), seed in itertools.product(enumerate(AXES["level"]), range(len(table[0]))):
            rows.append({"method": method, "level": level, "seed": seed, "value": table[i][seed]})
    return pd.DataFrame(rows)


def panel(**methods):
    """One panel: the numbers of each method, one per seed; "1000+" is a target missed after 1000."""
    rows = []
    for method, numbers in methods.items():
        for seed, number in enumerate(numbers):
            missed = isinstance(number, str)
            limit = float(number.rstrip("+")) if missed else NAN
            rows.append({"method": method, "seed": seed, "value": NAN if missed else number, "limit": limit})
    return pd.DataFrame(rows), {"method": list(methods)}


CLEAR = values([[0.50, 0.51, 0.52], [0.50, 0.51, 0.52], [0.50, 0.51, 0.52]],
               [[0.49, 0.50, 0.51], [0.47, 0.48, 0.49], [0.45, 0.46, 0.47]])  # fmt: skip
NOISY = values([[0.50, 0.40, 0.60]] * 3, [[0.49, 0.50, 0.51]] * 3)
BEST = {"id": "x", "kind": "best", "measure": "m", "axis": "method", "winner": "A"}


def judged(claim, table, scale="reduced", reported=(), axes=AXES, **measure):
    measure = {"target": 0.5, **measure} if measure.get("kind") == "to_target" else measure
    claim = claim_of(claim) if isinstance(claim, dict) else claim
    return judge(claim, Measured(table.assign(measure="m"), scale, axes, {"m": measure_of(**measure)}, reported))


def state(*args, **options):
    return judged(*args, **options).state


def test_paired_by_seed():
    # A - B is exactly 0.01, 0.03, 0.05 with every seed, though the values themselves overlap
    assert state(BEST, CLEAR) == "holds"
    assert state({**BEST, "winner": "B"}, CLEAR) == "opposite"
    assert state(BEST, CLEAR, better="lower") == "opposite"
    assert state(BEST, NOISY) == "undecided"


def test_interval_by_hand():
    # differences 1, 2, 3: mean 2, s = 1, t(0.975, 2) = 4.3027, half-width 4.3027 / sqrt(3) = 2.484
    table, axes = panel(A=[1.0, 2.0, 3.0], B=[0.0, 0.0, 0.0])
    (effect,) = judged(BEST, table, axes=axes).effects
    assert (effect.mean, effect.df, effect.state) == (2.0, 2.0, "open")
    assert effect.half == pytest.approx(2.4841, abs=1e-4)
    assert effect.p == pytest.approx(0.0742, abs=1e-4)  # 2 P(t_2 > 2 sqrt(3))
    assert text(effect) == "A − B: +2 ± 2.48"
    # with 4 seeds t(0.975, 3) = 3.1824 and 3.1824 / sqrt(4) = 1.59 < 2
    assert effect.seeds_needed == 4


def test_the_residual_is_pooled_over_the_panel():
    """By hand: methods 0, 0, 3 above one another, seed effects 0, 10, 20, and residuals that sum to zero both ways."""
    residual = np.array([[1.0, -1.0, 0.0], [-1.0, 0.0, 1.0], [0.0, 1.0, -1.0]])
    numbers = residual + np.array([[0.0], [0.0], [3.0]]) + np.array([0.0, 10.0, 20.0])
    table, axes = panel(A=numbers[2], B=numbers[0], C=numbers[1])
    for effect in judged(BEST, table, axes=axes).effects:
        assert (effect.mean, effect.df) == (3.0, 4.0)  # (3 - 1)(3 - 1)
        # s^2 = 6 / 4, standard error sqrt(1.5 x 2 / 3) = 1, t(0.975, 4) = 2.7764
        assert effect.half == pytest.approx(2.7764, abs=1e-4)
        assert effect.state == "holds"
    # those that the claim does not name are in the pool all the same
    assert judged({**BEST, "among": ["B"]}, table, axes=axes).effects[0].half == pytest.approx(2.7764, abs=1e-4)
    narrowed = {**BEST, "where": {"method": ["A", "B"]}}
    assert judged(narrowed, table, axes=axes).effects[0].half == pytest.approx(2.7764, abs=1e-4)


def test_pooled_is_the_residual_of_least_squares():
    """Against a regression on dummies of methods and seeds, which knows nothing of our formula."""
    rng = np.random.default_rng(0)
    y = rng.standard_normal((1, 5, 4))
    contrast = np.array([1.0, 0.0, -1.0, 0.0, 0.0]) / np.sqrt(2)
    mean, error, df = pooled(y, contrast)
    design = np.hstack([np.kron(np.eye(5), np.ones((4, 1))), np.kron(np.ones((5, 1)), np.eye(4))[:, 1:]])
    coefficients, squares, rank, _ = np.linalg.lstsq(design, y[0].ravel(), rcond=None)
    weights = np.append(contrast, np.zeros(3))
    variance = squares[0] / (20 - rank) * weights @ np.linalg.pinv(design.T @ design) @ weights
    assert (mean[0], error[0], df[0]) == pytest.approx((weights @ coefficients, np.sqrt(variance), 12))


def test_a_pair_whose_spread_differs_uses_its_own_variance():
    wild, quiet = [9.0, 2.0, 16.0], [0.01, 0.0, 0.02]
    four = {"A": [0.0, 0.02, 0.01], "B": [0.01, 0.01, 0.0], "C": [0.02, 0.0, 0.01], "D": [0.0, 0.0, 0.02]}
    effects = []
    for more, among in (({}, "B"), ({"E": wild}, "B"), ({"E": wild}, "E"), ({"E": quiet}, "B")):
        table, axes = panel(**four, **more)
        effects += judged({**BEST, "among": [among]}, table, axes=axes).effects
    assert [effect.df for effect in effects] == [6, 6, 2, 8]
    assert effects[0].half == effects[1].half  # a wild method outside the comparison is left out of the pool
    # equal differences are no small spread: they are judged by the panel's
    table, axes = panel(A=[1.0, 2.0, 3.0], B=[0.0, 1.0, 2.0], C=[5.0, 1.0, 2.5], D=[4.0, 4.0, 1.0])
    (effect,) = judged({**BEST, "among": ["B"]}, table, axes=axes).effects
    assert effect.half > 1
    assert effect.df == 6


def test_cells_are_averaged_before_the_residual_is_taken():
    """A comparison of means over levels: one number for each method and seed, and then as in a panel."""
    rng = np.random.default_rng(1)
    y = rng.standard_normal((3, 3, 4))  # methods, levels, seeds
    rows = [{"method": m, "level": level, "seed": s, "value": y[i, j, s]}
            for i, m in enumerate("ABC") for j, level in enumerate(AXES["level"]) for s in range(4)]  # fmt: skip
    claim = {
        "id": "x",
        "kind": "compare",
        "measure": "m",
        "pairs": [{"better": {"method": "A"}, "worse": {"method": "B"}}],
    }
    (effect,) = judged(claim, pd.DataFrame(rows), axes={"method": list("ABC"), "level": AXES["level"]}).effects
    mean, error, df = pooled(y.mean(axis=1)[None], np.array([1.0, -1.0, 0.0]) / np.sqrt(2))
    assert (effect.mean, effect.df) == pytest.approx((mean[0] * np.sqrt(2), df[0]))
    assert effect.half == pytest.approx(error[0] * np.sqrt(2) * {6: 2.4469, 3: 3.1824}[int(df[0])], rel=1e-4)


def test_a_target_is_reached_between_two_tests():
    """By hand: tested every 5 rounds, A at 10 (6 to 10) and B at 15 (11 to 15): at least 1 round apart, at most 9."""
    table, axes = panel(A=[10.0, 10.0, 10.0], B=[15.0, 15.0, 15.0])
    limits = {"better": "lower", "kind": "to_target", "column": "round", "axes": axes}
    apart = table.assign(limit=table["value"] - 4)
    (effect,) = judged(BEST, apart, **limits).effects
    assert (effect.mean, effect.bound, effect.state, text(effect)) == (5.0, "about", "holds", "B − A: about +5 ± 0")
    # B at the same test as A: anything from -4 to 4 rounds, however many seeds agree
    same = apart.assign(value=10.0, limit=6.0)
    found = judged(BEST, same, **limits)
    assert (found.state, found.effects[0].seeds_needed) == ("undecided", None)
    assert found.reason == "0 of 1 holds, 1 open; targets were reached too close together for our tests"
    # within 8 rounds of each other is not sure either: 9 is possible; within 10 is
    near = {**BEST, "kind": "near", "margin": 8.0}
    assert state(near, apart, **limits) == "undecided"
    assert state({**near, "margin": 10.0}, apart, **limits) == "holds"
    # tested in every round: nothing is left open
    assert text(judged(BEST, table.assign(limit=table["value"]), **limits).effects[0]) == "B − A: +5 ± 0"


def test_holm_by_hand():
    """Three comparisons against the claim: p = 0.01, 0.02, 0.03 become 0.03, 0.04, 0.04."""
    distance = t.isf(np.array([0.02, 0.01, 0.03]) / 2, 8)
    _, adjusted, states = decide(-distance, -distance, np.ones(3), np.full(3, 8), 0.0, np.inf)
    assert adjusted == pytest.approx([0.04, 0.03, 0.04])
    assert list(states) == ["opposite"] * 3
    _, adjusted, states = decide(-distance / 1.5, -distance / 1.5, np.ones(3), np.full(3, 8), 0.0, np.inf)
    assert list(states) == ["open"] * 3
    assert (adjusted > 0.05).all()


def test_one_clear_opposite_outweighs():
    table, axes = panel(A=[1.0, 1.1, 1.2], B=[0.0, 0.15, 0.2], C=[2.0, 2.15, 2.2])
    found = judged(BEST, table, axes=axes)
    assert (found.state, found.counts) == ("opposite", "1 of 2 hold, 1 opposite")


def test_words():
    assert word("holds", "cpu") == "holds at cpu scale"
    assert word("opposite", "reduced") == "opposite at reduced scale"
    assert {word(s, "paper") for s in ("holds", "opposite")} == {"reproduced", "contradicted"}
    assert {word(s, "cpu") for s in ("undecided", "not testable")} == {"undecided", "not testable here"}
    for scale in ("smoke", "reduced", "cpu"):
        assert judged(BEST, CLEAR, scale).word == f"holds at {scale} scale"
    assert judged(BEST, CLEAR, "paper").word == "reproduced"


def test_an_undecided_verdict_says_what_would_decide_it():
    def effect(mean, state="open", needed=None):
        return Effect("x", mean, 1.0, 0.0, np.inf, "", 2, 0.1, 1.0, state, 3, needed, "")

    def found(*effects):
        return Verdict("undecided", "cpu", effects)

    assert found(effect(1.0, needed=5), effect(1.0, needed=9), effect(2.0, "holds")).seeds_needed == 9
    assert found(effect(1.0, needed=9), effect(-1.0, needed=6), effect(-1.0, needed=4)).seeds_needed == 4
    assert found(effect(1.0, needed=9), effect(-1.0)).seeds_needed is None
    assert (
        found(effect(1.0, needed=5), effect(2.0, "holds")).reason == "1 of 2 hold, 1 open; about 5 seeds would decide"
    )
    assert "even 100 seeds" in found(effect(1.0)).reason


def test_one_seed():
    one = CLEAR[CLEAR["seed"] == 0]
    found = judged(BEST, one)
    assert (found.state, found.word) == ("one seed", "undecided (one seed)")
    assert {(e.half, e.p, e.state, e.seeds) for e in found.effects} == {(None, None, "open", 1)}
    assert "one seed" in found.reason


def test_what_two_seeds_decide_is_provisional():
    table, axes = panel(A=[1.0, 1.15, 1.2], B=[0.0, 0.1, 0.2], C=[0.2, 0.3, 0.45])
    two, three = judged(BEST, table[table["seed"] < 2], axes=axes), judged(BEST, table, axes=axes)
    assert (two.state, two.reason) == ("holds", "2 of 2 hold; two seeds: provisional")
    assert (three.state, three.reason) == ("holds", "2 of 2 hold")


def test_two_equal_numbers_may_be_chance():
    assert state(BEST, CLEAR[CLEAR["seed"] < 2]) == "undecided"
    assert state(BEST, CLEAR[CLEAR["seed"] < 2], seedless=True) == "holds"


def test_a_measure_that_no_seed_changes_is_decided_by_one_run():
    one = CLEAR[CLEAR["seed"] == 0]
    assert state(BEST, one, seedless=True) == "holds"
    assert state({**BEST, "winner": "B"}, one, seedless=True) == "opposite"
    assert state(BEST, one, seedless={"method": ["A", "B"]}) == "holds"
    assert state(BEST, one, seedless={"method": ["A"]}) == "one seed"
    # declared so, and it is not: judged as any other
    assert state(BEST, NOISY, seedless=True) == "undecided"
    # equal, and no seed will change it
    table, axes = panel(A=[1.0], B=[1.0])
    found = judged(BEST, table, axes=axes, seedless=True)
    assert (found.state, found.seeds_needed) == ("undecided", None)


@pytest.mark.parametrize(
    ("a", "b", "expected", "bound"),
    [
        ([300, 320, 310], ["1000+"] * 3, "holds", "at least"),  # at least 690, 680, 690 sooner
        ([300, 320, 310], [900, "1000+", 950], "holds", "at least"),
        (["1000+"] * 3, [300, 320, 310], "opposite", "at most"),
        ([999, 500, 10], ["1000+"] * 3, "undecided", "at least"),  # at least 1, 500, 990
        (["1000+"] * 3, ["1000+"] * 3, "undecided", ""),
        ([300, "1000+", 310], [900, "1000+", 950], "undecided", ""),
        ([600, 610, 620], ["500+"] * 3, "undecided", "at least"),  # stopped earlier: who would be first is not known
    ],
)
def test_a_target_that_was_missed(a, b, expected, bound):
    table, axes = panel(A=a, B=b)
    found = judged(BEST, table, axes=axes, better="lower", kind="to_target")
    assert (found.state, found.effects[0].bound) == (expected, bound)
    if expected == "undecided":
        assert found.reason.endswith("targets were missed")
    elif bound == "at least":
        assert text(found.effects[0]).startswith("B − A: at least +6")


def test_missed_targets_of_others_are_not_in_the_pool():
    table, axes = panel(A=[300, 320, 310], B=[400, 450, 420], C=[500, 480, 520], D=["1000+"] * 3)
    by = {e.what: e for e in judged(BEST, table, axes=axes, better="lower", kind="to_target").effects}
    assert by["B − A"].df in (2, 4)  # of A, B, C
    assert by["D − A"].df == 2


def test_above_a_number():
    claim = {"id": "x", "kind": "above", "measure": "m", "than": 0.495, "where": {"level": "5"}}
    assert state({**claim, "where": {"level": "5", "method": "A"}}, CLEAR) == "undecided"  # 0.51 +- 0.025
    assert state({**claim, "than": 0.48, "where": {"level": "5", "method": "A"}}, CLEAR) == "holds"
    assert state({**claim, "than": 0.6}, CLEAR) == "opposite"
    assert state({**claim, "than": 0.6}, CLEAR, better="lower") == "holds"
    assert state({**claim, "where": {"level": "7"}}, CLEAR) == "not testable"
    assert [text(e) for e in judged({**claim, "than": 0.48}, CLEAR).effects] == [
        "A: +0.51 ± 0.0248 (claimed: above 0.48)",
        "B: +0.48 ± 0.0248 (claimed: above 0.48)",
    ]


def test_the_effect_on_a_cost_is_positive_where_the_claim_holds():
    found = judged({**BEST, "winner": "B"}, CLEAR, better="lower")
    assert found.state == "holds"
    assert {e.what: round(e.mean, 9) for e in found.effects} == {"0 A − B": 0.01, "5 A − B": 0.03, "9 A − B": 0.05}


def test_one_place_is_the_sum_of_others():
    table = values([[2.0, 2.2, 2.4]] * 3, [[1.0, 1.1, 1.2]] * 3)
    claim = {"id": "x", "kind": "sum", "axis": "method", "total": "A", "parts": ["B", "B"], "margin": 1e-6}
    assert state(claim, table) == "holds"
    assert state({**claim, "parts": ["B"]}, table) == "opposite"
    assert state({**claim, "total": "C"}, table) == "not testable"


def test_trends():
    falls = {"id": "x", "kind": "trend", "measure": "m", "axis": "level", "direction": "falls"}
    assert state({**falls, "where": {"method": "B"}}, CLEAR) == "holds"
    assert state({**falls, "where": {"method": "B"}, "direction": "rises"}, CLEAR) == "opposite"
    # A does not change with the level: slope 0 with every seed
    assert state({**falls, "where": {"method": "A"}}, CLEAR) == "undecided"
    # B falls by 0.02 from 0 to 5 and from 5 to 9: deviations of x from their mean -14/3, 1/3, 13/3
    (effect,) = judged({**falls, "where": {"method": "B"}}, CLEAR).effects
    slope = (-14 * 0.5 + 0.48 + 13 * 0.46) / 3 / ((14**2 + 1 + 13**2) / 9)
    assert effect.mean == pytest.approx(slope)


def test_a_gap_that_grows():
    gap = {"id": "x", "kind": "gap_trend", "measure": "m", "axis": "level", "direction": "rises",
           "of": {"method": "A"}, "over": {"method": "B"}}  # fmt: skip
    assert state(gap, CLEAR) == "holds"
    assert state({**gap, "direction": "falls"}, CLEAR) == "opposite"
    # with a cost, B's lower values are better: its lead grows
    assert state({**gap, "of": {"method": "B"}, "over": {"method": "A"}}, CLEAR, better="lower") == "holds"


def test_nearly_equal():
    near = {**BEST, "kind": "near", "margin": 0.02, "where": {"level": "0"}}
    assert state(near, CLEAR) == "holds"
    assert state({**near, "where": {"level": "9"}}, CLEAR) == "opposite"
    # differences -0.03, 0, +0.03: large each, 0 on average; noise alone must not speak against the claim
    table, axes = panel(A=[0.50, 0.53, 0.56], B=[0.53, 0.53, 0.53])
    found = judged({**BEST, "kind": "near", "margin": 0.01}, table, axes=axes)
    assert (found.state, found.effects[0].p_opposite) == ("undecided", 1.0)
    assert text(found.effects[0]).endswith("(claimed: within ±0.01)")


def test_comparisons_and_lists_of_labels():
    pairs = [{"better": {"method": "A", "level": "5"}, "worse": {"method": "B", "level": ["5", "9"]}}]
    assert state({"id": "x", "kind": "compare", "measure": "m", "pairs": pairs}, CLEAR) == "holds"


@pytest.mark.parametrize(
    ("pair", "names"),
    [
        ({"better": {"level": "0"}, "worse": {"level": ["5", "9"]}}, ["level=0 − level=5", "level=0 − level=9"]),
        ({"better": {"level": ["0", "5"]}, "worse": {"level": ["5", "9"]}}, ["level=0 − level=5", "level=5 − level=9"]),
    ],
)
def test_a_pair_for_each_label(pair, names):
    """One side against each of the other, or two lists side by side; `where` holds for both."""
    claim = {"id": "x", "kind": "compare", "pairs": [{**pair, "where": {"method": "B"}, "each": "level"}]}
    found = judged(claim, CLEAR)
    assert [effect.what for effect in found.effects] == names
    means = {"level=0 − level=5": 0.02, "level=0 − level=9": 0.04, "level=5 − level=9": 0.02}
    assert [round(effect.mean, 9) for effect in found.effects] == [means[name] for name in names]


def test_a_margin_says_gains_little():
    pairs = [{"better": {"method": "B", "level": "0"}, "worse": {"method": "A", "level": "0"}, "what": "B − A"}]
    claim = {"id": "x", "kind": "compare", "measure": "m", "pairs": pairs, "margin": 0.2}
    found = judged(claim, CLEAR)
    assert found.state == "holds"
    assert text(found.effects[0]) == "B − A: -0.01 ± 0 (claimed: above -0.2)"


def test_most_of_several_are_better_by_so_much():
    # against D = 0: A is 3, B 2, C -1 above; two of three are at least 2 above it
    table, axes = panel(A=[3.0, 3.1, 3.0], B=[2.0, 2.1, 1.9], C=[-1.0, -1.0, -1.1], D=[0.0, 0.0, 0.0])
    pair = {"better": {"method": ["A", "B", "C"]}, "worse": {"method": "D"}, "most": "method"}
    claim = {"id": "x", "kind": "compare", "pairs": [{**pair, "by": 1.5}]}
    (effect,) = judged(claim, table, axes=axes).effects
    assert (effect.mean, effect.low, effect.state) == (2.0, 1.5, "holds")
    assert state({**claim, "pairs": [{**pair, "by": 2.5}]}, table, axes=axes) == "opposite"
    table.loc[table["method"] == "B", "value"] = NAN  # a missed target is not better
    assert judged(claim, table, axes=axes).effects[0].mean == pytest.approx(-1.0333, abs=1e-4)


def test_ratio():
    claim = {"id": "x", "kind": "ratio", "measure": "m", "of": {"method": "A", "level": "0"},
             "over": {"method": "A", "level": "0"}, "ratio": 1.0, "tolerance": 0.01}  # fmt: skip
    assert state(claim, CLEAR) == "holds"
    assert state({**claim, "ratio": 1.5}, CLEAR) == "opposite"
    assert state({**claim, "of": {"method": "C"}}, CLEAR) == "not testable"


def test_cells_that_are_planned_are_not_run_yet():
    claim = claim_of({"id": "x", "kind": "ratio", "measure": "m", "of": {"method": "C", "level": "0"},
                      "over": {"method": "A", "level": "0"}, "ratio": 1.0, "tolerance": 0.01})  # fmt: skip
    known = Measured(CLEAR.assign(measure="m"), "cpu", AXES, {"m": measure_of()})
    here = [{"method": method, "level": "0"} for method in ("A", "B")]
    assert judge(claim, replace(known, planned=here)).reason == "the cpu scale does not have these cells"
    found = judge(claim, replace(known, planned=[*here, {"method": "C", "level": "0"}]))
    assert (found.word, found.reason) == ("not run yet", "runs are still missing")


def test_an_average_over_too_few_cells_contradicts_nothing():
    """A is 1, 3 and 5 points better at levels 0, 5 and 9, where planned; the claim says B."""
    pair = {"better": {"method": "B"}, "worse": {"method": "A"}}
    claim = claim_of({"id": "x", "kind": "compare", "measure": "m", "pairs": [pair]})
    every = [{"method": method, "level": level} for method in "AB" for level in AXES["level"]]
    part = CLEAR[CLEAR["level"] != AXES["level"][0]].assign(measure="m")
    known = "paper", {**AXES, "level": AXES["level"][1:]}, {"m": measure_of()}
    found = judge(claim, Measured(part, *known, paper_cells=every, planned=every))
    assert (found.state, found.effects[0].mean < 0, found.effects[0].state) == ("undecided", True, "open")
    assert found.reason == "0 of 1 holds, 1 open; averages lack cells that are still to be run"
    # all that this scale plans: opposite there
    fewer = [cell for cell in every if cell["level"] != AXES["level"][0]]
    assert judge(claim, Measured(part, *known, paper_cells=every, planned=fewer)).state == "opposite"
    # the other way round it holds, in part
    pairs = [{"better": {"method": "A"}, "worse": {"method": "B"}}]
    claim = claim_of({"id": "x", "kind": "compare", "measure": "m", "pairs": pairs})
    assert judge(claim, Measured(part, *known, paper_cells=every, planned=fewer)).state == "holds in part"
    # one comparison per level is no average: what was run decides
    claim = claim_of({"id": "x", "kind": "compare", "measure": "m", "pairs": [pair], "each": ["level"]})
    assert judge(claim, Measured(part, *known, paper_cells=every, planned=every)).state == "opposite"


def test_a_claim_is_opposite_only_under_both_readings():
    better, worse, same = [0.50, 0.51, 0.52], [0.45, 0.46, 0.47], [0.51, 0.50, 0.52]

    def found(first, second):
        cells = {("A", "one"): better, ("B", "one"): first, ("A", "two"): better, ("B", "two"): second}
        rows = [{"method": m, "as": r, "seed": i, "value": v} for (m, r), vs in cells.items() for i, v in enumerate(vs)]
        axes = {"method": ["A", "B"], "as": ["one", "two"]}
        claim = claim_of({**BEST, "winner": "B"})
        return judge(
            claim, Measured(pd.DataFrame(rows).assign(measure="m"), "cpu", axes, {"m": measure_of()}, readings="as")
        )

    assert found(worse, worse).state == "opposite"
    best = [0.6, 0.61, 0.62]
    assert found(best, best).state == "holds"
    assert found(worse, same).state == "undecided"
    depends = "it depends on the reading: opposite with one, undecided with two"
    assert found(worse, same).reason.endswith(f"{depends}; even 100 seeds would not decide")
    assert found(worse, best).reason.endswith("it depends on the reading: opposite with one, holds with two")
    assert found(same, best).state == "undecided"


def test_a_reading_still_to_be_run_may_save_the_claim():
    """B is worse than A under the first reading; nothing is known yet of the second."""
    values = {"A": [0.50, 0.51, 0.52], "B": [0.45, 0.46, 0.47]}
    rows = [{"method": m, "as": "one", "seed": i, "value": v} for m, vs in values.items() for i, v in enumerate(vs)]
    axes = {"method": ["A", "B"], "as": ["one"]}

    def found(readings):
        planned = [{"method": method, "as": reading} for method in "AB" for reading in readings]
        known = pd.DataFrame(rows).assign(measure="m"), "cpu", axes, {"m": measure_of()}
        return judge(claim_of({**BEST, "winner": "B"}), Measured(*known, planned=planned, readings="as"))

    assert found(["one"]).state == "opposite"
    assert found(["one", "two"]).state == "undecided"
    assert found(["one", "two"]).reason.endswith("opposite with one, runs are still missing with two")


def test_a_lead_by_hand():
    """A - B is 0.01, 0.03 and 0.05 with every seed: 0.03 on average."""
    claim = {"id": "x", "kind": "lead", "measure": "m", "of": {"method": "A"}, "over": {"method": "B"}, "lead": 0.03}
    assert state({**claim, "tolerance": 0.005}, CLEAR, "cpu") == "not testable"
    assert state({**claim, "tolerance": 0.005}, CLEAR, "paper") == "holds"
    assert state({**claim, "lead": 0.04, "tolerance": 0.005}, CLEAR, "paper") == "opposite"
    assert state({**claim, "tolerance": 0.005, "each": ["level"]}, CLEAR, "paper") == "opposite"
    assert state({**claim, "tolerance": 0.025, "each": ["level"]}, CLEAR, "paper") == "holds"
    assert state({**claim, "lead": -0.03, "tolerance": 0.005}, CLEAR, "paper", better="lower") == "holds"


def test_absolute_numbers_only_at_paper_scale():
    claim = {"id": "x", "kind": "absolute", "measure": "m", "tolerance": 0.02, "where": {"method": "A", "level": "0"}}
    reported = [{"method": "A", "level": "0", "measure": "m", "value": 0.51, "censored": False}]
    assert state(claim, CLEAR, "cpu", reported) == "not testable"
    assert state({**claim, "any_scale": True, "tolerance": 0.1}, CLEAR, "cpu", reported) == "holds"
    assert state(claim, CLEAR, "paper", reported) == "undecided"  # 0.51 +- 0.025
    assert state({**claim, "tolerance": 0.1}, CLEAR, "paper", reported) == "holds"
    reported[0]["value"] = 0.9
    assert state(claim, CLEAR, "paper", reported) == "opposite"
    reported[0]["censored"] = True  # "1000+" is no number to be near to
    assert state(claim, CLEAR, "paper", reported) == "not testable"


@pytest.mark.parametrize("claim", [{**BEST, "winner": "C"}, {"id": "x", "kind": "untestable", "why": "because"}])
def test_what_cannot_be_tested(claim):
    assert state(claim, CLEAR) == "not testable"


def test_what_is_learned_can_be_withheld():
    why = "the reference is not trained yet (0.28 of 0.61, still rising)"
    for keys, state in (
        ({"column": "accuracy", "kind": "final"}, "not testable"),
        ({"column": "bytes", "kind": "to_target", "target": 0.5}, "not testable"),
        ({"column": "loss", "kind": "stability", "window": 5}, "not testable"),
        ({"column": "bytes", "kind": "total"}, "holds"),
        ({"column": "client_flops", "kind": "mean"}, "holds"),
    ):
        measure = measure_of(**keys)
        found = judge(
            claim_of(BEST), Measured(CLEAR.assign(measure="m"), "cpu", AXES, {"m": measure}, untrained=[({}, why)])
        )
        assert (found.state, measure.learned) == (state, state == "not testable")
        assert found.reason == (why if measure.learned else "3 of 3 hold")


def test_a_panel_that_is_not_trained_leaves_the_others():
    measures, why = {"m": measure_of()}, "not trained at level 9"
    found = judge(
        claim_of(BEST), Measured(CLEAR.assign(measure="m"), "cpu", AXES, measures, untrained=[({"level": "9"}, why)])
    )
    assert (found.state, found.counts) == ("undecided", "2 of 2 hold")  # the claim is about three levels
    assert found.reason.endswith(why)
    claim = claim_of({**BEST, "where": {"level": ["0", "5"]}})
    assert (
        judge(
            claim, Measured(CLEAR.assign(measure="m"), "cpu", AXES, measures, untrained=[({"level": "9"}, why)])
        ).state
        == "holds"
    )


def test_each_place_is_a_comparison_of_its_own():
    table = values([[0.5, 0.51, 0.52], [0.5, 0.51, 0.52], [0.3, 0.31, 0.32]], [[0.4, 0.41, 0.42]] * 3)
    pairs = [{"better": {"method": "A"}, "worse": {"method": "B"}}]
    claim = {"id": "x", "kind": "compare", "measure": "m", "pairs": pairs}
    assert state(claim, table) == "holds"  # the mean over the levels: 0.443 against 0.41
    found = judged({**claim, "each": ["level"]}, table)
    assert (found.state, found.counts) == ("opposite", "2 of 3 hold, 1 opposite")
    assert [text(e) for e in found.effects if e.state == "opposite"] == ["level=9 A − B: -0.1 ± 0"]


def test_a_claim_on_several_measures():
    """Holm counts the comparisons of all of them, and what cannot be judged leaves the rest undecided at best."""
    both = pd.concat([CLEAR.assign(measure="m"), CLEAR.assign(measure="cost")])
    cost = measure_of(name="cost", column="bytes", kind="total", better="lower")
    claim, measures = claim_of({**BEST, "measure": ["m", "cost"]}), {"m": measure_of(), "cost": cost}
    found = judge(claim, Measured(both, "cpu", AXES, measures))
    assert (found.state, found.counts) == ("opposite", "3 of 6 hold, 3 opposite")
    assert [effect.what for effect in found.effects][2:4] == ["[m] 9 A − B", "[cost] 0 B − A"]
    measures["cost"] = replace(cost, better="higher")
    assert judge(claim, Measured(both, "cpu", AXES, measures)).state == "holds"
    held = judge(claim, Measured(both, "cpu", AXES, measures, untrained=[({}, "not trained yet")]))
    assert (held.state, held.counts) == ("undecided", "3 of 3 hold")
    assert held.reason.endswith("not testable here: not trained yet")


def test_savings_by_hand():
    # A costs 75 where B costs 100: 25% saved on every level; a mean over one other is that other's
    table = values([[75.0] * 3] * 3, [[100.0] * 3] * 3)
    claim = {"id": "x", "kind": "saving", "axis": "method", "winner": "A", "tolerance": 0.01}
    for saving in ({"B": 0.25}, 0.25, {"B": 0.245}):
        assert state({**claim, "saving": saving}, table, "paper", better="lower") == "holds"
        assert state({**claim, "saving": saving}, table, "cpu", better="lower") == "not testable"
    assert state({**claim, "saving": {"B": 0.33}}, table, "paper") == "opposite"  # 100 / 75 - 1
    # against 100 and 150 the savings are 25% and 50%, their mean 37.5%; 75 / mean(100, 150) would save 40%
    more = pd.concat([table, table[table["method"] == "B"].assign(method="C", value=150.0)])
    axes = {**AXES, "method": ["A", "B", "C"]}
    for saving, expected in ((0.375, "holds"), (0.4, "opposite")):
        assert state({**claim, "saving": saving}, more, "paper", axes=axes) == expected
    missed = table.assign(value=table["value"].where(table["method"] != "B"))
    assert state({**claim, "saving": 0.25}, missed, "paper") == "undecided"  # target not reached


def test_a_relative_gap_is_a_quotient():
    # A = 50, 72, 92 and B = 40, 60, 80 over the levels: the difference rises (10, 12, 12), the quotient falls (1.25,
    # 1.2, 1.15)
    table = values([[50.0] * 3, [72.0] * 3, [92.0] * 3], [[40.0] * 3, [60.0] * 3, [80.0] * 3])
    claim = {"id": "x", "kind": "gap_trend", "axis": "level", "direction": "falls", "of": {"method": "A"},
             "over": {"method": "B"}}  # fmt: skip
    assert state(claim, table) == "opposite"
    assert state({**claim, "relative": True}, table) == "holds"
    assert state({**claim, "relative": True}, table, better="lower") == "holds"  # a quotient has no better side
    # every other one is a comparison of its own: against C, whose cost falls, A's rises
    more = pd.concat([table, table[table["method"] == "B"].assign(method="C", value=np.repeat([3.0, 2.0, 1.0], 3))])
    claim = {**claim, "relative": True, "over": {"method": ["B", "C"]}}
    found = judged(claim, more, axes={**AXES, "method": ["A", "B", "C"]}, better="lower")
    assert [(e.what, e.state) for e in found.effects] == [
        ("slope of A / B over level", "holds"),
        ("slope of A / C over level", "opposite"),
    ]
    assert found.effects[0].mean == pytest.approx(-0.45 / 40.667, rel=1e-4)  # sum (x - 14/3)(y - 1.2), sum (x - 14/3)^2


def test_a_tolerance_for_each_measure():
    claim = {"id": "x", "kind": "absolute", "measure": "m", "tolerance": {"m": 0.1, "other": 1e-6}, "any_scale": True}
    reported = [{"method": "A", "level": "0", "measure": "m", "value": 0.52, "censored": False}]
    assert state(claim, CLEAR, reported=reported) == "holds"
    assert state({**claim, "tolerance": {"m": 1e-6}}, CLEAR, reported=reported) != "holds"


@pytest.mark.parametrize("direction", ["falls", "rises"])
def test_rounding_gives_equal_quotients_no_slope(direction):
    """FedBR's Fig. 7: the time of a fixed number of rounds may be the same at every level."""
    table = values([[45.4321, 45.4321]] * 3, [[33.7, 33.7]] * 3)
    claim = {"id": "x", "kind": "gap_trend", "measure": "m", "axis": "level", "direction": direction, "relative": True,
             "of": {"method": "A"}, "over": {"method": "B"}}  # fmt: skip
    assert [effect.mean for effect in judged(claim, table).effects] == [0.0]
    assert state(claim, table) != "holds"


def test_blocks_of_a_claim_are_judged_together():
    """The second speaks against it; alone, the first would hold."""
    found = judged(claim_of(BEST, {**BEST, "winner": "B", "where": {"level": "9"}}), CLEAR)
    assert (found.state, found.counts) == ("opposite", "3 of 4 hold, 1 opposite")


MOST = {
    "id": "x",
    "kind": "compare",
    "most": True,
    "each": ["level"],
    "pairs": [{"better": {"method": "A"}, "worse": {"method": "B"}}],
}


def test_most_cases_by_a_partial_conjunction():
    # two of three must hold: (3 - 2 + 1) times the second smallest p at most 5%
    two = values([[0.50, 0.51, 0.52], [0.50, 0.51, 0.52], [0.50, 0.40, 0.60]],
                 [[0.40, 0.41, 0.42], [0.40, 0.41, 0.42], [0.49, 0.50, 0.51]])  # fmt: skip
    assert state(MOST, two) == "holds"
    assert state({**MOST, "most": False}, two) == "undecided"
    one = values([[0.50, 0.51, 0.52], [0.50, 0.40, 0.60], [0.50, 0.40, 0.60]],
                 [[0.40, 0.41, 0.42], [0.49, 0.50, 0.51], [0.49, 0.50, 0.51]])  # fmt: skip
    assert state(MOST, one) == "undecided"
    assert state({**MOST, "pairs": [{"better": {"method": "B"}, "worse": {"method": "A"}}]}, two) == "opposite"
    assert state(MOST, values([[0.5]] * 3, [[0.4]] * 3)) == "one seed"


def test_one_case_says_nothing_against_most():
    """One of three planned cases is the opposite; the claim may still hold in the two others."""
    claim, measures = claim_of({**MOST, "pairs": [{"better": {"method": "B"}, "worse": {"method": "A"}}]}), measure_of()
    table = CLEAR.assign(measure="m")
    cells = [{"method": m, "level": level} for m in AXES["method"] for level in AXES["level"]]
    for levels, expected in ((["9"], "undecided"), (["5", "9"], "opposite"), (AXES["level"], "opposite")):
        part = table[table["level"].isin(levels)]
        known = Measured(part, "cpu", {**AXES, "level": levels}, {"m": measures}, planned=cells, paper_cells=cells)
        found = judge(claim, known)
        assert found.state == expected
        assert found.reason.endswith("other cases are still to be run") is (expected == "undecided")


def test_part_of_the_papers_table_holds_in_part():
    cells = [{"method": m, "level": level} for m in ("A", "B", "C", "D") for level in AXES["level"]]
    measures, claim = {"m": measure_of()}, claim_of(BEST)
    found = judge(claim, Measured(CLEAR.assign(measure="m"), "cpu", AXES, measures, paper_cells=cells))
    assert (found.word, found.reason) == ("holds in part at cpu scale", "3 of 3 hold (the paper's table has 9)")
    assert replace(found, scale="paper").word == "reproduced in part"
    whole = judge(claim, Measured(CLEAR.assign(measure="m"), "cpu", AXES, measures, paper_cells=cells[:6]))
    assert (whole.word, whole.reason) == ("holds at cpu scale", "3 of 3 hold")
    # as many comparisons as the paper's table makes, but one is our own, at a level that the paper does not have
    theirs = [cell for cell in cells[:6] if cell["level"] != "9"] + [{"method": m, "level": "99"} for m in "AB"]
    other = judge(claim, Measured(CLEAR.assign(measure="m"), "cpu", AXES, measures, paper_cells=theirs))
    assert other.word == "holds in part at cpu scale"
    against = judge(
        claim_of({**BEST, "winner": "B"}),
        Measured(CLEAR.assign(measure="m"), "paper", AXES, measures, paper_cells=cells),
    )
    assert against.word == "contradicted"  # one comparison is enough


def test_a_seed_with_one_side_only_is_not_compared():
    """A run without its counterpart is neither a missed target nor a reason to drop the seed elsewhere."""
    claim = claim_of({"id": "x", "kind": "best", "axis": "method", "winner": "A"})
    whole = values([[5, 6, 7.5], [5, 6, 7.5], [5, 6, 7.5]], [[4, 4, 5], [4, 4.5, 5], [4, 4, 5]])
    missing = whole.drop(whole.index[(whole["method"] == "B") & (whole["level"] == "9") & (whole["seed"] == 2)])
    found, complete = judged(claim, missing), judged(claim, whole)
    assert [effect.seeds for effect in found.effects] == [3, 3, 2]
    assert [effect.mean for effect in found.effects[:2]] == [effect.mean for effect in complete.effects[:2]]
    alone = missing.loc[(missing["level"] == "9") & (missing["seed"] < 2)]
    (expected,) = judged(claim, alone).effects
    assert found.effects[2].mean == expected.mean == 1.5 and found.effects[2].half == expected.half
    assert "targets were missed" not in found.reason


def test_cells_without_a_common_seed_are_not_compared():
    claim = claim_of({"id": "x", "kind": "best", "axis": "method", "winner": "A"})
    table = values([[5, 6]] * 3, [[4, 4]] * 3)
    apart = table.loc[(table["level"] == "0") & ((table["method"] == "A") == (table["seed"] == 0))]
    assert judged(claim, apart).state == "not testable" and not judged(claim, apart).effects
