"""Bytes, counted from the tensors that are really sent.

BatchNorm statistics travel under the key "b" and are counted separately, because the papers' model sizes leave
them out (invariant I-66). Python numbers (a loss, a time) are not counted.
"""

from collections.abc import Mapping

from torch import Tensor

from fedrepro.simulation.tree import Tree

BUFFERS = "b"
MIB = 2**20


def nbytes(value: object) -> int:
    """Bytes of all tensors in it."""
    if isinstance(value, Tensor | Tree):
        return value.nbytes
    return sum(map(nbytes, value.values())) if isinstance(value, dict) else 0


def count(message: Mapping[str, object]) -> tuple[int, int]:
    """(bytes of everything learned or computed, bytes of BatchNorm statistics) in one message."""
    buffers = nbytes(message.get(BUFFERS))
    return nbytes(message) - buffers, buffers
