"""Models mixed client by client and layer by layer: what KAPC, FedAMP and pFedLA share."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from fedrepro.methods.base import Round, State
from fedrepro.simulation.tree import Tree

COLUMNS = 1 << 14  # parameters of a layer that are converted to float64 at a time


def last_upload(server: State, cid: int, r: Round) -> State:
    """The "w" and "b" that the server has of a client: what it uploaded last, before that the initial model."""
    return r.per_client.get(cid) or server


def last_uploads(server: State, r: Round) -> Iterator[State]:
    """Of every participant, one after the other: those in files are read when their turn comes."""
    return (last_upload(server, cid, r) for cid in r.participants)


def stack(models: Iterable[Tree], names: list[str]) -> Tensor:
    """One layer of every client: clients x parameters."""
    return torch.stack([torch.cat([w[name].flatten() for name in names]) for w in models])


def gram(x: Tensor) -> Tensor:
    """<w_j, w_k> for all clients j, k; in float64, because similar models differ by little of their norm."""
    total = x.new_zeros(len(x), len(x), dtype=torch.float64)
    for part in x.split(COLUMNS, 1):
        part = part.double()
        total += part @ part.T
    return total.cpu()


def combine(weights: Tensor, x: Tensor) -> Tensor:
    """Every client's weighted sum of all clients' parameters."""
    return weights.to(x.device, x.dtype) @ x


class Mixed:
    """A model for each participant, given layer by layer, kept by the round and put together by mixed[cid]."""

    def __init__(self, r: Round, like: Tree):
        self._r, self._like, self._layers = r, like, []

    def add(self, flat: Tensor, names: list[str]) -> None:
        """One layer of all participants: participants x parameters."""
        self._layers.append((len(self._r.spill.version), names))
        self._r.spill.put(self._layers[-1][0], {"flat": flat}, self._r.t)

    def layer(self, number: int, cids: list[int]) -> Tensor:
        """That layer of these participants."""
        rows = [self._r.participants.index(cid) for cid in cids]
        return self._r.spill[self._layers[number][0]]["flat"][rows]

    def __getitem__(self, cid: int) -> Tree:
        tree = Tree()
        for number, (_, names) in enumerate(self._layers):
            row = self.layer(number, [cid])[0]
            for name, values in zip(names, row.split([self._like[name].numel() for name in names]), strict=True):
                tree[name] = values.view(self._like[name].shape)
        return tree
