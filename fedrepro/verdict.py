"""What measured values say about a paper's claim: paired by seed, judged by a 95% interval.

reproduced    every comparison the claim makes has an interval on the claimed side of no effect
contradicted  at least one has its interval on the other side
inconclusive  anything else; always so with one seed
not testable at this scale
"""

import numpy as np
import pandas as pd

from fedrepro.metrics import mean_interval

NOT_TESTABLE = "not testable at this scale"


def judge(claim: dict, values: pd.DataFrame, scale: str, axes: dict[str, list[str]], better: str, reported) -> dict:
    """`values`: columns of the axes' labels, seed, value of the claim's measure -> verdict and evidence."""
    if claim["kind"] == "untestable":
        return {"verdict": NOT_TESTABLE, "evidence": claim["why"]}
    if claim["kind"] in ("absolute", "saving") and scale != "paper" and not claim.get("any_scale"):
        return {"verdict": NOT_TESTABLE, "evidence": "an absolute number, judged at paper scale only"}
    values = select(values, claim.get("where", {}))
    kind = {"best": _best, "near": _near, "compare": _compare, "trend": _trend, "gap_trend": _gap_trend,
            "ratio": _ratio, "saving": _saving, "sum": _sum, "absolute": _absolute,
            "above": _above}[claim["kind"]]  # fmt: skip
    effects = kind(claim, values, axes, -1.0 if better == "lower" else 1.0, reported)
    if not effects:
        return {"verdict": NOT_TESTABLE, "evidence": f"the {scale} scale does not have these cells"}
    return conclude(effects)


def together(found: dict[str, dict]) -> dict:
    """One verdict on a claim that several measures judge: contradicted by one, reproduced by all."""
    verdicts = {part["verdict"] for part in found.values()}
    verdict = "contradicted" if "contradicted" in verdicts else "inconclusive" if len(verdicts) > 1 else verdicts.pop()
    return {"verdict": verdict, "evidence": "; ".join(f"[{name}] {part['evidence']}" for name, part in found.items())}


def conclude(effects: list[tuple[str, list[float]]]) -> dict:
    """`effects`: (what, one number a seed), positive where the claim holds."""
    signs, evidence = [], []
    for what, numbers in effects:
        missing = sum(np.isnan(n) for n in numbers)
        if missing:  # leaving such seeds out would favour whoever failed to reach the target
            signs.append(0)
            evidence.append(f"{what}: target not reached with {missing} of {len(numbers)} seeds")
            continue
        mean, half = mean_interval(numbers)
        if half is None:
            signs.append(0)
            evidence.append(f"{what}: {mean:+.4g} (one seed)")
        else:
            signs.append(0 if abs(mean) <= half else int(np.sign(mean)))
            evidence.append(f"{what}: {mean:+.3g} ± {half:.3g}")
    verdict = "contradicted" if -1 in signs else "reproduced" if all(s == 1 for s in signs) else "inconclusive"
    return {"verdict": verdict, "evidence": "; ".join(evidence)}


def _pivot(values: pd.DataFrame, axis: str, axes: dict) -> list[tuple[str, pd.DataFrame]]:
    """One table (seeds x labels of `axis`) for every combination of the other axes."""
    others = [a for a in axes if a != axis and values[a].nunique() > 1]
    groups = values.groupby(others, sort=False) if others else [((), values)]
    result = []
    for key, group in groups:
        names = key if isinstance(key, tuple) else (key,)
        result.append((" ".join(map(str, names)), group.pivot_table(index="seed", columns=axis, values="value",
                                                                   dropna=False)))  # fmt: skip
    return result


def _best(claim, values, axes, sign, _):
    effects, winner = [], str(claim["winner"])
    for place, table in _pivot(values, claim["axis"], axes):
        rivals = [str(r) for r in claim.get("among", [c for c in table if c != winner])]
        if winner in table:
            effects += [(f"{place} {_minus(winner, rival, sign)}".strip(), list(sign * (table[winner] - table[rival])))
                        for rival in rivals if rival in table]  # fmt: skip
    return effects


def _near(claim, values, axes, sign, _):
    """Holds where the difference stays within the margin: margin − |difference|."""
    effects, winner = [], str(claim["winner"])
    for place, table in _pivot(values, claim["axis"], axes):
        rivals = [str(r) for r in claim.get("among", [c for c in table if c != winner])]
        if winner in table:
            effects += [(f"{place} margin {claim['margin']:g} − |{winner} − {rival}|".strip(),
                         list(claim["margin"] - (table[winner] - table[rival]).abs()))
                        for rival in rivals if rival in table]  # fmt: skip
    return effects


def _ratio(claim, values, axes, sign, _):
    """Holds where the quotient of two places stays within the tolerance of the claimed one."""
    a, b = _cell(values, claim["of"]), _cell(values, claim["over"])
    if not len(a) or not len(b):
        return []
    quotient = a / b
    names = f"{_name(claim['of'])} / {_name(claim['over'])}"
    what = f"{names} = {quotient.mean():.4g}, tolerance − |that − {claim['ratio']:g}|"
    return [(what, list(claim["tolerance"] - (quotient - claim["ratio"]).abs()))]


def _saving(claim, values, axes, sign, _):
    """Holds where the winner saves the claimed share of another's cost, 1 − own / other, within the tolerance; a
    single number is claimed of the mean over all others."""
    effects, winner, claimed = [], claim["winner"], claim["saving"]
    claimed = claimed if isinstance(claimed, dict) else {"mean of the others": claimed}
    for place, table in _pivot(values, claim["axis"], axes):
        if winner in table:
            saved = 1 - table.drop(columns=winner).rdiv(table[winner], axis=0)
            saved = saved.assign(**{"mean of the others": saved.mean(axis=1, skipna=False)})
            for other in [other for other in claimed if other in saved]:
                what = f"{place} tolerance − |saved of {other} − {claimed[other]:g}|".strip()
                effects.append((what, list(claim["tolerance"] - (saved[other] - claimed[other]).abs())))
    return effects


def _sum(claim, values, axes, sign, _):
    """Holds where one place is the sum of others: margin − |total − parts|."""
    effects, parts = [], [str(part) for part in claim["parts"]]
    for place, table in _pivot(values, claim["axis"], axes):
        if {claim["total"], *parts} <= set(table):
            off = (table[claim["total"]] - sum(table[part] for part in parts)).abs()
            effects.append((f"{place} margin {claim['margin']:g} − |{claim['total']} − {' − '.join(parts)}|".strip(),
                            list(claim["margin"] - off)))  # fmt: skip
    return effects


def _cell(values: pd.DataFrame, labels: dict) -> pd.Series:
    """One number a seed; NaN where one of its cells missed its target."""
    return select(values, labels).groupby("seed")["value"].agg(lambda cells: cells.mean(skipna=False))


def _compare(claim, values, axes, sign, _):
    """Every pair at every place on the axes named by `each`; over the other axes cells are averaged.

    `margin`: the worse one may be better by so much, which is how "gains little" is said. A pair's `by`: the better one
    must be better by so much. Its `most`: each label on that axis is compared, and most of them must be better."""
    effects, margin = [], claim.get("margin", 0.0)
    for place, group in _places(values, claim.get("each", [])):
        for pair in claim["pairs"]:
            better, worse, axis, by = pair["better"], _cell(group, pair["worse"]), pair.get("most"), pair.get("by", 0.0)
            cells = [_cell(group, {**better, axis: one} if axis else better) for one in better.get(axis, [None])]
            gaps = [sign * (cell - worse) for cell in cells if len(cell) and len(worse)]
            if gaps:
                what = pair.get("what") or _minus(_name(better), _name(pair["worse"]), sign)
                what = f"{place} {what}".strip() + (f" + {margin - by:g}" if margin - by else "").replace("+ -", "− ")
                effects.append((what, list(_majority(gaps) + margin - by)))
    return effects


def _majority(gaps: list[pd.Series]) -> pd.Series:
    """Per seed, what most of the gaps reach at least; a target that was missed counts as the smallest."""
    ordered = np.sort(-pd.concat(gaps, axis=1).to_numpy(), axis=1)  # NaN comes last
    return pd.Series(-ordered[:, len(gaps) // 2], gaps[0].index)


def _places(values: pd.DataFrame, each: list[str]) -> list[tuple[str, pd.DataFrame]]:
    """The values at every combination of labels on these axes; all of them together without axes."""
    if not each:
        return [("", values)]
    return [(_name(dict(zip(each, key, strict=True))), group) for key, group in values.groupby(each, sort=False)]


def _minus(better: str, worse: str, sign: float) -> str:
    """The difference that is positive where the claim holds: of costs, the other one's minus the winner's."""
    return f"{better} − {worse}" if sign > 0 else f"{worse} − {better}"


def _name(labels: dict) -> str:
    return " ".join(f"{k}={v}" if str(v).replace(".", "").isdigit() else str(v) for k, v in labels.items())


def _slope(table: pd.DataFrame) -> list[float]:
    """Per seed, the least-squares slope of the values over the axis's numbers (or places)."""
    try:
        x = np.array([float(c) for c in table.columns])
    except ValueError:
        x = np.arange(len(table.columns), dtype=float)
    return [float(np.polyfit(x, row, 1)[0]) if not np.isnan(row).any() else float("nan")
            for row in table.to_numpy(dtype=float)]  # fmt: skip


def _trend(claim, values, axes, sign, _):
    direction = {"rises": 1.0, "falls": -1.0}[claim["direction"]]
    order = axes[claim["axis"]]
    effects = []
    for place, table in _pivot(values, claim["axis"], axes):
        table = table[[label for label in order if label in table]]
        if table.shape[1] > 1:
            word = "slope" if direction > 0 else "−slope"
            effects.append((f"{place} {word} over {claim['axis']}".strip(), [direction * s for s in _slope(table)]))
    return effects


def _gap_trend(claim, values, axes, sign, _):
    """The difference between two places (with `relative` their quotient), followed along an axis; every label of a
    list in `over` is a comparison of its own."""
    a, b = (select(values, claim[key]) for key in ("of", "over"))
    keys = [*[x for x in axes if x not in claim["of"]], "seed"]
    both = a.merge(b, on=keys, suffixes=("_of", ""))
    if both.empty:
        return []
    gap = both["value_of"] / both["value"] if claim.get("relative") else sign * (both["value_of"] - both["value"])
    return _trend(claim, both.assign(value=gap), axes, sign, None)


def select(values: pd.DataFrame, labels: dict) -> pd.DataFrame:
    """The rows at these places of the table; a list of labels means any of them."""
    for axis, label in labels.items():
        values = values[values[axis].isin([str(v) for v in (label if isinstance(label, list) else [label])])]
    return values


def _above(claim, values, axes, sign, _):
    """Holds where the value itself is above a number (below it, for a cost)."""
    places = [axis for axis in axes if values[axis].nunique() > 1]
    groups = values.groupby(places, sort=False) if places else [((claim["measure"],), values)]
    return [(_minus(" ".join(place), f"{claim['than']:g}", sign), list(sign * (group["value"] - claim["than"])))
            for place, group in groups if len(group)]  # fmt: skip


def _absolute(claim, values, axes, sign, reported):
    """Holds where the measured value is within the tolerance of the paper's."""
    effects, tolerance = [], claim["tolerance"]
    tolerance = tolerance[claim["measure"]] if isinstance(tolerance, dict) else tolerance
    for place, group in _places(values, claim.get("each", [])):
        for row in reported:
            labels = {k: v for k, v in row.items() if k in axes}
            if row["measure"] != claim["measure"] or row["censored"]:
                continue
            got = _cell(group, labels)
            if len(got):
                effects.append((f"{place} tolerance − |{_name(labels)} − {row['value']:g}|".strip(),
                                list(tolerance - (got - row["value"]).abs())))  # fmt: skip
    return effects
