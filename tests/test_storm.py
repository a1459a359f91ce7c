"""A short storm and a short fuzz; `make storm MINUTES=5` is the long one."""

import time

from storm import fuzz, storm


def test_kills_leave_no_trace(tmp_path):
    counts = storm(8, time.time_ns() % 10**6, tmp_path)
    assert counts["runs"] >= 1
    assert not list(tmp_path.iterdir())


def test_damage_is_refused_or_without_effect(tmp_path):
    assert fuzz(8, time.time_ns() % 10**6, tmp_path).total() >= 5
