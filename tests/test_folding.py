"""Uploads folded as they arrive: the bits of all uploads at once, and memory that does not grow with the cohort."""

import contextlib
import os
import random
import signal
import time
import weakref

import pytest
import torch

from fedrepro import train
from fedrepro.errors import Failure
from fedrepro.methods import FedAvg, Round, Upload, build, registry
from fedrepro.simulation import federation
from fedrepro.simulation.client import Worker
from fedrepro.simulation.executor import Executor, Processes, Queue, Serial
from fedrepro.simulation.federation import Federation
from fedrepro.simulation.fleet import Fleet
from fedrepro.simulation.means import Means
from fedrepro.simulation.run import Run
from fedrepro.simulation.shared_memory import Arena, Board, pack, unpack
from fedrepro.simulation.states import Clients
from fedrepro.simulation.store import CLOCKS, digest
from fedrepro.simulation.tree import Tree, mean

STACKS = ["fedmlb+feddyn", "ama+fes", "fedprox+scaffold", "fedntd+fedbabu"]
LATE = {"delay": 0.6, "max_delay": 2, "limited": 0.5, "rounds": 4}
TINY = {"data": "synthetic:classes=4,size=16,train=400,test=40", "split": "dirichlet_unequal:0.5", "samples": None,
        "per_round": 5, "model": "small:norm=batch,width=8", "epochs": None, "steps": 1}  # fmt: skip


class Scrambled(Serial):
    """Begins as many tasks as it may and finishes any of them next."""

    workers = 2

    def __init__(self, context):
        super().__init__(context)
        self.draw, self.most = random.Random(0), 0

    def stream(self, name, tasks, ahead=float("inf")):
        queue, begun = Queue(tasks, ahead), []
        while queue:
            while (i := queue.take()) is not None:
                begun.append(i)
            self.most = max(self.most, len(begun))
            i = begun.pop(self.draw.randrange(len(begun)))
            result = getattr(self.context, name)(*queue.open[i])
            queue.done(i)
            yield i, result
            del result


def finish(run: Run, executor: type[Executor] = Serial, **options) -> tuple[str, list[dict]]:
    """Digest, and every column except times."""
    worker = Worker(run)
    with contextlib.closing(executor(worker, **options)) as workers:
        fed = Federation(run, workers, worker, Clients())
        for _ in range(run.rounds):
            fed.advance()
    rows = [{key: repr(value) for key, value in row.items() if key not in CLOCKS} for row in fed.rows]
    return digest(fed.server["w"], fed.server["b"], fed.rows), rows


@pytest.mark.parametrize("changes", [{"personal": "trained"}, LATE | {"weights": "equal", "personal": "all"}])
@pytest.mark.parametrize("method", [*registry(), *STACKS])
def test_folded_in_any_order_of_arrival_is_all_at_once(small, monkeypatch, method, changes):
    run = small(**TINY, method=method, **{"rounds": 2, **changes})
    for budget in ("WAITING", "ROUND_MEMORY"):  # what is not folded goes to files
        monkeypatch.setattr(federation, budget, 0)
    folded = finish(run, Scrambled)
    monkeypatch.undo()
    monkeypatch.setattr(FedAvg, "means", classmethod(lambda cls, run, sizes: Means()))
    assert folded == finish(run)


def trees(count: int, **shapes: tuple[int, ...]) -> list[Tree]:
    return [
        Tree((name, torch.randn(shape, dtype=torch.float64)) for name, shape in shapes.items()) for _ in range(count)
    ]


@pytest.mark.parametrize("weights", ["size", "equal"])
def test_the_fold_is_the_mean_bit_for_bit(small, weights):
    run, sizes = small(weights=weights), [3, 1, 7, 100, 23]
    models = trees(5, x=(50, 3), y=(7,))
    r = Round(1, run, [], means=build("feddyn").means(run, sizes))
    uploads = [
        Upload(i, n, {"w": w, "b": Tree(), "more": i}, 1) for i, (n, w) in enumerate(zip(sizes, models, strict=True))
    ]
    rest = [u._replace(sent=r.means.fold(u.sent, u.n)) for u in uploads]
    assert [u.sent for u in rest] == [{"more": i} for i in range(5)]
    for plain in (False, True):
        wanted = mean(models, None if plain or weights == "equal" else sizes)
        for name, value in wanted.items():
            assert torch.equal(r.mean(rest, "w", plain=plain)[name], value)
            assert torch.equal(r.mean(uploads, "w", plain=plain)[name], value)
    assert r.mean(rest, "b") == Tree()
    for wrong in (rest[1:], [*uploads[:2], *rest[2:]]):
        with pytest.raises(Failure, match=r"whole = \('w',\)"):
            r.mean(wrong, "w")
    with pytest.raises(Failure, match=r"whole = \('w',\)"):
        rest[0].sent["w"]


def test_a_mean_that_some_upload_is_missing_from_is_not_given_out(small):
    r = Round(1, small(), [], means=Means(["w"], sizes=[1, 1]))
    uploads = [Upload(i, 1, r.means.fold(sent, 1), 1) for i, sent in enumerate([{"w": Tree()}, {}])]
    with pytest.raises(Failure, match="averaged as it arrived"):
        r.mean(uploads, "w")


def test_a_stack_needs_what_its_parts_need(small):
    def wanted(method):
        return set(build(method).means(small(), [1])._wanted)

    usual = {("w", False), ("b", False)}
    assert wanted("fedavg") == wanted("fedmlb") == wanted("ama+fes") == usual
    assert wanted("fedmlb+feddyn") == wanted("feddyn+fedmlb") == usual | {("w", True)}
    assert wanted("fedgen+scaffold") == {("b", False), ("scaffold/change", True)}
    assert wanted("fedbr") == {("b", False), ("b", True)}
    assert wanted("kapc") == wanted("fedamp") == wanted("ama_capable") == set()


def alive_at_once(monkeypatch, run: Run, workers: int) -> int:
    """The most models that the server's process got from clients and still holds; the first client is the slowest."""
    held, most, original, visit = [], [0], Processes.stream, Worker.client
    first = Fleet(run).participants(1)[0]

    def counting(self, name, tasks, ahead=float("inf")):
        for item in original(self, name, tasks, ahead):
            if name == "client":
                held.append(weakref.ref(next(iter(item[1].sent["w"].values()))))
                most[0] = max(most[0], sum(model() is not None for model in held))
            yield item
            del item

    def slow(self, t, cid, *rest):
        time.sleep(0.4 * (cid == first))
        return visit(self, t, cid, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "client", slow)
        patch.setattr(Processes, "stream", counting)
        patch.setattr(Clients.__init__, "__defaults__", (None, 0))
        patch.setattr(federation, "WAITING", 0)
        patch.setattr(federation, "ROUND_MEMORY", 0)
        finish(run, Processes, workers=workers)
    assert len(held) == run.per_round * run.rounds
    return most[0]


@pytest.mark.parametrize("method", ["fedavg", "fedmlb+feddyn", "scaffold", "fedgen", "kapc_bls", "fedamp", "pfedla"])
@pytest.mark.parametrize("workers", [2, 3])
def test_no_more_uploads_are_alive_than_the_window_has(small, monkeypatch, workers, method):
    many = {**TINY, "clients": 20, "per_round": 20, "samples": 20, "split": "iid", "model": "lenet", "rounds": 1}
    assert alive_at_once(monkeypatch, small(**many, method=method), workers) <= 2 * workers + 1


def test_no_task_starts_far_ahead_of_the_first_open_one():
    class Context:
        def same(self, i):
            return i

    executor = Scrambled(Context())
    assert list(executor.ordered("same", ((i,) for i in range(100)), ahead=4)) == list(range(100))
    assert executor.most == 4
    assert executor.map("same", []) == []


def test_what_ray_carries_arrives_as_it_was():
    image = torch.randn(3, 4, 5, 6).to(memory_format=torch.channels_last)
    tensors = [image, torch.empty(0, 3), torch.tensor(3), torch.randn(3).bfloat16(), torch.ones(2, 2).bool()]
    tree, rest = unpack(*pack((Tree(enumerate(tensors)), {"n": 1})), copy=True)
    assert type(tree) is Tree and rest == {"n": 1}
    for sent, got in zip(tensors, tree.values(), strict=True):
        assert torch.equal(sent, got) and (sent.dtype, sent.stride()) == (got.dtype, got.stride())


def test_the_broadcast_is_written_once_for_all_workers(small, monkeypatch):
    written, original = [], Arena.write

    def counting(self, offset, item):
        written.append((isinstance(self, Board), item.nbytes))
        original(self, offset, item)

    monkeypatch.setattr(Arena, "write", counting)
    for method, parts in (("fedavg", 1), ("scaffold", 2), ("fedbr_ran", 1), ("fedbabu", 1)):
        for per_round in (2, 8):
            run = small(**TINY | {"model": "lenet", "per_round": per_round}, method=method, rounds=1)
            model = Worker(run).params.nbytes
            written.clear()
            finish(run, Processes, workers=2)
            assert all(on_board for on_board, _ in written)
            tested = model
            sent = sum(size for _, size in written) - tested
            assert 0.9 * parts * model < sent <= parts * model  # FedBABU's head is not sent


def test_a_worker_dies_in_a_round_that_is_half_folded(small, monkeypatch, capfd):
    run, original, killed = small(**TINY, method="fedmlb+feddyn", rounds=2), Federation._upload, []
    whole = finish(run)

    def kill(self, r, cid, *rest):
        original(self, r, cid, *rest)
        if r.t == 2 and cid in (r.participants[0], r.participants[2]):
            victim = self.executor._children[len(killed)].process
            killed.append(victim.pid)
            os.kill(victim.pid, signal.SIGKILL)

    monkeypatch.setattr(Federation, "_upload", kill)
    assert finish(run, Processes, workers=2) == whole
    assert len(killed) == 2
    assert "its task is repeated" in capfd.readouterr().err


@pytest.mark.parametrize("method", ["fedavg", "moon", "scaffold", "fedbr", "kapc", "ama"])
def test_killed_in_a_round_that_is_half_folded_and_resumed(small, tmp_path, monkeypatch, method):
    """With states so large that they go to files in the middle of the round, and are read from there afterwards."""
    run = small(**TINY, method=method, **(LATE if method == "ama" else {"rounds": 4}))
    whole = train(run, workers=1).digest
    original, put = Federation._upload, Clients.__init__
    monkeypatch.setattr(Clients, "__init__", lambda self, folder=None, memory=0: put(self, folder, memory))

    def die(self, r, cid, *rest):
        original(self, r, cid, *rest)
        if r.t == 3 and cid == r.participants[2]:
            os._exit(9)

    if not (child := os.fork()):
        monkeypatch.setattr(Federation, "_upload", die)
        train(run, workers=1, store=tmp_path)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    states = {path.name.split("-")[1] for path in (tmp_path / run.id / "clients").glob("*-*.pt")}
    assert ("3.pt" in states) == (method not in ("fedavg", "ama"))
    assert train(run, workers=2, store=tmp_path).digest == whole
