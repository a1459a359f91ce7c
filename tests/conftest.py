import os
import statistics
import time

import pytest
import torch

import results
from fedrepro import Run, data
from fedrepro.evidence import kernels
from fedrepro.evidence.record import Record
from fedrepro.evidence.study import Study
from fedrepro.lessons.drawing import canvas, png

torch.set_num_threads(1)
os.environ.update(kernels.chosen())

BUDGET = 0.3  # seconds from a moved control to its picture,
BARE = 7  # or so many bare figures, where the machine is slow or busy (a free one takes 3 to 5)
SMALL = dict(data="digits", split="dirichlet:0.3", clients=8, per_round=3, model="lenet", rounds=3, epochs=1,
             batch=40, lr=0.1, samples=80)  # fmt: skip


@pytest.fixture
def small():
    """small(method="fedprox", ...) -> a Run that takes a fraction of a second."""
    return lambda **changes: Run(**{**SMALL, **changes})


@pytest.fixture
def double():
    """Float64 throughout: the library follows torch's default type, and makes what it remembers of data again."""
    data.loaded.cache_clear()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
    data.loaded.cache_clear()


@pytest.fixture
def clock():
    """What counts as time: here the CPU's, since nothing is waited for."""
    return time.process_time


@pytest.fixture
def redraw_budget(clock) -> float:
    """Seconds that a control of a lesson may take, measured against a picture with nothing but axes."""
    taken = []
    for _ in range(7):
        start = clock()
        figure = canvas(4.2)
        figure.subplots()
        png(figure)
        taken.append(clock() - start)
    return max(BUDGET, BARE * statistics.median(taken))


@pytest.fixture(scope="session")
def smoke(tmp_path_factory):
    """FedBR's Tables IV and V at smoke scale, two seeds, recorded: `results` and `runs` below this folder."""
    home = tmp_path_factory.mktemp("smoke")
    results.make(home, "fedbr/table4_5_interval")
    return home


@pytest.fixture(scope="session")
def as_cpu_scale(smoke):
    """as_cpu_scale(folder): the same table as if it had been measured at cpu scale."""

    def make(folder):
        source = results.AtAnotherScale(Record(smoke / "results/smoke/fedbr"))
        results.write(folder, Study("fedbr/table4_5_interval", "cpu", 2, source))

    return make
