"""Your own methods, models and data: registered from outside, trained with workers and a store, identified by id."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn

import fedrepro
from fedrepro import BadInput, FedAvg, Run, data, hp, methods, models, sweep, train
from fedrepro.data import own as own_data
from fedrepro.evidence.compare import Comparison, compare
from fedrepro.models import own as own_models
from fedrepro.own import fingerprint

SMALL = {"clients": 4, "per_round": 3, "rounds": 2, "epochs": 1}
CODE = Path(fedrepro.__file__).parents[1]
FACTOR = 1.0


@pytest.fixture(autouse=True)
def forget():
    """What a test registers is gone after it."""
    yield
    for registered in (methods._registered, own_models._registered, own_data._registered):
        registered.clear()
    methods._stack.cache_clear()


def register_method():
    @fedrepro.method
    class Half(FedAvg):
        """Moves the server by a share of the mean update."""

        share: float = hp(0.5, high=1.0)

        def aggregate(self, server, uploads, r):
            new = super().aggregate(server, uploads, r)
            return {**new, "w": server["w"].lerp(new["w"], self.share * FACTOR)}

    return Half


def register_model():
    @fedrepro.model
    def tiny(*, classes, channels, size, width=4):
        return nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(width * size**2, classes)
        )

    return tiny


def images(count: int = 240, seed: int = 0, size: int = 10):
    draws = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 3
    x = torch.randint(0, 128, (count, 1, size, size), generator=draws, dtype=torch.uint8)
    x[torch.arange(count), 0, y, y] = 255
    return x, y


def register_data(seed: int = 0):
    (x, y), test = images(seed=seed), images(60, seed=1)
    data.register("mine", train=(x, y), test=test)


def test_all_three_at_once_with_workers_a_store_and_a_stack(tmp_path):
    register_method(), register_model(), register_data()
    run = Run(**SMALL, data="mine", model="tiny:width=3", method="half+fedprox", hp={"mu": 0.1, "share": 0.7})
    assert run.code and run.code.keys() == {"data", "model", "method"}
    alone = train(run, workers=1)
    assert train(run, workers=2, store=tmp_path).digest == alone.digest
    assert alone.model()(torch.zeros(1, 1, 10, 10)).shape == (1, 3)
    runs = [run, replace(run, seed=1), replace(run, method="fedavg", hp={})]
    assert sweep(runs, store=tmp_path, workers=2)[run.id] == alone.digest
    assert runs[2].code is not None and runs[2].code.keys() == {"data", "model"}
    assert Run.from_dict(run.described).id == run.id


def test_the_neutral_setting_is_fedavg_bit_for_bit():
    register_method()
    run = Run(**SMALL, method="half", hp={"share": 1.0})
    # lerp with weight 1 gives the end itself
    assert train(run, workers=2).digest == train(Run(**SMALL, method="fedavg"), workers=1).digest


def test_built_in_runs_know_no_code():
    register_method()
    assert Run(**SMALL).code is None and "code" not in Run(**SMALL).described


def test_a_changed_class_helper_model_or_data_set_is_another_run(tmp_path, monkeypatch):
    register_method(), register_model(), register_data()
    settings = {**SMALL, "data": "mine", "model": "tiny", "method": "half"}
    first = Run(**settings)
    register_method(), register_model(), register_data()
    assert Run(**settings).id == first.id  # the cell was run again
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 0.9)  # a value that the class uses
    assert Run(**settings).id != first.id
    with pytest.raises(BadInput, match=r"method: 'half' has changed, it was code \w+ and is code \w+; make the Run"):
        train(first, store=tmp_path)
    with pytest.raises(BadInput, match="needs a description without `code`"):
        Run.from_dict(first.described)
    monkeypatch.undo()
    assert Run(**settings).id == first.id
    register_data(seed=7)
    assert Run(**settings).id != first.id and not list(tmp_path.iterdir())


def test_a_cell_that_is_edited_and_run_again_replaces_the_class():
    register_method()
    before = Run(**SMALL, method="half")
    trained = train(before, workers=1).digest

    @fedrepro.method
    class Half(FedAvg):
        share: float = hp(0.5, high=1.0)

        def aggregate(self, server, uploads, r):
            return {**server, "w": server["w"] * self.share}

    after = Run(**SMALL, method="half")
    assert after.id != before.id and train(after, workers=1).digest != trained
    assert type(methods.build("half")) is Half


def test_the_checksum_covers_bases_nested_code_and_what_they_use(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    source = """
        from dataclasses import dataclass
        from torch import nn
        from fedrepro import FedAvg, hp
        POWER = 2
        LIMITS = {"low": 1}
        def helper(x):
            return [x ** POWER for _ in range(2)]
        class Layer(nn.Module):
            def forward(self, x):
                return x + LIMITS["low"]
        @dataclass(frozen=True)
        class Base(FedAvg):
            replaces = frozenset({"loss"})
            def loss(self, k, x, y, out):
                return helper(super().loss(k, x, y, out))[0]
        @dataclass(frozen=True)
        class Mine(Base):
            weight: float = hp(1.0)
            @property
            def twice(self):
                return 2 * self.weight
        def net(*, classes, channels, size):
            return nn.Sequential(Layer(), nn.Flatten(), nn.Linear(channels * size**2, classes))
        unused = 1
        """
    seen = {}
    changes = ("", "POWER = 2", "range(2)", '"low": 1', "x + LIMITS", '{"loss"}', "hp(1.0)", "2 * self", "unused = 1")
    for i, change in enumerate(changes):
        other = {"": "", "range(2)": "range(3)", '{"loss"}': '{"lose"}', "x + LIMITS": "x - LIMITS"}
        text = dedent(source).replace(change, other.get(change, change.replace("1", "3").replace("2", "3")))
        (tmp_path / f"theirs{i}.py").write_text(text)
        module = __import__(f"theirs{i}")
        seen[change] = fingerprint(module.Mine), fingerprint(module.net)
    method, net = seen.pop("")
    assert seen.pop("unused = 1") == (method, net)  # and the name of the module does not count either
    for change, (changed_method, changed_net) in seen.items():
        in_net = change in ('"low": 1', "x + LIMITS")
        assert (changed_method == method, changed_net == net) == (in_net, not in_net), change


def test_another_process_without_the_code_says_so_in_one_line(tmp_path):
    register_method()
    run = Run(**SMALL, method="half")
    train(run, store=tmp_path, workers=1)
    script = f"from fedrepro import Run; Run.from_dict({run.described!r})"
    environment = {**os.environ, "PYTHONPATH": str(CODE)}
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    last = found.stderr.splitlines()[-1]
    assert last.startswith("fedrepro.errors.BadInput: method: 'half' is not valid") and "@fedrepro.method" in last


def test_a_package_brings_its_own_by_entry_points(tmp_path):
    """A package as pip leaves it: a module, and a dist-info folder that names its entry points."""
    (tmp_path / "theirs.py").write_text(
        dedent("""
        import torch
        from torch import nn
        from fedrepro import FedAvg, hp
        from dataclasses import dataclass
        @dataclass(frozen=True)
        class Theirs(FedAvg):
            \"\"\"From a package.\"\"\"
            weight: float = hp(1.0)
        def net(*, classes, channels, size):
            return nn.Sequential(nn.Flatten(), nn.Linear(channels * size**2, classes))
        def load():
            pair = torch.zeros(30, 8, 8, dtype=torch.uint8), torch.arange(30) % 3
            return {"train": pair, "test": pair}
        """)
    )
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[fedrepro.methods]\ntheirs = theirs:Theirs\nbroken = theirs:Nothing\n"
        "[fedrepro.models]\nnet = theirs:net\n[fedrepro.data]\nflat = theirs:load\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{CODE}{os.pathsep}{tmp_path}"}
    words = "run --data flat --model net --method theirs --clients 2 --per-round 2 --rounds 1 --epochs 1 --workers 2"
    command = [sys.executable, "-m", "fedrepro", *words.split()]
    found = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert found.returncode == 0 and "theirs on flat: accuracy" in found.stdout, found.stderr
    (line,) = found.stderr.splitlines()
    assert line.startswith("fedrepro: the entry point broken = theirs:Nothing is left out (")


@pytest.mark.parametrize(
    "make, shape",
    [
        (lambda x: x, (10, 10, 1)),
        (lambda x: x.permute(0, 2, 3, 1).numpy(), (10, 10, 1)),
        (lambda x: x[:, 0], (10, 10, 1)),
        (lambda x: x.expand(-1, 3, -1, -1).double() / 255, (10, 10, 3)),
        (lambda x: x.flatten(1)[:, :17].float(), (1, 1, 17)),
    ],
)
def test_shapes_and_types_of_data(make, shape):
    x, y = images()
    data.register("mine", train=(make(x), y), test=(make(x), y.numpy()))
    loaded = data.load("mine")
    assert loaded.train_x.shape[1:] == shape and loaded.classes == 3
    batch = loaded.batch(loaded.train_x)
    assert batch.shape == (240, shape[2], *shape[:2])
    assert torch.allclose(batch.mean((0, 2, 3)), torch.zeros(shape[2]), atol=1e-4)
    assert torch.allclose(batch.std((0, 2, 3), correction=0), torch.ones(shape[2]), atol=1e-3)


def test_data_are_copied_and_may_have_writers():
    x, y = images()
    data.register("mine", train=(x, y), test=(x, y), writers=torch.arange(240) // 60)
    before = Run(**SMALL, data="mine", split="writers").id
    x.zero_()
    assert data.load("mine").train_x.max() == 255 and Run(**SMALL, data="mine", split="writers").id == before
    register_model()
    assert len(train(Run(**SMALL, data="mine", split="writers", model="tiny")).rows) == 2


def test_a_folder_of_pictures(tmp_path):
    draws = np.random.default_rng(0)
    for part, count in (("train", 6), ("test", 2)):
        for name in ("cat", "dog"):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(count):
                picture = draws.integers(0, 256, (20, 24, 3), dtype=np.uint8)
                Image.fromarray(picture).save(tmp_path / part / name / f"{i}.png")
    folders = {"train": tmp_path / "train", "test": str(tmp_path / "test")}
    with pytest.raises(BadInput, match=r"0.png of 24x20' is not valid; allowed: square pictures of one size, or size="):
        data.register("pets", **folders)
    data.register("pets", **folders, size=16)
    loaded = data.load("pets")
    assert loaded.train_x.shape == (12, 16, 16, 3) and loaded.train_y.tolist() == [0] * 6 + [1] * 6
    assert loaded.test_y.tolist() == [0, 0, 1, 1]
    (tmp_path / "test/dog").rename(tmp_path / "test/cow")
    with pytest.raises(BadInput, match=r"with the class cow' is not valid; allowed: .* training classes: cat, dog"):
        data.register("pets", **folders, size=16)


X, Y = images(30)
REFUSED = {
    "a class that inherits from fedrepro.FedAvg": lambda: fedrepro.method(int),
    "fedrepro already has a method of this name": lambda: fedrepro.method(type("FedProx", (FedAvg,), {})),
    "a gives it no default": lambda: fedrepro.method(type("A", (FedAvg,), {"__annotations__": {"b": float}})),
    "a function with a name": lambda: fedrepro.model(lambda classes, channels, size: nn.Linear(1, 1)),
    "fedrepro already has a data set of this name": lambda: data.register("digits", train=(X, Y), test=(X, Y)),
    "a pair .images, labels.": lambda: data.register("a", train=X, test=(X, Y)),
    "30 whole numbers from 0": lambda: data.register("a", train=(X, Y[:-1]), test=(X, Y)),
    "uint8 or floating point": lambda: data.register("a", train=(X.long(), Y), test=(X, Y)),
    "square images": lambda: data.register("a", train=(X[..., :5], Y), test=(X, Y)),
    "test label 3 does not occur in train": lambda: data.register("a", train=(X, Y), test=(X, Y + 1)),
    "differ in shape or type": lambda: data.register("a", train=(X, Y), test=(X.float(), Y)),
    "finite numbers": lambda: data.register("a", train=(X / 0.0, Y), test=(X / 0.0, Y)),
    "a folder that exists": lambda: data.register("a", train="nowhere", test="nowhere"),
    "register your own first": lambda: Run(data="mine"),
    "register one of your own first .@fedrepro.model": lambda: Run(model="mine"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_wrong_is_reported_in_one_line(why):
    with pytest.raises(BadInput, match=why) as found:
        REFUSED[why]()
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    "blocks, why",
    [
        (nn.Linear(4, 2), "an nn.Sequential or a dict of named blocks"),
        ({"all": nn.Sequential(nn.Flatten(), nn.Linear(64, 10))}, "at least two blocks"),
        ({"a": nn.Flatten(), "b": nn.Sequential(nn.Linear(64, 9), nn.Linear(9, 10))}, "the last holds one Linear"),
    ],
)
def test_what_a_model_function_may_return(blocks, why):
    @fedrepro.model
    def mine(*, classes, channels, size):
        return blocks

    with pytest.raises(BadInput, match=why):
        models.build("mine", classes=10, channels=1, size=8)


def test_a_sequential_is_cut_where_layers_with_weights_begin():
    @fedrepro.model
    def mine(*, classes, channels, size):
        first = nn.Conv2d(channels, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()
        return nn.Sequential(*first, nn.Conv2d(4, 8, 3, padding=1), nn.Flatten(), nn.Linear(8 * size**2, classes))

    net = models.build("mine:proj=5", classes=10, channels=1, size=8)
    kinds = [[type(layer).__name__ for layer in block.children()] for block in net.blocks.values()]
    assert kinds[:2] == [["Conv2d", "BatchNorm2d", "ReLU"], ["Conv2d", "Flatten"]]
    assert kinds[2:] == [["Linear", "ReLU", "Linear"], ["Linear"]]
    for method in ("fedmlb", "moon", "fes", "kapc"):  # which enter at a block, take features, or split off the head
        register_data()
        assert len(train(Run(**SMALL, data="mine", model="mine", method=method)).rows) == 2


def test_compare_tunes_every_method_by_one_rule(tmp_path):
    register_method()
    setting = {**SMALL, "data": "digits", "samples": 60}
    grids = {"half": {"lr": [0.1], "hp.share": [0.2, 1.0]}}
    found = compare("half", ["fedavg", "fedprox"], setting, {"lr": [0.05, 0.1]}, grids, [0, 1], tmp_path, 1)
    assert found.tried.groupby("method").size().to_dict() == {"half": 2, "fedavg": 2, "fedprox": 2}
    for run_id in found.tried["run"]:
        described = (tmp_path / run_id / "run.json").read_text()
        assert '"seed": 1000' in described and '"holdout": 0.1' in described
    scores, table = found.scores, found.table
    assert scores.shape == (3, 2) and list(table["method"]) == ["half", "fedavg", "fedprox"]
    lead = (scores.loc["half"] - scores.loc["fedavg"]).mean()
    assert table["half is ahead by"][1] == pytest.approx(lead)
    assert len(found.figure().axes[0].lines) >= 3
    with pytest.raises(BadInput, match="every method gets the same number of pilot runs"):
        compare("half", ["fedavg"], setting, {"lr": [0.1]}, grids, [0], tmp_path)
    with pytest.raises(BadInput, match="not 1000, the pilots'"):
        compare("half", ["fedavg"], setting, {"lr": [0.1]}, None, [1000], tmp_path)


def test_a_clear_difference_is_named():
    """Five seeds: ahead by 0.1 for sure, behind by 0.1 for sure, and noise around zero."""
    noise = np.array([0.001, -0.001, 0.002, -0.002, 0.0])
    rows = {"mine": 0.5 + noise, "weak": 0.4 - noise, "strong": 0.6 - noise, "alike": 0.5 + 3 * noise[::-1]}
    cells = [(name, seed, value) for name, values in rows.items() for seed, value in enumerate(values)]
    rounds = [{"method": name, "seed": seed, "round": 1, "accuracy": value} for name, seed, value in cells]
    tried = pd.DataFrame({"method": list(rows), "setting": "{}", "chosen": "yes"})
    found = Comparison(list(rows), list(range(5)), tried, pd.DataFrame(rounds))
    assert found.table["which is"].tolist() == ["", "better", "worse", "undecided"]
