"""FLOPs of a visit, by hand and as differences."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedrepro import models
from fedrepro.simulation.cost import _Counter, round_costs

STEPS, BATCH = 3, 40


def visit_flops(run) -> int:
    return round_costs(run)["visit_flops"]


def lenet_forward() -> tuple[int, int]:
    """(all, first convolution) on a batch of 8x8 digits: two for each multiplication and addition."""
    conv1 = 2 * BATCH * 8 * 8 * 6 * 25
    conv2 = 2 * BATCH * 4 * 4 * 16 * 6 * 25
    dense = 2 * BATCH * (64 * 120 + 120 * 84 + 84 * 10)
    return conv1 + conv2 + dense, conv1


def test_lenet_by_hand(small):
    """Backward is twice forward, except for the gradient of the images, which is not needed."""
    forward, first = lenet_forward()
    assert visit_flops(small(steps=STEPS, epochs=None)) == STEPS * (3 * forward - first)


@pytest.mark.parametrize(("method", "passes"), [("fedprox", 0), ("feddyn", 0), ("fedkd", 1), ("fedntd", 1)])
def test_a_teacher_costs_a_forward_pass(small, method, passes):
    forward, _ = lenet_forward()
    extra = visit_flops(small(method=method, steps=STEPS, epochs=None)) - visit_flops(small(steps=STEPS, epochs=None))
    assert extra == STEPS * passes * forward


def test_seeds_and_rounds_do_not_matter(small):
    assert visit_flops(small()) == visit_flops(small(seed=7, rounds=9)) < visit_flops(small(epochs=2))


@pytest.mark.parametrize("name", ["lenet", "small:norm=batch,width=8", "mobilenet_v2"])
def test_products_are_those_of_pytorchs_own_counter(name):
    """Forward and backward; PyTorch's takes ten times as long."""
    model, x = models.build(name, classes=10, channels=3, size=32), torch.randn(4, 3, 32, 32)
    counts = []
    for counter in (FlopCounterMode(display=False), _Counter()):
        with counter:
            model(x).square().sum().backward()
        counts.append(counter.get_total_flops() if isinstance(counter, FlopCounterMode) else counter.products)
    assert counts[0] == counts[1] > 0
