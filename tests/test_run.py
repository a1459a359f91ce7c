"""Run: one description, one id; everything else is refused with the field, the value and what is allowed."""

import dataclasses
import json
import math

import numpy as np
import pytest

from fedrepro import BadInput, Run, build, train

BAD = [  # field, value, what the message must say besides both
    *[(name, value, "a whole number in [1, ")
      for name in ("clients", "per_round", "rounds", "epochs", "steps", "batch", "samples", "eval_every", "max_delay",
                   "redraw")
      for value in (0, -1, 2.5, math.nan, math.inf, "5", "", True, [1], 10**12, 10**400)],
    *[(name, value, "a number in ")
      for name in ("lr", "lr_decay", "momentum", "weight_decay", "clip", "share", "limited", "delay")
      for value in (-0.1, math.nan, math.inf, "0.1", True, [0.1], {}, 1e39, 10**400)],
    *[(name, 0, "a number in (0, ") for name in ("lr", "lr_decay", "clip", "share")],
    *[(name, 1.01, "1]") for name in ("lr_decay", "momentum", "share", "limited", "delay")],
    *[("seed", value, "a whole number in [0, ") for value in (-1, 0.5, "0", True, None, 2**63)],
    *[(name, None, "number") for name in ("clients", "per_round", "rounds", "batch", "lr", "momentum")],
    *[("data", value, "digits") for value in ("nope", "", "DIGITS", "dígits")],
    *[(name, value, "text") for name in ("data", "split", "model", "method") for value in (None, 3, [])],
    ("data", "digits:x=1", "digits:key=value"),
    ("data", "synthetic:train", "train=2000"),
    *[("split", value, "dirichlet") for value in ("nope", "", "dirichlet", "dirichlet:", "dirichlet:x",
                                                  "dirichlet:-1", "dirichlet:0", "dirichlet:nan", "dirichlet:inf",
                                                  "dirichlet:1e400")],
    ("split", "level:10", "0 to 9"),
    ("split", "level:2.5", "0 to 9"),
    ("split", "dominant:1.5", "(0, 1]"),
    ("split", "shards:0", "from 1"),
    ("split", "iid:3", "without a value"),
    *[("model", value, "lenet") for value in ("nope", "", "lenet:x=1", "LeNet")],
    *[("method", value, "fedavg") for value in ("nope", "", "fédavg", "FedAvg", "fedavg+nope", "fedavg+", "+")],
    ("augment", "rotate", "crop+flip"),
    ("augment", None, "crop+flip"),
    ("weights", "", "equal, size"),
    ("personal", "none", "all, selected, trained"),
    *[(name, value, "low") for name in ("bandwidth", "download", "compute")
      for value in ("5", "", "a:b", "1:2:3", "0:1", "2:1", "1:inf", "nan:1", 5, [1], (1, 2, 3), (True, 2), ("1", "2"))],
    ("hp", ["mu"], "a mapping"),
    ("hp", {1: 2}, "a mapping"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "allowed"), BAD, ids=lambda v: str(v)[:20])
def test_every_bad_value_is_named(field, value, allowed):
    values = {"epochs": None, "delay": 0.1, "max_delay": 1} | {field: value}
    with pytest.raises(BadInput) as caught:
        Run(**values)
    message = str(caught.value)
    assert message.startswith(f"{field}: ")
    assert allowed in message
    assert repr(value)[:80] in message or field == "method"  # which names the part of the stack
    assert "\n" not in message
    assert len(message) < 500


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"clients": 4, "per_round": 5}, r"per_round: 5 .* at most clients \(4\)"),
        ({"epochs": 2, "steps": 3}, r"steps: 3 .* either epochs \(2\) or steps, not both"),
        ({"delay": 0.5}, r"max_delay: None .* delay and max_delay go together"),
        ({"max_delay": 3}, r"max_delay: 3 .* delay and max_delay go together"),
        ({"clients": 10**6, "samples": 10**6}, r"samples: 1000000 .* at most 100 for 1000000 clients"),
        ({"data": "synthetic:size=2"}, r"data option size: 2 .* 8 to 256"),
        ({"data": "synthetic:train=many"}, r"data option train: 'many' .* a whole number"),
        ({"data": "synthetic:difficulty=nan"}, r"data option difficulty: nan .* 0.0 to 1.0"),
        ({"model": "small:norm=layer"}, r"model option norm: 'layer' .* batch, group, none"),
        ({"model": "small:groups=3"}, r"model option groups: 3 .* 1, 2, 4"),
        ({"model": "lenet:proj=-1"}, r"model option proj: -1 .* 0 \(none\), or a width"),
        ({"hp": {"mu": 1.0}}, r"hp.mu: fedavg has no hyperparameter 'mu'; allowed: none"),
        ({"method": "fedprox", "hp": {"name": 1}}, r"hp.name: fedprox has no .* allowed: mu, partial"),
        ({"method": "fedprox", "hp": {"mu": "0.1"}}, r"hp.mu \(fedprox\): '0.1' .* a number"),
        ({"method": "fedprox", "hp": {"mu": -1}}, r"hp.mu \(fedprox\): -1 .* a number"),
        ({"method": "fedprox", "hp": {"mu": math.nan}}, r"hp.mu \(fedprox\): nan .* a number"),
        ({"method": "fedprox", "hp": {"mu": True}}, r"hp.mu \(fedprox\): True .* a number"),
        ({"method": "fedprox", "hp": {"partial": 1}}, r"hp.partial \(fedprox\): 1 .* true or false"),
        ({"method": "fedavgm+fedadam"}, r"method: 'fedavgm\+fedadam' .* cannot be stacked: both replace the step"),
        ({"method": "fedprox+moon"}, r"method: 'fedprox\+moon' .* both have a hyperparameter 'mu'"),
        ({"method": "fedprox+fedprox"}, r"method: 'fedprox\+fedprox' .* one already contains the other"),
    ],
)  # fmt: skip
def test_values_that_do_not_fit_together(values, says):
    with pytest.raises(BadInput, match=says):
        Run(**values)


@pytest.mark.parametrize("values", [None, [], "digits", {"nope": 1}, {"id": "x"}, {3: 1}])
def test_unknown_fields(values):
    with pytest.raises(BadInput, match=r"^run.*allowed: .*clients, "):
        Run.from_dict(values)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"split": "shards:11"}, "split: 'shards:11' .* at most 10 shards"),
        ({"split": "writers"}, "split: 'writers' .* data with writers"),
        ({"split": "dirichlet:1", "samples": 500}, "samples: 500 .* at most 143"),
        ({"clients": 2000}, "clients: 2000 .* at most one client per sample"),
        ({"samples": 1438}, "samples: 1438 .* at most the 1437"),
        ({"share": 1e-6}, r"clients: 10 .* \(0 samples\)"),
        ({"split": "dominant:0.9", "clients": 1, "per_round": 1, "samples": 1400}, "samples: 1400 .* class . has"),
        ({"model": "squeezenet"}, "model: .*squeezenet.* images of at least 17x17"),
        ({"data": "digits", "model": "squeezenet:proj=8"}, "model option proj: 8"),
    ],
)
def test_partitions_and_models_that_cannot_be_made(tmp_path, values, says):
    with pytest.raises(BadInput, match=says):
        train(Run(**values), store=tmp_path / "store", workers=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("workers", [0, -1, 1.5, "2", True])
def test_workers(tmp_path, workers):
    with pytest.raises(BadInput, match=r"workers: .* a whole number from 1"):
        train(Run(), store=tmp_path / "store", workers=workers)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("store", ["", 3, "a\0b"])
def test_store_must_be_a_path(small, store):
    with pytest.raises(BadInput, match=r"^store: "):
        train(small(), store=store, workers=1)


def test_the_id_is_that_of_the_description():
    run = Run(method="fedprox")
    assert len(run.id) == 16
    same = [
        Run(method="fedprox"),
        Run(method="fedprox", hp={"mu": 0.01}),
        Run(method="fedprox", hp={"partial": False, "mu": 0.01}),
        Run(hp={"mu": 0.01, "partial": False}, method="fedprox"),
        Run(method="fedprox", epochs=5, steps=None, clip=None, delay=None),
        Run(method="fedprox", lr=np.float64(0.1), clients=np.int64(10), momentum=-0.0, weight_decay=0),
        Run(method="fedprox", clients=10.0, lr_decay=1, rounds=1e1),
    ]
    assert {r.id for r in same} == {run.id}
    assert all(r == run for r in same)
    assert Run(lr=1).id == Run(lr=1.0).id
    assert Run(bandwidth="1:9").id == Run(bandwidth=(1, 9)).id == Run(bandwidth=[1.0, 9.0]).id
    assert Run(method="fedprox", hp={"mu": 1}).id == Run(method="fedprox", hp={"mu": 1.0}).id


def test_every_field_enters_the_id():
    other = {
        "data": "synthetic", "split": "level:3", "clients": 11, "per_round": 4, "model": "small", "method": "fedprox",
        "hp": {"mu": 0.5}, "rounds": 9, "epochs": 4, "steps": 7, "batch": 21, "lr": 0.2, "lr_decay": 0.9,
        "momentum": 0.9, "weight_decay": 0.1, "clip": 1.0, "augment": "flip", "seed": 1, "weights": "equal",
        "samples": 50, "share": 0.5, "holdout": 0.1, "eval_every": 2, "personal": "all", "limited": 0.5, "delay": 0.5,
        "max_delay": 2,
        "bandwidth": (1, 2), "download": (1, 2), "compute": (1, 2), "redraw": 3,
    }  # fmt: skip
    assert set(other) == {f.name for f in dataclasses.fields(Run) if f.init}  # tests/test_own.py: the other, code
    base, ids = {"method": "fedavgm", "delay": 0.1, "max_delay": 1}, set()
    needs = {"hp": {"method": "fedprox"}, "download": {"bandwidth": (1, 2)}}
    for name, value in other.items():
        changed = base | {name: value} | needs.get(name, {})
        ids.add(Run(**changed).id)
    assert len(ids | {Run(**base).id}) == len(other) + 1


def test_a_feature_that_is_off_does_not_enter_the_description():
    described = Run().described
    assert None not in described.values()
    assert "delay" not in described
    assert described["epochs"] == 5
    assert "epochs" not in Run(steps=3).described


def test_descriptions_go_through_json_and_back():
    run = Run(method="fedprox+fedavgm", bandwidth=(1, 9), delay=0.5, max_delay=2, hp={"mu": 1})
    again = Run.from_dict(json.loads(json.dumps(run.described)))
    assert again == run
    assert again.id == run.id
    assert again.described == run.described


def test_runs_are_frozen():
    run = Run()
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.lr = 1.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        build("fedprox").mu = 1.0


def test_a_run_keeps_its_own_hyperparameters():
    given = {"mu": 0.5}
    run = Run(method="fedprox", hp=given)
    before = run.id
    given["mu"] = 0.7
    assert run.hp["mu"] == 0.5
    assert Run.from_dict(run.described).id == before


def test_a_run_is_saved_and_loaded_as_toml(tmp_path):
    hp = {"mu": 0.25, "alpha": 1e-5}
    run = Run(
        method="fedprox+feddyn", hp=hp, split="dirichlet:0.3", bandwidth=(1, 5.5), lr=1e-30, seed=2**63 - 1, steps=3
    )
    path = tmp_path / "run.toml"
    run.save(path)
    assert Run.load(path).described == run.described and Run.load(str(path)).id == run.id
    path.write_text('method = "fedprox"\nrounds = 3\n[hp]\nmu = 0.5\n')
    assert Run.load(path).id == Run(method="fedprox", rounds=3, hp={"mu": 0.5}).id


@pytest.mark.parametrize(
    "text, why",
    [
        ("rouns = 3", r"run.toml: run field: 'rouns' is not valid; did you mean rounds\?"),
        ("rounds = 0", r"run.toml: rounds: 0 is not valid; allowed: a whole number"),
        ("rounds 3", r"run.toml: not a run in TOML that can be read \(Expected '=' "),
        ("[hp]\nnu = 1", r"run.toml: hp.nu: fedavg has no hyperparameter 'nu'"),
        ("rounds = nan", r"run.toml: rounds: nan is not valid"),
        ('[code]\nmethod = "ab"', r"method: 'fedavg' has changed, it was code ab and is fedrepro's own"),
    ],
)
def test_a_wrong_toml_file_is_refused_in_one_line(tmp_path, text, why):
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(BadInput, match=why) as found:
        Run.load(tmp_path / "run.toml")
    assert "\n" not in str(found.value)
    with pytest.raises(BadInput, match=r"nothing.toml: .*\(No such file"):
        Run.load(tmp_path / "nothing.toml")
