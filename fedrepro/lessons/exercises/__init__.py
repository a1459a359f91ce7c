"""Checks of the exercises in the method notebooks: "Right", or one line that says what is wrong.

One module per paper. In a notebook an exercise is a cell tagged `exercise`, a cell that calls the check, and a hidden
solution (`<details>` with one Python block); tests/test_exercises.py executes each notebook with the solutions put in.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch


@dataclass(frozen=True)
class Answer:
    right: bool
    message: str

    def __repr__(self) -> str:
        return f"{'✓ Right.' if self.right else '✗ Not yet:'} {self.message}".strip()

    def _repr_markdown_(self) -> str:
        return f"**{'✓ Right.' if self.right else '✗ Not yet:'}** {self.message}".strip()


class Wrong(Exception):
    """Says what is wrong with an answer."""


def exercise(check: Callable[[Callable], str]) -> Callable[[Callable], Answer]:
    """A check that raises Wrong, or returns what to say about a right answer."""

    @wraps(check)
    def checked(function: Callable) -> Answer:
        try:
            return Answer(True, check(function))
        except Wrong as error:
            return Answer(False, str(error))

    return checked


def call(function: Callable, *arguments, what: str = "your function", empty: str = "") -> Any:
    """What the student's function returns; `empty` is said if it returns nothing."""
    try:
        given = function(*arguments)
    except Exception as error:
        raise Wrong(f"{what} raised {type(error).__name__}: {error}") from None
    if empty and (given is None or given is ...):
        raise Wrong(empty)
    return given


def expect(given: Any, expected: Any, what: str, slips: Mapping[Any, str] = {}, tolerance: float = 1e-6) -> None:
    """Refuse an answer that is not the expected number, list or tensor. `slips`: what common mistakes give, and what
    to say about them."""
    if wrong := difference(given, expected, what, tolerance):
        known = (why for value, why in slips.items() if same(given, value, max(tolerance, 1e-6)))
        raise Wrong(next(known, wrong))


def same(given: Any, expected: Any, tolerance: float = 1e-6) -> bool:
    return not difference(given, expected, "", tolerance)


def difference(given: Any, expected: Any, what: str, tolerance: float = 1e-6) -> str:
    """The first thing that is wrong with an answer; empty if it is the expected number, list or tensor."""
    if given is None or given is ...:
        return f"{what} is still empty"
    try:
        found = torch.as_tensor(given).detach().to(torch.float64)
    except (TypeError, ValueError, RuntimeError):
        return f"{what} is a {type(given).__name__}; expected numbers or a tensor"
    wanted = torch.as_tensor(expected).detach().to(torch.float64)
    if found.shape != wanted.shape:
        return f"{what} has shape {tuple(found.shape)}; expected {tuple(wanted.shape)}"
    if not torch.isfinite(found).all():
        return f"{what} is not finite everywhere"
    gap = float((found - wanted).abs().max())
    return f"{what} is off by up to {gap:.3g}" if gap > tolerance * max(1.0, float(wanted.abs().max())) else ""
