"""The only source of randomness: every draw has an address."""

import hashlib

import torch


def derive(seed: int, *purpose: object) -> int:
    """A 63-bit seed for one purpose, e.g. derive(0, "batches", round, client, epoch)."""
    return int.from_bytes(hashlib.sha256(repr((seed, *purpose)).encode()).digest()[:8], "big") >> 1


def stream(seed: int, *purpose: object) -> torch.Generator:
    """A generator for one purpose."""
    return torch.Generator().manual_seed(derive(seed, *purpose))
