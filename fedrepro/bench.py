"""Speed as ratios, measured side by side in one run against bare PyTorch loops written here.

Rounds of both sides alternate, so that whatever else the machine does falls on both; the median ratio counts.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path

import psutil
import torch
import torch.nn.functional as F
from torch import nn

from fedrepro import Run, data, rounds
from fedrepro.simulation.client import Worker

FASHION = dict(data="fashion_mnist", split="iid", clients=100, per_round=10, model="lenet", epochs=5, batch=50,
               lr=0.01)  # fmt: skip
RESNET = dict(data="synthetic:classes=10,channels=3,size=32,train=2000,test=500", split="iid", clients=10, per_round=2,
              samples=100, model="resnet18", epochs=1, batch=50, lr=0.01)  # fmt: skip

LIMITED = dict(data="mnist", split="shards:2", clients=50, per_round=10, model="cnn_ama", method="ama+fes", epochs=10,
               batch=10, lr=0.001, limited=0.5)  # fmt: skip


def lenet() -> nn.Module:
    """The PyTorch-tutorial LeNet for 1x28x28, written without fedrepro."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
        nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def resnet18() -> nn.Module:
    from fedrepro.models.vision import torchvision

    return torchvision.models.resnet18(num_classes=10)


class Bare:
    """FedAvg or FedProx as one would write it for one job: float tensors in memory, channels_last, torch.optim."""

    def __init__(self, model: nn.Module, settings: dict, mu: float = 0.0):
        self.settings, self.mu = settings, mu
        self.model = model.to(memory_format=torch.channels_last)
        images = data.load(settings["data"])
        self.x = images.batch(images.train_x).contiguous(memory_format=torch.channels_last)
        self.y = images.train_y.clone()
        self.test_x = images.batch(images.test_x).contiguous(memory_format=torch.channels_last)
        self.test_y = images.test_y.clone()
        self.size = settings.get("samples") or len(self.y) // settings["clients"]
        self.order = torch.randperm(len(self.y))
        self.weights = [p.detach().clone() for p in model.parameters()]

    def client(self, cid: int) -> list[torch.Tensor]:
        mine = self.order[cid * self.size : (cid + 1) * self.size]
        x, y = self.x[mine].contiguous(memory_format=torch.channels_last), self.y[mine]
        params = list(self.model.parameters())
        with torch.no_grad():
            for p, w in zip(params, self.weights, strict=True):
                p.copy_(w)
        optimiser = torch.optim.SGD(params, lr=self.settings["lr"])
        self.model.train()
        for _ in range(self.settings["epochs"]):
            for rows in torch.randperm(self.size).split(self.settings["batch"]):
                optimiser.zero_grad()
                F.cross_entropy(self.model(x[rows]), y[rows]).backward()
                if self.mu:
                    with torch.no_grad():
                        for p, w in zip(params, self.weights, strict=True):
                            p.grad.add_(p - w, alpha=self.mu)
                optimiser.step()
        return [p.detach().clone() for p in params]

    @torch.no_grad()
    def test(self, part: int, parts: int) -> int:
        self.model.eval()
        for p, w in zip(self.model.parameters(), self.weights, strict=True):
            p.copy_(w)
        batches = list(zip(self.test_x.split(500), self.test_y.split(500), strict=True))
        cut = slice(len(batches) * part // parts, len(batches) * (part + 1) // parts)
        return sum(int((self.model(x).argmax(1) == y).sum()) for x, y in batches[cut])

    def rounds(self) -> Iterator[int]:
        while True:
            chosen = torch.randperm(self.settings["clients"])[: self.settings["per_round"]].tolist()
            locals_ = [self.client(cid) for cid in chosen]
            self.weights = [torch.stack(group).mean(0) for group in zip(*locals_, strict=True)]
            yield self.test(0, 1)


def _half(bare: Bare, part: int, shared, sums, barrier) -> None:
    torch.set_num_threads(1)
    while True:
        barrier.wait()
        torch.manual_seed(int(shared[0]))
        chosen = torch.randperm(bare.settings["clients"])[: bare.settings["per_round"]].tolist()
        total = None
        for cid in chosen[part::2]:
            new = torch.cat([p.flatten() for p in bare.client(cid)])
            total = new if total is None else total.add_(new)
        sums[part].copy_(total)
        barrier.wait()
        mean = (sums[0] + sums[1]) / bare.settings["per_round"]
        for w, flat in zip(bare.weights, mean.split([w.numel() for w in bare.weights]), strict=True):
            w.copy_(flat.view_as(w))
        shared[1 + part] = bare.test(part, 2)
        barrier.wait()


def split_in_two(bare: Bare) -> Iterator[int]:
    """The bare loop over two processes: clients and test images divided evenly, sums through shared memory."""
    fork = get_context("fork")
    shared = torch.zeros(3, dtype=torch.long).share_memory_()
    sums = torch.zeros(2, sum(w.numel() for w in bare.weights)).share_memory_()
    barrier = fork.Barrier(3)
    processes = [fork.Process(target=_half, args=(bare, i, shared, sums, barrier), daemon=True) for i in range(2)]
    for process in processes:
        process.start()
    try:
        while True:
            shared[0] += 1
            barrier.wait()
            barrier.wait()
            barrier.wait()
            yield int(shared[1:].sum())
    finally:
        for process in processes:
            process.terminate()


def alternate(bare: Iterator, ours: Iterator, repeats: int) -> dict:
    """Median of the ratios of neighbouring rounds, after one round of each to warm up."""
    ratios, seconds = [], []
    for i in range(repeats + 1):
        times = []
        for side in (bare, ours):
            started = time.perf_counter()
            next(side)
            times.append(time.perf_counter() - started)
        if i:
            ratios.append(times[1] / times[0])
            seconds.append(times)
    bare.close()
    ours.close()
    return {"ratio": statistics.median(ratios), "ratios": [round(r, 4) for r in ratios], "repeats": repeats,
            "bare_round_s": statistics.median(s[0] for s in seconds),
            "fedrepro_round_s": statistics.median(s[1] for s in seconds)}  # fmt: skip


def _against(model: Callable[[], nn.Module], settings: dict, workers: int, repeats: int, method: dict) -> dict:
    bare = Bare(model(), settings, mu=method.get("hp", {}).get("mu", 0.0))
    theirs = bare.rounds() if workers == 1 else split_in_two(bare)
    ours = rounds(Run(**settings, **method, rounds=10_000), workers=workers)
    return alternate(theirs, ours, repeats)


def fashion_1_worker(repeats: int, quick: bool) -> dict:
    return _against(lenet, FASHION | _smaller(quick), 1, repeats, {})


def fashion_2_workers(repeats: int, quick: bool) -> dict:
    return _against(lenet, FASHION | _smaller(quick), 2, repeats, {})


def resnet18_fedprox(repeats: int, quick: bool) -> dict:
    return _against(resnet18, RESNET, 1, repeats, {"method": "fedprox", "hp": {"mu": 0.1}})


def resnet18_fedprox_2_workers(repeats: int, quick: bool) -> dict:
    return _against(resnet18, RESNET, 2, repeats, {"method": "fedprox", "hp": {"mu": 0.1}})


def many_clients(repeats: int, quick: bool) -> dict:
    """100 against 100,000 registered clients of 600 samples: seconds a round and memory beside the index."""
    settings = FASHION | _smaller(quick) | {"samples": 60 if quick else 600}
    result = alternate(*(rounds(Run(**settings | {"clients": n}, rounds=10_000), workers=1) for n in (100, 100_000)),
                       repeats)  # fmt: skip
    return {"ratio": result["ratio"], "ratios": result["ratios"], "repeats": repeats,
            "round_s_100": result["bare_round_s"], "round_s_100000": result["fedrepro_round_s"],
            "memory_MB": {n: _memory(settings | {"clients": n}, 1) for n in (100, 100_000)},
            "index_MB": {n: n * settings["samples"] * 4 / 1e6 for n in (100, 100_000)}}  # fmt: skip


def fedmlb_step(repeats: int, quick: bool) -> dict:
    """A local step of FedMLB against one of FedAvg: ResNet-18 in six blocks, BatchNorm, batches of 50."""
    steps = 4
    result = alternate(*(_visits(RESNET | {"method": m, "epochs": None, "steps": steps}) for m in ("fedavg", "fedmlb")),
                       repeats)  # fmt: skip
    return {"ratio": result["ratio"], "ratios": result["ratios"], "repeats": repeats,
            "fedavg_step_s": result["bare_round_s"] / steps,
            "fedmlb_step_s": result["fedrepro_round_s"] / steps}  # fmt: skip


def limited_step(repeats: int, quick: bool) -> dict:
    """A local step of a limited device (FES) against a full one: AMA's network and setting, visits of ten epochs."""
    settings = LIMITED | _smaller(quick)
    result = alternate(*(_visits(settings, limited) for limited in (False, True)), repeats)
    return {"ratio": result["ratio"], "ratios": result["ratios"], "repeats": repeats,
            "times_faster": 1 / result["ratio"], "full_visit_s": result["bare_round_s"],
            "limited_visit_s": result["fedrepro_round_s"]}  # fmt: skip


def relationship_cube(repeats: int, quick: bool) -> dict:
    """KAPC's server for 100 clients of ResNet-18, Eqs. (12) and (15): one Gram matrix a layer against one pass over
    the layer for every coefficient. Layer by layer, each on both sides in turn; the ratio is of the sums."""
    from fedrepro import models
    from fedrepro.methods.kapc import step
    from fedrepro.methods.mixtures import combine, gram

    clients, repeats = (10, repeats) if quick else (100, 1)  # the passes take minutes
    net = models.build("resnet18", classes=10, channels=3, size=32)
    sizes = [sum(net.get_parameter(name).numel() for name in names) for names in net.layers().values()]
    rows, ratios, seconds = torch.full((clients, clients), 1 / clients, dtype=torch.float64), [], []
    for _ in range(repeats):
        times = [0.0, 0.0]
        for size in sizes:
            x = torch.randn(clients, size).div_(size**0.5)
            results = []
            for side, slopes in enumerate((_slopes_by_passes, lambda r, x: step(r, gram(x), 1.0, 0.01, 0.01))):
                started = time.perf_counter()
                results.append(slopes(rows, x))
                combine(results[-1], x)
                times[side] += time.perf_counter() - started
            torch.testing.assert_close(*results, rtol=1e-4, atol=1e-6)
        ratios.append(times[1] / times[0])
        seconds.append(times)
    return {"ratio": statistics.median(ratios), "ratios": [round(r, 4) for r in ratios], "repeats": repeats,
            "clients": clients, "passes_s": statistics.median(s[0] for s in seconds),
            "gram_s": statistics.median(s[1] for s in seconds)}  # fmt: skip


def _slopes_by_passes(rows: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Eq. (12) as it is written: for each client its s, then an inner product for each coefficient."""
    new = torch.empty_like(rows)
    for i, row in enumerate(rows):
        s = torch.zeros_like(x[i])
        for r, w in zip(row.tolist(), x, strict=True):
            s.add_(w, alpha=r)
        s -= x[i]
        for j, w in enumerate(x):
            new[i, j] = row[j] - 0.01 * (2 * torch.dot(w, s) + 0.01 * (row[j] - 1 / len(x)))
    return new


def _visits(settings: dict, limited: bool = False) -> Iterator:
    """One client's visit again and again, without a server or a test."""
    worker = Worker(Run(**settings))
    message = {"w": worker.params.clone(), "b": worker.buffers.clone()}
    while True:
        yield worker.client(1, 0, message, None, 0, limited)


def startup_and_memory(repeats: int, quick: bool) -> dict:
    """Seconds from the command to the first round, and the largest PSS of the process tree, with 2 workers."""
    settings = FASHION | _smaller(quick)
    starts = [_command(settings, 2, 1)["startup_s"] for _ in range(repeats)]
    return {"startup_s": statistics.median(starts), "memory_MB": _memory(settings, 2), "repeats": repeats}


def _command(settings: dict, workers: int, number: int) -> dict:
    words = [w for key, value in settings.items() for w in (f"--{key.replace('_', '-')}", str(value))]
    command = [
        sys.executable,
        "-m",
        "fedrepro.cli",
        "run",
        "--json",
        "--rounds",
        str(number),
        "--workers",
        str(workers),
    ]
    started, peak, done = time.perf_counter(), [0.0], threading.Event()
    process = subprocess.Popen([*command, *words], stdout=subprocess.PIPE, text=True)
    watcher = threading.Thread(target=_watch, args=(process.pid, peak, done))
    watcher.start()
    answer = json.loads(process.communicate()[0])
    whole = time.perf_counter() - started
    done.set()
    watcher.join()
    return {"startup_s": whole - answer["wall_time"], "memory_MB": peak[0]}


def _memory(settings: dict, workers: int) -> float:
    return _command(settings, workers, 3)["memory_MB"]


def _watch(pid: int, peak: list[float], done: threading.Event) -> None:
    while not done.wait(0.1):
        total = 0
        try:
            root = psutil.Process(pid)
            for process in [root, *root.children(recursive=True)]:
                total += process.memory_full_info().pss
        except psutil.Error:
            continue
        peak[0] = max(peak[0], total / 1e6)


def _smaller(quick: bool) -> dict:
    return {"data": "synthetic:size=28,train=6000,test=1000", "epochs": 1} if quick else {}


MEASUREMENTS = {f.__name__: f for f in (fashion_1_worker, fashion_2_workers, resnet18_fedprox,
                                        resnet18_fedprox_2_workers, fedmlb_step, limited_step, relationship_cube,
                                        many_clients,
                                        startup_and_memory)}  # fmt: skip
TARGETS = {
    "fashion_1_worker": ("ratio", 1.05),
    "fashion_2_workers": ("ratio", 1.05),
    "resnet18_fedprox": ("ratio", 1.05),
    "resnet18_fedprox_2_workers": ("ratio", 1.05),
    "fedmlb_step": ("ratio", 2.2),
    "limited_step": ("ratio", 1 / 1.8),
    "relationship_cube": ("ratio", 0.5),
    "many_clients": ("ratio", 1.10),
    "startup_and_memory": ("memory_MB", 1050),
}


def main(repeats: int, quick: bool, only: list[str] | None, out: str) -> int:
    from fedrepro.checks import choose, number

    repeats = number("repeats", repeats, int, 1, 1000)
    names = [choose("only", name, MEASUREMENTS) for name in only or MEASUREMENTS]
    torch.set_num_threads(1)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / ("quick.json" if quick else "bench.json")
    table = json.loads(file.read_text()) if file.exists() else {}
    for name in names:
        print(f"{name} ...", flush=True)
        result = MEASUREMENTS[name](repeats, quick)
        key, target = TARGETS[name]
        table[name] = {"target": {key: target}, **result, "cores": os.cpu_count(), "processor": platform.machine(),
                       "torch": torch.__version__}  # fmt: skip
        print(f"  {key} {result[key]:.3f}  (aim: at most {target:.4g})", flush=True)
        file.write_text(json.dumps(table, indent=1) + "\n")
    return 0
