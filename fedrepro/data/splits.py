"""The rules of the splits: how many samples of which class, or which samples, each client gets."""

from functools import partial

import numpy as np
import torch
from torch import Generator, Tensor

from fedrepro.data import portable
from fedrepro.errors import bad

MINIMUM = 10  # samples of a client under dirichlet_unequal; KAPC states none
FEW_CLASSES = 20  # up to here FedBR's CIFAR10 rule gives the levels, above it its CIFAR100 rule


def top_up(counts: Tensor, preference: Tensor, minimum: Tensor) -> None:
    """Move samples, in place, until each client i has minimum[i]: of the class it prefers among those that clients
    above their own minimum can give, from the one that has most of that class."""
    for i in (counts.sum(1) < minimum).nonzero().flatten().tolist():
        while (need := int(minimum[i] - counts[i].sum())) > 0:
            spare = (counts.sum(1) - minimum).clamp(min=0)
            gifts = counts.minimum(spare[:, None])
            c = int(preference[i].masked_fill(gifts.amax(0) == 0, -float("inf")).argmax())
            donor = int(gifts[:, c].argmax())
            moved = min(need, int(gifts[donor, c]))
            counts[donor, c] -= moved
            counts[i, c] += moved


def _log_gamma_draws(alpha: float, shape: tuple[int, int], generator: Generator) -> np.ndarray:
    """Logarithms of Gamma(alpha) draws; normalised they are Dirichlet(alpha), which underflows for small alpha.

    torch's sampler calls libm, so a draw's last bit may differ between processors; rounding in the splits removes it.
    """
    more = torch._standard_gamma(torch.full(shape, alpha + 1, dtype=torch.float64), generator=generator)
    uniform = torch.rand(shape, dtype=torch.float64, generator=generator).clamp(min=1e-300)
    return portable.log(more.numpy()) + portable.log(uniform.numpy()) / alpha


def _minus_log(x: Tensor) -> Tensor:
    return torch.from_numpy(-portable.log(x.double().numpy())).float()


def dirichlet(label: Tensor, classes: int, clients: int, size: int, alpha: float, generator: Generator) -> Tensor:
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


def dirichlet_unequal(supply: Tensor, clients: int, alpha: float, generator: Generator) -> Tensor:
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
    top_up(counts, torch.from_numpy(draws - portable.log(sums[-1])), torch.full((clients,), minimum))
    return counts


def shards(split: str, supply: Tensor, clients: int, shards: int, samples: int | None, generator: Generator) -> Tensor:
    """AMA: "each client only has access to samples from two classes".

    McMahan's shards of the sorted data may straddle classes and a client may draw one class twice; here equal
    shards are cut inside the classes and those of a client are of different classes. MNIST on 50 clients: 584
    samples per shard, 58,400 of 60,000 used; Fashion-MNIST is used up.
    """
    if shards > len(supply):
        raise bad("split", split, f"at most {len(supply)} shards, one per class")
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


def _counts(position: Tensor, share: float, width: int, size: int) -> tuple[Tensor, Tensor]:
    """How many samples of each class clients of a size get: a share of their main label, which is last in each one's
    order of the classes, and the rest evenly of the first `width`."""
    main = round(share * size)
    least, more = divmod(size - main, width)
    return (position == position.shape[1] - 1) * main, (position < width) * least + (position < more)


def skewed(
    kind: str, value: float, classes: Tensor, supply: Tensor, clients: int, samples: int | None, generator: Generator
) -> Tensor:
    """FedBR's levels and DFL's dominant label as counts of (client, class).

    `dominant:s`: a share s of one label, the rest evenly of the others. `level:e` is the same with s = e / 10 up
    to 20 classes; with more, e tenths of the classes are missing and the others even. "Evenly": counts differ
    by at most one, and so do the numbers of clients that have a class as their main one or lack it.

    Where a class cannot supply that (MNIST has 5,421 fives, DFL's 600 per device need 6,000), the main label
    keeps its share and all parts stay disjoint: the missing samples are taken from the other labels, about as many
    from each client. If that fails, the largest smaller size is used (in steps of 1%), or, if `samples` was
    given, an error raised. If more samples are asked for than there are, counts are exact and clients overlap.
    """
    several = len(supply)
    if several < 2:
        raise bad("split", f"{kind}:{value}", "data of at least two classes")
    by_main = kind == "dominant" or several <= FEW_CLASSES
    share = (value / 10 if kind == "level" else value) if by_main else 0.0
    width = several - 1 if by_main else several - several * int(value) // 10
    # Starts evenly spaced on the ring of classes: every class is then in as many windows as any other.
    start = (torch.arange(clients) * several // clients)[torch.randperm(clients, generator=generator)]
    position = (torch.randperm(several, generator=generator) - start[:, None]) % several
    counts, size = partial(_counts, position, share, width), samples or int(supply.sum()) // clients
    if size * clients > supply.sum():
        given = torch.stack(counts(size)).sum(0)
        needed = given.amax(0)
        if (needed > supply).any():
            raise bad("samples", size, f"fewer: {_shortage(needed, classes, supply, 'a client needs')}")
        return given
    while size:
        fixed, even = counts(size)
        if _fit(even, position < width, supply - fixed.sum(0)):
            return fixed + even
        if samples is not None:
            why = _shortage(torch.stack(counts(size)).sum((0, 1)), classes, supply, f"{clients} clients need")
            raise bad("samples", samples, f"fewer, or none for the largest size: {why}")
        size -= max(1, size // 100)
    raise bad("split", f"{kind}:{value}", f"more samples: the rarest class has {int(supply.min())}")


def _shortage(needed: Tensor, classes: Tensor, supply: Tensor, who: str) -> str:
    c = int((needed - supply).argmax())
    return f"class {int(classes[c])} has {int(supply[c])} samples, {who} {int(needed[c])}"


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


def by_writer(writers: Tensor, clients: int, samples: int | None, generator: Generator) -> Tensor:
    """The first `clients` writers in a seeded order, each with at most `samples` of its samples; -1: unused."""
    names, writer = writers.unique(return_inverse=True)
    if clients > len(names):
        raise bad("clients", clients, f"at most the number of writers ({len(names)})")
    rank = torch.randperm(len(names), generator=generator)[writer]
    owner = rank.where(rank < clients, -1)
    if samples is not None:
        rows = rank.argsort(stable=True)
        position = torch.empty_like(rank)
        counts = rank.bincount()
        position[rows] = torch.arange(len(rank)) - (counts.cumsum(0) - counts)[rank[rows]]
        owner[position >= samples] = -1
    return owner
