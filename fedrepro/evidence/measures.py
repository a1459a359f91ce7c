"""From the rounds of one run to the one number of a measure."""

import pandas as pd

from fedrepro.errors import BadInput
from fedrepro.simulation import metrics


def measured(table: pd.DataFrame, measure: dict) -> float:
    """One number from a run's rounds; NaN where a target was not reached or a budget is below one round."""
    kind, times = measure["kind"], measure.get("times", 1.0)
    column = table[measure["column"]]
    tail = column[table["round"] > table["round"].max() - measure.get("window", len(table))].dropna()
    if kind in ("final", "total"):
        return float(column.dropna().iloc[-1]) * times
    if kind == "best":
        return float(column.max()) * times
    if kind == "mean":
        return float(tail.mean()) * times
    if kind == "at_round":
        return float(column[table["round"] <= measure["round"]].dropna().iloc[-1]) * times
    if kind == "gain":  # from that round to the last
        return measured(table, {**measure, "kind": "final"}) - measured(table, {**measure, "kind": "at_round"})
    if kind == "to_target":
        reached = table[measure.get("of", "accuracy")] >= measure["target"]
        return float(column[reached].iloc[0]) * times if reached.any() else float("nan")
    if kind == "within_budget":
        inside = table[table[measure["spend"]] * times <= measure["budget"]]
        return float(inside[measure["column"]].dropna().max()) if len(inside) else float("nan")
    if kind == "stability":
        return metrics.stability(tail) * times
    raise BadInput(f"measure: unknown kind {kind!r}")


def limit(table: pd.DataFrame, measure: dict) -> float:
    """What a run had spent on the way to a target when it stopped."""
    if measure["kind"] != "to_target":
        return float("nan")
    return float(table[measure["column"]].dropna().iloc[-1]) * measure.get("times", 1.0)
