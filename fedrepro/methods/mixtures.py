"""Models mixed client by client and layer by layer: what KAPC, FedAMP and pFedLA share."""

import torch
from torch import Tensor

from fedrepro.methods.base import Round, State
from fedrepro.simulation.tree import Tree

COLUMNS = 1 << 14  # parameters of a layer that are converted to float64 at a time


def last_upload(server: State, cid: int, r: Round) -> State:
    """The "w" and "b" that the server has of a client: what it uploaded last, before that the initial model."""
    return r.per_client.get(cid) or server


def stack(models: list[Tree], names: list[str]) -> Tensor:
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


def fill(trees: list[Tree], flat: Tensor, like: list[Tree], names: list[str]) -> None:
    """The rows of `flat` as the named tensors of `trees`."""
    sizes = [like[0][name].numel() for name in names] if like else []
    for tree, row in zip(trees, flat, strict=True):
        for name, values in zip(names, row.split(sizes), strict=True):
            tree[name] = values.view(like[0][name].shape)
