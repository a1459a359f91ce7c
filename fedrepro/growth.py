"""How the cost of a round grows with its participants, and with the registered clients: measured, tabled, drawn."""

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import psutil

from fedrepro import FedAvg, Run, rounds, train

Settings = dict[str, Any]  # fields of a Run
Curve = dict[int, float]
WORKERS = 2
SHARED: Settings = {"split": "iid", "epochs": 1, "lr": 0.01, "eval_every": 10**6}
LENET: Settings = {**SHARED, "data": "synthetic:size=28,train=2000,test=500", "model": "lenet"}
LENET |= {"samples": 10, "batch": 10}
RESNET: Settings = {**SHARED, "data": "synthetic:classes=10,channels=3,size=32,train=2000,test=500"}
RESNET |= {"model": "resnet18", "samples": 20, "batch": 20}
LINES = {  # title: (settings, sizes, how many of them `--quick` uses, what a size n sets)
    "LeNet, participants": (LENET, (10, 100, 1000, 10_000), 2, lambda n: {"clients": n, "per_round": n}),
    "ResNet-18, participants": (RESNET, (10, 50, 100), 1, lambda n: {"clients": n, "per_round": n}),
    "LeNet, registered clients": (LENET, [10**k for k in range(2, 7)], 2, lambda n: {"clients": n, "per_round": 10}),
}
LIMIT_MB = {"LeNet, participants": 700, "ResNet-18, participants": 1200}


def cases(quick: bool) -> Iterator[tuple[str, dict[int, Settings]]]:
    """Every line of the figure, with the settings of its sizes."""
    for line, (settings, sizes, few, at) in LINES.items():
        yield line, {n: {**settings, **at(n)} for n in (sizes[:few] if quick else sizes)}


def growth_memory(repeats: int, quick: bool) -> dict[str, Any]:
    """The largest PSS of the process tree in a round with 2 workers: uploads are folded in as they arrive, or held
    until the last one has arrived."""
    curves: dict[str, dict[str, Curve]] = {}
    for line, sizes in cases(quick):
        ways = ("folded",) if "registered" in line else ("folded", "held")
        curves[line] = {way: {n: peak(settings, way) for n, settings in sizes.items()} for way in ways}
    of_limit = [max(curves[line]["folded"].values()) / limit for line, limit in LIMIT_MB.items()]
    return {"MB": curves, "of_limit": max(of_limit), "limit_MB": LIMIT_MB}


def growth_seconds(repeats: int, quick: bool) -> dict[str, Any]:
    """Seconds per participant of rounds without a test, with 2 workers; sizes alternate, and the median counts."""
    curves, growth = {}, {}
    for line, sizes in cases(quick):
        sides = {n: rounds(Run(**settings, rounds=10**6), workers=WORKERS) for n, settings in sizes.items()}
        for side in sides.values():
            next(side)  # to warm up
        taken = [{n: _seconds(sides[n], sizes[n]["per_round"]) for n in sizes} for _ in range(repeats)]
        for side in sides.values():
            side.close()
        curves[line] = {n: statistics.median(turn[n] for turn in taken) for n in sizes}
        growth[line] = statistics.median(turn[max(sizes)] / turn[min(sizes)] for turn in taken)
    return {"seconds": curves, "by_line": growth, "growth": max(growth.values()), "repeats": repeats}


def _seconds(side: Iterator, participants: int) -> float:
    """Per participant, over about 200 participants or one round."""
    count = max(1, 200 // participants)
    started = time.perf_counter()
    for _ in range(count):
        next(side)
    return (time.perf_counter() - started) / (count * participants)


def peak(settings: Settings, way: str) -> float:
    """MB of one round in a process of its own."""
    words = json.dumps([settings, way])
    return measured([sys.executable, "-c", f"from fedrepro import growth; growth.one_round({words!r})"])[1]


def one_round(words: str) -> None:
    settings, way = json.loads(words)
    if way == "held":
        FedAvg.whole = ("w", "b")
    train(Run(**settings, rounds=1), workers=WORKERS)


def measured(command: list[str]) -> tuple[str, float]:
    """What a command prints, and the largest PSS of its process tree in MB."""
    top, done = [0.0], threading.Event()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    watcher = threading.Thread(target=_watch, args=(process.pid, top, done))
    watcher.start()
    answer = process.communicate()[0]
    done.set()
    watcher.join()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return answer, top[0]


def _watch(pid: int, top: list[float], done: threading.Event) -> None:
    while not done.wait(0.1):
        total = 0
        try:
            root = psutil.Process(pid)
            for process in [root, *root.children(recursive=True)]:
                total += process.memory_full_info().pss
        except psutil.Error:
            continue
        top[0] = max(top[0], total / 1e6)


def write(table: dict[str, Any], folder: Path) -> None:
    """Write growth.csv and growth.svg from the measurements so far."""
    memory = table.get("growth_memory", {}).get("MB", {})
    seconds = table.get("growth_seconds", {}).get("seconds", {})
    found = [
        {
            "what": line,
            "size": int(n),
            "seconds_per_participant": seconds.get(line, {}).get(n),
            "peak_MB": memory.get(line, {}).get("folded", {}).get(n),
            "peak_MB_if_uploads_are_held": memory.get(line, {}).get("held", {}).get(n),
        }
        for line in LINES
        for n in {**memory.get(line, {}).get("folded", {}), **seconds.get(line, {})}
    ]
    if found:
        pd.DataFrame(found).round(5).to_csv(folder / "growth.csv", index=False)
        _draw(found, folder / "growth.svg")


def _draw(found: list[dict[str, Any]], path: Path) -> None:
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "fedrepro"
    figure, grid = plt.subplots(2, 3, figsize=(10, 5.4), sharex="col", layout="constrained")
    for (top, bottom), line in zip(grid.T, LINES, strict=True):
        mine = sorted((row for row in found if row["what"] == line), key=lambda row: row["size"])
        for axes, key, style, label in (
            (top, "peak_MB_if_uploads_are_held", "o--", "uploads held (before)"),
            (top, "peak_MB", "o-", "uploads folded as they arrive"),
            (bottom, "seconds_per_participant", "o-", ""),
        ):
            points = [(row["size"], row[key] * (1 if axes is top else 1000)) for row in mine if row[key] is not None]
            if points:
                axes.plot(*zip(*points, strict=True), style, label=label, color="0.6" if "held" in key else "C0")
        if limit := LIMIT_MB.get(line):
            top.axhline(limit, color="C3", lw=1, label=f"aim: {limit / 1000:g} GB")
        for axes in (top, bottom):
            highest = max((max(line.get_ydata()) for line in axes.lines), default=1)
            axes.set(xscale="log", ylim=(0, 1.35 * highest))
            axes.grid(alpha=0.3)
        top.set_title(line)
        if top.lines:
            top.legend(fontsize=8)
        bottom.set_xlabel(line.partition(", ")[2] + (" (10 take part)" if "registered" in line else " in a round"))
    grid[0, 0].set_ylabel("peak memory, MB")
    grid[1, 0].set_ylabel("ms per participant, 2 workers")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
