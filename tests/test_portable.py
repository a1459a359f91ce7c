"""Data, splits and the fleet's draws are the same bits whatever instruction set a processor has.

Run as a script, this file prints their digests; the tests do so with instruction sets switched off.
"""

import hashlib
import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedrepro import Run, data
from fedrepro.data import builtin, portable
from fedrepro.data.partition import partition, personal_test
from fedrepro.simulation.fleet import Fleet
from fedrepro.simulation.rng import stream

DIRICHLET = ["dirichlet:0.3", "dirichlet:0.01", "dirichlet_unequal:0.1", "dirichlet_unequal:0.01"]
SPLITS = ["iid", *DIRICHLET, "level:7", "dominant:0.8", "shards:2", "writers"]
WITHOUT = [
    "ATEN_CPU_CAPABILITY=default",
    "DNNL_MAX_CPU_ISA=SSE41",
    "ONEDNN_MAX_CPU_ISA=AVX",
    "MKL_CBWR=COMPATIBLE",
    "OPENBLAS_CORETYPE=Prescott NPY_DISABLE_CPU_FEATURES=AVX2,FMA3 GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4",
]


def digest(*values) -> str:
    plain = [v.tolist() if isinstance(v, torch.Tensor) else v for v in values]
    return hashlib.sha256(repr(plain).encode()).hexdigest()


def digests() -> dict[str, str]:
    found = {}
    for name in ("digits", "synthetic:train=200,test=50", "synthetic:channels=3,size=20,train=99,difficulty=1"):
        d = data.load(name)
        found[name] = digest(d.provenance["sha256"], d.mean, d.std)
    found["augment"] = digest(data.augment(d.train_x, "crop+flip", stream(0, "augment")))
    labels = torch.randperm(5000, generator=stream(0, "labels")) % 10
    for split in SPLITS:
        parts = partition(split, labels, 50, seed=0, writers=torch.arange(5000) % 70)
        own = personal_test(parts, labels, labels[:1000], seed=0)
        found[split] = digest(parts.order, parts.offsets, own.order, own.offsets)
    links = {"bandwidth": (1, 5), "download": (2, 9), "compute": (10, 20)}
    fleet = Fleet(Run(clients=1000, per_round=20, delay=0.5, max_delay=5, limited=0.3, **links))
    visits = [(t, cid) for t in range(1, 21) for cid in range(20)]
    found["participants"] = digest([fleet.participants(t) for t in range(1, 21)])
    found["limited"] = digest([fleet.limited(cid) for cid in range(1000)])
    found["delay"] = digest([fleet.delay(t, cid) for t, cid in visits])
    found["seconds"] = digest([fleet.seconds(t, cid, 1000, 100) for t, cid in visits])
    found["log, exp"] = digest(portable.log(np.arange(1, 5000) / 7), portable.exp(-np.arange(5000) / 7))
    return found


@pytest.fixture(scope="module")
def here():
    return digests()


@pytest.mark.parametrize("variables", WITHOUT)
def test_another_instruction_set_changes_neither_data_nor_splits_nor_the_fleet(here, variables):
    changed = os.environ | dict(variable.split("=", 1) for variable in variables.split())
    done = subprocess.run([sys.executable, __file__], env=changed, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == here


def test_log_and_exp_against_libm():
    x = np.concatenate([2.0 ** np.arange(-1000, 1000), stream_of_floats(2000), 1 - stream_of_floats(200) / 2**30])
    assert portable.log(x) == pytest.approx([math.log(v) for v in x], rel=1e-15, abs=0)
    assert portable.log(np.zeros(1))[0] < -708
    x = np.concatenate([-stream_of_floats(2000), -700 * stream_of_floats(2000), [0.0]])
    assert portable.exp(x) == pytest.approx([math.exp(v) for v in x], rel=2e-13, abs=0)
    assert portable.exp(np.array([0.0, -1e4])).tolist() == [1, 0]


def stream_of_floats(count: int) -> np.ndarray:
    return torch.rand(count, dtype=torch.float64, generator=stream(0, "floats")).numpy()


@pytest.mark.parametrize("width", [8, 17, 32])
def test_bicubic_weights_are_those_of_torch(width):
    values = torch.randn(1, 1, 4, 4, dtype=torch.float64, generator=stream(0, "bicubic"))
    weight = torch.from_numpy(builtin.bicubic(width))
    assert torch.allclose(weight @ values @ weight.T, F.interpolate(values, (width, width), mode="bicubic"), atol=1e-12)


def test_made_noise_is_nearly_normal():
    x = builtin.normal((200_000,), stream(0, "normal"))
    moments = [(x**k).mean() for k in (1, 2, 3, 4)]
    # Of four uniform draws: variance 1, excess kurtosis -6/5 a draw, divided by 4. Here to four standard errors.
    assert moments == pytest.approx([0, 1, 0, 2.7], abs=0.04)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(digests()))
