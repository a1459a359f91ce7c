"""Tree: named tensors that add, subtract and scale like one vector, without Python per parameter."""

from collections.abc import Callable, Collection, Iterable, Sequence

import torch
from torch import Tensor


class Tree(dict):
    """An ordered mapping from names to tensors; arithmetic is `torch._foreach_*` over all of them."""

    __slots__ = ()

    @property
    def tensors(self) -> list[Tensor]:
        return list(self.values())

    def _aligned(self, other):
        return [other[name] for name in self] if isinstance(other, dict) else other

    def _with(self, tensors: Iterable[Tensor]) -> "Tree":
        return Tree(zip(self, tensors, strict=True))

    def _apply(self, operation: Callable, *others) -> "Tree":
        return self._with(operation(self.tensors, *map(self._aligned, others))) if self else Tree()

    def __add__(self, other) -> "Tree":
        return self._apply(torch._foreach_add, other)

    def __sub__(self, other) -> "Tree":
        return self._apply(torch._foreach_sub, other)

    def __mul__(self, other) -> "Tree":
        return self._apply(torch._foreach_mul, other)

    __rmul__ = __mul__

    def __truediv__(self, other) -> "Tree":
        return self._apply(torch._foreach_div, other)

    def __neg__(self) -> "Tree":
        return self._apply(torch._foreach_neg)

    def sqrt(self) -> "Tree":
        return self._apply(torch._foreach_sqrt)

    def lerp(self, end: "Tree", weight: float) -> "Tree":
        """self + weight (end - self); exactly self at 0 and exactly end at 1."""
        return self._apply(torch._foreach_lerp, end, weight)

    def add_(self, other: "Tree", alpha: float = 1.0) -> "Tree":
        if self:
            torch._foreach_add_(self.tensors, self._aligned(other), alpha=alpha)
        return self

    def copy_(self, other: "Tree") -> "Tree":
        if self:
            torch._foreach_copy_(self.tensors, self._aligned(other))
        return self

    def dot(self, other: "Tree") -> Tensor:
        if not self:
            return torch.zeros(())
        return torch.stack([p.sum() for p in torch._foreach_mul(self.tensors, self._aligned(other))]).sum()

    def sq(self) -> Tensor:
        return self.dot(self)

    def clone(self) -> "Tree":
        return self._with(t.detach().clone() for t in self.values())

    def zeros(self) -> "Tree":
        return self._with(torch.zeros_like(t) for t in self.values())

    def pick(self, names: Iterable[str]) -> "Tree":
        return Tree((name, self[name]) for name in names)

    def without(self, names: Collection[str]) -> "Tree":
        return self.pick(name for name in self if name not in names)

    def to(self, device) -> "Tree":
        return self._with(t.to(device) for t in self.values())

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.values())


def mean(trees: Iterable[Tree], weights: Sequence[float] | None = None) -> Tree:
    """sum_i (weight_i / sum of weights) tree_i, in the order given; plain mean without weights."""
    if weights is None:
        trees = list(trees)
        weights = [1.0] * len(trees)
    total, result = sum(weights), Tree()
    for tree, weight in zip(trees, weights, strict=True):
        result = plus(result, tree, weight / total)
    return result


def plus(result: Tree, tree: Tree, share: float) -> Tree:
    """One more term of a weighted sum, which starts as an empty tree and is then changed in place."""
    return result.add_(tree, alpha=share) if result else tree * share
