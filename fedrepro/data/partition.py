"""Who owns which training sample: the splits of the five papers.

iid                    equal random parts
dirichlet:0.3          FedMLB: equal sizes, label ratios of each client from a symmetric Dirichlet
dirichlet_unequal:0.1  KAPC: each class is cut among the clients by a Dirichlet draw; sizes differ
level:7                FedBR: non-IID level 0..9
dominant:0.8           DFL: 80% of one label, the rest evenly of the others
shards:2               AMA: two shards of different classes each
writers                FEMNIST: a client is a writer

Parts are disjoint, except where `iid`, `level` and `dominant` are asked for more samples than there are.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedrepro.checks import choose
from fedrepro.data import splits
from fedrepro.errors import bad
from fedrepro.simulation.rng import stream

PARAMETERS = {
    "iid": None,
    "dirichlet": (float, "a concentration above 0", lambda v: 0 < v < float("inf")),
    "dirichlet_unequal": (float, "a concentration above 0", lambda v: 0 < v < float("inf")),
    "level": (int, "a level from 0 to 9", lambda v: 0 <= v <= 9),
    "dominant": (float, "a share in (0, 1]", lambda v: 0 < v <= 1),
    "shards": (int, "a number of shards from 1", lambda v: v >= 1),
    "writers": None,
}
OVERLAPPING = ("iid", "level", "dominant")


@dataclass(frozen=True, eq=False)
class Partition:
    """Compressed rows: client i owns order[offsets[i] : offsets[i + 1]]."""

    order: Tensor  # int32, positions in the data set
    offsets: Tensor  # int64, clients + 1

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, cid: int) -> Tensor:
        if not 0 <= cid < len(self):
            raise IndexError(f"client {cid} of {len(self)}")
        return self.order[self.offsets[cid] : self.offsets[cid + 1]].long()

    @property
    def sizes(self) -> Tensor:
        return self.offsets.diff()

    def label_counts(self, labels: Tensor, classes: int) -> Tensor:
        """How many samples of each class each client has: (clients, classes)."""
        owners = torch.arange(len(self)).repeat_interleave(self.sizes)  # of each entry of `order`
        cells = owners * classes + labels[self.order.long()].long()
        return cells.bincount(minlength=len(self) * classes).view(-1, classes)


def partition(
    split: str,
    labels: Tensor,
    clients: int,
    *,
    seed: int,
    samples: int | None = None,
    share: float = 1.0,
    writers: Tensor | None = None,
) -> Partition:
    """Divide the training set, or a random `share` of it (KAPC: 10%), among the clients.

    `samples` is the size of every client; by default the largest equal size, which leaves fewer than
    `clients` samples unused (more for `level`, `dominant` and `shards` if the classes are unbalanced).
    Two splits differ: with `dirichlet_unequal` it is the mean size, with `writers` the maximum.
    """
    kind, value = check(split, clients)
    total, most = _sizes(kind, len(labels), clients, samples, share)
    pool = torch.randperm(len(labels), generator=stream(seed, "partition", "pool"))[:total]
    generator = stream(seed, "partition", kind)
    if kind == "iid":
        counts = torch.full((clients,), samples or most)
        return Partition(_draw(pool, counts, generator), _offsets(counts))
    if kind == "writers":
        if writers is None:
            raise bad("split", split, "data with writers (femnist) for this split")
        return _collect(pool, splits.by_writer(writers[pool], clients, samples, generator), clients)
    classes, label = labels[pool].unique(return_inverse=True)
    if kind == "dirichlet":
        owner = splits.dirichlet(label, len(classes), clients, samples or most, value, generator)
        return _collect(pool, owner, clients)
    supply = label.bincount()
    if kind == "dirichlet_unequal":
        counts = splits.dirichlet_unequal(supply, clients, value, generator)
    elif kind == "shards":
        counts = splits.shards(split, supply, clients, int(value), samples, generator)
    else:
        counts = splits.skewed(kind, value, classes, supply, clients, samples, generator)
    return _deal(pool, label, counts, generator)


def _sizes(kind: str, available: int, clients: int, samples: int | None, share: float) -> tuple[int, int]:
    """(how many samples are divided, the largest equal size of a client)."""
    if not 0 < share <= 1:
        raise bad("share", share, "a share of the training set in (0, 1]")
    if samples is not None and samples < 1:
        raise bad("samples", samples, "1 or more")
    total = round(share * available)
    most = total // clients
    if kind != "writers" and (samples is None or kind not in OVERLAPPING):
        if not most:
            raise bad("clients", clients, f"at most one client per sample ({total} samples)")
        if samples is not None and samples > most:
            raise bad("samples", samples, f"at most {most}: clients of {kind} share none of the {total} samples")
    if kind == "iid" and samples and samples > total:
        raise bad("samples", samples, f"at most the {total} samples there are")
    return clients * samples if kind == "dirichlet_unequal" and samples else total, most


def personal_test(
    split_parts: Partition, train_labels: Tensor, test_labels: Tensor, *, seed: int, share: float = 1.0
) -> Partition:
    """Each client's own test samples, in the label proportions of its training samples (KAPC).

    The test samples of a class are divided in proportion to the clients' training samples of it, so the parts
    are disjoint and every class that is trained on is used up. A client left with none gets one, of its most
    frequent class if possible, from the client that has most of it. `share`: KAPC's 10% of the test data.
    """
    if not 0 < share <= 1:
        raise bad("share", share, "a share of the test set in (0, 1]")
    generator = stream(seed, "partition", "test")
    pool = torch.randperm(len(test_labels), generator=generator)[: round(share * len(test_labels))]
    classes = int(max(train_labels.max(), test_labels.max())) + 1
    trained = split_parts.label_counts(train_labels, classes)

    label = test_labels[pool].long()
    supply = label.bincount(minlength=classes) * (trained.sum(0) > 0)
    needy = trained.sum(1) > 0
    if supply.sum() < needy.sum():
        raise bad("clients", len(split_parts), f"at most one per test sample ({int(supply.sum())} of their classes)")
    quota = trained.double() / trained.sum(0).clamp(min=1) * supply
    counts = quota.floor().long()
    rank = (counts - quota).argsort(dim=0, stable=True).argsort(dim=0)
    counts += rank < supply - counts.sum(0)  # largest remainder
    splits.top_up(counts, trained.double(), needy.long())
    return _deal(pool, label, counts, generator)


def check(split: str, clients: int) -> tuple[str, float]:
    """The kind of split and its value, 0 where it has none; an unknown kind, a bad value or no clients are refused."""
    if clients < 1:
        raise bad("clients", clients, "1 or more")
    kind, colon, text = split.partition(":")
    rule = PARAMETERS[choose("split", kind, PARAMETERS)]
    if rule is None:
        if colon:
            raise bad("split", split, f"{kind} without a value")
        return kind, 0
    parse, allowed, valid = rule
    try:
        value = parse(text)
        if valid(value):
            return ("iid", 0) if (kind, value) == ("level", 0) else (kind, value)
    except ValueError:
        pass
    raise bad("split", split, f"{kind}:<value> with {allowed}")


def _offsets(sizes: Tensor) -> Tensor:
    return torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])


def _collect(indices: Tensor, owner: Tensor, clients: int) -> Partition:
    """Sample indices[i] goes to client owner[i]; -1: to none."""
    if (unused := owner < 0).any():
        indices, owner = indices[~unused], owner[~unused]
    order = indices[owner.argsort(stable=True)].int()
    return Partition(order, _offsets(owner.bincount(minlength=clients)))


def _draw(members: Tensor, counts: Tensor, generator: torch.Generator) -> Tensor:
    """counts[i] distinct members for each client i in turn, as int32, because 100,000 clients need many.

    They come from one permutation after another: no member is used twice before all have been used once.
    """
    size, ends, total = len(members), counts.cumsum(0), int(counts.sum())
    drawn, held = torch.empty(total, dtype=torch.int32), torch.zeros(size, dtype=torch.bool)
    for start in range(0, total, max(size, 1)):  # a class may have no member at all
        turn = torch.randperm(size, generator=generator)
        turn = turn[held[turn].int().argsort(stable=True)] if held.any() else turn
        end = start + size
        drawn[start:end] = members[turn[: total - start]]
        if end < total:  # what the client at the seam already holds comes last in the next permutation
            seam = torch.searchsorted(ends, end, right=True)
            held.zero_()[turn[size - (end - int(ends[seam] - counts[seam])) :]] = True
    return drawn


def _deal(pool: Tensor, label: Tensor, counts: Tensor, generator: torch.Generator) -> Partition:
    """Give client i counts[i, c] samples of class c."""
    clients, indices, owner = torch.arange(len(counts)), [], []
    for c, column in enumerate(counts.T):
        members = pool[label == c]
        indices.append(_draw(members, column, generator))
        owner.append(clients.repeat_interleave(column))
    return _collect(torch.cat(indices), torch.cat(owner), len(counts))
