"""The devices: who takes part, who is slow, who is late, and the virtual clock."""

import math
from functools import cached_property

import torch

from fedrepro.rng import stream
from fedrepro.run import Run


class Fleet:
    def __init__(self, run: Run):
        self.run = run

    def participants(self, t: int) -> list[int]:
        """Uniform without replacement, in O(per_round) whatever the number of clients (Floyd's algorithm)."""
        run, chosen = self.run, {}
        generator = stream(run.seed, "participants", t)
        for top in range(run.clients - run.per_round, run.clients):
            draw = int(torch.randint(top + 1, (), generator=generator))
            chosen[top if draw in chosen else draw] = None
        order = torch.randperm(run.per_round, generator=generator).tolist()
        drawn = list(chosen)
        return [drawn[i] for i in order]

    @cached_property
    def _limited(self) -> frozenset[int]:
        count = math.floor((self.run.limited or 0) * self.run.clients + 0.5)  # half up, erratum AM-08
        if not count:
            return frozenset()
        order = torch.randperm(self.run.clients, generator=stream(self.run.seed, "limited"))
        return frozenset(order[:count].tolist())

    def limited(self, cid: int) -> bool:
        """Whether a device is computing-limited: a set fixed for the run."""
        return cid in self._limited

    def delay(self, t: int, cid: int) -> int:
        """Rounds by which the update that `cid` starts in round `t` is late; 0 is on time."""
        if not self.run.delay:
            return 0
        generator = stream(self.run.seed, "delay", t, cid)
        if float(torch.rand((), generator=generator, dtype=torch.float64)) >= self.run.delay:
            return 0
        return int(torch.randint(1, self.run.max_delay + 1, (), generator=generator))

    def _draw(self, what: str, bounds: tuple[float, float] | None, t: int, cid: int) -> float | None:
        if bounds is None:
            return None
        low, high = bounds
        period = (t - 1) // (self.run.redraw or 10)
        generator = stream(self.run.seed, what, cid, period)
        return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64))

    def seconds(self, t: int, cid: int, nbytes: int) -> tuple[float, float]:
        """(compute, communicate) seconds of one participant; 0 where the run models no such cost."""
        megabits = self._draw("bandwidth", self.run.bandwidth, t, cid)
        communicate = nbytes * 8 / (megabits * 1e6) if megabits else 0.0
        return self._draw("compute", self.run.compute, t, cid) or 0.0, communicate
