"""What clients and the server compute, counted: floating-point operations."""

from dataclasses import replace

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fedrepro.methods import Round, Upload
from fedrepro.simulation.client import Worker
from fedrepro.simulation.ledger import count
from fedrepro.simulation.run import Run
from fedrepro.simulation.states import Clients

_known: dict[str, dict[str, int]] = {}  # by run id


def round_costs(run: Run) -> dict[str, int]:
    """One client's and the server's part of a round after the first, with full batches and without tests.

    `visit_flops` are those of the client's convolutions and matrix products; `client_flops` and `server_flops` include
    arithmetic on whole models, one for each addition and each multiplication. The bytes are one client's. All are the
    same for every seed and number of rounds.
    """
    run = replace(run, seed=0, rounds=1, personal=None)
    if run.id not in _known:
        _known[run.id] = _round_costs(run)
    return _known[run.id]


def _round_costs(run: Run) -> dict[str, int]:
    """The cost of a round with one step, and of each further step, extrapolated to all steps."""
    worker = Worker(run)
    steps = run.local_steps(-(-len(worker.parts[0]) // run.batch))
    first, second = (_round(worker, replace(run, epochs=None, steps=n)) for n in (1, 2))
    return {name: first[name] + (steps - 1) * (second[name] - first[name]) for name in first}


def _round(worker: Worker, run: Run) -> dict[str, int]:
    """The second round of a federation in which one client really trains and the others upload the same."""
    worker.run, method = run, worker.method
    per_client, state = Clients(), None
    participants = list(range(run.per_round))
    server = {"w": worker.params.clone(), "b": worker.buffers.clone()} | method.server_init(worker.model)
    for t in (1, 2):
        r = Round(t, run, participants, per_client)
        with _Counter() as before:
            server = method.plan(server, r)
            messages = [method.broadcast(server, cid, r) for cid in participants]
        with _Counter() as visit:
            done = worker.client(t, 0, messages[0], state, t - 1, False)
            state = done.kept
        with _Counter() as after:
            server = method.aggregate(server, [Upload(cid, done.n, done.sent, t) for cid in participants], r)
    per_client.close()
    return {
        "visit_flops": visit.products,
        "client_flops": visit.total,
        "server_flops": before.total + after.total,
        "bytes_up": count(done.sent)[0],
        "bytes_down": count(messages[0])[0],
    }


class _Counter(TorchDispatchMode):
    """FLOPs of convolutions and matrix products, and the elements that `torch._foreach_*` adds or multiplies."""

    def __init__(self):
        super().__init__()
        self.products = self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, kwargs = func._schema.name, kwargs or {}
        out = func(*args, **kwargs)
        if formula := flop_registry.get(func.overloadpacket):
            self.products += formula(*args, **kwargs, out_val=out)
        elif name.startswith("aten::_foreach_") and not name.endswith(("copy_", "norm")):
            both = "lerp" in name or kwargs.get("alpha", 1) != 1
            self.elements += sum(tensor.numel() for tensor in args[0]) * (2 if both else 1)
        return out

    @property
    def total(self) -> int:
        return self.products + self.elements
