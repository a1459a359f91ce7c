"""A small federation in this process that a lesson can inspect between rounds."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedrepro.simulation.client import Worker
from fedrepro.simulation.executor import Serial
from fedrepro.simulation.federation import Federation
from fedrepro.simulation.run import Run
from fedrepro.simulation.states import Clients


@contextmanager
def federation(run: Run) -> Iterator[tuple[Federation, Worker, Clients]]:
    """The federation, its worker, and what its server keeps for single clients."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    worker, clients, served = Worker(run), Clients(None), Clients(None)
    try:
        yield Federation(run, Serial(worker), worker, clients, served), worker, served
    finally:
        clients.close()
        served.close()
        torch.set_num_threads(threads)
