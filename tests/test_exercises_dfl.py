"""The checks of DFL's exercises name the mistake."""

import pytest
import torch

from fedrepro.lessons.exercises import dfl

eye = torch.eye


def mean_of(tables):
    return sum(tables) / len(tables)


@pytest.mark.parametrize(
    ("check", "wrong", "says"),
    [
        (dfl.first_round, lambda R, T: int((1 - T) * R) + 1, "one round late"),
        (dfl.first_round, lambda R, T: round((1 - T) * R), "one round early"),  # 0 for R = 8, T = 0.99
        (dfl.first_round, lambda R, T: 1 / 0, "ZeroDivisionError"),
        (dfl.label_means, lambda p, y: eye(p.shape[1]).double()[y].T @ p, "sums"),
        (dfl.label_means, lambda p, y: eye(p.shape[1]).double()[y].T @ p / len(p), "number of all images"),
        (dfl.label_means, lambda p, y: torch.stack([p[y == c].mean(0) for c in range(p.shape[1])]), "0/0"),
        (dfl.merge, lambda old, tables, n: sum(s * t for s, t in zip(n, tables, strict=True)) / sum(n), "DF-07"),
        (dfl.merge, lambda old, tables, n: dfl.merged(torch.zeros_like(old), tables, n), "stay as it was"),
        (dfl.merge, lambda old, tables, n: dfl.merged(old, tables, [1, 1, 1]), "same weight"),
        (dfl.merge, lambda old, tables, n: torch.tensor(1.0), "shape"),
        (dfl.softened, lambda table, y, rho: (1 - rho) * eye(6)[y] + rho * table[y], "swapped"),
        (dfl.softened, lambda table, y, rho: rho * eye(6)[y] + (1 - rho) * table[:, y].T, "columns"),
        (dfl.softened, lambda table, y, rho: eye(6)[y] + table[y], "add up to one"),
        (dfl.from_others, lambda tables, i: dfl.merged(torch.zeros(4, 4).double(), [*tables.values()], [1] * 4), "own"),
        (dfl.from_others, lambda tables, i: mean_of([t for k, t in tables.items() if k != i]), "have the label"),
    ],
)
def test_a_wrong_answer_is_told_what_is_off(check, wrong, says):
    answer = check(wrong)
    assert not answer.right and says in answer.message
