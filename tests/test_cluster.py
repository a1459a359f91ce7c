"""Ray: the same digests as serial, on two nodes of which one is killed; and the message without Ray."""

import contextlib
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from fedrepro import sweep, train
from fedrepro.cli import main
from fedrepro.errors import BadInput, Failure


def test_without_the_extra_it_says_how_to_install_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["sweep", "--engine", "ray"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install 'fedrepro[ray]'" in line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--engine", "spark"], "engine: 'spark' is not valid; allowed: process, ray"),
        (["run", "--engine", "process", "--workers", "0"], "workers: 0 is not valid"),
        (["sweep", "--address", "head:6379"], "--address: 'head:6379' is not valid; allowed: only with --engine ray"),
    ],
)
def test_bad_arguments(capsys, monkeypatch, words, message):
    monkeypatch.setenv("FEDREPRO_ENGINE", "process")
    assert main(words) == 2
    assert message in capsys.readouterr().err


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return listener.getsockname()[1]


def start(home: Path):
    """Two nodes on this machine, each with one CPU, a pretended GPU and a store of its own."""
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        for name in "ab":
            add_node(cluster, home / name)
    except Exception:
        cluster.shutdown()
        raise
    return cluster


def add_node(cluster, store: Path):
    ports = ("metrics_agent_port", "metrics_export_port", "runtime_env_agent_port")  # those given are not waited for
    return cluster.add_node(num_cpus=1, num_gpus=1, object_store_memory=100 << 20, include_dashboard=False,
                            no_monitor=True, env_vars={"FEDREPRO_NODE_STORE": str(store)},
                            **{port: free_port() for port in ports})  # fmt: skip


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    ray = pytest.importorskip("ray", reason="needs the extra [ray]: pip install -e '.[ray]'")
    home = tmp_path_factory.mktemp("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        for left in (2, 1, 0):  # on a busy machine Ray's own agents may miss the 15 seconds it gives them
            try:
                cluster = start(home)
                break
            except Exception:
                if not left:
                    raise
        patch.setenv("RAY_ADDRESS", cluster.address)
        yield cluster, home
        ray.shutdown()
        cluster.shutdown()


def finished(store: Path) -> set[str]:
    return {path.parent.name for path in store.glob("*/result.json")}


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_the_clients_of_a_run(nodes, small, method):
    run = small(method=method, rounds=2)
    assert train(run, engine="ray").digest == train(run, workers=1).digest


class OnlyHere:
    """Nodes cannot import this file."""


def test_errors_and_deaths(nodes, capfd):
    from fedrepro.simulation.cluster import Cluster

    class Context:
        def fail(self, value):
            raise BadInput(f"value: {value}")

        def die(self):
            os._exit(1)

        def gpus(self):
            import ray

            return ray.get_gpu_ids()

    def on_cluster(context, *arguments, **options):
        with contextlib.closing(Cluster(context, **options)) as executor:
            return executor.map(*arguments)

    with pytest.raises(BadInput, match="value: 3"):
        on_cluster(Context(), "fail", [(3,)], workers=1)
    with pytest.raises(Failure, match="died 3 times on the same task"):
        on_cluster(Context(), "die", [()], workers=1)
    with pytest.raises(Failure, match=r"no worker can start on the Ray cluster: .*No module named"):
        on_cluster(OnlyHere(), "anything", [()], workers=1)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Failure, match="digests would differ"):
        patch.setattr("fedrepro.simulation.cluster.versions", lambda: {"torch": "0.1"})
        on_cluster(Context(), "gpus", [()], workers=1)
    assert [len(ids) for ids in on_cluster(Context(), "gpus", [(), ()], workers=2, gpus=1)] == [1, 1]


def test_a_node_lost_in_a_round_costs_only_its_client(nodes, tmp_path, capfd):
    from fedrepro.simulation.cluster import Cluster

    class Context:
        def visit(self, i):
            (tmp_path / f"{i}-{time.time_ns()}").touch()
            time.sleep(1)
            return i, torch.full((3, 2), float(i))

    def begun() -> list[str]:
        return [path.name for path in tmp_path.iterdir()]

    cluster, home = nodes
    node = add_node(cluster, home / "c")
    results = []
    with contextlib.closing(Cluster(Context(), workers=3)) as executor:
        for result in executor.ordered("visit", ((i,) for i in range(12))):
            results.append(result)
            if len(results) == 6:
                cluster.remove_node(node, allow_graceful=False)
    assert [i for i, _ in results] == list(range(12))
    assert all(torch.equal(x, torch.full((3, 2), float(i))) for i, x in results)
    assert executor.lost == 1
    assert len(begun()) <= 13
    assert "its task is repeated" in capfd.readouterr().err


def test_a_node_is_killed_in_the_middle(nodes, small, tmp_path, capfd):
    """The sweep completes, with serial's digests; what was finished stays finished, what was not is done again."""
    cluster, home = nodes
    runs = [small(seed=seed, rounds=25) for seed in range(6)]
    expected = {run.id: train(run, workers=1).digest for run in runs}
    store, b = tmp_path / "runs", home / "b"
    half_done = []

    def kill_b_when_it_has_sent_one_run_home_and_is_in_the_next():
        while not half_done:
            time.sleep(0.01)
            begun = {path.parent.name for path in b.glob("*/rounds.csv")} - finished(b)
            if finished(b) & finished(store) and begun:
                node = next(n for n in cluster.worker_nodes)
                cluster.remove_node(node, allow_graceful=False)
                half_done.extend(begun - finished(b))

    killer = threading.Thread(target=kill_b_when_it_has_sent_one_run_home_and_is_in_the_next, daemon=True)
    killer.start()
    order = []
    assert sweep(runs, store=store, engine="ray", progress=lambda run: order.append(run.id)) == expected
    killer.join(20)
    a = home / "a"
    assert len(half_done) == 1
    assert sorted(order) == sorted(expected)
    assert finished(store) == set(expected)
    assert finished(a) | finished(b) == set(expected)
    assert not finished(a) & finished(b)  # nothing was computed twice that was finished
    assert set(half_done) <= finished(a)
    assert "a Ray worker died" in capfd.readouterr().err
    for run in runs:  # what was sent home is whole: it gives its digest again, without Ray
        assert train(run, store=store, workers=1).digest == expected[run.id]


def test_the_command_line_takes_what_is_finished_from_the_store(nodes, small, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDREPRO_ENGINE", "process")
    words = ["sweep", "--data", "digits", "--clients", "4", "--per-round", "1", "--rounds", "1", "--epochs", "1",
             "--vary", "seed", "0", "1", "--store", str(tmp_path / "runs"), "--json"]  # fmt: skip
    assert main([*words, "--engine", "process", "--workers", "1"]) == 0
    serial = json.loads(capsys.readouterr().out)
    times = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("runs/*/result.json"))]
    assert main([*words, "--engine", "ray"]) == 0
    assert json.loads(capsys.readouterr().out) == serial
    assert [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("runs/*/result.json"))] == times
