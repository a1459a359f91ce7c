import pytest
import torch

from fedrepro import Run

torch.set_num_threads(1)

SMALL = dict(data="digits", split="dirichlet:0.3", clients=8, per_round=3, model="lenet", rounds=3, epochs=1,
             batch=40, lr=0.1, samples=80)  # fmt: skip


@pytest.fixture
def small():
    """small(method="fedprox", ...) -> a Run that takes a fraction of a second."""
    return lambda **changes: Run(**{**SMALL, **changes})
