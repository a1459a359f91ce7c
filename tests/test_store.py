"""Full disks, dead workers, two processes on one run: no finished round is lost, and the message says so."""

import contextlib
import io
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial

import pytest
import torch

from fedrepro import Run, folders, rounds, train
from fedrepro.cli import main
from fedrepro.errors import BadInput, Failure
from fedrepro.simulation import files, provenance, scratch
from fedrepro.simulation.executor import Processes
from fedrepro.simulation.states import Clients
from fedrepro.simulation.store import SUMMARY, Store, load_tensors, save_tensors
from fedrepro.simulation.tree import Tree

KEPT = {"lock", "run.json", "rounds.csv", "weights.pt", "result.json"}  # of a finished run


def test_full_disk_loses_no_finished_round(small, tmp_path, monkeypatch):
    run = small(rounds=4)
    going = rounds(run, store=tmp_path, workers=1)
    next(going), next(going)
    going.close()
    real = torch.save

    def full(value, file, **options):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(Failure, match=r"disk is full; rounds 1 to 2 .* are safe"):
        train(run, store=tmp_path, workers=1)
    monkeypatch.setattr(torch, "save", real)
    assert Store(tmp_path, run).resume()["t"] == 2
    assert not [p for p in (tmp_path / run.id).iterdir() if p.name.startswith(".")]
    assert train(run, store=tmp_path, workers=1).digest == train(run, workers=1).digest


def test_a_really_full_disk(tmp_path):
    """On a file system of 300 kB, where this machine allows one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("no right to mount a small file system here")
    try:
        command = [sys.executable, "-m", "fedrepro.cli", "run", "--method", "scaffold", "--rounds", "30",
                   "--store", disk, "--workers", "1", "--samples", "50"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert "are safe in" in done.stderr
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), OSError(28, "No space left on device")], ids=repr)
def test_whatever_ends_a_write_is_what_is_raised(stop, tmp_path, monkeypatch):
    """torch.save turns it into a RuntimeError of its own when it comes in the middle of a tensor: Ctrl-C during a
    checkpoint was reported as a failing disk."""

    class File(io.BytesIO):
        left = math.inf  # writes until it is stopped

        def write(self, data) -> int:
            File.left -= 1
            if not File.left:
                raise stop
            return super().write(data)

    monkeypatch.setattr(files, "write_atomically", lambda path, write: write(File()))
    value = {"w": torch.zeros(5), "b": torch.ones(3)}
    for writes in itertools.count(1):
        File.left = writes
        try:
            files.save_tensors(tmp_path / "x", value)
        except type(stop) as error:
            assert error.args == stop.args
        else:
            break
    assert writes > 10


def test_a_killed_worker_is_replaced(small, capfd):
    run, killed = small(rounds=4), []
    whole = train(run, workers=1)
    original = Processes.ordered

    def kill_one(self, name, tasks, *ahead):
        if name == "client" and len(killed) < 2:
            victim = self._children[len(killed)].process
            killed.append(victim.pid)
            threading.Timer(0.01, os.kill, (victim.pid, signal.SIGKILL)).start()
            time.sleep(0.03 if len(killed) == 1 else 0)  # once before the task is sent, once while it runs
        return original(self, name, tasks, *ahead)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Processes, "ordered", kill_one)
        result = train(run, workers=2)
    assert result.digest == whole.digest
    assert "a worker process died (exit code -9); its task is repeated" in capfd.readouterr().err


class Context:
    def fail(self, value):
        raise BadInput(f"value: {value}")

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def double(self, tree, times):
        return {"tree": tree * 2.0, "times": times, "nothing": torch.zeros(0)}


def test_errors_cross_the_process_border():
    executor = Processes(Context(), 2)
    with pytest.raises(BadInput, match="value: 3"):
        executor.map("fail", [(3,)])


def test_workers_end_silently_when_their_answer_is_not_wanted(capfd):  # Ctrl-C between two results
    executor = Processes(Context(), 1)
    child = executor._children[0]
    executor._send(child, "double", 0, (Tree(a=torch.ones(3)), 1))
    assert child.pipe.poll(20)
    child.task = None
    executor.close()
    assert not child.process.is_alive()
    assert capfd.readouterr().err == ""


def test_a_task_that_always_kills_its_worker_is_given_up(capfd):
    with pytest.raises(Failure, match="died 3 times"):
        Processes(Context(), 1).map("die", [()])


def test_tensors_keep_values_and_strides_across_processes():
    executor = Processes(Context(), 2)
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    trees = [Tree(a=image * i, b=torch.randn(3, 7).t(), c=torch.tensor(2.0)) for i in range(9)]
    big = Tree(a=torch.randn(300_000))  # the shared memory must grow
    answers = executor.map("double", [(tree, i) for i, tree in enumerate([*trees, big])])
    for i, (tree, answer) in enumerate(zip([*trees, big], answers, strict=True)):
        assert answer["times"] == i
        for name, value in tree.items():
            assert torch.equal(answer["tree"][name], value * 2)
    assert answers[0]["tree"]["a"].is_contiguous(memory_format=torch.channels_last)
    executor.close()


def test_client_state_beyond_the_budget_goes_to_files(small, tmp_path):
    states = Clients(tmp_path / "clients", memory=5000)
    for cid in range(10):
        states.put(cid, {"m/w": Tree(a=torch.full((300,), float(cid))), "m/n": cid}, t=1)
    states.put(3, {"m/w": Tree(a=torch.full((300,), 33.0)), "m/n": 33}, t=2)
    assert states._held <= 5000
    for cid in range(10):
        state = states.get(cid)
        assert state["m/n"] == (33 if cid == 3 else cid)
        assert isinstance(state["m/w"], Tree)
        assert float(state["m/w"]["a"][0]) == state["m/n"]
    states.flush()
    states.prune()
    assert {p.name for p in (tmp_path / "clients").iterdir()} == {f"{c}-{2 if c == 3 else 1}.pt" for c in range(10)}


def test_spilled_client_state_gives_the_same_result(small, tmp_path, monkeypatch):
    run = small(method="scaffold", rounds=5)
    whole = train(run, workers=1)
    monkeypatch.setattr(Clients.__init__, "__defaults__", (None, 1))
    assert train(run, workers=1).digest == whole.digest
    assert train(run, store=tmp_path, workers=1).digest == whole.digest


def test_two_processes_on_one_run(small, tmp_path):
    run = small(rounds=4)
    going = rounds(run, store=tmp_path, workers=1)
    next(going)
    script = f"""
from fedrepro import Run, train
print(train(Run.from_dict({run.described!r}), store={str(tmp_path)!r}, workers=1).digest)
"""
    second = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "another process works on run" in second.stderr.readline()
    for _ in going:
        pass
    out, _ = second.communicate(timeout=60)
    assert out.strip() == train(run, store=tmp_path).digest


def test_one_run_twice_in_one_process(small, tmp_path):
    going = rounds(small(), store=tmp_path, workers=1)
    next(going)
    with pytest.raises(BadInput, match="already under way in this process"):
        train(small(), store=tmp_path, workers=1)
    going.close()
    train(small(), store=tmp_path, workers=1)


def test_a_store_made_by_another_run(small, tmp_path):
    run = small()
    train(run, store=tmp_path, workers=1)
    with pytest.raises(BadInput, match="is the folder of one run"):
        train(small(seed=1), store=tmp_path / run.id, workers=1)
    described = json.loads((tmp_path / run.id / "run.json").read_text())
    (tmp_path / run.id / "run.json").write_text(json.dumps({**described, "lr": 7.0}))
    with pytest.raises(BadInput, match="was made by another run"):
        train(run, store=tmp_path, workers=1)


def test_a_finished_runs_rounds_are_covered(small, tmp_path):
    """Bytes and times are evidence, though the digest holds only weights, accuracy and loss."""
    run = small(rounds=2)
    train(run, store=tmp_path, workers=1)
    file = tmp_path / run.id / "rounds.csv"
    head, first, last = file.read_text().splitlines()
    for column in ("bytes_up", "wall_time"):
        values = last.split(",")
        values[head.split(",").index(column)] = "7"
        file.write_text("\n".join([head, first, ",".join(values)]) + "\n")
        with pytest.raises(BadInput, match=r"rounds.csv cannot be read \(its rows are not those"):
            train(run, store=tmp_path, workers=1)


def changed(value):
    return {str: "x", dict: {"x": 1}, float: 0.5}.get(type(value))


@pytest.mark.parametrize("key", SUMMARY)
@pytest.mark.parametrize("damage", ["missing", "of another kind", "another"])
def test_every_key_of_a_finished_run_counts(small, tmp_path, key, damage):
    """A changed description, digest or provenance is refused in one line, as is what lacks one."""
    run = small(rounds=1)
    train(run, store=tmp_path, workers=1)
    file = tmp_path / run.id / "result.json"
    summary = json.loads(file.read_text())
    value = summary.pop(key)
    if damage != "missing":
        summary[key] = [] if damage == "of another kind" else changed(value)
    file.write_text(json.dumps(summary))
    with pytest.raises(BadInput, match=r"result.json cannot be read \(|rounds.csv cannot be read \(its rows"):
        train(run, store=tmp_path, workers=1)


@pytest.mark.parametrize("content", [b"[]", b"null", b"{}", b"\xff", b"[" * 100_000])
def test_a_result_of_the_wrong_shape(small, tmp_path, content):
    run = small(rounds=1)
    train(run, store=tmp_path, workers=1)
    (tmp_path / run.id / "result.json").write_bytes(content)
    with pytest.raises(BadInput, match=r"result.json cannot be read"):
        train(run, store=tmp_path, workers=1)


@pytest.mark.parametrize("path", ["x" * 300, "x" * 200 + "/" + "y/" * 2000, "x/" * 1990 + "x"])
@pytest.mark.parametrize("command", ["run", "sweep", "reproduce"])
def test_a_store_path_that_is_too_long(tmp_path, monkeypatch, capsys, path, command):
    """The last of them would still hold a run's folder, but not the names of its temporary files."""
    monkeypatch.chdir(tmp_path)
    words = ["--store", path, "--rounds", "1"]
    if command == "reproduce":
        monkeypatch.setenv("FEDREPRO_STORE", path)
        words = ["fedbr", "--scale", "smoke"]
    assert main([command, *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "is not a folder that can be written (File name too long)" in line
    assert len(line) < 300
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("finished", [False, True])
def test_what_a_killed_writer_left_is_removed_when_the_run_is_opened(small, tmp_path, finished):
    run = small(method="scaffold", rounds=3)
    going = rounds(run, store=tmp_path, workers=1)
    next(going), next(going)
    if finished:
        list(going)
    going.close()
    folder = tmp_path / run.id
    (folder / "clients").mkdir(exist_ok=True)
    left = [
        folder / f".rounds.csv.{scratch.owner()}abc",
        folder / "clients" / ".0-1.pt.abc",
        folder / ".checkpoint.pt.x",
    ]
    for path in left:
        path.write_bytes(b"half")
    going = rounds(run, store=tmp_path, workers=1)
    next(going)
    assert not any(path.exists() for path in left)
    list(going)
    assert {path.name for path in folder.iterdir()} == KEPT


def test_a_writer_killed_in_the_middle(small, tmp_path):
    """Its half-written file is there, and gone once the run is opened again."""
    script = f"""
import os, torch
from fedrepro import Run, train
def killed(value, file): file.write(b"half"), file.flush(), os.kill(os.getpid(), 9)
torch.save = killed
train(Run.from_dict({small(rounds=2).described!r}), store={str(tmp_path)!r}, workers=1)
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == -signal.SIGKILL
    folder = tmp_path / small(rounds=2).id
    assert [path.read_bytes() for path in folder.glob(".checkpoint.pt.*")] == [b"half"]
    train(small(rounds=2), store=tmp_path, workers=1)
    assert {path.name for path in folder.iterdir()} == KEPT


SPILLED = """
import sys
from fedrepro import cli
from fedrepro.simulation.states import Clients
Clients.__init__.__defaults__ = (None, 1)
sys.exit(cli.main(["run", "--method", "scaffold", "--rounds", "500", "--epochs", "1", "--workers", sys.argv[1]]))
"""


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
@pytest.mark.parametrize("workers", [1, 2])
def test_temporary_folders_go_with_their_process(tmp_path, sent, code, workers):
    """On SIGTERM and Ctrl-C at once; what kill -9 leaves, at the next start. Others' folders stay."""
    going = subprocess.Popen([sys.executable, "-c", SPILLED, str(workers)], stdout=subprocess.PIPE, text=True,
                             stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)},
                             preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))  # fmt: skip
    for _ in range(3):
        going.stdout.readline()
    assert len(list(tmp_path.glob("fedrepro-*"))) == 1
    going.send_signal(sent)
    _, err = going.communicate(timeout=60)
    assert going.returncode == code
    assert "Traceback" not in err
    assert len(list(tmp_path.glob("fedrepro-*"))) == (sent == signal.SIGKILL)
    mine = [tmp_path / f"fedrepro-{scratch.owner()}mine", tmp_path / "fedrepro-elsewhere-1-theirs"]
    for path in mine:
        path.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path))
        main(["papers"])
    assert sorted(tmp_path.glob("fedrepro-*")) == sorted(mine)


def test_sigterm_leaves_a_checkpoint(small, tmp_path):
    """Inside a round it is that of an earlier round, which one depends on how long checkpoints take here."""
    command = [sys.executable, "-m", "fedrepro.cli", "run", "--rounds", "300", "--epochs", "1", "--workers", "2",
               "--store", str(tmp_path)]  # fmt: skip
    going = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(5):
        going.stdout.readline()
    going.terminate()
    _, err = going.communicate(timeout=60)
    assert (going.returncode, err) == (143, "fedrepro: terminated; the same command resumes\n")
    with contextlib.closing(Store(tmp_path, Run(rounds=300, epochs=1))) as folder:
        assert 1 <= folder.resume()["t"] < 300


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_stopped_between_two_rounds_every_round_is_saved(small, tmp_path, end, monkeypatch):
    monkeypatch.setattr(Store, "due", lambda self: False)  # no checkpoint on the way
    run = small(rounds=300)

    def stop_after_five(row):
        if row["round"] == 5:
            raise end

    with pytest.raises(end):
        train(run, store=tmp_path, workers=1, progress=stop_after_five)
    with contextlib.closing(Store(tmp_path, run)) as folder:
        assert folder.resume()["t"] == 5


def test_a_damaged_checkpoint_is_not_used(small, tmp_path):
    run = small()
    going = rounds(run, store=tmp_path, workers=1)
    next(going)
    going.close()
    file = tmp_path / run.id / "checkpoint.pt"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(BadInput, match="cannot be read"):
        train(run, store=tmp_path, workers=1)


def test_nothing_is_unpickled_that_could_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("executed",))

    torch.save({"x": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(BadInput, match="cannot be read"):
        load_tensors(tmp_path / "evil.pt")


def test_trees_survive_a_file(tmp_path):
    value = {"w": Tree(a=torch.ones(2)), "list": [1, {"b": Tree()}], "none": None, "number": 0.1}
    save_tensors(tmp_path / "x.pt", value)
    loaded = load_tensors(tmp_path / "x.pt")
    assert isinstance(loaded["w"], Tree)
    assert isinstance(loaded["list"][1]["b"], Tree)
    assert (loaded["none"], loaded["number"]) == (None, 0.1)


def test_the_commit_is_read_without_touching_the_index(tmp_path, monkeypatch):
    """git refreshes its index on the way, under a lock that stays behind if the run is killed meanwhile."""
    git = partial(subprocess.run, cwd=tmp_path, check=True, capture_output=True)
    file, index = tmp_path / "code.py", tmp_path / ".git/index"
    file.write_text("x = 1\n")
    git(["git", "init", "-q"])
    git(["git", "add", "code.py"])
    git(["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", "first"])
    os.utime(file, (1, 1))  # which git would write down
    before = index.read_bytes()
    monkeypatch.setattr(folders, "PACKAGE", tmp_path)
    clean = provenance.commit.__wrapped__()
    assert len(clean) == 12 and index.read_bytes() == before
    file.write_text("x = 2\n")
    assert provenance.commit.__wrapped__() == clean + "+"
