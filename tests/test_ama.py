"""AMA, FES and naive FL against hand computations and the digest's invariants I-31 to I-38."""

import math
import random
from itertools import product

import pandas as pd
import pytest
import torch
from test_methods import Reference, close, differ

from fedrepro import build, train
from fedrepro.errors import BadInput
from fedrepro.evidence import spec
from fedrepro.evidence.judge import Measured, judge
from fedrepro.methods import Round, Upload
from fedrepro.methods.ama import mixing
from fedrepro.simulation import session
from fedrepro.simulation.client import Worker
from fedrepro.simulation.executor import Serial
from fedrepro.simulation.federation import Federation
from fedrepro.simulation.fleet import Fleet
from fedrepro.simulation.states import Clients
from fedrepro.simulation.store import Store
from fedrepro.simulation.tree import Tree

LATE = {"delay": 0.6, "max_delay": 3}
NORM = {"model": "small:norm=batch", "data": "synthetic:classes=4,channels=3,size=32,train=700"}
STRONG = {"alpha0": 0.2, "eta": 0.05, "b": 0.6}


def one(value):
    return Tree(x=torch.tensor([float(value)], dtype=torch.float64))


def upload(value, n, started, buffer=0.0):
    return Upload(0, n, {"w": one(value), "b": one(buffer)}, started)


def mixed(method, server, uploads, run, t):
    return method.aggregate({"w": one(server), "b": one(server)}, uploads, Round(t, run, []))


def federation(run, spy=None):
    """The run's server; spy(server before, uploads, round, server after) sees every aggregation."""
    worker = Worker(run)
    if spy:

        class Spied(type(worker.method)):
            whole = ("w", "b")  # the spy reads every upload

            def aggregate(self, server, uploads, r):
                after = super().aggregate(server, uploads, r)
                spy(server, uploads, r, after)
                return after

        worker.method = Spied(**run.hp)
    return Federation(run, Serial(worker), worker, Clients(None))


class Limited(Reference):
    """The reference, in which limited devices train what is not a convolution."""

    def local(self, t, cid, penalty=None):
        for name, p in self.worker.model.named_parameters():
            p.requires_grad_("conv" not in name or not self.fleet.limited(cid))
        return super().local(t, cid, penalty)


# --- AMA


def test_two_late_updates_by_hand(small):
    """Round 4, A = 0.1 + 0.05 x 4 = 0.3; staleness 1 and 3: 1 - sigma = 0.26894142137, 0.04742587318 (Eq. 9).

    Z = 0.26894142137 (1 + 0.6) + 0.6 x 0.04742587318 = 0.45876179810.
    """
    alpha, beta, gammas = mixing(0.1 + 0.05 * 4, [1, 3], 0.6)
    assert (alpha, beta, *gammas) == pytest.approx((0.17586997598, 0.7, 0.10552198559, 0.01860803844), abs=1e-11)

    arrived = [upload(5, 99, 3, 50), upload(2, 10, 4, 20), upload(7, 1, 1, 70), upload(4, 30, 4, 40)]
    run = small(method="ama", hp={"alpha0": 0.1, "eta": 0.05})
    new = mixed(build("ama", **run.hp), 1, arrived, run, 4)
    # on time: (10 x 2 + 30 x 4) / 40 = 3.5; the late ones' data sizes do not matter
    assert float(new["w"]["x"]) == pytest.approx(0.17586997598 + 0.7 * 3.5 + 0.52760992793 + 0.13025626905, abs=1e-9)
    assert float(new["b"]["x"]) == pytest.approx(0.17586997598 + 0.7 * 35 + 5.2760992793 + 1.3025626905, abs=1e-9)


def test_two_rounds_by_hand(small):  # Eq. (5)
    run = small(method="ama", hp={"alpha0": 0.2, "eta": 0.1}, rounds=2)
    ref = Reference(run)
    for t, alpha in ((1, 0.3), (2, 0.4)):
        mean = ref.average(ref.round(t))
        ref.w = {k: alpha * ref.w[k] + (1 - alpha) * mean[k] for k in mean}
    close(train(run, workers=1).weights, ref.w)


def weights_used(method, uploads, r):
    """What `aggregate` really gives the old model (first) and each upload: it is fed unit vectors in float64."""
    unit = torch.eye(len(uploads) + 1, dtype=torch.float64)
    tagged = [u._replace(sent={"w": Tree(x=row), "b": Tree()}) for u, row in zip(uploads, unit[1:], strict=True)]
    return method.aggregate({"w": Tree(x=unit[0]), "b": Tree()}, tagged, r)["w"]["x"].tolist()


def test_every_round_of_a_run_with_delays(small):  # Eqs. (6)-(11)
    run, stale, nobody = small(method="ama", hp=STRONG, rounds=12, per_round=2, samples=40, **LATE), set(), []

    def check(before, uploads, r, after):
        now, late = [u for u in uploads if u.round == r.t], [u for u in uploads if u.round != r.t]
        A, a = 0.2 + 0.05 * r.t, 1 - 1 / (1 + math.exp(-1))
        g = [0.6 * (1 - 1 / (1 + math.exp(-(r.t - u.round)))) for u in late]
        alpha, beta, gammas = mixing(A, [r.t - u.round for u in late], 0.6)
        assert alpha + beta + sum(gammas) == pytest.approx(1, abs=1e-12)  # Eq. (7)
        assert alpha + sum(gammas) == pytest.approx(A, abs=1e-12)  # Eq. (8)
        old, *each = weights_used(build("ama", **STRONG), uploads, r)
        past = old + sum(w for w, u in zip(each, uploads, strict=True) if u.round < r.t)
        assert old + sum(each) == pytest.approx(1, abs=1e-12)
        assert past == pytest.approx(A if now else 1, abs=1e-12)
        terms = [(a / (a + sum(g)) * A, before["w"])]
        terms += [(g_i / (a + sum(g)) * A, u.sent["w"]) for g_i, u in zip(g, late, strict=True)]
        terms += [((1 - A) * u.n / sum(v.n for v in now), u.sent["w"]) for u in now] or [(1 - A, before["w"])]
        assert sum(c for c, _ in terms) == pytest.approx(1, abs=1e-12)
        close(after["w"], {k: sum(c * w[k].double() for c, w in terms).float() for k in before["w"]}, 1e-6)
        stale.update(r.t - u.round for u in late)
        nobody.append(not now)

    going = federation(run, check)
    for _ in range(run.rounds):
        going.advance()
    assert stale == {1, 2, 3}
    assert any(nobody)


def test_nothing_mixed_is_fedavg_bit_for_bit(small):  # I-31
    off = {"alpha0": 0, "eta": 0}
    for extra in ({}, {"rounds": 2, **NORM}):
        plain = train(small(**extra), workers=1).digest
        assert train(small(method="ama", hp=off, **extra), workers=1).digest == plain
        assert train(small(method="ama+fes", hp=off, **extra), workers=1).digest == plain  # p = 0
        assert train(small(method="naive", **extra), workers=1).digest == plain
    # a late update's weight is then 0, as for naive FL
    assert train(small(method="ama", hp=off, **LATE), workers=1).digest == \
        train(small(method="naive", **LATE), workers=1).digest  # fmt: skip


def test_nobody_limited_makes_fes_irrelevant(small):  # I-31
    assert train(small(method="ama+fes", **LATE), workers=1).digest == \
        train(small(method="ama", **LATE), workers=1).digest  # fmt: skip


def test_a_constant_mix_is_a_server_learning_rate(small):  # I-32, erratum AM-14
    mix = train(small(method="ama", hp={"alpha0": 0.3, "eta": 0}), workers=1).weights
    close(mix, train(small(method="fedavgm", hp={"beta": 0, "eta_g": 0.7}), workers=1).weights)


def test_without_weight_for_late_updates_they_do_not_exist(small):  # I-33 exact
    seen = []
    going = federation(small(method="ama", hp={**STRONG, "b": 0}, rounds=6, **LATE), lambda *args: seen.append(args))
    for _ in range(6):
        going.advance()
    assert any(u.round < r.t for _, uploads, r, _ in seen for u in uploads)
    for before, uploads, r, after in seen:
        on_time = [u for u in uploads if u.round == r.t]
        for b in (0.0, 0.6):  # without late updates b has no effect either: a/Z = 1
            method = build("ama", **{**STRONG, "b": b})
            again = method.aggregate(before, on_time, r)["w"]
            assert not differ(after["w"], again)
        mean = r.mean(on_time, "w") if on_time else before["w"]
        assert not differ(after["w"], before["w"].lerp(mean, 1 - (0.2 + 0.05 * r.t)))  # Eq. (5)


def test_weights_add_to_one_and_alpha_dominates():  # I-34, Eqs. (7), (8)
    draw = random.Random(0)
    for _ in range(2000):
        old, b = draw.choice([0.0, 1.0, draw.random()]), draw.choice([0.0, 1.0, draw.random()])
        stale = [draw.choice([1, 2, 15, draw.randint(1, 10**9)]) for _ in range(draw.randint(0, 30))]
        alpha, beta, gammas = mixing(old, stale, b)
        assert alpha + beta + sum(gammas) == pytest.approx(1, abs=1e-12)
        assert alpha + sum(gammas) == pytest.approx(old, abs=1e-12)
        assert all(0 <= gamma <= alpha for gamma in gammas)
        assert mixing(old, [], b) == (old, 1 - old, [])


def test_ratios_of_the_erratum():  # AM-06, whose last ratio, 1.1e-6, leaves out b = 0.6
    alpha, _, gammas = mixing(0.5, [1, 2, 3, 5, 10, 15], 0.6)
    assert [g / alpha for g in gammas] == pytest.approx([0.6, 0.266, 0.106, 0.0149, 1.0e-4, 6.8e-7], rel=0.02)


@pytest.mark.parametrize("started", [(5, 5), (5, 4, 1), (3, 2)])
def test_fixed_point(small, started):  # I-35; fails if |D| is the data of all clients (AM-02)
    run = small(method="ama", hp=STRONG)
    new = mixed(build("ama", **STRONG), 0.7, [upload(0.7, 5 + n, n, 0.7) for n in started], run, 5)
    assert float(new["w"]["x"]) == float(new["b"]["x"]) == pytest.approx(0.7, abs=1e-15)


def test_an_update_15_rounds_late_hardly_counts(small):  # I-38
    run = small(method="ama", hp=STRONG)
    method, on_time = build("ama", **STRONG), upload(2, 10, 16)
    with_it, without = (mixed(method, 1, [on_time, *late], run, 16) for late in ([upload(1001, 10, 1)], []))
    moved = abs(float(with_it["w"]["x"] - without["w"]["x"]))
    assert 0 < moved < 1e-6 * 1000


def test_nobody_on_time(small):  # AM-07
    run, method = small(method="ama", hp=STRONG), build("ama", **STRONG)
    alpha, beta, (gamma,) = mixing(0.2 + 0.05 * 3, [2], 0.6)
    new = mixed(method, 1, [upload(5, 10, 1)], run, 3)
    assert float(new["w"]["x"]) == pytest.approx((alpha + beta) * 1 + gamma * 5, abs=1e-14)
    assert float(mixed(method, 0.3, [], run, 3)["w"]["x"]) == 0.3


def test_batchnorm_statistics_are_mixed(small):
    off, on = (train(small(method="ama", hp={"alpha0": a, "eta": 0}, rounds=1, **NORM), workers=1) for a in (0, 0.4))
    start = Worker(small(**NORM)).buffers
    assert start
    close(on.buffers, {k: 0.4 * start[k] + 0.6 * off.buffers[k] for k in start})


def test_a_mix_past_one_is_refused(small):
    with pytest.raises(BadInput, match=r"hp.eta \(ama\): 0.0025 .* 0 to 0.00225: alpha0 \+ eta \* rounds"):
        small(method="ama", rounds=400)
    with pytest.raises(BadInput, match=r"hp.eta \(ama\+fes\)"):
        small(method="ama+fes", hp={"eta": 0.31}, rounds=3)
    for rounds, alpha0 in ((360, 0.1), (3, 0.1), (7, 0.3), (300, 1.0)):  # the largest allowed is allowed
        small(method="ama", rounds=rounds, hp={"alpha0": alpha0, "eta": float(f"{(1 - alpha0) / rounds:.12g}")})
    for name in ("alpha0", "b"):
        with pytest.raises(BadInput, match=rf"hp.{name} \(ama\)"):
            small(method="ama", hp={name: 1.1})


@pytest.mark.parametrize("method", ["ama+fes", "naive"])
def test_interrupted_with_updates_pending(small, tmp_path, method):
    run = small(method=method, rounds=6, limited=0.5, **LATE)
    whole, two = train(run, workers=1), train(run, workers=2)
    going = session.rounds(run, store=tmp_path, workers=1)
    for _ in range(3):
        next(going)
    going.close()
    half = federation(run)
    for _ in range(3):
        half.advance()
    assert half.pending
    assert train(run, store=tmp_path, workers=1).digest == whole.digest == two.digest


def test_a_late_update_is_never_early_also_after_a_resume(small, tmp_path):
    run, arrivals = small(method="ama+fes", rounds=8, limited=0.5, samples=40, delay=0.7, max_delay=3), []

    def note(before, uploads, r, after):
        arrivals.extend((u.cid, u.round, r.t) for u in uploads)

    for _ in range(run.rounds):  # a new server every round, which knows nothing but the checkpoint
        folder, going = Store(tmp_path, run), federation(run, note)
        if saved := folder.resume():
            going.restore(saved)
        going.advance()
        folder.save(going)
        folder.close()
    due = [(cid, t, t + going.fleet.delay(t, cid)) for t in range(1, 9) for cid in going.fleet.participants(t)]
    assert sorted(arrivals) == sorted(item for item in due if item[2] <= run.rounds)
    assert {arrived - started for _, started, arrived in arrivals} == {0, 1, 2, 3}


# --- FES


def test_the_extractor_never_changes_if_all_are_limited(small):  # I-36
    for extra in ({}, NORM):
        run = small(method="fes", limited=1.0, momentum=0.9, weight_decay=0.01, rounds=2, **extra)
        worker, result = Worker(run), train(run, workers=1)
        start = worker.params.clone()
        fixed = [name for name in start if name not in worker.model.classifier]
        close(result.weights.pick(fixed), start.pick(fixed), 1e-7)
        close(result.buffers, worker.buffers, 1e-7)
        assert all(not torch.equal(result.weights[name], start[name]) for name in worker.model.classifier)


@pytest.mark.parametrize("extra", [{}, NORM])
def test_a_limited_devices_upload_has_the_extractor_it_received(small, extra):  # I-37 exact
    run = small(method="ama+fes", limited=0.5, momentum=0.9, weight_decay=0.01, rounds=2, **extra)
    seen = []
    going = federation(run, lambda *args: seen.append(args))
    fixed = [name for name in going.server["w"] if name not in going.worker.model.classifier]
    rows = [going.advance() for _ in range(2)]
    kinds = set()
    for before, uploads, _, _ in seen:
        for u in uploads:
            kinds.add(limited := going.fleet.limited(u.cid))
            assert differ(u.sent["w"].pick(fixed), before["w"].pick(fixed)) is not limited
            assert differ(u.sent["w"], before["w"])
            assert not before["b"] or differ(u.sent["b"], before["b"]) is not limited
    assert kinds == {True, False}
    assert rows[0]["bytes_up"] == rows[0]["bytes_down"] == 3 * before["w"].nbytes  # the whole model (Eq. 3)


@pytest.mark.parametrize("limited", [True, False])
def test_the_backward_pass_of_a_limited_device_skips_the_extractor(small, limited):
    going = federation(small(method="fes", model="cnn_ama"))
    worker, tracked = going.worker, {}
    assert sorted({name.split(".")[1] for name in worker.model.classifier}) == ["fc1", "fc2", "fc3"]
    for name, block in worker.model.blocks.items():
        block.register_forward_hook(lambda m, x, out, name=name: tracked.update({name: out.requires_grad}))
    with torch.autograd.profiler.profile() as trace:
        worker.client(1, 0, going.server, None, 0, limited)
    backward = [e.name for e in trace.function_events if e.name.startswith("ConvolutionBackward")]
    assert tracked == {"conv1": not limited, "conv2": not limited, "fc1": True, "fc2": True, "fc3": True}
    assert bool(backward) is not limited
    assert all(p.requires_grad for p in worker.model.parameters())


@pytest.mark.parametrize(("extra", "forwards"), [
    ({}, 1),
    ({"method": "ama+fes+fedprox"}, 1),
    ({"augment": "crop"}, 6),
    ({"epochs": None, "steps": 1}, 1),  # less than an epoch: only this batch, not all features
    ({"method": "fitnet+fes"}, 6),  # its loss looks into the blocks
    (NORM, 6),  # what BatchNorm gives depends on the batch
])  # fmt: skip
def test_a_frozen_extractor_runs_once_per_visit(small, extra, forwards):
    """And training on its features gives what running it at every step gives."""
    run = small(**{"method": "fes", "momentum": 0.9, "epochs": 3, **extra})  # 3 epochs of two batches
    once, always = federation(run), federation(run)
    always.worker._ahead = lambda k, names: 0
    first, sizes = once.worker.model.blocks["conv1"], []
    first.register_forward_hook(lambda m, x, out: sizes.append(len(x[0])) if m is first else None)  # not a teacher's
    visit = (1, 0, once.server, None, 0)
    sent, slow = (f.worker.client(*visit, True)[0]["w"] for f in (once, always))
    assert len(sizes) == forwards
    assert sum(sizes) == (80 if forwards == 1 and "steps" not in extra else 40 * forwards)
    close(sent, slow)
    fixed = [name for name in sent if name not in once.worker.model.classifier]
    assert not differ(sent.pick(fixed), once.server["w"].pick(fixed))
    sizes.clear()
    once.worker.client(*visit, False)
    assert len(sizes) == (run.steps or 6)  # a full device: every step


def test_ama_fes_by_hand(small):
    run = small(method="ama+fes", hp={"alpha0": 0.3, "eta": 0.1}, limited=0.5, rounds=2, momentum=0.9)
    ref, kinds = Limited(run), set()
    for t, alpha in ((1, 0.4), (2, 0.5)):
        visits = ref.round(t)
        kinds |= {ref.fleet.limited(cid) for cid in visits}
        mean = ref.average(visits)
        ref.w = {k: alpha * ref.w[k] + (1 - alpha) * mean[k] for k in mean}
    assert kinds == {True, False}
    for method in ("ama+fes", "fes+ama"):
        close(train(small(**{**run.described, "method": method}), workers=1).weights, ref.w)


# --- AMA-FES, extractor of capable devices


def test_the_extractor_of_capable_devices_by_hand(small):
    """Two rounds: the classifier is averaged over all three devices, the extractor over the capable ones."""
    run = small(method="ama_capable", hp={"alpha0": 0.3, "eta": 0.1}, limited=0.5, rounds=2, momentum=0.9)
    ref, kinds = Limited(run), set()
    classifier = ref.worker.model.classifier
    for t, alpha in ((1, 0.4), (2, 0.5)):
        visits = ref.round(t)
        capable = {cid: visit for cid, visit in visits.items() if not ref.fleet.limited(cid)}
        kinds.add(0 < len(capable) < len(visits))
        everyone, able = ref.average(visits), ref.average(capable) if capable else ref.w
        mean = {k: everyone[k] if k in classifier else able[k] for k in everyone}
        ref.w = {k: alpha * ref.w[k] + (1 - alpha) * mean[k] for k in mean}
    assert True in kinds  # a round with devices of both kinds
    close(train(run, workers=1).weights, ref.w)


def test_one_round_of_capable_devices_in_numbers(small):
    """alpha = 0.5. Devices 0 (capable, 10 images) and 1 (limited, 30): classifier 1/2 + 1/2 (10 x 3 + 30 x 5) / 40 =
    2.75; extractor 1/2 + 1/2 x 3 = 2, by Eq. (5) it would be 1/2 + 1/2 (10 x 3 + 30 x 1) / 40 = 1.25."""
    run = small(method="ama_capable", hp={"alpha0": 0.5, "eta": 0}, limited=0.5, clients=8)
    able, slow = (next(c for c in range(8) if Fleet(run).limited(c) is kind) for kind in (False, True))

    def send(cid, n, extractor, classifier, started=1):
        e, c = torch.tensor([extractor]), torch.tensor([classifier])
        return Upload(cid, n, {"w": Tree(e=e, c=c), "b": Tree(s=e)}, started)

    server = {**send(0, 0, 1.0, 1.0).sent, "ama_capable/classifier": ["c"]}
    both = [send(able, 10, 3.0, 3.0), send(slow, 30, 1.0, 5.0)]
    for uploads, extractor, classifier in (
        (both, 2.0, 2.75),
        (both[1:], 1.0, 3.0),  # no capable device: the extractor stays
        ([both[0], send(slow, 30, 9.0, 5.0, 0)], 2.0, None),  # nor has a limited device's late one any weight
    ):
        new = build("ama_capable", **run.hp).aggregate(server, uploads, Round(1, run, []))
        assert float(new["w"]["e"]) == float(new["b"]["s"]) == extractor
        assert classifier is None or float(new["w"]["c"]) == classifier


def test_the_extractor_of_capable_devices_if_none_is_limited_is_ama_fes(small):
    for extra in ({}, LATE, {"rounds": 2, **NORM}):
        variant, plain = (train(small(method=m, hp=STRONG, **extra), workers=1) for m in ("ama_capable", "ama+fes"))
        assert variant.digest == plain.digest
    limited = [train(small(method=m, hp=STRONG, limited=0.5), workers=1).digest for m in ("ama_capable", "ama+fes")]
    assert limited[0] != limited[1]


def test_fes_stacks_with_a_proximal_term(small):
    close(train(small(method="fedprox+fes", hp={"mu": 0}, limited=0.5), workers=1).weights,
          train(small(method="fes", limited=0.5), workers=1).weights, 0)  # fmt: skip
    strong = train(small(method="fedprox+fes", hp={"mu": 5}, limited=0.5, epochs=2), workers=1)
    assert strong.digest != train(small(method="fes", limited=0.5, epochs=2), workers=1).digest


# --- naive FL


def test_naive_drops_limited_devices_and_late_updates(small):
    run, seen = small(method="naive", limited=0.5, rounds=6, **LATE), []
    going = federation(run, lambda *args: seen.append(args))
    rows = [going.advance() for _ in range(6)]
    for (before, uploads, r, after), row in zip(seen, rows, strict=True):
        capable = [cid for cid in going.fleet.participants(r.t) if not going.fleet.limited(cid)]
        assert r.participants == capable
        assert row["bytes_down"] == row["bytes_up"] == len(capable) * before["w"].nbytes
        on_time = [u for u in uploads if u.round == r.t]
        assert {u.cid for u in on_time} <= set(capable)
        assert not differ(after["w"], r.mean(on_time, "w") if on_time else before["w"])
    assert any(u.round < r.t for _, uploads, r, _ in seen for u in uploads)
    assert any(not [u for u in uploads if u.round == r.t] for _, uploads, r, _ in seen)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_empty_round_keeps_the_model(small, workers):  # AM-08
    run = small(method="naive", limited=1.0, rounds=2)
    result = train(run, workers=workers)
    assert not differ(result.weights, Worker(run).params)
    for row in result.rows:
        assert math.isnan(row["train_loss"])
        assert row["bytes_down"] == row["bytes_up"] == 0
        assert row["accuracy"] == result.rows[0]["accuracy"]


def test_what_cannot_be_stacked():
    for other in ("naive", "fedavgm"):
        with pytest.raises(BadInput, match=r"both replace the step 'aggregate'"):
            build(f"ama+{other}")


# --- what the claims judge


def test_all_settings_but_one_against_fedprox():  # ama-c10
    table = spec.find("ama/fig2_synchronous")
    (claim,) = [c for c in table.claims() if c.id == "ama-c10"]
    axes = {axis: list(labels) for axis, labels in table.choices("paper").items()}
    paper = {"AMA-FES": 0.9, "naive FL": 0.8, "FedProx": 0.85, "AMA-FES, extractor of capable devices": 0.95}

    def verdict(**changes):
        """As the paper says, but for the accuracy of these methods on FMNIST at p = 0.75."""
        rows = []
        for d, p, (m, value), seed in product(axes["dataset"], axes["p"], paper.items(), range(3)):
            value = changes.get(m.split()[0], value) if (d, p) == ("FMNIST", "0.75") else value
            rows.append({"measure": "accuracy", "dataset": d, "p": p, "method": m, "seed": seed, "value": value})
        found = judge(claim, Measured(pd.DataFrame(rows), "paper", axes, table.measures("paper")))
        return found.word, len(found.effects)

    assert verdict(FedProx=0.91) == ("reproduced", 6 + 5)  # the exception
    assert verdict(naive=0.91) == ("contradicted", 6 + 5)


@pytest.mark.parametrize("scale", ["reduced", "cpu"])
def test_below_paper_scale_a_visit_goes_as_far_and_alpha_ends_where_the_papers_do(scale):
    """Steps x rate is 1.2 as 1,200 x 0.001; a growing α grows by as much as the paper's over all rounds."""
    for table in spec.tables("ama"):
        paper = {tuple(cell.labels.values()): cell.run(0) for cell in table.cells("paper")}
        for cell in table.cells(scale, tuned=False):
            run, theirs = cell.run(0), paper[tuple(cell.labels.values())]
            assert run.epochs * run.samples / run.batch * run.lr == pytest.approx(1.2)
            assert run.hp.get("eta", 0) * run.rounds == pytest.approx(theirs.hp.get("eta", 0) * theirs.rounds)
