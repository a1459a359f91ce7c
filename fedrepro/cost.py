"""What a client computes, counted: floating-point operations of convolutions and matrix products."""

from dataclasses import replace
from functools import cache

from torch.utils.flop_counter import FlopCounterMode

from fedrepro.local import Worker
from fedrepro.methods import Round
from fedrepro.run import Run


def visit_flops(run: Run) -> int:
    """FLOPs of one client's visit with full batches; the same for every seed and number of rounds."""
    return _visit_flops(_Key(replace(run, seed=0, rounds=1)))


class _Key:
    """A run compared by its id: its hyperparameters are a dictionary, which has no hash."""

    def __init__(self, run: Run):
        self.run = run

    def __eq__(self, other) -> bool:
        return self.run.id == other.run.id

    def __hash__(self) -> int:
        return hash(self.run.id)


@cache
def _visit_flops(key: _Key) -> int:
    """What the first step takes with all that surrounds it, and so much for each further one."""
    run = key.run
    worker = Worker(run)
    steps = run.steps or run.epochs * -(-len(worker.parts[0]) // run.batch)
    first, second = (_flops(worker, replace(run, epochs=None, steps=n)) for n in (1, 2))
    return first + (steps - 1) * (second - first)


def _flops(worker: Worker, run: Run) -> int:
    worker.run, r = run, Round(1, run, [0])
    server = {"w": worker.params.clone(), "b": worker.buffers.clone()}
    server = worker.method.plan(server | worker.method.server_init(worker.model), r)
    with FlopCounterMode(display=False) as counter:
        worker.client(1, 0, worker.method.broadcast(server, 0, r), None, 0, False)
    return counter.get_total_flops()
