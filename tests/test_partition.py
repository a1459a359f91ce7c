import time

import pytest
import torch

from fedrepro.data.partition import check, partition, personal_test
from fedrepro.errors import BadInput

torch.set_num_threads(1)

MNIST = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
CIFAR10, CIFAR100, COARSE = [5000] * 10, [500] * 100, [2500] * 20
SPLITS = ["iid", "dirichlet:0.3", "dirichlet_unequal:0.1", "level:7", "dominant:0.8", "shards:2", "writers"]


def labelled(counts):
    y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return y[torch.randperm(len(y), generator=torch.Generator().manual_seed(1))]


def histogram(parts, y):
    classes = int(y.max()) + 1
    return torch.stack([y[part].bincount(minlength=classes) for part in parts])


def make(split, y, clients, **kwargs):
    writers = torch.arange(len(y)) % 40 if split == "writers" else None
    return partition(split, y, clients, writers=writers, **{"seed": 0, **kwargs})


def disjoint(parts):
    return len(parts.order.unique()) == len(parts.order)


def complete(parts, y):
    return len(parts.order) == len(y) and disjoint(parts)


# I-60


@pytest.mark.parametrize("split", SPLITS)
def test_i60_disjoint_and_complete(split):
    y = labelled([400] * 10)
    parts = make(split, y, 40)
    assert complete(parts, y)
    assert parts.order.dtype == torch.int32 and parts.offsets.dtype == torch.int64
    assert parts[3].dtype == torch.int64 and len(parts) == 40
    assert parts.sizes.tolist() == [len(part) for part in parts]
    if split != "dirichlet_unequal:0.1":
        assert (parts.sizes == 100).all()


@pytest.mark.parametrize("split", SPLITS)
def test_i63_the_seed_alone_decides(split):
    y = labelled([400] * 10)
    first, again, other = (make(split, y, 20, seed=s) for s in (3, 3, 4))
    assert first.order.equal(again.order) and first.offsets.equal(again.offsets)
    assert len(first.order) != len(other.order) or not first.order.equal(other.order)


@pytest.mark.parametrize("split", SPLITS)
def test_share_is_a_random_part_of_the_data(split):
    y = labelled([400] * 10)
    parts = make(split, y, 10, share=0.1)
    least = {"shards:2": 300, "writers": 50, "level:7": 350, "dominant:0.8": 350}  # 10 of 40 writers
    assert disjoint(parts) and least.get(split, 400) <= len(parts.order) <= 400
    assert y[parts.order.long()].bincount().min() > 0


@pytest.mark.parametrize("split", SPLITS)
def test_samples_per_client(split):
    parts = make(split, labelled([400] * 10), 20, samples=60)
    assert disjoint(parts) and len(parts.order) == 1200
    assert split == "dirichlet_unequal:0.1" or (parts.sizes == 60).all()


def test_leftover_of_equal_sizes_is_dropped():
    for split in ("iid", "dirichlet:0.3"):
        parts = make(split, labelled([11, 12]), 4)
        assert parts.sizes.tolist() == [5] * 4 and disjoint(parts)


def test_client_numbers_are_checked():
    parts = make("iid", labelled([10, 10]), 4)
    for cid in (-1, 4):
        with pytest.raises(IndexError):
            parts[cid]


# iid, and more samples than there are


@pytest.mark.parametrize("split", ["iid", "level:7", "dominant:0.8"])
def test_fb01_overlap_is_even_and_distinct_in_a_client(split):
    y = labelled([50] * 10)
    parts = make(split, y, 100, samples=47)
    assert (parts.sizes == 47).all()
    assert all(len(part.unique()) == 47 for part in parts)
    uses = parts.order.long().bincount(minlength=500)
    assert uses.max() - uses.min() <= 1 or split != "iid"
    for c in range(10):
        assert uses[y == c].max() - uses[y == c].min() <= 1
    assert len({tuple(part.sort().values.tolist()) for part in parts}) == 100


def test_fb01_fedbr_as_printed():
    y = labelled(CIFAR10)
    h = histogram(make("level:7", y, 100, samples=5000), y)
    assert (h.amax(1) == 3500).all() and (h.sum(0) == 50000).all()


def test_a_client_may_hold_the_whole_set():
    parts = make("iid", labelled([5, 5]), 3, samples=10)
    assert all(part.sort().values.tolist() == list(range(10)) for part in parts)


def test_iid_of_100000_clients():
    start = time.perf_counter()
    parts = partition("iid", torch.zeros(60000, dtype=torch.int64), 100_000, seed=0, samples=60)
    assert time.perf_counter() - start < 5
    assert len(parts.order) == 6_000_000 and parts.order.dtype == torch.int32
    assert (parts.order.long().bincount() == 100).all()
    assert all(len(parts[cid].unique()) == 60 for cid in range(0, 100_000, 997))


# level and dominant


@pytest.mark.parametrize(("clients", "size"), [(100, 500), (10, 5000)])  # both readings of FB-01
@pytest.mark.parametrize("level", range(1, 10))
def test_i61_levels_of_cifar10(level, clients, size):
    y = labelled(CIFAR10)
    parts = make(f"level:{level}", y, clients)
    h = histogram(parts, y)
    assert complete(parts, y) and (h.sum(1) == size).all()
    if level == 1:
        assert (h == size // 10).all()
        return
    main = h == h.amax(1, keepdim=True)
    assert (h[main] == level * size // 10).all() and (main.sum(0) == clients // 10).all()
    others = h[~main].view(clients, 9)
    assert (others.amax(1) - others.amin(1)).max() <= 1


@pytest.mark.parametrize(("clients", "size"), [(100, 500), (10, 5000)])
@pytest.mark.parametrize("level", range(1, 10))
def test_i61_levels_of_cifar100(level, clients, size):
    y = labelled(CIFAR100)
    parts = make(f"level:{level}", y, clients)
    h = histogram(parts, y)
    present = 100 - 10 * level
    assert complete(parts, y) and (h.sum(1) == size).all()
    assert ((h > 0).sum(1) == present).all()
    assert set(h[h > 0].tolist()) <= {size // present, size // present + 1}
    assert ((h > 0).sum(0) == clients * present // 100).all()


def test_level_0_is_iid():
    y = labelled(CIFAR10)
    assert make("level:0", y, 100).order.equal(make("iid", y, 100).order)


@pytest.mark.parametrize(("counts", "clients"), [(CIFAR10, 100), (COARSE, 100), ([200] * 62, 62)])
def test_i62_dominant(counts, clients):
    y = labelled(counts)
    parts = make("dominant:0.8", y, clients)
    h, size = histogram(parts, y), len(y) // clients
    main = h.amax(1)
    assert complete(parts, y) and (main == round(0.8 * size)).all()
    others = h.sort(1).values[:, :-1]
    assert (others.amax(1) - others.amin(1)).max() <= 1
    assert (h.argmax(1).bincount() == clients // len(counts)).all()


def test_i62_main_share_of_one_class_is_class_uniform():
    y = labelled(CIFAR10)
    assert (histogram(make("dominant:0.1", y, 100), y) == 50).all()


@pytest.mark.parametrize(("split", "main"), [("dominant:0.8", 480), ("level:9", 540), ("level:5", 300)])
def test_unbalanced_mnist_keeps_size_share_and_disjointness(split, main):
    """Only "evenly" gives way: 5,421 fives cannot be 6,000."""
    y = labelled(MNIST)
    parts = make(split, y, 100, samples=600)
    h = histogram(parts, y)
    assert complete(parts, y) and (h.sum(1) == 600).all()
    assert (h.amax(1) == main).all() and (h.argmax(1).bincount() == 10).all()
    if split == "dominant:0.8":  # 5421 - 4800 = 621 fives left for 90 devices: 6 or 7 each, not 13.3
        fives = h[h.argmax(1) != 5, 5]
        assert fives.min() >= 4 and fives.max() <= 10


def test_largest_size_that_fits():
    # Of 15 clients five main classes have two: 2 x 0.9 n <= 100 gives n <= 55, below 1000 // 15 = 66.
    y = labelled([100] * 10)
    parts = make("level:9", y, 15)
    size = int(parts.sizes[0])
    assert disjoint(parts) and (parts.sizes == size).all() and 50 <= size <= 56
    assert (histogram(parts, y).amax(1) == round(0.9 * size)).all()
    with pytest.raises(BadInput, match=r"samples: 66 .* class \d has 100 samples, 15 clients need 1\d\d"):
        make("level:9", y, 15, samples=66)


# Dirichlet


@pytest.mark.parametrize(("clients", "size"), [(100, 500), (500, 100)])
def test_i62_fedmlb_sizes(clients, size):
    y = labelled(CIFAR100)
    parts = make("dirichlet:0.3", y, clients)
    assert complete(parts, y) and (parts.sizes == size).all()


@pytest.mark.parametrize("split", ["dirichlet", "dirichlet_unequal"])
def test_i63_limits_of_the_concentration(split):
    y = labelled([2000] * 10)
    h = histogram(make(f"{split}:1000000", y, 10), y)
    assert (h / 2000 - 0.1).abs().max() < 0.03
    h = histogram(make(f"{split}:0.001", y, 10, samples=500), y).double()
    assert (h.amax(1) / h.sum(1)).median() > 0.99


def test_first_client_has_the_moments_of_the_dirichlet():
    """Dir(0.5) over 3 classes: mean 1/3, variance (1/3)(2/3) / (1.5 + 1) = 0.089."""
    y = labelled([2000] * 3)
    draws = [partition("dirichlet:0.5", y, 1, seed=s, samples=100) for s in range(300)]
    shares = torch.cat([histogram(parts, y) for parts in draws]) / 100
    assert (shares.mean(0) - 1 / 3).abs().max() < 0.07  # four standard errors
    assert (shares.var(0) - 0.089).abs().max() < 0.02


def test_dirichlet_takes_what_is_left_when_classes_run_out():
    y = labelled([90, 5, 5])
    assert complete(make("dirichlet:0.001", y, 10), y)


@pytest.mark.parametrize(("counts", "clients"), [(CIFAR10, 100), (MNIST, 1000), ([20, 20], 4)])
def test_unequal_dirichlet_gives_everyone_ten(counts, clients):
    y = labelled(counts)
    parts = make("dirichlet_unequal:0.1", y, clients)
    assert complete(parts, y) and parts.sizes.min() >= 10


def test_unequal_dirichlet_with_few_samples():
    y = labelled([15, 15])
    assert make("dirichlet_unequal:0.1", y, 10).sizes.tolist() == [3] * 10


# shards and writers


@pytest.mark.parametrize(("counts", "used"), [(MNIST, 58400), ([6000] * 10, 60000)])
def test_i62_ama_two_classes(counts, used):
    y = labelled(counts)
    parts = make("shards:2", y, 50)
    h = histogram(parts, y)
    assert ((h > 0).sum(1) == 2).all() and (h.sum(1) == used // 50).all()
    assert disjoint(parts) and len(parts.order) == used
    assert len({tuple(row.nonzero().flatten().tolist()) for row in h}) > 15  # many pairs, not five


def test_writers_own_their_samples():
    writers = torch.tensor([7, 7, 3, 3, 3, 9])
    y = torch.zeros(6, dtype=torch.int64)
    parts = partition("writers", y, 3, seed=0, writers=writers)
    assert {tuple(sorted(p.tolist())) for p in parts} == {(0, 1), (2, 3, 4), (5,)}
    one = partition("writers", y, 1, seed=0, writers=writers)[0]
    assert len(writers[one].unique()) == 1 and len(one) == (writers == writers[one[0]]).sum()
    assert sorted(partition("writers", y, 3, seed=0, writers=writers, samples=2).sizes.tolist()) == [1, 2, 2]


# personal test sets


def test_personal_test_by_hand():
    """Client 0 trains on 3 of 4 zeros, client 1 on one zero and all ones: 6 and 2 of the 8 zeros, all ones."""
    train, test = torch.tensor([0, 0, 0, 0, 1, 1]), labelled([8, 4])
    parts = partition("writers", train, 2, seed=0, writers=torch.tensor([5, 5, 5, 6, 6, 6]))
    mine = 0 if 0 in parts[0] else 1
    h = histogram(personal_test(parts, train, test, seed=0), test)
    assert h[mine].tolist() == [6, 0] and h[1 - mine].tolist() == [2, 4]


@pytest.mark.parametrize("split", ["dirichlet_unequal:0.1", "dirichlet:0.3", "iid"])
def test_personal_test_follows_training(split):
    train, test = labelled(MNIST), labelled([1000] * 10)
    parts = make(split, train, 100)
    own = personal_test(parts, train, test, seed=0)
    assert complete(own, test) and own.sizes.min() >= 1
    a, b = histogram(parts, train) / torch.tensor(MNIST), histogram(own, test) / 1000
    assert (a - b).abs().max() < 0.003
    assert own.order.equal(personal_test(parts, train, test, seed=0).order)


def test_personal_test_leaves_no_client_without():
    train, test = labelled([300, 300]), labelled([10, 10])
    parts = make("dirichlet_unequal:0.1", train, 20)
    assert personal_test(parts, train, test, seed=0).sizes.tolist() == [1] * 20
    with pytest.raises(BadInput, match=r"clients: 20 .*10 of their classes"):
        personal_test(parts, train, test, seed=0, share=0.5)


def test_personal_test_share_and_unseen_class():
    train, test = labelled([100, 100]), labelled([50, 50, 50])
    parts = make("iid", train, 2)
    assert set(test[personal_test(parts, train, test, seed=0).order.long()].tolist()) == {0, 1}
    assert len(personal_test(parts, train, test[test < 2], seed=0, share=0.1).order) == 10


# errors


@pytest.mark.parametrize(
    "split",
    ["", "dirichlet", "dirichlet:0", "dirichlet:nan", "dirichlet_unequal:x", "level:10", "level:1.5", "level:-1",
     "dominant:1.2", "shards:0", "iid:3", "writers:2", "noniid"],
)  # fmt: skip
def test_bad_splits(split):
    with pytest.raises(BadInput, match=r"^split: "):
        check(split, 10)


def test_good_splits():
    for split in SPLITS:
        check(split, 10)


@pytest.mark.parametrize(
    ("split", "counts", "clients", "options", "message"),
    [
        ("iid", [5, 5], 0, {}, "clients: 0"),
        ("iid", [5, 5], 11, {}, "clients: 11 .*10 samples"),
        ("iid", [5, 5], 2, {"samples": 11}, "samples: 11 .*10 samples"),
        ("iid", [5, 5], 2, {"samples": 0}, "samples: 0"),
        ("iid", [5, 5], 2, {"share": 0.0}, "share: 0.0"),
        ("dirichlet:0.3", [50, 50], 10, {"samples": 11}, "samples: 11 .*at most 10.*100 samples"),
        ("dirichlet_unequal:0.3", [50, 50], 10, {"samples": 11}, "at most 10"),
        ("shards:2", [50, 50], 10, {"samples": 11}, "at most 10"),
        ("shards:2", [60, 40], 10, {"samples": 9}, "multiple of the 2"),
        ("shards:3", [50, 50], 10, {}, "at most 2 shards"),
        ("shards:2", [99, 1], 10, {}, "^split: .*at most 0 samples in each of 10 x 2 shards, from classes of 1 to 99"),
        ("shards:2", [70, 30], 5, {"samples": 20}, "^samples: 20 .*at most 6 samples"),
        ("dominant:0.8", [50, 50], 10, {"samples": 80}, "class 0 has 50 samples, a client needs 64"),
        ("dominant:0.8", [100], 10, {}, "two classes"),
        ("level:9", [999, 1], 10, {"samples": 10}, "class 1 has 1 samples, 10 clients need 50"),
        ("writers", [50, 50], 41, {}, r"writers \(40\)"),
    ],
)
def test_impossible_partitions_say_why(split, counts, clients, options, message):
    with pytest.raises(BadInput, match=message) as error:
        make(split, labelled(counts), clients, **options)
    assert "\n" not in str(error.value)


def test_writers_need_writers():
    with pytest.raises(BadInput, match="femnist"):
        partition("writers", torch.zeros(4, dtype=torch.int64), 2, seed=0)


def test_a_class_that_nobody_has():
    labels = torch.tensor([0, 2, 3] * 20)  # of classes 0 to 3
    parts = partition("dirichlet_unequal:0.1", labels, 5, seed=0)
    tests = personal_test(parts, labels, torch.arange(4).repeat(10), seed=0)
    assert int(parts.sizes.sum()) == 60
    assert all(1 not in torch.arange(4).repeat(10)[tests[i]] for i in range(5))
