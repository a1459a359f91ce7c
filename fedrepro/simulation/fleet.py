"""The devices: who takes part, who is slow, who is late, and the virtual clock."""

import math
from functools import cached_property

import torch

from fedrepro.simulation.rng import stream
from fedrepro.simulation.run import Run


class Fleet:
    """The devices of one run; every draw has an address, so that nothing is kept."""

    def __init__(self, run: Run):
        self.run = run

    def participants(self, t: int) -> list[int]:
        """Uniform without replacement, in O(per_round) for any number of clients (Floyd's algorithm)."""
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
        return int(torch.randint(1, (self.run.max_delay or 1) + 1, (), generator=generator))

    def _draw(self, what: str, t: int, cid: int) -> float:
        """From the range that the run gives; 0 if it gives none."""
        if not (bounds := getattr(self.run, what)):
            return 0.0
        low, high = bounds
        period = (t - 1) // (self.run.redraw or 10)
        generator = stream(self.run.seed, what, cid, period)
        return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64))

    def _send(self, link: str, t: int, cid: int, nbytes: int) -> float:
        megabits = self._draw(link, t, cid)
        return nbytes * 8 / (megabits * 1e6) if megabits else 0.0

    def seconds(self, t: int, cid: int, up: int, down: int = 0) -> tuple[float, float]:
        """(compute, communicate) seconds of one participant; 0 where the run models no such cost."""
        compute = self._draw("compute", t, cid)
        if self.run.download:
            return compute, sum(self.transfer(t, cid, up, down))
        return compute, self._send("bandwidth", t, cid, up + down)

    def transfer(self, t: int, cid: int, up: int, down: int) -> tuple[float, float]:
        """Seconds (up, down) of one participant, each on its own link."""
        return self._send("bandwidth", t, cid, up), self._send("download", t, cid, down)


def shannon(megahertz: float, dbm: float, metres: float) -> float:
    """Mbit/s of a link by KAPC's Table 4, taken literally: path loss -40 dB at 1 m with exponent 4, fading 1, noise
    -174 dBm/Hz, no interference (its unit is not given; any of a milliwatt or more would silence the link)."""
    received = dbm - 40 - 10 * 4 * math.log10(metres)
    noise = -174 + 10 * math.log10(megahertz * 1e6)
    return megahertz * math.log2(1 + 10 ** ((received - noise) / 10))
