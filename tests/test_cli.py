"""The command line: errors are one line, finished runs are not computed again."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import termios
import time

import pytest

from fedrepro import cli, rounds, train
from fedrepro.arguments import parser
from fedrepro.simulation.run import Run

FEDREPRO = [sys.executable, "-m", "fedrepro.cli"]
QUICK = ["--clients", "4", "--per-round", "2", "--rounds", "2", "--epochs", "1", "--samples", "30", "--workers", "1"]
QUICK_RUN = Run(clients=4, per_round=2, rounds=2, epochs=1, samples=30)


@pytest.fixture
def fed(tmp_path, monkeypatch, capsys):
    """fed("run", ...) in an empty folder -> (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*argv):
        try:
            code = cli.main(list(map(str, argv)))
        except SystemExit as stopped:
            code = stopped.code
        return code, *capsys.readouterr()

    return call


def spawn(*argv, **options):
    return subprocess.run([*FEDREPRO, *map(str, argv)], capture_output=True, text=True, timeout=120, **options)


def says(line: str, expected: str) -> bool:
    """`...` stands for anything."""
    return re.search(".*".join(map(re.escape, expected.split("..."))), line) is not None


BAD = {  # arguments after "run": what the one line says
    "--method nope": "method: 'nope'...allowed:...fedavg, fedavgm",
    "--method fedavgm+fedadam": "method: 'fedavgm+fedadam'...cannot be stacked...'aggregate'",
    "--method fedprox --hp nu=1": "hp.nu: ...'nu'...allowed: mu, partial",
    "--method fedprox --hp mu": "--hp: 'mu'...allowed: NAME=VALUE",
    "--method fedprox --hp mu=1 --hp mu=2": "--hp: 'mu=2'...allowed: mu once",
    "--method fedprox --hp mu=": "hp.mu (fedprox): ''...allowed: a number in",
    "--method fedprox --hp mu=1e400": "hp.mu (fedprox): '1e400'...allowed: a number in",
    "--method fedprox --hp mu=true": "hp.mu (fedprox): True...allowed: a number in",
    "--method fedprox --hp mu=[1]": "hp.mu (fedprox): [1]...allowed: a number in",
    "--method fedprox --hp name=1": "hp.name: ...'name'...allowed: mu, partial",
    "--data nope": "data: 'nope'...allowed: cifar10",
    "--data synthetic:size=4": "data option size: 4...allowed: 8 to 256",
    "--data synthetic:size=8,size=9": "data: 'synthetic:size=8,size=9'...allowed: size once",
    "--data digits:": "data: 'digits:'...allowed: digits, or digits:key=value",
    "--model lenet:": "model: 'lenet:'...allowed: lenet, or lenet:key=value",
    "--model nope": "model: 'nope'...allowed: cnn_ama",
    "--model squeezenet": "model: ...squeezenet...allowed: images of at least",
    "--split nope": "split: 'nope'...allowed: dirichlet",
    "--split shards:11": "split: 'shards:11'...allowed: at most 10 shards, one per class",
    "--split writers": "split: 'writers'...allowed: data with writers",
    "--split dirichlet:1 --samples 999": "samples: 999...allowed: at most 143",
    "--clients 5000": "clients: 5000...allowed: at most one client per sample",
    "--device meta": "device: 'meta'",
    "--data synthetic:channels=4,size=32 --model mobilenet_v2": "model: 'mobilenet_v2'",
    "--model small:norm=batch --batch 1": "model: 'small:norm=batch'...batches of 1",
    "--clients 400 --samples 1 --personal all": "clients: 400...at most one per test sample",
    "--model lenet:proj=99999999999999999999": "model option proj",
    "--per-round 11": "per_round: 11...allowed: at most clients (10)",
    "--clients 0": "clients: 0...allowed: a whole number in [1,",
    "--clients -3": "clients: -3...allowed: a whole number in [1,",
    "--clients 2.5": "clients: 2.5...allowed: a whole number",
    "--clients 1e400": "clients: '1e400'...allowed: a whole number",
    "--clients 1e12": "clients: 1000000000000.0...allowed: a whole number",
    "--clients many": "clients: 'many'...allowed: a whole number",
    '--clients "5"': "clients: '5'...allowed: a whole number",
    "--clients true": "clients: True...allowed: a whole number",
    "--clients ٥": "clients: '٥'...allowed: a whole number",
    "--clients [5]": "clients: [5]...allowed: a whole number",
    "--rounds 1e308": "rounds: 1e+308...allowed: a whole number",
    "--lr nan": "lr: 'nan'...allowed: a number in (0,",
    "--lr NaN": "lr: 'NaN'...allowed: a number in (0,",
    "--lr inf": "lr: 'inf'...allowed: a number in (0,",
    "--lr Infinity": "lr: 'Infinity'...allowed: a number in (0,",
    "--lr 1e39": "lr: 1e+39...allowed: a number in (0,",
    "--seed -1": "seed: -1...allowed: a whole number in [0,",
    "--batch 99999999999999999999": "batch: 99999999999999999999...allowed: a whole number",
    "--epochs 2 --steps 2": "steps: 2...allowed: either epochs (2) or steps, not both",
    "--delay 0.5": "max_delay: None...allowed: delay and max_delay go together",
    "--bandwidth 9:1": "bandwidth: '9:1'...allowed: low:high with low <= high",
    "--workers 0": "workers: 0...allowed: a whole number from 1",
    "--workers two": "workers: 'two'...allowed: a whole number from 1",
    "--device nope": "device: 'nope'...allowed: auto, cpu",
    "--device cuda:99": "device: 'cuda:99'...allowed: auto, cpu",
    "--roundz 3": "fedrepro: unrecognized arguments: --roundz",
    "--round 3": "fedrepro: unrecognized arguments: --round",
    "stray": "unrecognized arguments: stray",
    "--lr": "--lr: expected one argument",
}


@pytest.mark.parametrize("arguments", BAD)
def test_bad_input_is_one_line_and_writes_nothing(fed, tmp_path, arguments):
    code, out, err = fed("run", "--store", "runs", *arguments.split())
    assert (code, out) == (2, "")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert says(err, BAD[arguments])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", ["", "[" * 100_000, "9" * 6000, "a\nb", "\udcff", "💥", "null"])
@pytest.mark.parametrize("option", ["--clients", "--data", "--method", "--bandwidth", "--hp"])
def test_strange_text_also_gives_one_short_line(fed, tmp_path, option, value):
    code, out, err = fed("run", "--store", "runs", option, value)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert len(err) < 600
    assert not list(tmp_path.iterdir())


SWEEPS = {
    "--vary method": "--vary: 'method'...allowed: FIELD VALUE",
    "--vary nope 1 2": "run field: 'nope' is not valid...allowed: augment, bandwidth",
    "--vary hp 1 --vary hp.mu 1": "--vary: 'hp'...allowed: hp.NAME",
    "--vary hp.nu 1 2": "hp.nu...allowed: none",
    "--vary seed 0 --vary seed 1": "--vary: 'seed'...allowed: each field once",
    "--vary lr 0.1 -1": "lr: -1...allowed: a number in (0,",
    "--vary method fedavg nope": "method: 'nope'...allowed:...fedavg, fedavgm",
    "--vary split iid shards:11": "split: 'shards:11'...allowed: at most 10 shards",
    "--vary model lenet squeezenet": "squeezenet...allowed: images of at least",
    "--vary seed 0 1 --device nope": "device: 'nope'...allowed: auto",
    "--vary seed 0 1 --workers 0": "workers: 0...allowed: a whole number from 1",
}


@pytest.mark.parametrize("arguments", SWEEPS)
def test_a_sweep_with_one_bad_combination_trains_nothing(fed, tmp_path, arguments):
    code, out, err = fed("sweep", *QUICK, *arguments.split())
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert says(err, SWEEPS[arguments])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", ["nope", "data nope", "data fetch", "data fetch nope", "data fetch digits",
                                       "data status mnist", "bench --repeats 0", "bench --repeats x",
                                       "bench --only nope", "methods --nope"])  # fmt: skip
def test_other_commands_refuse_bad_input(fed, tmp_path, arguments):
    code, out, err = fed(*arguments.split())
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_an_unreadable_data_file(fed, tmp_path, monkeypatch):
    files = tmp_path / "mine/femnist/data/train"
    files.mkdir(parents=True)
    (files / "all.json").write_text("{broken")
    monkeypatch.setenv("FEDREPRO_DATA", str(tmp_path / "mine"))
    monkeypatch.setenv("FEDREPRO_CACHE", str(tmp_path / "cache"))
    code, _, err = fed("run", "--data", "femnist", "--model", "cnn_femnist", "--store", "runs")
    assert code == 2
    assert err.count("\n") == 1
    assert "femnist: no source has it; tried FEDREPRO_DATA/femnist" in err
    assert {p.name for p in tmp_path.iterdir()} == {"mine"}


@pytest.mark.parametrize(
    ("store", "why"),
    [
        ("file", "Not a directory"),
        ("file/in", "Not a directory"),
        ("/proc/x", "No such file"),
        ("", "path of a folder"),
    ],
)
def test_a_store_that_cannot_be_written(fed, tmp_path, store, why):
    (tmp_path / "file").write_text("mine")
    for command in ("run", "sweep"):
        code, _, err = fed(command, *QUICK, "--store", store)
        assert code == 2
        assert err.startswith(f"fedrepro: store: '{store}' is not")
        assert why in err
        assert err.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_store_without_permission(fed, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    code, _, err = fed("run", *QUICK, "--store", "locked")
    assert code == 2
    assert "'locked' is not a folder that can be written (Permission denied)" in err


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """A finished store and one that was stopped after the first round."""
    folder = tmp_path_factory.mktemp("stores")
    train(QUICK_RUN, store=folder / "finished", workers=1)
    going = rounds(QUICK_RUN, store=folder / "stopped", workers=1)
    next(going)
    going.close()
    return folder


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flip(content: bytes) -> bytes:
    """One bit in the middle, where a .pt file holds weights."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 64]) + content[middle + 1 :]


def change_loss(content: bytes) -> bytes:
    """The last row's test loss, in the third column."""
    head, last = content.rstrip().rsplit(b"\n", 1)
    cells = last.split(b",")
    return b"\n".join([head, b",".join([*cells[:2], b"0.5", *cells[3:]])]) + b"\n"


DAMAGES = [
    *[("stopped", "checkpoint.pt", damage) for damage in (cut, flip)],
    *[("finished", name, cut) for name in ("weights.pt", "result.json", "rounds.csv")],
    ("finished", "weights.pt", flip),
    ("finished", "rounds.csv", change_loss),
    *[("finished", name, lambda content: b"") for name in ("weights.pt", "result.json", "rounds.csv")],
    *[("finished", name, lambda content: b"\xff\x00[]") for name in ("weights.pt", "result.json", "rounds.csv")],
    ("finished", "result.json", lambda content: b"[]"),
    ("finished", "rounds.csv", None),
    ("finished", "weights.pt", None),
]  # fmt: skip


@pytest.mark.parametrize(("state", "name", "damage"), DAMAGES)
def test_damaged_files_are_never_used(fed, tmp_path, stores, state, name, damage):
    shutil.copytree(stores / state, tmp_path / "runs")
    file = tmp_path / "runs" / QUICK_RUN.id / name
    file.write_bytes(damage(file.read_bytes())) if damage else file.unlink()
    for command in ("run", "sweep"):
        code, out, err = fed(command, *QUICK, "--store", "runs", "--json")
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert re.search(r"store: .* cannot be read .*; delete its folder to train the run again", err)
    shutil.rmtree(file.parent)
    assert fed("run", *QUICK, "--store", "runs")[0] == 0


def test_short_memory_and_other_failures_are_one_line(fed, monkeypatch):
    def fail(error):
        def train(*_, **__):
            raise error

        monkeypatch.setattr("fedrepro.simulation.session.train", train)
        return fed("run", *QUICK)

    assert fail(RuntimeError("DefaultCPUAllocator: can't allocate memory: ..."))[0] == 1
    assert fail(MemoryError())[2] == "fedrepro: MemoryError\n"
    assert fail(OSError(28, "No space left on device"))[::2] == (1, "fedrepro: [Errno 28] No space left on device\n")
    with pytest.raises(RuntimeError, match="a bug"):  # which must be seen
        fail(RuntimeError("a bug"))


def test_help_is_quick_and_imports_no_torch():
    times = []
    for _ in range(3):
        started = time.perf_counter()
        assert "COMMAND" in spawn("--help").stdout
        times.append(time.perf_counter() - started)
    assert min(times) < 0.5
    script = (
        "import sys; from fedrepro.cli import parser; parser(); print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False False\n"


@pytest.mark.parametrize("command", ["run", "sweep", "methods", "data", "reproduce", "papers", "bench"])
def test_every_command_explains_itself_and_its_options(fed, command):
    code, out, err = fed(command, "--help")
    assert (code, err) == (0, "")
    assert len(out.split("\n\n")) >= 3  # usage, a description, the options
    options = re.findall(r"^  (--[a-z-]+)(?: [A-Z_=\[. ]+?\]?)?(?: {2,}|\n {20,})\w", out, re.M)
    assert len(options) == len(re.findall(r"^  --", out, re.M))
    if command in ("run", "sweep"):
        assert {"--" + name.replace("_", "-") for name, f in Run.__dataclass_fields__.items() if f.init} <= set(options)
        assert "example: fedrepro" in out


def test_lists_for_people_and_machines(fed):
    assert "fedprox" in fed("methods")[1]
    assert {row["method"] for row in json.loads(fed("methods", "--json")[1])} >= {"fedavg", "scaffold"}
    assert "built in" in fed("data")[1]
    assert "digits" in {row["name"] for row in json.loads(fed("data", "status", "--json")[1])}


def test_plain_lines_where_there_is_no_terminal(fed):
    code, out, err = fed("run", *QUICK)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line[:9] for line in lines[:2]] == ["round 1/2", "round 2/2"]
    assert len(lines) == 4
    assert f"run {QUICK_RUN.id}  digest " in lines[-1]


def test_json_is_one_line_on_stdout(fed):
    code, out, err = fed("run", *QUICK, "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    shown, result = json.loads(out), train(QUICK_RUN, workers=1)
    assert (shown["id"], shown["digest"]) == (QUICK_RUN.id, result.digest)
    assert shown["accuracy"] == result.rows[-1]["accuracy"]


def test_json_knows_no_nan(fed):
    code, out, _ = fed("sweep", *QUICK, "--lr", "1e20", "--json")
    assert code == 0
    assert json.loads(out, parse_constant=pytest.fail)[0]["loss"] is None


def test_a_diverging_run_stops_and_says_in_which_round(fed, tmp_path):
    code, out, err = fed("run", *QUICK, "--lr", "1e20", "--json", "--store", "runs")
    assert (code, out) == (1, "")
    assert err == (
        "fedrepro: fedavg diverged in round 1 of 2: its training loss is nan; a learning rate below 1e+20 may help\n"
    )


def test_alone_it_explains_itself(fed):
    code, out, err = fed()
    assert (code, err) == (0, "")
    assert out.startswith("usage: fedrepro") and "train one federation" in out
    module = subprocess.run([sys.executable, "-m", "fedrepro"], capture_output=True, text=True)
    assert (module.returncode, module.stdout.split()[:2]) == (0, ["usage:", "fedrepro"])


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ("run --method fedprx", "fedprox"),
        ("run --method FedAvg", "fedavg"),
        ("run --method fedmlb+fedyn", "feddyn"),
        ("run --method fedprox --hp partail=1", "partial"),
        ("run --data cifar", "cifar10"),
        ("run --split dirichet:0.3", "dirichlet"),
        ("run --model resnet1", "resnet18"),
        ("sweep --vary methods fedavg", "method"),
        ("reproduse fedbr", "reproduce"),
        ("data fetsh", "fetch"),
        ("reproduce fedb", "fedbr"),
        ("reproduce fedbr --table table2_temprature", "table2_temperature"),
        ("reproduce fedbr --scale smok", "smoke"),
    ],
)
def test_an_unknown_name_gets_a_suggestion(fed, arguments, meant):
    code, _, err = fed(*arguments.split())
    assert code == 2
    assert re.search(rf"; did you mean {meant}\? allowed: ", err) and err.count("\n") == 1


def test_seeds_are_a_number_or_a_list():
    def seeds(text):
        return parser().parse_args(["reproduce", "fedbr", "--seeds", text]).seeds

    assert [seeds(text) for text in ("3", "0,1", "7,", "0,x")] == [3, [0, 1], [7], [0, "x"]]


def test_the_scale_of_the_environment_is_the_default(monkeypatch):
    assert parser().parse_args(["reproduce", "fedbr"]).scale == "reduced"
    monkeypatch.setenv("FEDREPRO_SCALE", "smoke")
    assert parser().parse_args(["reproduce", "fedbr"]).scale == "smoke"
    assert parser().parse_args(["reproduce", "fedbr", "--scale", "cpu"]).scale == "cpu"


def test_a_bar_on_a_terminal():
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (24, 120))
    done = subprocess.Popen([*FEDREPRO, "run", *QUICK], stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    shown = b""
    with open(ours, "rb", buffering=0) as screen:
        try:
            while part := screen.read(1000):
                shown += part
        except OSError:  # how a terminal ends on Linux
            pass
    assert "round 1/2" not in done.communicate()[0]
    assert done.returncode == 0
    assert b"0/2" in shown
    assert b"accuracy=" in shown


def test_a_closed_pipe_ends_it_quietly():
    done = subprocess.Popen([*FEDREPRO, "run", *QUICK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    done.stdout.close()
    assert done.stderr.read() == ""
    assert done.wait() == 141


def no_training(monkeypatch):
    monkeypatch.setattr("fedrepro.simulation.federation.Federation.advance", lambda self: pytest.fail("computed again"))


def test_a_finished_run_is_read(fed, monkeypatch):
    first = fed("run", *QUICK, "--store", "runs")
    no_training(monkeypatch)
    assert fed("run", *QUICK, "--store", "runs") == first
    assert "kept in runs" in first[1]


def test_a_sweep_shows_a_table_and_computes_once(fed, monkeypatch):
    grid = ["sweep", *QUICK, "--vary", "method", "fedavg", "fedprox", "--vary", "seed", "0", "1"]
    single = train(QUICK_RUN, workers=1)
    code, out, err = fed(*grid)
    assert (code, err) == (0, "")
    assert out.count("done ") == 4
    head, *rows = out.splitlines()[-5:]
    assert head.split()[:2] == ["run", "method"]
    assert len({row.split()[0] for row in rows}) == len(rows) == 4
    no_training(monkeypatch)
    monkeypatch.setattr("fedrepro.simulation.client.Worker.client", lambda *_: pytest.fail("computed again"))
    assert fed(*grid)[1].splitlines()[-5:] == [head, *rows]
    table = json.loads(fed(*grid, "--json")[1])
    assert [row["digest"][:16] for row in table] == [row.split()[-1] for row in rows]
    assert table[0]["digest"] == single.digest


def test_varied_hyperparameters(fed):
    code, out, _ = fed("sweep", *QUICK, "--method", "fedprox", "--vary", "hp.mu", "0.1", "1", "1.0", "--json")
    assert code == 0
    assert [row["hp"]["mu"] for row in json.loads(out)] == [0.1, 1.0]  # 1 and 1.0 are one run


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_and_the_same_command_again(fed, tmp_path, workers):
    command = ["run", "--rounds", "60", "--samples", "40", "--epochs", "1", "--workers", workers, "--store", tmp_path]
    going = subprocess.Popen([*FEDREPRO, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             start_new_session=True,
                             preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # fmt: skip
    for _ in range(5):
        going.stdout.readline()
    os.killpg(going.pid, signal.SIGINT)  # as a terminal does: workers get it too
    out, err = going.communicate(timeout=60)
    assert going.returncode == 130
    assert err == "fedrepro: interrupted; the same command resumes\n"
    seen = 5 + out.count("round ")
    assert seen < 60
    code, out, _ = fed(*command, "--json")
    assert code == 0
    whole = train(Run(rounds=60, samples=40, epochs=1), workers=1)
    assert json.loads(out)["digest"] == whole.digest


def test_an_interruption_that_python_drops_is_raised_again():
    """Exceptions in finalizers and callbacks of fork() are only printed; the program would go on."""
    script = """
import os, signal, sys, time
from fedrepro import cli

class Late:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

def papers(args):
    Late()
    time.sleep(60)

cli.papers = papers
sys.exit(cli.main(["papers"]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50)
    assert done.returncode == 143
    assert done.stderr == "fedrepro: terminated; the same command resumes\n"


def test_as_a_program():
    done = spawn("run", "--lr", "-1")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    done = spawn("run", "--nope")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_config_gives_the_run_and_options_replace_its_fields(fed, tmp_path):
    file, words = tmp_path / "run.toml", ("--json", "--workers", 1)
    saved = Run(method="fedprox", hp={"mu": 0.5}, clients=4, per_round=2, rounds=1, epochs=1, samples=40)
    saved.save(file)

    def described(*more):
        code, out, err = fed("run", "--config", file, *words, *more)
        assert code == 0, err
        return json.loads(out)["id"]

    fields = {key: value for key, value in saved.described.items() if key not in ("hp", "epochs", "method")}
    assert described() == saved.id
    assert described("--seed", 3, "--hp", "mu=0.1") == Run(**{**saved.described, "seed": 3, "hp": {"mu": 0.1}}).id
    assert described("--method", "fedavg", "--steps", 2) == Run(**fields, steps=2).id  # mu and epochs go with it
    file.write_text("rouns = 3")
    code, _, err = fed("run", "--config", file)
    assert code == 2 and err.startswith(f"fedrepro: {file}: run field: 'rouns' is not valid; did you mean rounds?")
    assert fed("run", "--config", tmp_path / "none.toml")[0] == 2
