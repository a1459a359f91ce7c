"""Trees against plain loops, and what the ledger counts."""

import itertools

import pytest
import torch

from fedrepro.simulation.ledger import count, nbytes
from fedrepro.simulation.tree import Tree, mean


def tree(seed: int) -> Tree:
    draw = torch.Generator().manual_seed(seed)
    return Tree((name, torch.randn(shape, generator=draw)) for name, shape in (("a", (3, 4)), ("b", 5), ("c", ())))


def equal(got, expected) -> bool:
    return list(got) == list(expected) and all(torch.equal(got[k], expected[k]) for k in expected)


OPERATIONS = [
    (lambda x, y: x + y, True),
    (lambda x, y: x - y, True),
    (lambda x, y: x * y, True),
    (lambda x, y: x / y, True),
    (lambda x, y: x + 2.5, False),
    (lambda x, y: x - 2.5, False),
    (lambda x, y: x * 2.5, False),
    (lambda x, y: 2.5 * x, False),
    (lambda x, y: x / 2.5, False),
    (lambda x, y: -x, False),
]


@pytest.mark.parametrize(("operation", "binary"), OPERATIONS)
def test_arithmetic_is_that_of_each_tensor(operation, binary):
    x, y = tree(0), tree(1)
    shuffled = Tree(reversed(y.items()))  # tensors meet by name, not by place
    expected = {k: operation(x[k], y[k]) for k in x}
    assert equal(operation(x, shuffled), expected)
    assert equal(x, tree(0))
    assert binary == (not equal(operation(x, y), operation(x, tree(2))))


def test_sqrt_dot_and_square():
    x, y = tree(0), tree(1)
    assert equal((x * x).sqrt(), {k: (v * v).sqrt() for k, v in x.items()})
    torch.testing.assert_close(x.dot(y), sum((x[k] * y[k]).sum() for k in x))
    torch.testing.assert_close(x.sq(), sum((v**2).sum() for v in x.values()))


def test_lerp_is_exact_at_both_ends():
    x, y = tree(0), tree(1)
    assert equal(x.lerp(y, 0.0), x)
    assert equal(x.lerp(y, 1.0), y)
    for name, value in x.lerp(y, 0.3).items():
        torch.testing.assert_close(value, x[name] + 0.3 * (y[name] - x[name]))


def test_in_place():
    x, y = tree(0), tree(1)
    kept = x["a"]
    assert x.add_(y, alpha=2.0) is x
    torch.testing.assert_close(kept, tree(0)["a"] + 2 * y["a"])
    assert equal(x.copy_(y), y)
    assert kept is x["a"]


def test_copies_share_nothing():
    x = tree(0)
    copy, zeros = x.clone(), x.zeros()
    x["a"].fill_(7)
    assert equal(copy, tree(0))
    assert list(zeros) == list(x)
    assert not any(v.any() for v in zeros.values())
    assert list(x.pick(["c", "a"])) == ["c", "a"]


def test_trees_of_other_names_do_not_mix():
    with pytest.raises(KeyError):
        tree(0) + Tree(a=torch.ones(3, 4))


def test_the_empty_tree():
    none = Tree()
    for result in (none + none, none - 1.0, none * 2.0, -none, none.lerp(none, 0.5), none.sqrt(), none.zeros(),
                   none.add_(none), none.copy_(none), mean([none, none], [1, 2])):  # fmt: skip
        assert isinstance(result, Tree)
        assert not result
    assert float(none.sq()) == 0
    assert none.nbytes == 0


def test_mean_does_not_depend_on_the_order():  # I-47
    pairs = list(zip([tree(i) for i in range(4)], [1, 10, 3, 7], strict=True))
    first = mean(*map(list, zip(*pairs, strict=True)))
    for name, value in first.items():
        torch.testing.assert_close(value, sum(w / 21 * x[name] for x, w in pairs))
    for order in itertools.permutations(pairs):
        for name, value in mean(*map(list, zip(*order, strict=True))).items():
            torch.testing.assert_close(value, first[name], rtol=1e-5, atol=1e-6)


def test_mean_is_linear_and_keeps_equal_trees():  # I-47
    x, y, z = tree(0), tree(1), tree(2)
    close = torch.testing.assert_close
    for name in x:
        close(mean([x * 3.0 + z, y * 3.0 + z], [2, 5])[name], (mean([x, y], [2, 5]) * 3.0 + z)[name])
        close(mean([x, x, x], [1, 5, 9])[name], x[name])
        close(mean([x, y, z], [40, 40, 40])[name], mean([x, y, z])[name])
    assert equal(x, tree(0))


def test_mean_needs_a_weight_for_each_tree():
    with pytest.raises(ValueError, match="zip"):
        mean([tree(0), tree(1)], [1.0])


def test_bytes():
    x = tree(0)
    assert x.nbytes == 4 * (12 + 5 + 1)
    assert Tree(half=torch.zeros(3, dtype=torch.float16), byte=torch.zeros(5, dtype=torch.uint8)).nbytes == 11
    assert nbytes({"x": x, "deep": {"y": torch.zeros(2)}, "loss": 0.5, "none": None}) == x.nbytes + 8


def test_buffers_are_counted_apart():
    x, buffers = tree(0), Tree(mean=torch.zeros(6))
    assert count({"w": x, "b": buffers, "extra": torch.zeros(10), "loss": 1.0}) == (x.nbytes + 40, 24)
    assert count({"w": x, "b": Tree()}) == (x.nbytes, 0)
    assert count({"w": x}) == (x.nbytes, 0)
