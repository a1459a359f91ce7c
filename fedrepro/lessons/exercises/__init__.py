"""Answers to the exercises of the method notebooks, checked: "Right", or one line that says what is off.

One module per paper holds its checks. In a notebook an exercise is a cell tagged `exercise`, a cell that calls the
check, and a hidden solution (`<details>` with one Python block); tests/test_exercises.py executes each notebook with
the solutions put in.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Answer:
    right: bool
    message: str

    def __repr__(self) -> str:
        return f"{'✓ Right.' if self.right else '✗ Not yet:'} {self.message}".strip()

    def _repr_markdown_(self) -> str:
        return f"**{'✓ Right.' if self.right else '✗ Not yet:'}** {self.message}".strip()


def right(message: str = "") -> Answer:
    return Answer(True, message)


def off(message: str) -> Answer:
    return Answer(False, message)


def compare(answer, expected, what: str = "your answer", tolerance: float = 1e-6) -> Answer:
    """Whether a number, list or tensor is the expected one; if not, the first thing that is wrong with it."""
    if answer is None or answer is ...:
        return off(f"{what} is still empty")
    try:
        given = torch.as_tensor(answer).detach().to(torch.float64)
    except (TypeError, ValueError, RuntimeError):
        return off(f"{what} is a {type(answer).__name__}; expected numbers or a tensor")
    wanted = torch.as_tensor(expected).detach().to(torch.float64)
    if given.shape != wanted.shape:
        return off(f"{what} has shape {tuple(given.shape)}; expected {tuple(wanted.shape)}")
    if not torch.isfinite(given).all():
        return off(f"{what} is not finite everywhere")
    gap = float((given - wanted).abs().max()) if wanted.numel() else 0.0
    if gap > tolerance * max(1.0, float(wanted.abs().max()) if wanted.numel() else 1.0):
        return off(f"{what} is off by up to {gap:.3g}")
    return right()


def call(function: Callable, *arguments, what: str = "your function"):
    """What the student's function returns, or the Answer that says how it failed."""
    try:
        return function(*arguments)
    except Exception as error:
        return off(f"{what} raised {type(error).__name__}: {error}")
