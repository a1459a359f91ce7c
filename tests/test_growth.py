"""How cost grows: the table and the figure show what was measured so far."""

import pandas as pd
import pytest

from fedrepro import growth

LINE = "LeNet, participants"
MEMORY = {"growth_memory": {"MB": {LINE: {"folded": {"10": 260.0, "100": 270.0}, "held": {"10": 240.0}}}}}
SECONDS = {"growth_seconds": {"seconds": {LINE: {"10": 0.004, "100": 0.003}}}}


@pytest.mark.parametrize("measured", [MEMORY, SECONDS, MEMORY | SECONDS])
def test_what_is_measured_is_written_and_drawn(tmp_path, measured):
    growth.write(measured, tmp_path)
    table = pd.read_csv(tmp_path / "growth.csv")
    assert table["size"].tolist() == [10, 100]
    assert table["peak_MB"].notna().all() == ("growth_memory" in measured)
    assert table["seconds_per_participant"].notna().all() == ("growth_seconds" in measured)
    assert LINE in (tmp_path / "growth.svg").read_text()


def test_nothing_measured_writes_nothing(tmp_path):
    growth.write({}, tmp_path)
    assert not list(tmp_path.iterdir())
