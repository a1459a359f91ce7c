"""The means of a round's uploads, folded while they arrive: the sums are held, not the uploads."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from fedrepro.errors import Failure
from fedrepro.simulation.states import Clients
from fedrepro.simulation.tree import Tree, plus


class Rest(dict):
    """What is left of an upload whose other parts are in the means."""

    def __missing__(self, key: str) -> Any:
        raise Failure(
            f"{key!r} of each upload was averaged as it arrived, if it was sent at all; a method that reads it says "
            f"whole = ({key!r},), one that takes its plain mean says plain = ({key!r},)"
        )


class Waiting(Rest):
    """An upload that waits: its models in memory while they fit, else in files that are read on demand."""

    def __init__(self, sent: dict[str, Any], spill: Clients, t: int):
        models = {key: value for key, value in sent.items() if isinstance(value, Tree)}
        super().__init__((key, value) for key, value in sent.items() if key not in models)
        self._spill, self._place, self._keys = spill, len(spill.version), set(sent)
        spill.put(self._place, models, t)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __missing__(self, key: str) -> Any:
        return self._spill[self._place][key] if key in self._keys else super().__missing__(key)


class Means:
    """Weighted and plain means of the named parts of uploads, bit for bit those of `tree.mean`."""

    def __init__(self, weighted: Iterable[str] = (), plain: Iterable[str] = (), sizes: Sequence[int] = ()):
        """`sizes`: the samples of every client whose upload will be folded."""
        self._wanted = [*((key, False) for key in weighted), *((key, True) for key in plain)]
        self._total, self.count = sum(sizes), len(sizes)
        self._sums: dict[tuple[str, bool], Tree] = {}
        self._terms: Counter[tuple[str, bool]] = Counter()

    def fold(self, sent: dict[str, Any], n: int) -> dict[str, Any]:
        """Take one more upload -> what is left of it."""
        for key, plain in self._wanted:
            if key in sent:
                share = 1.0 / self.count if plain else n / self._total
                self._sums[key, plain] = plus(self._sums.get((key, plain), Tree()), sent[key], share)
                self._terms[key, plain] += 1
        folded = {key for key, _ in self._wanted}
        return Rest((key, value) for key, value in sent.items() if key not in folded)

    def get(self, key: str, plain: bool) -> Tree:
        """The mean of this part of all uploads."""
        if self._terms[key, plain] != self.count:
            Rest().__missing__(key)
        return self._sums[key, plain]
