"""Local: one client's visit, as the hooks of a method see it."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedrepro.models.net import Net
from fedrepro.simulation.rng import stream
from fedrepro.simulation.run import Run
from fedrepro.simulation.tree import Tree

if TYPE_CHECKING:
    from fedrepro.simulation.client import Worker


class Local:
    """One client's visit in one round: the model being trained, what it started from, what the client kept."""

    run: Run
    worker: "Worker"  # its data (all of it), parts (who owns what) and device
    model: Net  # the network being trained
    params: Tree  # its parameters themselves, outside of autograd: they change with every step
    buffers: Tree  # its BatchNorm statistics themselves
    start: Tree  # the parameters that training starts from
    start_buffers: Tree
    client: dict[str, Any]  # the state that `finish` kept at the last visit; empty at the first
    grads: Tree  # the gradients of the current batch, by parameter; `correct` may edit them
    taps: list[Tensor]  # every block's output on the current batch
    scratch: dict[str, Any]  # a method's notes for this visit
    t: int  # the round, counted from 1
    cid: int  # the client
    visit: int  # how often this client took part before
    limited: bool  # whether its device is computing-limited
    n: int  # how many training samples it has
    lr: float  # the learning rate of this round
    epoch_steps: int  # steps of one pass over its samples
    full_steps: int  # the steps that the run asks for
    steps: int  # the steps that it takes, as the method's `steps` says
    joined: bool  # whether a last batch of one image joins the batch before it

    def __init__(self, worker: "Worker", t: int, cid: int, visit: int, limited: bool, n: int):
        run = worker.run
        self.run, self.worker, self.model = run, worker, worker.model
        self.params, self.buffers = worker.params, worker.buffers
        self.t, self.cid, self.visit, self.limited, self.n = t, cid, visit, limited, n
        self.lr = run.lr * run.lr_decay ** (t - 1)
        self.joined = bool(worker.buffers) and n > run.batch and n % run.batch == 1  # BatchNorm needs two images
        self.epoch_steps = -(-n // run.batch) - self.joined
        self.full_steps = self.steps = run.local_steps(self.epoch_steps)
        self.taps = []
        self.scratch = {}
        self._teachers: dict[str, Net] = {}

    def load(self, w: Tree, b: Tree) -> None:
        """Start from these weights."""
        self.params.copy_(w)
        self.buffers.copy_(b)
        self.start, self.start_buffers = w, b

    def initial(self) -> tuple[Tree, Tree]:
        """The model that all clients start from, built by the client from the run's seed: it is not sent."""
        return values_of(self.worker.new_model())

    def teacher(self, name: str, w: Tree, b: Tree) -> Net:
        """A frozen model with these weights, loaded once per visit: its parameters have no gradients. It uses batch
        statistics as the model does but never changes its own BatchNorm buffers (erratum FB-24)."""
        if name not in self._teachers:
            self._teachers[name] = self.worker.frozen(len(self._teachers), w, b)
        return self._teachers[name]

    def rng(self, purpose: str) -> torch.Generator:
        """A random stream of this run, round and client."""
        return stream(self.run.seed, purpose, self.t, self.cid)


def values_of(model: nn.Module) -> tuple[Tree, Tree]:
    """The model's own parameters, outside of autograd, and its own buffers: not copies."""
    return Tree((name, p.detach()) for name, p in model.named_parameters()), Tree(model.named_buffers())
