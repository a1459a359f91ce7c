"""Bytes, counted from the tensors that are really sent.

BatchNorm statistics travel under the key "b" and are counted separately, because the papers' model sizes leave
them out (invariant I-66). Python numbers (a loss, a time) are not counted.
"""

from collections.abc import Mapping

from fedrepro.simulation.shared_memory import tensors_in

BUFFERS = "b"
MIB = 2**20


def nbytes(value: object) -> int:
    """Bytes of all tensors in it."""
    return sum(tensor.nbytes for tensor in tensors_in(value))


def count(message: Mapping[str, object]) -> tuple[int, int]:
    """(bytes of everything learned or computed, bytes of BatchNorm statistics) in one message."""
    buffers = nbytes(message.get(BUFFERS))
    return nbytes(message) - buffers, buffers
