"""The checks of AMA-FES's exercises name the mistake."""

import pytest
import torch.nn.functional as F

from fedrepro.lessons.exercises import ama


def stepping(parameters, times=1.0):
    """fes_step on the wrong parameters, or with the gradient times something."""

    def step(model, x, y, lr):
        F.cross_entropy(model(x), y).backward()
        for p in parameters(model):
            p.data -= times * lr * p.grad

    return step


def everyone(old, uploads):
    total = sum(n for n, *_ in uploads)
    return sum(n * f for n, _, f, _ in uploads) / total, sum(n * c for n, *_, c in uploads) / total


def capable(old, uploads):
    """Right, but for a round without a capable device."""
    able = [(n, f) for n, limited, f, _ in uploads if not limited]
    return sum(n * f for n, f in able) / max(sum(n for n, _ in able), 1), everyone(old, uploads)[1]


@pytest.mark.parametrize(
    ("check", "wrong", "says"),
    [
        (ama.largest_eta, lambda alpha0, rounds: 1 / rounds, "starts at α₀"),
        (ama.largest_eta, lambda alpha0, rounds: (1 - alpha0) / (rounds - 1), "rounds count from 1"),
        (ama.largest_eta, lambda alpha0, rounds: 0.5, "off by up to"),
        (ama.takeover, lambda s, b: 1, "one too few"),
        (ama.takeover, lambda s, b: 1.5, "not a whole number"),
        (ama.takeover, lambda s, b: {(1, 0.6): 2}.get((s, b), 3), "one too many"),
        (ama.fes_step, lambda model, x, y, lr: model, "no weight has changed"),
        (ama.fes_step, stepping(lambda m: m.parameters()), "the extractor has changed"),
        (ama.fes_step, stepping(lambda m: m[:6].parameters()), "AM-03"),
        (ama.fes_step, stepping(lambda m: m[6:].parameters(), -1), "uphill"),
        (ama.fes_step, stepping(lambda m: m[6:].parameters(), 2), "learning rate is missing"),  # the check's is 0.5
        (ama.noise_left, lambda alpha: (1 - alpha) ** 2, "newest round only"),
        (ama.noise_left, lambda alpha: 1 - alpha, "squares of the weights"),
        (ama.noise_left, lambda alpha: ((1 - alpha) / (1 + alpha)) ** 0.5, "standard deviation"),
        (ama.aggregate, everyone, "limited devices count"),
        (ama.aggregate, capable, "old extractor must stay"),
        (ama.aggregate, lambda old, uploads: old[0], "return a pair"),
    ],
)
def test_a_wrong_answer_is_told_what_is_off(check, wrong, says):
    answer = check(wrong)
    assert not answer.right and says in answer.message
