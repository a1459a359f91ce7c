"""Speed as ratios to bare PyTorch loops (bare.py), measured side by side.

Rounds of both sides alternate, so that other load on the machine affects both; the median ratio counts.
"""

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedrepro import BadInput, Run, rounds
from fedrepro.bare import Bare, lenet, resnet18, split_in_two
from fedrepro.checks import choose, number
from fedrepro.growth import Settings, growth_memory, growth_seconds, measured, write
from fedrepro.simulation.client import Visit, Worker
from fedrepro.simulation.run import Row

SMALL: Settings = {"data": "synthetic:size=28,train=6000,test=1000", "epochs": 1}  # for real data, with --quick
FASHION: Settings = {"data": "fashion_mnist", "split": "iid", "clients": 100, "per_round": 10}
FASHION |= {"model": "lenet", "epochs": 5, "batch": 50, "lr": 0.01}
RESNET: Settings = {"data": "synthetic:classes=10,channels=3,size=32,train=2000,test=500", "split": "iid"}
RESNET |= {"clients": 10, "per_round": 2, "samples": 100, "model": "resnet18", "epochs": 1, "batch": 50, "lr": 0.01}
LIMITED: Settings = {"data": "mnist", "split": "shards:2", "clients": 50, "per_round": 10, "limited": 0.5}
LIMITED |= {"model": "cnn_ama", "method": "ama+fes", "epochs": 10, "batch": 10, "lr": 0.001}
FEDPROX: Settings = {"method": "fedprox", "hp": {"mu": 0.1}}


def compare(names: tuple[str, str], first: Generator, second: Generator, repeats: int) -> dict[str, Any]:
    """Median of the second's seconds over the first's, in neighbouring rounds, after one round of each to warm up."""
    seconds = []
    for _ in range(repeats + 1):
        times = []
        for side in (first, second):
            started = time.perf_counter()
            next(side)
            times.append(time.perf_counter() - started)
        seconds.append(times)
    first.close()
    second.close()
    return summary(names, seconds[1:])


def summary(names: tuple[str, str], seconds: list[list[float]]) -> dict[str, Any]:
    ratios = [second / first for first, second in seconds]
    medians = map(statistics.median, zip(*seconds, strict=True))
    shown = {"ratio": statistics.median(ratios), "ratios": [round(ratio, 4) for ratio in ratios]}
    return {**shown, "repeats": len(ratios), **dict(zip(names, medians, strict=True))}


def _against(model: Callable[[], nn.Module], settings: Settings, workers: int, repeats: int, quick: bool) -> dict:
    settings = _sized(settings, quick)
    bare = Bare(model(), settings, mu=settings.get("hp", {}).get("mu", 0.0))
    theirs = bare.rounds() if workers == 1 else split_in_two(bare)
    return compare(("bare_round_s", "fedrepro_round_s"), theirs, _rounds(settings, workers), repeats)


def _sized(settings: Settings, quick: bool) -> Settings:
    return settings | SMALL if quick and "mnist" in settings["data"] else settings


def _rounds(settings: Settings, workers: int, engine: str | None = None) -> Generator[Row]:
    return rounds(Run(**settings, rounds=10_000), workers=workers, engine=engine)


def many_clients(repeats: int, quick: bool) -> dict:
    """100 against 100,000 registered clients of 600 samples: seconds per round, and memory beside the index."""
    settings = _sized(FASHION, quick) | {"samples": 60 if quick else 600}
    few, many = ({**settings, "clients": n} for n in (100, 100_000))
    result = compare(("round_s_100", "round_s_100000"), _rounds(few, 1), _rounds(many, 1), repeats)
    memory = {case["clients"]: _memory(case, 1) for case in (few, many)}
    index = {case["clients"]: case["clients"] * case["samples"] * 4 / 1e6 for case in (few, many)}
    return {**result, "memory_MB": memory, "index_MB": index}


def fedmlb_step(repeats: int, quick: bool) -> dict:
    """A local step of FedMLB against one of FedAvg: ResNet-18 in six blocks, BatchNorm, batches of 50."""
    steps = 4
    settings = RESNET | {"epochs": None, "steps": steps}
    fedavg, fedmlb = (_visits({**settings, "method": name}) for name in ("fedavg", "fedmlb"))
    result = compare(("fedavg_step_s", "fedmlb_step_s"), fedavg, fedmlb, repeats)
    return {**result, **{name: result[name] / steps for name in ("fedavg_step_s", "fedmlb_step_s")}}


def limited_step(repeats: int, quick: bool) -> dict:
    """A local step of a limited device (FES) against a full one: AMA's network and setting, visits of ten epochs."""
    settings = _sized(LIMITED, quick)
    full, limited = (_visits(settings, limited) for limited in (False, True))
    result = compare(("full_visit_s", "limited_visit_s"), full, limited, repeats)
    return {**result, "times_faster": 1 / result["ratio"]}


def relationship_cube(repeats: int, quick: bool) -> dict:
    """KAPC's server for 100 clients of ResNet-18, Eqs. (12) and (15): one Gram matrix per layer against one pass over
    the layer per coefficient. Both sides alternate layer by layer; the ratio is that of the sums."""
    from fedrepro import models
    from fedrepro.methods.kapc import step
    from fedrepro.methods.mixtures import combine, gram

    clients, repeats = (10, repeats) if quick else (100, 1)  # the passes take minutes
    net = models.build("resnet18", classes=10, channels=3, size=32)
    sizes = [sum(net.get_parameter(name).numel() for name in names) for names in net.layers().values()]
    rows = torch.full((clients, clients), 1 / clients, dtype=torch.float64)
    seconds = []
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
        seconds.append(times)
    return {**summary(("passes_s", "gram_s"), seconds), "clients": clients}


def _slopes_by_passes(rows: Tensor, x: Tensor) -> Tensor:
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


def _visits(settings: Settings, limited: bool = False) -> Generator[Visit]:
    """One client's visit again and again, without a server or a test."""
    worker = Worker(Run(**settings))
    message = {"w": worker.params.clone(), "b": worker.buffers.clone()}
    while True:
        yield worker.client(1, 0, message, None, 0, limited)


def startup_and_memory(repeats: int, quick: bool) -> dict:
    """Seconds from the command to the first round, and the largest PSS of the process tree, with 2 workers."""
    settings = _sized(FASHION, quick)
    starts = [_command(settings, 2, 1)["startup_s"] for _ in range(repeats)]
    return {"startup_s": statistics.median(starts), "memory_MB": _memory(settings, 2), "repeats": repeats}


def _command(settings: Settings, workers: int, count: int) -> dict[str, float]:
    """Startup seconds and peak memory of `fedrepro run` with `count` rounds."""
    words = [w for key, value in settings.items() for w in (f"--{key.replace('_', '-')}", str(value))]
    command = [sys.executable, *f"-m fedrepro run --json --rounds {count} --workers {workers}".split()]
    started = time.perf_counter()
    answer, peak = measured([*command, *words])
    whole = time.perf_counter() - started
    return {"startup_s": whole - json.loads(answer)["wall_time"], "memory_MB": peak}


def _memory(settings: Settings, workers: int) -> float:
    return _command(settings, workers, 3)["memory_MB"]


def ray_cluster(repeats: int, quick: bool) -> dict:
    """A round of 20 ResNet-18 clients on a Ray of this machine against one in processes, 2 workers each."""
    settings: Settings = RESNET | {"clients": 20, "per_round": 4 if quick else 20}
    processes, ray = (_rounds(settings, 2, engine) for engine in ("process", "ray"))
    return compare(("process_round_s", "ray_round_s"), processes, ray, repeats)


MEASUREMENTS = {  # name: (function, key of its result, upper limit)
    "fashion_1_worker": (partial(_against, lenet, FASHION, 1), "ratio", 1.05),
    "fashion_2_workers": (partial(_against, lenet, FASHION, 2), "ratio", 1.05),
    "resnet18_fedprox": (partial(_against, resnet18, RESNET | FEDPROX, 1), "ratio", 1.05),
    "resnet18_fedprox_2_workers": (partial(_against, resnet18, RESNET | FEDPROX, 2), "ratio", 1.05),
    "fedmlb_step": (fedmlb_step, "ratio", 2.2),
    "limited_step": (limited_step, "ratio", 1 / 1.8),
    "relationship_cube": (relationship_cube, "ratio", 0.5),
    "many_clients": (many_clients, "ratio", 1.10),
    "startup_and_memory": (startup_and_memory, "memory_MB", 1050),
    "ray_cluster": (ray_cluster, "ratio", 1.10),
    "growth_memory": (growth_memory, "of_limit", 1),
    "growth_seconds": (growth_seconds, "growth", 1.10),
}


def main(repeats: int, quick: bool, only: list[str] | None, out: str) -> int:
    """Measure, print, and write to <out>/bench.json (quick.json)."""
    repeats = number("repeats", repeats, int, 1, 1000)
    names = [choose("only", name, MEASUREMENTS) for name in only or MEASUREMENTS]
    torch.set_num_threads(1)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / ("quick.json" if quick else "bench.json")
    table = json.loads(file.read_text()) if file.exists() else {}
    for name in names:
        print(f"{name} ...", flush=True)
        measure, key, target = MEASUREMENTS[name]
        try:
            result = measure(repeats, quick)
        except BadInput as error:  # Ray is an extra
            print(f"  left out: {error}")
            continue
        machine = {"cores": os.cpu_count(), "processor": platform.machine(), "torch": torch.__version__}
        table[name] = {"target": {key: target}, **result, **machine}
        print(f"  {key} {result[key]:.3f}  (aim: at most {target:.4g})", flush=True)
        file.write_text(json.dumps(table, indent=1) + "\n")
    if not quick:
        write(json.loads(file.read_text()), folder)  # read back: in JSON all keys are text
    return 0
