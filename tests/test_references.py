"""Every method of the library, round by round and in float64, against its plain re-implementation: 1e-10."""

import inspect
from functools import partial

import pytest
import references as ref
import torch

from fedrepro import Run
from fedrepro.methods import Round, registry
from fedrepro.simulation.client import Worker
from fedrepro.simulation.executor import Serial
from fedrepro.simulation.federation import Federation
from fedrepro.simulation.states import Clients

pytestmark = pytest.mark.usefixtures("double")
TOLERANCE = 1e-10
COMMON = {
    "data": "synthetic:classes=4,size=24,train=116,test=40",
    "split": "dirichlet_unequal:0.5",
    "seed": 2,
    "clients": 5,
    "per_round": 3,
    "rounds": 3,
    "epochs": 1,
    "batch": 12,
    "lr": 0.1,
}
OPTIONS = {"momentum": 0.6, "weight_decay": 0.01, "clip": 2.0, "lr_decay": 0.8, "lr": 0.05}
SETTINGS = {
    "size": {"model": "lenet", "weights": "size"},  # plain SGD
    "equal": {"model": "small:norm=batch,width=8", "weights": "equal", **OPTIONS},  # BatchNorm
}
LATE = {"limited": 0.2, "delay": 0.6, "max_delay": 2, "rounds": 5}
LINKS = {"bandwidth": (1.0, 9.0), "compute": (0.1, 0.5), "rounds": 6}
MIX = {"alpha0": 0.2, "eta": 0.05}
MLB = {"lambda1": 0.7, "lambda2": 1.3, "temperature": 2.0}
BR = {"lambda1": 0.7, "lambda2": 1.3, "delta": 2.0}
GEN = {"hidden": 9, "noise": 3, "generated": 6, "generator_steps": 4, "generator_lr": 0.01, "decay": 0.9}
CUBE = {"lam": 0.5, "beta": 0.05, "rate": 0.5, "updates": 2}
MU = {"mu": 0.4}

BOTH = [  # method, hyperparameters, further fields of the run, reference
    ("fedavg", {}, {"epochs": 2}, ref.fedavg),
    ("fedprox", {"mu": 0.7}, {}, ref.fedprox),
    ("moon", {"mu": 2.0, "temperature": 0.5}, {}, ref.moon),
    ("scaffold", {"eta_g": 0.7}, {}, ref.scaffold),
    ("feddyn", {"alpha": 0.3}, {}, ref.feddyn),
    ("fedavgm", {"beta": 0.6, "eta_g": 0.8}, {}, ref.fedavgm),
    ("fedadam", {"eta_g": 0.02, "beta1": 0.8, "beta2": 0.9, "tau": 0.01}, {}, ref.fedadam),
    ("fedkd", {"lam": 0.6, "temperature": 2.0}, {}, partial(ref.fedavg, make=ref.distilled)),
    ("fitnet", {"lam": 0.6}, {}, partial(ref.fedavg, make=ref.hinted)),
    ("fedntd", {"beta": 0.6, "temperature": 2.0}, {}, partial(ref.fedavg, make=ref.not_true)),
    ("fedgkd", {"gamma": 0.8, "buffer": 2}, {"rounds": 4}, ref.fedgkd),
    ("fedmlb", MLB, {}, partial(ref.fedavg, make=ref.branched)),
    ("fedmlb", MLB | {"direction": "g2l"}, {}, partial(ref.fedavg, make=ref.branched)),
    ("fedmlb+feddyn", MLB | {"alpha": 0.3}, {}, partial(ref.feddyn, make=ref.branched)),
    ("fedmlb+fedadam", MLB | {"eta_g": 0.02}, {}, partial(ref.fedadam, make=ref.branched)),
    ("fedmlb+fedavgm", MLB | {"beta": 0.6}, {}, partial(ref.fedavgm, make=ref.branched)),
    ("fedbr", BR | {"ema": 0.4}, LINKS, ref.fedbr),
    ("fedbr_ran", BR | {"tau": 2}, LINKS, partial(ref.fedbr, greedy=False)),
    ("fd", {"gamma": 0.7}, {}, ref.fd),
    ("dfl", {"threshold": 0.6}, {}, ref.dfl),
    ("dfl_logits", {"threshold": 0.6}, {}, partial(ref.dfl, logits=True)),
    ("fedgen", GEN | {"alpha": 2.0, "beta": 3.0}, {}, ref.fedgen),
    ("ama", MIX | {"b": 0.8}, LATE, ref.ama),
    ("fes", {}, {"limited": 0.4}, ref.fes),
    ("ama+fes", MIX, LATE, partial(ref.ama, visit=ref.extractor_shared)),
    ("ama_capable", MIX, LATE, partial(ref.ama, visit=ref.extractor_shared, capable=True)),
    ("naive", {}, LATE, ref.naive),
    ("localtraining", {}, {}, ref.local_training),
    ("fedamp", {"sigma": 3.0, "own": 0.2, "alpha": 2.0, "lam": 0.8}, {}, ref.fedamp),
    ("fedbabu", {"tune": 2}, {"personal": "selected"}, ref.fedbabu),
    ("fedbn", {}, {}, ref.fedbn),
    ("pfedla", {"rate": 0.05, "embedding": 6, "hidden": 5}, {}, ref.pfedla),
    ("kapc", CUBE, {}, ref.kapc),
    ("kapc_bls", CUBE | MU, {"rounds": 6}, partial(ref.kapc, bls=True)),
]
VARIANTS = [  # with one of the settings
    ("fedavg", {}, {"epochs": None, "steps": 7}, ref.fedavg),
    ("fedprox", {"mu": 0.7, "partial": True}, {"limited": 0.6, "epochs": 3}, ref.fedprox),
    ("feddyn", {"alpha": 0.3, "report": "cloud"}, {}, ref.feddyn),
    ("fedgkd", {"gamma": 0.8, "buffer": 1}, {}, ref.fedgkd),
    ("fedmlb", MLB | {"paths": "1,3"}, {}, partial(ref.fedavg, make=ref.branched)),
    ("fedmlb", MLB | {"paths": "1,3", "divisor": "chosen"}, {}, partial(ref.fedavg, make=ref.branched)),
    ("fedbr", BR | {"tau": 9}, LINKS | {"clients": 3, "rounds": 8}, ref.fedbr),
    ("fedbr_ran", BR | {"alpha": 2}, LINKS, partial(ref.fedbr, greedy=False)),
    ("dfl", {"strategy": "dynamic"}, {}, ref.dfl),
    ("dfl", {"strategy": "fixed", "ratio": 0.3}, {}, ref.dfl),
    ("ama_capable", MIX, LATE | {"limited": 0.6}, partial(ref.ama, visit=ref.extractor_shared, capable=True)),
    ("fedamp", {"sigma": 3.0, "alpha": 20.0}, {"rounds": 31, "epochs": None, "steps": 2, "per_round": 2}, ref.fedamp),
    ("fedamp", {"similarity": "distance", "sigma": 1.5, "alpha": 0.7, "lam": 0.8}, {}, ref.fedamp),
    ("kapc", CUBE | {"rows": "mass"}, {}, ref.kapc),
    ("kapc", CUBE, {"per_round": 5}, ref.kapc),
    ("kapc_bls", CUBE | MU | {"search": "printed"}, {"rounds": 6}, partial(ref.kapc, bls=True)),
    ("kapc_bls", CUBE | MU | {"search": "none"}, {}, partial(ref.kapc, bls=True)),
]
CASES = [(setting, *case) for case in BOTH for setting in SETTINGS] + [("size", *case) for case in VARIANTS]
NAMES = [" ".join(map(str, [setting, method, *hp.values()])) for setting, method, hp, *_ in CASES]


def apart(got, expected, where="") -> tuple[float, str]:
    """The largest difference and where it is; every expected number must be there."""
    if isinstance(expected, dict):
        return max((apart(got[key], expected[key], f"{where} {key}") for key in expected), default=(0.0, where))
    got, expected = torch.as_tensor(got), torch.as_tensor(expected)
    assert got.shape == expected.shape and (got.dtype == torch.float64 or not got.is_floating_point()), where
    return float((got - expected).abs().nan_to_num(torch.inf).max()), where


def held(federation) -> dict:
    """What the library holds after a round, under the references' keys."""
    server, clients = federation.server, range(federation.run.clients)
    kept = {cid: federation.clients.get(cid) or {} for cid in clients}
    personal = {cid: federation.method.personal(server, kept[cid], cid) for cid in clients}
    own = {cid: {**w, **b} for cid, (w, b) in personal.items()}
    r = Round(federation.t, federation.run, federation.fleet.participants(federation.t))
    tested = [{**w, **b} for w, b in federation.method.tested(server, kept.get, r)][:1]
    whole = {"w": {**server["w"], **server["b"]}, "tested": tested and tested[0]}
    return {**server, **whole, "own": own, "client": kept}


def rounds(run):
    """The library's federation after each round."""
    worker = Worker(run)
    federation = Federation(run, Serial(worker), worker, Clients(None))
    for _ in range(run.rounds):
        federation.advance()
        yield federation


@pytest.mark.parametrize(("setting", "method", "hp", "extra", "reference"), CASES, ids=NAMES)
def test_agrees_with_the_plain_one(setting, method, hp, extra, reference):
    run = Run(method=method, hp=hp, **COMMON | SETTINGS[setting] | extra)
    for federation, expected in zip(rounds(run), reference(ref.World(run)), strict=True):
        largest, where = apart(held(federation), expected)
        assert largest < TOLERANCE, f"{largest} in{where}, round {federation.t}"


def test_the_runs_reach_what_they_are_for():
    """Unequal sizes, a last batch of one image, a class that no participant has, returning clients; nobody on time,
    updates one and two rounds late; a bandit that has tried everything; clipping, and layers withheld both ways."""
    make = partial(Run, **COMMON | SETTINGS["equal"])
    world, sizes = ref.World(make()), [len(rows) for rows in ref.World(make()).rows]
    drawn = [world.participants(t) for t in world.rounds()]
    assert max(sizes) > 2 * min(sizes) and any(n % world.run.batch == 1 for n in sizes)
    assert any(len(world.y[torch.cat([world.rows[cid] for cid in S])].unique()) < world.classes for S in drawn)
    assert set(drawn[0]) & set(drawn[1]) & set(drawn[2])

    late = ref.World(make(**LATE))
    delays = [[late.fleet.delay(t, cid) for cid in late.participants(t)] for t in late.rounds()]
    assert any(0 not in each for each in delays) and {1, 2} <= {d for each in delays[:3] for d in each}

    *_, last = rounds(make(method="fedbr", hp=BR | {"tau": 9}, **LINKS | {"clients": 3, "rounds": 8}))
    assert any(max(n.values()) > 1 for n in last.server["fedbr/n"].values())

    *_, last = rounds(make(method="kapc_bls", hp=CUBE | MU, rounds=6))
    assert any(row["clipped"] > 0 and 0 < row["withheld"] < 1 for row in last.rows)
    assert len({row["omega"] for row in last.rows}) > 1


def test_nobody_is_left_out():
    assert {part for _, method, *_ in CASES for part in method.split("+")} == set(registry())


def test_references_share_no_method():
    """The references stand alone: nothing of them comes from the methods, the worker or the engine."""
    used = [line for line in inspect.getsource(ref).splitlines() if line.startswith(("import ", "from "))]
    assert [line for line in used if "fedrepro" in line] == [
        "from fedrepro import data, models",
        "from fedrepro.data.partition import partition",
        "from fedrepro.simulation.fleet import Fleet",
        "from fedrepro.simulation.rng import derive, stream",
    ]
