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

import numpy as np
import torch
from torch import Tensor

from fedrepro.checks import choose
from fedrepro.data import portable
from fedrepro.errors import bad
from fedrepro.simulation.rng import stream

MINIMUM = 10  # samples of a client under dirichlet_unequal; KAPC states none
FEW_CLASSES = 20  # up to here FedBR's CIFAR10 rule makes the levels, above it its CIFAR100 rule

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

    @property
    def owners(self) -> Tensor:
        """The client of each entry of `order`."""
        return torch.arange(len(self)).repeat_interleave(self.sizes)

    def label_counts(self, labels: Tensor, classes: int) -> Tensor:
        """How many samples of each class each client has: (clients, classes)."""
        cells = self.owners * classes + labels[self.order.long()].long()
        return cells.bincount(minlength=len(self) * classes).view(-1, classes)


def check(split: str, clients: int) -> None:
    _parse(split)
    if clients < 1:
        raise bad("clients", clients, "1 or more")


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
    Two splits have sizes of their own: under `dirichlet_unequal` it is the mean, under `writers` the maximum.
    """
    check(split, clients)
    kind, value = _parse(split)
    if not 0 < share <= 1:
        raise bad("share", share, "a share of the training set in (0, 1]")
    if samples is not None and samples < 1:
        raise bad("samples", samples, "1 or more")
    if kind == "level" and value == 0:
        kind = "iid"
    if kind == "writers" and writers is None:
        raise bad("split", split, "data with writers (femnist) for this split")

    total = round(share * len(labels))
    most = total // clients
    if kind != "writers" and (samples is None or kind not in OVERLAPPING):
        if not most:
            raise bad("clients", clients, f"at most one client a sample ({total} samples)")
        if samples is not None and samples > most:
            raise bad("samples", samples, f"at most {most}: clients of {kind} share none of the {total} samples")
    if kind == "dirichlet_unequal" and samples is not None:
        total = clients * samples
    pool = torch.randperm(len(labels), generator=stream(seed, "partition", "pool"))[:total]
    generator = stream(seed, "partition", kind)

    if kind == "iid":
        counts = torch.full((clients,), samples or most)
        if samples and samples > total:
            raise bad("samples", samples, f"at most the {total} samples there are")
        return Partition(_draw(pool, counts, generator), _offsets(counts))
    if kind == "writers":
        owner = _by_writer(writers[pool], clients, samples, generator)
        return _collect(pool[owner >= 0], owner[owner >= 0], clients)

    classes, label = labels[pool].unique(return_inverse=True)
    if kind == "dirichlet":
        owner = _dirichlet(label, len(classes), clients, samples or most, value, generator)
        return _collect(pool[owner >= 0], owner[owner >= 0], clients)
    supply = label.bincount()
    if kind == "dirichlet_unequal":
        counts = _dirichlet_unequal(supply, clients, value, generator)
    elif kind == "shards":
        counts = _shards(split, supply, clients, value, samples, generator)
    else:
        counts = _skewed(kind, value, classes, supply, clients, samples, generator)
    return _deal(pool, label, counts, generator)


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
        raise bad("clients", len(split_parts), f"at most one a test sample ({int(supply.sum())} of their classes)")
    quota = trained.double() / trained.sum(0).clamp(min=1) * supply
    counts = quota.floor().long()
    rank = (counts - quota).argsort(dim=0, stable=True).argsort(dim=0)
    counts += rank < supply - counts.sum(0)  # largest remainder
    _top_up(counts, trained.double(), needy.long())
    return _deal(pool, label, counts, generator)


def _parse(split: str) -> tuple[str, float | int | None]:
    kind, colon, text = split.partition(":")
    choose("split", kind, PARAMETERS)
    if PARAMETERS[kind] is None:
        if colon:
            raise bad("split", split, f"{kind} without a value")
        return kind, None
    number, allowed, valid = PARAMETERS[kind]
    try:
        value = number(text)
        if valid(value):
            return kind, value
    except ValueError:
        pass
    raise bad("split", split, f"{kind}:<value> with {allowed}")


def _offsets(sizes: Tensor) -> Tensor:
    return torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])


def _collect(indices: Tensor, owner: Tensor, clients: int) -> Partition:
    order = indices[owner.argsort(stable=True)].int()
    return Partition(order, _offsets(owner.bincount(minlength=clients)))


def _draw(members: Tensor, counts: Tensor, generator: torch.Generator) -> Tensor:
    """counts[i] distinct members for each client i in turn, as int32: a hundred thousand clients need many.

    They come from one permutation after another: no member is used again before all have been used.
    """
    size, ends, total = len(members), counts.cumsum(0), int(counts.sum())
    drawn, held = torch.empty(total, dtype=torch.int32), torch.zeros(size, dtype=torch.bool)
    for start in range(0, total, max(size, 1)):  # a class may have no member at all
        turn = torch.randperm(size, generator=generator)
        turn = turn[held[turn].int().argsort(stable=True)] if held.any() else turn
        end = start + size
        drawn[start:end] = members[turn[: total - start]]
        if end < total:  # what the client at the seam holds of this permutation comes last in the next one
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


def _top_up(counts: Tensor, preference: Tensor, minimum: Tensor) -> None:
    """Move samples, in place, until each client i has minimum[i]: of the class it prefers most among those a
    client with more than its own minimum can give, from the one that has most of that class."""
    for i in (counts.sum(1) < minimum).nonzero().flatten().tolist():
        while (need := int(minimum[i] - counts[i].sum())) > 0:
            spare = (counts.sum(1) - minimum).clamp(min=0)
            gifts = counts.minimum(spare[:, None])
            c = int(preference[i].masked_fill(gifts.amax(0) == 0, -float("inf")).argmax())
            donor = int(gifts[:, c].argmax())
            moved = min(need, int(gifts[donor, c]))
            counts[donor, c] -= moved
            counts[i, c] += moved


def _log_gamma_draws(alpha: float, shape: tuple[int, int], generator: torch.Generator) -> np.ndarray:
    """Logarithms of Gamma(alpha) draws; normalised they are Dirichlet(alpha), which underflows for small alpha.

    torch's sampler calls libm, so a draw's last bit may differ between processors; the splits round it away.
    """
    more = torch._standard_gamma(torch.full(shape, alpha + 1, dtype=torch.float64), generator=generator)
    uniform = torch.rand(shape, dtype=torch.float64, generator=generator).clamp(min=1e-300)
    return portable.log(more.numpy()) + portable.log(uniform.numpy()) / alpha


def _minus_log(x: Tensor) -> Tensor:
    return torch.from_numpy(-portable.log(x.double().numpy())).float()


def _dirichlet(label: Tensor, classes: int, clients: int, size: int, alpha: float, generator) -> Tensor:
    """FedMLB: client by client, p ~ Dir(alpha), then samples without replacement with weights p[class].

    A class that has run out leaves the draw to the others in proportion to p, however small their p, so the
    last clients take what is left. The weighted draw is the top of log p[class] + Gumbel noise: no underflow.
    """
    weight = torch.from_numpy(_log_gamma_draws(alpha, (clients, classes), generator)).float()
    owner, left = torch.full_like(label, -1), torch.arange(len(label))
    for i in range(clients):
        noise = _minus_log(_minus_log(torch.rand(len(left), generator=generator)))
        won = noise.add_(weight[i][label]).topk(size, sorted=False).indices
        owner[left[won]] = i
        kept = torch.ones(len(left), dtype=torch.bool).index_fill_(0, won, False)
        left, label = left[kept], label[kept]
    return owner


def _dirichlet_unequal(supply: Tensor, clients: int, alpha: float, generator) -> Tensor:
    """KAPC: each class is cut among the clients in proportions ~ Dir(alpha); every sample is used.

    A client with fewer than ten samples (or than the mean size, if that is less) is filled up with the class it
    drew most of: at alpha = 0.1 and 100 clients no redraw would ever give ten to everyone.
    """
    draws = _log_gamma_draws(alpha, (clients, len(supply)), generator)
    draws -= draws.max(0)
    sums = portable.exp(draws).cumsum(0)
    cuts = torch.from_numpy(sums / sums[-1]).mul(supply).round().long()
    counts = cuts.diff(dim=0, prepend=torch.zeros_like(cuts[:1]))
    minimum = min(MINIMUM, int(supply.sum()) // clients)
    _top_up(counts, torch.from_numpy(draws - portable.log(sums[-1])), torch.full((clients,), minimum))
    return counts


def _shards(split: str, supply: Tensor, clients: int, shards: int, samples: int | None, generator) -> Tensor:
    """AMA: "each client only has access to samples from two classes".

    McMahan's shards of the sorted data may straddle classes and a client may draw one class twice; here equal
    shards are cut inside the classes and those of a client are of different classes. MNIST on 50 clients: 584
    samples a shard, 58,400 of 60,000 used; Fashion-MNIST is used up.
    """
    if shards > len(supply):
        raise bad("split", split, f"at most {len(supply)} shards, one a class")
    if samples is not None and samples % shards:
        raise bad("samples", samples, f"a multiple of the {shards} shards of a client")

    def cut(size: int) -> Tensor:
        return (supply // size).clamp(max=clients)

    largest = int(supply.sum()) // (clients * shards)
    while largest and cut(largest).sum() < clients * shards:
        largest -= 1
    size = largest if samples is None else samples // shards
    if not 0 < size <= largest:
        field, value = ("split", split) if samples is None else ("samples", samples)
        held = f"classes of {int(supply.min())} to {int(supply.max())} samples"
        raise bad(field, value, f"at most {largest} samples in each of {clients} x {shards} shards, from {held}")

    left, counts = cut(size), torch.zeros(clients, len(supply), dtype=torch.int64)
    for row in counts:  # always from the classes with most shards left, so that none is left for one client twice
        taken = (left + torch.rand(len(left), generator=generator)).topk(shards).indices
        row[taken] = size
        left[taken] -= 1
    return counts


def _skewed(
    kind: str, value: float, classes: Tensor, supply: Tensor, clients: int, samples: int | None, generator
) -> Tensor:
    """FedBR's levels and DFL's dominant label as counts of (client, class).

    `dominant:s`: a share s of one label, the rest evenly of the others. `level:e` is the same with s = e / 10 up
    to 20 classes; with more, e tenths of the classes are missing and the others even. "Evenly": counts differ
    by at most one, and so do the numbers of clients that have a class as their main one or lack it.

    Where a class cannot supply that (MNIST has 5,421 fives, DFL's 600 a device need 6,000), the main label
    keeps its share and all parts stay disjoint: the missing samples are taken from the other labels, from each
    client about as many. If that fails, the largest smaller size is used (in steps of 1%), or, if `samples` was
    given, an error raised. With more samples asked for than there are, counts are exact and clients overlap.
    """
    several = len(supply)
    share = value / 10 if kind == "level" else value
    by_main = kind == "dominant" or several <= FEW_CLASSES
    if several < 2:
        raise bad("split", f"{kind}:{value}", "data of at least two classes")
    width = several - 1 if by_main else several - several * value // 10
    # Starts evenly spaced on the ring of classes: every class is then in as many windows as any other.
    start = (torch.arange(clients) * several // clients)[torch.randperm(clients, generator=generator)]
    place = (torch.randperm(several, generator=generator) - start[:, None]) % several
    window = place < width

    def counts(size: int) -> tuple[Tensor, Tensor]:
        main = round(share * size) if by_main else 0
        least, more = divmod(size - main, width)
        return (place == several - 1) * main, window * least + (place < more)

    size = samples or int(supply.sum()) // clients
    if size * clients > supply.sum():
        fixed, even = counts(size)
        needed = (fixed + even).amax(0)
        if (short := needed > supply).any():
            c = int(short.int().argmax())
            why = f"class {int(classes[c])} has {int(supply[c])} samples, a client needs {int(needed[c])}"
            raise bad("samples", samples, f"fewer: {why}")
        return fixed + even

    while size:
        fixed, even = counts(size)
        if _fit(even, window, supply - fixed.sum(0)):
            return fixed + even
        if samples is not None:
            needed = sum(counts(size)).sum(0)
            c = int((needed - supply).argmax())
            why = f"class {int(classes[c])} has {int(supply[c])} samples, {clients} clients need {int(needed[c])}"
            raise bad("samples", samples, f"fewer, or none for the largest size: {why}")
        size -= max(1, size // 100)
    raise bad("split", f"{kind}:{value}", f"more samples: the rarest class has {int(supply.min())}")


def _fit(even: Tensor, window: Tensor, supply: Tensor) -> bool:
    """Lower, in place, the columns that ask for more than `supply`, one sample at a time and where the row stays
    most even; False if it cannot be done."""
    excess = even.sum(0) - supply
    if supply.min() < 0 or excess.sum() > 0:
        return False
    while excess.max() > 0:
        c = int(excess.argmax())
        gap = even[:, c, None] - even
        gap[~window | (excess >= 0) | (even[:, c, None] == 0)] = torch.iinfo(gap.dtype).min
        i, to = divmod(int(gap.argmax()), even.shape[1])
        if gap[i, to] == torch.iinfo(gap.dtype).min:
            return False
        even[i, c] -= 1
        even[i, to] += 1
        excess[c] -= 1
        excess[to] += 1
    return True


def _by_writer(writers: Tensor, clients: int, samples: int | None, generator) -> Tensor:
    """The first `clients` writers in a seeded order, each with at most `samples` of its samples; -1: unused."""
    names, writer = writers.unique(return_inverse=True)
    if clients > len(names):
        raise bad("clients", clients, f"at most the number of writers ({len(names)})")
    rank = torch.randperm(len(names), generator=generator)[writer]
    owner = rank.where(rank < clients, -1)
    if samples is not None:
        rows = rank.argsort(stable=True)
        place = torch.empty_like(rank)
        place[rows] = torch.arange(len(rank)) - _offsets(rank.bincount())[rank[rows]]
        owner[place >= samples] = -1
    return owner
