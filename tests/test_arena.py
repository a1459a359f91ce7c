"""The arena's front, by hand."""

import numpy as np

from fedrepro.evidence import spec
from fedrepro.evidence.extras.arena import APART, front, spread_out


def test_front_by_hand():
    points = {"cheap": (1, 0.5), "dominated": (2, 0.4), "better": (2, 0.6), "equal": (3, 0.6), "best": (4, 0.9)}
    assert front(points) == ["cheap", "better", "best"]
    assert front({"a": (1, 0.5), "b": (1, 0.7)}) == ["b"]


def test_names_are_apart_and_inside():
    heights = spread_out([0.2, 0.2, 0.21, 0.9, 0.99, 0.99])
    assert all(gap >= APART - 1e-12 for gap in np.diff(heights))
    assert heights[0] == 0.2 and heights[-1] <= 1


def test_every_method_of_the_arena_gets_as_many_pilots():
    for table in spec.tables("arena"):
        assert {len(table.tune.settings(method)) for method in table.tune.grids} == {6}
        assert not table.claims()
