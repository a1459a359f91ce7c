"""The same Run gives the same bytes: twice, on any number of workers, after any interruption, anywhere."""

import contextlib
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from xml.etree import ElementTree

import pandas as pd
import pytest
import torch

from fedrepro import Diverged, Run, data, rounds, sweep, train
from fedrepro.methods import FedAvg, registry
from fedrepro.simulation.client import Worker
from fedrepro.simulation.executor import Serial
from fedrepro.simulation.federation import Federation
from fedrepro.simulation.fleet import Fleet
from fedrepro.simulation.states import Clients
from fedrepro.simulation.store import CLOCKS

STACK = "fedprox+feddyn"


def same(a, b):
    """Weights, and every column except times."""
    assert a.digest == b.digest
    strip = lambda rows: [{k: repr(v) for k, v in row.items() if k not in CLOCKS} for row in rows]  # noqa: E731
    assert strip(a.rows) == strip(b.rows)


@pytest.mark.parametrize("method", [*registry(), STACK])
def test_twice_and_on_two_workers(small, method):
    run = small(method=method, bandwidth=(1, 9), compute=(1, 2), delay=0.3, max_delay=2)
    first = train(run, workers=1)
    same(first, train(run, workers=1))
    same(first, train(run, workers=2))
    if method != "fedbabu":  # three rounds under a random, fixed head are too few
        assert first.rounds["accuracy"].iloc[-1] > 0.1


def test_of_two_federations_the_first_may_end_first(small):
    """Its pipes are open in the workers of the second, which were forked later."""
    first, second = (rounds(small(seed=seed), workers=2) for seed in (0, 1))
    next(first), next(second)
    ending = threading.Thread(target=first.close, daemon=True)
    ending.start()
    ending.join(30)
    assert not ending.is_alive()
    assert len([*second]) == 2


@pytest.mark.parametrize("workers", [1, 2])
def test_times_of_a_round_are_those_of_its_own_work(small, monkeypatch, workers):
    """The server sleeps, a client computes: only computing counts, and only for the one that does it."""
    plan, finish = FedAvg.plan, FedAvg.finish

    def busy(self, k):
        end = time.process_time() + 0.1
        while time.process_time() < end:
            pass
        return finish(self, k)

    monkeypatch.setattr(FedAvg, "plan", lambda *given: time.sleep(0.3) or plan(*given))
    monkeypatch.setattr(FedAvg, "finish", busy)
    row = train(small(rounds=1), workers=workers).rows[0]
    assert row["server_cpu_time"] < 0.1 < 0.3 < row["wall_time"]
    assert 0.1 <= row["client_cpu_time"] < 0.4


def test_every_source_of_randomness_repeats(small):
    run = small(augment="crop+flip", momentum=0.9, weight_decay=1e-3, clip=1.0, lr_decay=0.9, personal="all",
                model="small:norm=batch", data="synthetic:classes=4,channels=3,size=32,train=700")  # fmt: skip
    same(train(run, workers=1), train(run, workers=2))


def test_dropout_repeats(small):
    """A visit's draws have an address, whatever the process drew before it."""
    setting = {
        "data": "synthetic:classes=4,channels=3,size=8,train=200,test=20",
        "split": "iid",
        "samples": 10,
        "epochs": 1,
        "batch": 10,
    }

    def visit(dropout):
        worker = Worker(small(model=f"mobilenet_v2:dropout={dropout}", **setting))
        return worker.client(1, 0, {"w": worker.params.clone(), "b": worker.buffers.clone()}, None, 0, False)[0]["w"]

    first = visit(0.2)
    torch.rand(7)
    again, without = visit(0.2), visit(0.0)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(a, b) for a, b in zip(first.tensors, without.tensors, strict=True))


def test_another_seed_is_another_result(small):
    assert train(small(), workers=1).digest != train(small(seed=1), workers=1).digest


def test_training_learns(small):
    result = train(small(split="iid", samples=None, rounds=5, epochs=5, batch=10), workers=2)
    assert result.rounds["accuracy"].iloc[-1] > 0.9  # chance is 0.1
    assert result.rounds["train_loss"].iloc[-1] < 0.5 < result.rounds["train_loss"].iloc[0]
    assert result.rounds["best_accuracy"].is_monotonic_increasing


def test_testing_less_often_changes_no_weight(small):  # I-73
    often, seldom = train(small(rounds=4), workers=1), train(small(rounds=4, eval_every=3), workers=1)
    assert all(torch.equal(often.weights[k], seldom.weights[k]) for k in often.weights)
    assert seldom.rounds["accuracy"].isna().tolist() == [True, True, False, False]


def test_in_another_folder(small, tmp_path, monkeypatch):
    run = small()
    first = train(run, store=tmp_path / "a", workers=1)
    monkeypatch.chdir(tmp_path)
    second = train(run, store="b", workers=1)
    same(first, second)
    for name in ("run.json", "weights.pt"):
        assert (tmp_path / "a" / run.id / name).read_bytes() == (tmp_path / "b" / run.id / name).read_bytes()


def test_a_finished_run_is_read_not_computed(small, tmp_path):
    run = small()
    first = train(run, store=tmp_path, workers=1)
    started = time.perf_counter()
    again = train(run, store=tmp_path, workers=1)
    same(first, again)
    assert again.rows == first.rows
    assert again.provenance == first.provenance
    assert time.perf_counter() - started < 2


@pytest.mark.parametrize("method", [*registry(), STACK])
def test_stopped_after_every_round_and_resumed(small, tmp_path, method):  # I-74
    run = small(method=method, rounds=4, delay=0.5, max_delay=2, bandwidth=(1, 9))
    whole = train(run, workers=1)
    for _ in range(run.rounds - 1):
        seen = rounds(run, store=tmp_path, workers=1)
        before = len(pd.read_csv(tmp_path / run.id / "rounds.csv")) if (tmp_path / run.id).exists() else 0
        for _ in range(before + 1):
            next(seen)
        seen.close()
        assert len(pd.read_csv(tmp_path / run.id / "rounds.csv")) == before + 1
    same(whole, train(run, store=tmp_path, workers=1))


KILLED = """
import sys, torch, torch._dynamo  # which FedGen's optimiser imports
torch.set_num_threads(1)
from fedrepro import Run, train
from fedrepro import data
from fedrepro.simulation import store
from fedrepro.simulation.provenance import commit
store.CHECKPOINT_SHARE = 1.0
data.load("digits"), commit()  # once, not in each child
print("ready", flush=True)
for line in sys.stdin:
    import os
    method, seed, store = line.split()
    child = os.fork()
    if child == 0:
        run = Run(data="digits", split="dirichlet:0.3", clients=8, per_round=3, rounds=6, epochs=1, batch=40, lr=0.1,
                  samples=40, method=method, seed=int(seed), hp={}, delay=0.4, max_delay=2)
        train(run, store=store, workers=int(seed) % 2 + 1)
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def trainer():
    """A process that forks a training on demand, so that it can be killed without importing torch each time."""
    process = subprocess.Popen([sys.executable, "-c", KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline().strip() == "ready"

    def start(method, seed, store, kill_after=None):
        """Kill -9 the training after so many seconds -> whether it had finished by then."""
        process.stdin.write(f"{method} {seed} {store}\n")
        process.stdin.flush()
        child = int(process.stdout.readline())
        if kill_after is not None:
            time.sleep(kill_after)
            with contextlib.suppress(ProcessLookupError):  # it has just finished
                os.kill(child, signal.SIGKILL)
        return int(process.stdout.readline()) == 0

    yield start
    process.stdin.close()
    process.wait()


@pytest.mark.parametrize(("seed", "method"), list(enumerate([*registry(), STACK])))  # odd seeds: two workers
def test_kill_9_at_random_moments_and_resume(small, tmp_path, trainer, method, seed):
    run = small(method=method, seed=seed, rounds=6, samples=40, delay=0.4, max_delay=2)
    moments, kills = random.Random(f"{method}{seed}"), 0
    started = time.perf_counter()
    whole = train(run, workers=1)
    length = time.perf_counter() - started
    for n in range(12):
        if trainer(method, seed, tmp_path, kill_after=moments.uniform(0, length if n else length / 4)):
            break
        kills += 1
    assert kills
    assert trainer(method, seed, tmp_path)
    same(whole, train(run, store=tmp_path, workers=1))
    left = {p.name for p in (tmp_path / run.id).iterdir() if not p.name.startswith(".")}
    assert left == {"lock", "run.json", "rounds.csv", "weights.pt", "result.json"}


def test_a_kill_between_the_result_and_the_tidying_leaves_nothing(small, tmp_path):
    run = small(method="scaffold", rounds=2)
    whole = train(run, store=tmp_path, workers=1)
    (tmp_path / run.id / "checkpoint.pt").write_bytes(b"left")
    (tmp_path / run.id / "clients").mkdir()
    (tmp_path / run.id / "clients" / "0-1.pt").write_bytes(b"left")
    same(whole, train(run, store=tmp_path, workers=1))
    left = {p.name for p in (tmp_path / run.id).iterdir()}
    assert left == {"lock", "run.json", "rounds.csv", "weights.pt", "result.json"}


def test_late_updates_reach_the_server_when_due(small):
    run = small(delay=0.7, max_delay=3, rounds=8)
    worker, arrivals = Worker(run), []

    class Spy(type(worker.method)):
        def aggregate(self, server, uploads, r):
            arrivals.extend((u.cid, u.round, r.t) for u in uploads)
            return super().aggregate(server, uploads, r)

    worker.method = Spy()
    federation, fleet = Federation(run, Serial(worker), worker, Clients(None)), Fleet(run)
    for _ in range(run.rounds):
        federation.advance()
    due = {(cid, t, t + fleet.delay(t, cid)) for t in range(1, 9) for cid in fleet.participants(t)}
    assert set(arrivals) == {item for item in due if item[2] <= 8}
    assert len(arrivals) == len(set(arrivals))
    assert {arrived - started for _, started, arrived in arrivals} == {0, 1, 2, 3}


def test_round_time_is_the_slowest_participants(small):  # I-69
    run = small(bandwidth=(40, 280), compute=(1.3, 6.7), rounds=2)
    result, fleet = train(run, workers=1), Fleet(run)
    b = result.weights.nbytes
    slowest = [max(sum(fleet.seconds(t, cid, 2 * b)) for cid in fleet.participants(t)) for t in (1, 2)]
    assert result.rounds["sim_time"].tolist() == [slowest[0], slowest[0] + slowest[1]]
    equal = train(small(bandwidth=(160, 160), compute=(4, 4), rounds=1), workers=1)
    assert equal.rows[0]["sim_time"] == 4 + 2 * b * 8 / 160e6


def test_participants_are_uniform_without_replacement():
    run = Run(clients=20, per_round=5, rounds=1)
    fleet, seen = Fleet(run), torch.zeros(20)
    for t in range(1, 2001):
        drawn = fleet.participants(t)
        assert len(set(drawn)) == 5
        seen[drawn] += 1
    assert (seen - 500).abs().max() < 100  # five standard deviations
    assert sorted(Fleet(Run(clients=4, per_round=4)).participants(1)) == [0, 1, 2, 3]


def test_limited_devices_are_rounded_half_up():  # erratum AM-08
    for share, count in ((0.25, 13), (0.5, 25), (0.75, 38)):
        fleet = Fleet(Run(clients=50, per_round=5, limited=share))
        assert sum(map(fleet.limited, range(50))) == count


def test_redrawn_every_so_many_rounds():
    fleet = Fleet(Run(bandwidth=(40, 280), redraw=10))
    speeds = [fleet.seconds(t, 3, 10**6)[1] for t in range(1, 31)]
    assert len(set(speeds)) == 3
    assert speeds[:10] == [speeds[0]] * 10
    assert all(8 / 280 <= s <= 8 / 40 for s in speeds)


def test_sweep_equals_single_runs(small, tmp_path):
    runs = [small(seed=s, method=m) for s in (0, 1) for m in ("fedavg", "scaffold")]
    digests = sweep([*runs, runs[0]], store=tmp_path, workers=2)
    assert digests == {run.id: train(run, workers=1).digest for run in runs}
    assert sweep(runs[:1], store=tmp_path, workers=2) == {runs[0].id: digests[runs[0].id]}


def test_a_diverging_run_ends_where_it_diverged(small, tmp_path):
    """A loss of NaN in round 2; what was finished before, or is finished by a sweep, stays a result."""
    run = small(lr=3e4, rounds=4)
    whole = train(run, workers=1, stop_diverged=False)
    first = next(row["round"] for row in whole.rows if not math.isfinite(row["train_loss"]))
    assert first == 2
    for workers in (1, 2):
        with pytest.raises(Diverged, match=rf"^fedavg diverged in round {first} of 4: .* below 30000 may"):
            train(run, workers=workers)
    seen = []
    for _ in range(2):  # the same again after an interruption
        with pytest.raises(Diverged, match=f"round {first} of 4"):
            train(run, store=tmp_path, workers=1, progress=seen.append)
    assert [row["round"] for row in seen] == [1, 1]
    others = [small(seed=1), small(seed=2)]
    digests = sweep([run, *others], store=tmp_path, workers=2)
    assert digests[run.id] == whole.digest
    assert digests == {r.id: train(r, store=tmp_path, workers=1).digest for r in (run, *others)}  # all are finished


def test_a_round_without_participants_has_not_diverged(small):
    result = train(small(method="naive", limited=1.0), workers=1)
    assert all(math.isnan(row["train_loss"]) for row in result.rows)


@pytest.mark.parametrize("model", ["lenet", "small:norm=batch,width=8"])
def test_the_model_of_a_result_is_the_one_that_was_tested(small, model):
    result = train(small(model=model), workers=1)
    images, net = data.load("digits"), result.model()
    with torch.no_grad():
        right = (net(images.batch(images.test_x)).argmax(1) == images.test_y).sum()
    assert not net.training
    assert int(right) / len(images.test_y) == result.rows[-1]["accuracy"]


def test_a_result_shows_itself_in_short(small):
    result = train(small(eval_every=2, rounds=5, hp={"mu": 0.1}, method="fedprox"), workers=1)
    assert len(repr(result)) < 300
    for word in ("fedprox", "digits", result.run.id, f"{result.rows[-1]['accuracy']:.4f}", "5 rounds"):
        assert word in repr(result) and word in result._repr_html_()
    picture = ElementTree.fromstring(result._repr_html_().replace("<br>", "<br/>")).find("svg")
    points = [tuple(map(float, point.split(","))) for point in picture.find("polyline").get("points").split()]
    assert len(points) == 3  # rounds 2, 4 and 5 were tested
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    low, high = min(points, key=lambda p: p[1]), max(points, key=lambda p: p[1])
    accuracies = [row["accuracy"] for row in result.rows if row["accuracy"] == row["accuracy"]]
    assert points.index(low) == accuracies.index(max(accuracies))  # y runs downwards
    assert 0 <= low[1] <= high[1] <= 100


def test_clients_that_do_not_take_part_cost_nothing():
    few, many = (Run(data="synthetic:train=2000,test=100", clients=n, per_round=4, samples=20, rounds=1, batch=10)
                 for n in (20, 100_000))  # fmt: skip
    workers = [Worker(few), Worker(many)]
    federations = [Federation(w.run, Serial(w), w, Clients(None)) for w in workers]
    seconds = [[], []]
    for _ in range(12):
        for i, federation in enumerate(federations):
            started = time.perf_counter()
            federation.advance()
            seconds[i].append(time.perf_counter() - started)
    assert min(seconds[1]) < 1.5 * min(seconds[0])  # `make bench` measures it closely
    assert len(federations[1].visits) <= 48


def test_personal_accuracy_is_the_mean_over_clients(small):
    run = small(personal="selected", rounds=1)
    result, worker = train(run, workers=1), Worker(run)
    scores = [worker.test_client(result.weights, result.buffers, cid) for cid in Fleet(run).participants(1)]
    assert result.rows[0]["personal_accuracy"] == sum(right / n for right, _, n in scores) / 3
