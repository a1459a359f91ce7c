"""FedAvg, and the hooks every other method changes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple

import torch.nn.functional as F
from torch import Tensor

from fedrepro.models.net import Net
from fedrepro.simulation.local import Local
from fedrepro.simulation.means import Means
from fedrepro.simulation.run import Run
from fedrepro.simulation.states import Clients
from fedrepro.simulation.tree import Tree, mean

__all__ = ["FedAvg", "Local", "Message", "Net", "Round", "Run", "State", "Tree", "Upload", "Weights", "hp"]

State = dict[str, Any]  # plain data: Trees, tensors, numbers; always returned, never kept on self
Message = dict[str, Any]  # "w": weights, "b": BatchNorm statistics, and what a method adds
Weights = tuple[Tree, Tree]  # of a whole model: its parameters and its BatchNorm statistics


def hp(default: Any, low: float = 0.0, high: float = math.inf, choices: Sequence[str] | None = None) -> Any:
    """A hyperparameter with its default and the range it may take."""
    return field(default=default, metadata={"low": low, "high": high, "choices": choices})


class Upload(NamedTuple):
    """What the server got from one client."""

    cid: int
    n: int  # the client's training samples
    sent: Message
    round: int  # the round that the client started in: an upload of an earlier round is late
    compute: float = 0.0  # seconds on the virtual clock
    communicate: float = 0.0


@dataclass(frozen=True)
class Round:
    """One round, as the server's hooks see it."""

    t: int  # counted from 1
    run: Run
    participants: list[int]
    per_client: Clients = field(default_factory=Clients)  # what the server itself keeps about each client
    scratch: dict[str, Any] = field(default_factory=dict)  # a method's notes for this round
    means: Means = field(default_factory=Means)  # of the uploads that arrived so far
    spill: Clients = field(default_factory=Clients)  # a method's larger notes, by number: in files if they are many

    def mean(self, uploads: Sequence[Upload], key: str, plain: bool = False) -> Tree:
        """Mean of one part of the uploads, weighted as the run says, or plain."""
        plain = plain or self.run.weights == "equal"
        if len(uploads) == self.means.count and not any(key in u.sent for u in uploads):
            return self.means.get(key, plain)
        return mean((u.sent[key] for u in uploads), [1.0 if plain else u.n for u in uploads])


@dataclass(frozen=True)
class FedAvg:
    """FedAvg (McMahan et al., AISTATS 2017, Algorithm 1). Weights and BatchNorm statistics are averaged.

    Hooks are in the order in which a run calls them.
    """

    replaces: ClassVar[frozenset[str]] = frozenset()  # steps that cannot be stacked with another's
    # Parts of an upload of which `aggregate` needs r.mean, weighted or plain, except those it reads whole. What is
    # averaged is folded in as it arrives and then dropped; a stack needs what any of its parts needs.
    weighted: ClassVar[tuple[str, ...]] = ("w", "b")
    plain: ClassVar[tuple[str, ...]] = ()
    whole: ClassVar[tuple[str, ...]] = ()
    averages_late: ClassVar[bool] = True  # whether late uploads are in the mean

    @classmethod
    def means(cls, run: Run, sizes: Sequence[int]) -> Means:
        """The means to be folded from uploads of clients with so many samples each."""

        def declared(name: str) -> set[str]:
            return {key for part in cls.__mro__ for key in vars(part).get(name, ())}

        weighted, plain, whole = map(declared, ("weighted", "plain", "whole"))
        if run.weights == "equal":
            weighted, plain = set(), weighted | plain
        return Means(sorted(weighted - whole), sorted(plain - whole), sizes)

    @classmethod
    def title(cls) -> str:
        return cls.__name__.lower()

    @classmethod
    def options(cls) -> list[str]:
        return [f.name for f in fields(cls)]

    def check(self, run: Run) -> None:
        """Refuse a run that this method cannot do, before it starts."""

    def server_init(self, model: Net) -> State:
        """What the server keeps in addition to "w" and "b", the initial weights of `model`."""
        return {}

    def invite(self, drawn: list[int], limited: Callable[[int], bool]) -> list[int]:
        """Which of the drawn clients take part; `limited(cid)` says whether a device is computing-limited."""
        return drawn

    def plan(self, server: State, r: Round) -> State:
        """What the server decides before it broadcasts."""
        return server

    def broadcast(self, server: State, cid: int, r: Round) -> Message:
        """What travels down to this client: counted, byte for byte."""
        return {"w": server["w"], "b": server["b"]}

    def receive(self, k: Local, message: Message) -> None:
        """Combine what came with what the client kept; k.client is empty at its first visit."""
        k.load(message["w"], message["b"])

    def client_init(self, k: Local) -> State:
        """The client's state at its first visit, after `receive`."""
        return {}

    def steps(self, k: Local) -> int:
        """How many local steps this client takes."""
        return k.full_steps

    def trained(self, k: Local) -> list[str] | None:
        """The parameters this client trains; None means all. The backward pass skips the others."""
        return None

    def loss(self, k: Local, x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        """The local objective on one batch, where out = k.model(x)."""
        return F.cross_entropy(out, y)

    def correct(self, k: Local) -> None:
        """Edit k.grads before the step (closed forms of what would otherwise go through autograd)."""

    def finish(self, k: Local) -> tuple[Message, State]:
        """What travels up, counted byte for byte, and what the client keeps."""
        return {"w": k.params.clone(), "b": k.buffers.clone()}, k.client

    def aggregate(self, server: State, uploads: list[Upload], r: Round) -> State:
        """The server's state after this round, from the uploads that arrived in it."""
        if not uploads:
            return server
        return {**server, "w": r.mean(uploads, "w"), "b": r.mean(uploads, "b")}

    def trained_model(self, sent: Message, kept: State) -> Weights:
        """A participant's own model at the end of its visit, from what it sent and what it kept."""
        return sent["w"], sent["b"]

    def personal(self, server: State, client: State, cid: int) -> Weights:
        """The model that is tested for this client."""
        return server["w"], server["b"]

    def tested(self, server: State, client: Callable[[int], State], r: Round) -> list[Weights]:
        """The models whose mean accuracy on the whole test set is the run's.

        An empty list: there is no global model, and the run's accuracy is the personal one."""
        return [(server["w"], server["b"])]

    def columns(self, server: State, r: Round) -> dict[str, float]:
        """Further columns of the round's row: a paper's analytic costs, what a bandit chose."""
        return {}

    def record(self, server: State) -> State:
        """The part of the server's state that is stored with the final weights."""
        return {}
