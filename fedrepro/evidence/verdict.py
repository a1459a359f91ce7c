"""A verdict on a claim, its comparisons, and the words for both."""

from dataclasses import dataclass

import numpy as np

from fedrepro.evidence.statistics import MOST_SEEDS

NOT_RUN = "not run yet"
MARKS = {
    "holds": "✓",
    "holds in part": "✓",
    "opposite": "✗",
    "undecided": "?",
    "one seed": "?",
    "not testable": "–",
    NOT_RUN: "…",
}


@dataclass(frozen=True)
class Effect:
    """One comparison: its mean over seeds, the half-width of its interval, and the claimed region."""

    what: str
    mean: float
    half: float | None  # None with one seed
    low: float
    high: float
    bound: str  # "at least" or "at most" if runs missed their target; "about" if tests were rounds apart
    df: float | None  # None if nothing was estimated
    p: float | None  # that the mean lies outside the region, on its own, two-sided
    p_opposite: float | None  # that it lies inside, after Holm's correction over the claim
    state: str  # holds, open, opposite
    seeds: int
    seeds_needed: int | None  # to decide it with the same mean and spread
    unit: str


@dataclass(frozen=True)
class Verdict:
    state: str  # a key of MARKS
    scale: str
    effects: tuple[Effect, ...] = ()
    why: str = ""  # why it cannot be tested
    on_paper: int = 0  # comparisons that the paper's whole table makes; 0: not counted

    @property
    def word(self) -> str:
        return word(self.state, self.scale)

    @property
    def counts(self) -> str:
        """6 of 8 hold, 2 open"""
        found = [effect.state for effect in self.effects]
        parts = [f"{found.count(s)} {s}" for s in ("open", "opposite") if s in found]
        holding = found.count("holds")
        counts = ", ".join([f"{holding} of {len(found)} hold{'s' * (len(found) == 1)}", *parts])
        return counts + (f" (the paper's table has {self.on_paper})" if self.on_paper > len(found) else "")

    @property
    def seeds_needed(self) -> int | None:
        """Enough to decide all open comparisons that lean towards the claim, or one that leans against it."""
        undecided = [effect for effect in self.effects if effect.state == "open"]
        known = [(e.seeds_needed, e.low < e.mean < e.high) for e in undecided if e.seeds_needed]
        if against := [needed for needed, towards in known if not towards]:
            return min(against)
        return max(needed for needed, _ in known) if known and len(known) == len(undecided) else None

    @property
    def reason(self) -> str:
        """In one line: why it cannot be tested, or how many comparisons hold and what would decide it."""
        if self.state in ("not testable", NOT_RUN):
            return self.why
        more = [self.why] if self.why else []
        if self.state == "one seed":
            more = more or ["one seed shows no spread: two may decide, three are better"]
        elif self.state == "undecided":
            more = more or [self.would_decide]
        elif any(effect.seeds == 2 and effect.half for effect in self.effects if effect.state != "open"):
            more.append("two seeds: provisional")
        return "; ".join([self.counts, *more])

    @property
    def would_decide(self) -> str:
        """What keeps it undecided, or how many seeds would decide it."""
        undecided = [effect for effect in self.effects if effect.state == "open"]
        if any(np.isnan(e.mean) or e.bound in ("at least", "at most") for e in undecided):
            return "targets were missed"
        if any(e.bound and not e.seeds_needed for e in undecided):
            return "targets were reached too close together for our tests"
        needed = self.seeds_needed
        return f"about {needed} seeds would decide" if needed else f"even {MOST_SEEDS} seeds would not decide"


def word(state: str, scale: str) -> str:
    """The words of a verdict; below paper scale they never sound like a verdict on the paper itself."""
    found = {"holds": "reproduced", "holds in part": "reproduced in part", "opposite": "contradicted"}
    if state in found:
        return found[state] if scale == "paper" else f"{state} at {scale} scale"
    return {"one seed": "undecided (one seed)", "not testable": "not testable here"}.get(state, state)


def claimed(effect: Effect, times: float = 1.0, unit: str = "") -> str:
    """` (claimed: above 1 points)`; empty if only the sign is claimed."""
    low, high, unit = effect.low * times, effect.high * times, f" {unit}" if unit else ""
    if effect.high == np.inf:
        return "" if effect.low == 0 else f" (claimed: above {low:.4g}{unit})"
    if effect.low == -np.inf:
        return f" (claimed: below {high:.4g}{unit})"
    if effect.low == -effect.high:
        if high < 1e-5:  # room for rounding
            return " (claimed: no difference)"
        return f" (claimed: within ±{high:.4g}{unit})"
    return f" (claimed: {low:.4g} to {high:.4g}{unit})"
