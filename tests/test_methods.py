"""One round or two of every method against plain loops over parameters, and the identities of the digest.

The reference below shares nothing with the engine but the addresses of the random streams.
"""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fedrepro import build, train
from fedrepro.errors import BadInput
from fedrepro.simulation.client import Worker
from fedrepro.simulation.executor import Serial
from fedrepro.simulation.federation import Federation
from fedrepro.simulation.fleet import Fleet
from fedrepro.simulation.rng import stream
from fedrepro.simulation.session import serve
from fedrepro.simulation.states import Clients


class Reference:
    """FedAvg by torch.optim.SGD and dictionaries; `penalty(theta, start, cid)` joins the local loss."""

    def __init__(self, run):
        self.run, self.worker = run, Worker(run)
        self.w = {n: p.detach().clone() for n, p in self.worker.model.named_parameters()}
        self.fleet = Fleet(run)

    def local(self, t, cid, penalty=None):
        run, model = self.run, self.worker.model
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(self.w[name])
        model.train()
        optimiser = torch.optim.SGD(model.parameters(), lr=run.lr * run.lr_decay ** (t - 1), momentum=run.momentum,
                                    weight_decay=run.weight_decay)  # fmt: skip
        rows, steps = self.worker.parts[cid], 0
        x = self.worker.data.batch(self.worker.data.train_x[rows])
        y = self.worker.data.train_y[rows]
        for epoch in range(run.epochs):
            order = torch.randperm(len(rows), generator=stream(run.seed, "batches", t, cid, epoch))
            for batch in order.split(run.batch):
                taps = []
                loss = F.cross_entropy(model(x[batch], taps=taps), y[batch])
                if penalty:
                    loss = loss + penalty(dict(model.named_parameters()), taps, x[batch])
                optimiser.zero_grad()
                loss.backward()
                if run.clip:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), run.clip)
                optimiser.step()
                steps += 1
        return {n: p.detach().clone() for n, p in model.named_parameters()}, len(rows), steps

    def round(self, t, penalty=None):
        return {cid: self.local(t, cid, penalty and penalty(cid)) for cid in self.fleet.participants(t)}

    def average(self, visits, weighted=True):
        weights = {cid: n if weighted else 1 for cid, (_, n, _) in visits.items()}
        total = sum(weights.values())
        return {k: sum(weights[c] / total * visits[c][0][k] for c in visits) for k in self.w}


def close(got, expected, tolerance=2e-6, relative=1e-5):
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=relative, atol=tolerance)


def differ(got, other):
    return any(not torch.equal(got[name], value) for name, value in other.items())


@pytest.fixture
def run(small):
    return lambda **changes: small(**{"split": "dirichlet_unequal:1", "samples": None, "share": 0.3,
                                      "rounds": 2, "epochs": 2, **changes})  # fmt: skip


@pytest.mark.parametrize("extra", [{}, {"momentum": 0.9, "weight_decay": 0.01, "clip": 0.5, "lr_decay": 0.5}])
def test_fedavg_by_hand(run, extra):
    r = run(**extra)
    ref = Reference(r)
    for t in (1, 2):
        ref.w = ref.average(ref.round(t))
    close(train(r, workers=1).weights, ref.w)


def test_equal_weights_by_hand(run):
    r = run(weights="equal", rounds=1)
    ref = Reference(r)
    visits = ref.round(1)
    got = train(r, workers=1).weights
    close(got, ref.average(visits, weighted=False))
    assert differ(got, ref.average(visits))


def test_fedprox_by_hand(run):
    r = run(method="fedprox", hp={"mu": 0.7})
    ref = Reference(r)
    for t in (1, 2):
        start = ref.w

        def pull(theta, taps, x, start=start):
            return 0.7 / 2 * sum(((theta[k] - start[k]) ** 2).sum() for k in start)

        ref.w = ref.average(ref.round(t, lambda cid, pull=pull: pull))
    close(train(r, workers=1).weights, ref.w)


def test_fedavgm_by_hand(run):
    r = run(method="fedavgm", hp={"beta": 0.5, "eta_g": 0.8})
    ref, v = Reference(r), None
    for t in (1, 2):
        mean = ref.average(ref.round(t))
        delta = {k: ref.w[k] - mean[k] for k in mean}
        v = delta if v is None else {k: 0.5 * v[k] + delta[k] for k in mean}
        ref.w = {k: ref.w[k] - 0.8 * v[k] for k in mean}
    close(train(r, workers=1).weights, ref.w)


def test_fedadam_by_hand(run):
    r = run(method="fedadam", hp={"eta_g": 0.02, "beta1": 0.8, "beta2": 0.9, "tau": 0.01})
    ref = Reference(r)
    m = {k: torch.zeros_like(w) for k, w in ref.w.items()}
    v = {k: torch.full_like(w, 0.01**2) for k, w in ref.w.items()}
    for t in (1, 2):
        mean = ref.average(ref.round(t))
        for k in mean:
            delta = mean[k] - ref.w[k]
            m[k] = 0.8 * m[k] + 0.2 * delta
            v[k] = 0.9 * v[k] + 0.1 * delta**2
            ref.w[k] = ref.w[k] + 0.02 * m[k] / (v[k].sqrt() + 0.01)
    close(train(r, workers=1).weights, ref.w)


def test_feddyn_by_hand(run):
    alpha, r = 0.3, run(method="feddyn", hp={"alpha": 0.3}, clients=4)
    ref = Reference(r)
    g = {cid: {k: torch.zeros_like(w) for k, w in ref.w.items()} for cid in range(4)}
    h = {k: torch.zeros_like(w) for k, w in ref.w.items()}
    for t in (1, 2):
        start = ref.w

        def penalty(cid, start=start):
            def terms(theta, taps, x):
                linear = sum((g[cid][k] * theta[k]).sum() for k in start)
                return alpha / 2 * sum(((theta[k] - start[k]) ** 2).sum() for k in start) - linear

            return terms

        visits = ref.round(t, penalty)
        for cid, (end, _, _) in visits.items():
            g[cid] = {k: g[cid][k] - alpha * (end[k] - start[k]) for k in start}
        h = {k: h[k] - alpha / 4 * sum(end[k] - start[k] for end, _, _ in visits.values()) for k in h}
        mean = ref.average(visits, weighted=False)
        ref.w = {k: mean[k] - h[k] / alpha for k in h}
    close(train(r, workers=1).weights, ref.w, 1e-5)

    losses = []
    for report, tested in (("mean", mean), ("cloud", ref.w)):
        worker = Worker(replace(r, hp={"alpha": alpha, "report": report}))
        fed = Federation(worker.run, Serial(worker), worker, Clients(None))
        losses += [[fed.advance()["loss"] for _ in range(2)]]
        close(fed.method.tested(fed.server, None, None)[0][0], tested, 1e-5)
    assert losses[0][0] != losses[1][0]


def test_scaffold_by_hand(run):
    r = run(method="scaffold", hp={"eta_g": 0.7}, clients=4)
    ref = Reference(r)
    zeros = {k: torch.zeros_like(w) for k, w in ref.w.items()}
    c, ci = zeros, {cid: zeros for cid in range(4)}
    for t in (1, 2):
        start, before = ref.w, c

        def penalty(cid, before=before):  # <c - c_i, theta> has gradient c - c_i
            return lambda theta, taps, x: sum(((before[k] - ci[cid][k]) * theta[k]).sum() for k in before)

        visits, change = ref.round(t, penalty), zeros
        for cid, (y, _, steps) in visits.items():
            new = {k: ci[cid][k] - before[k] + (start[k] - y[k]) / (steps * r.lr) for k in c}
            change = {k: change[k] + new[k] - ci[cid][k] for k in c}
            ci[cid] = new
        mean = ref.average(visits, weighted=False)
        ref.w = {k: start[k] + 0.7 * (mean[k] - start[k]) for k in c}
        c = {k: c[k] + change[k] / 4 for k in c}
    close(train(r, workers=1).weights, ref.w, 1e-5)


def test_moon_by_hand(run):
    mu, temperature = 2.0, 0.5
    r = run(method="moon", hp={"mu": mu, "temperature": temperature}, clients=4, rounds=3)
    ref, previous = Reference(r), {}
    model = ref.worker.model

    def features(weights, x):
        taps = []
        torch.func.functional_call(model, weights, (x,), {"taps": taps})
        return model.features(taps).detach()

    for t in (1, 2, 3):
        start = ref.w

        def penalty(cid, start=start):
            def contrast(theta, taps, x):
                z, glob, prev = model.features(taps), features(start, x), features(previous.get(cid, start), x)
                near = torch.exp(F.cosine_similarity(z, glob) / temperature)
                far = torch.exp(F.cosine_similarity(z, prev) / temperature)
                return mu * -torch.log(near / (near + far)).mean()

            return contrast

        visits = ref.round(t, penalty)
        previous.update({cid: theta for cid, (theta, _, _) in visits.items()})
        ref.w = ref.average(visits)
    close(train(r, workers=1).weights, ref.w, 1e-5)


NEUTRAL = [
    ("fedprox", {"mu": 0.0}, {}),  # I-49
    ("fedprox", {"mu": 0.0, "partial": True}, {}),  # nobody is limited
    ("moon", {"mu": 0.0}, {}),  # I-50
]


@pytest.mark.parametrize(("method", "hp", "extra"), NEUTRAL)
def test_neutral_settings_are_fedavg_bit_for_bit(run, method, hp, extra):
    assert train(run(method=method, hp=hp, **extra), workers=1).digest == train(run(**extra), workers=1).digest


def test_scaffold_starts_as_fedavg_bit_for_bit(run):  # I-51
    common = {"rounds": 1, "weights": "equal"}
    assert train(run(method="scaffold", **common), workers=1).digest == train(run(**common), workers=1).digest


def test_scaffold_mean_of_control_variates(run):  # I-51, full participation
    worker = Worker(run(method="scaffold", clients=3, per_round=3))
    federation = Federation(worker.run, Serial(worker), worker, Clients(None))
    for _ in range(2):
        federation.advance()
        for name, c in federation.server["scaffold/c"].items():
            mean = sum(federation.clients.get(i)["scaffold/c"][name] for i in range(3)) / 3
            torch.testing.assert_close(c, mean, rtol=1e-4, atol=1e-6)


def test_first_local_step_is_fedavgs(run):  # I-49 exact, I-52
    one = {"rounds": 1, "epochs": None, "steps": 1, "clients": 4, "per_round": 2, "weights": "equal"}
    plain = train(run(**one), workers=1)
    assert train(run(method="fedprox", hp={"mu": 9.0}, **one), workers=1).digest == plain.digest
    dyn = train(run(method="feddyn", hp={"alpha": 0.1}, **one), workers=1).weights
    start = Reference(run(**one)).w
    close(dyn, {k: plain.weights[k] + 2 / 4 * (plain.weights[k] - start[k]) for k in start})


def test_fedavgm_without_momentum_and_first_round(run):  # I-48
    plain = train(run(), workers=1)
    close(train(run(method="fedavgm", hp={"beta": 0.0}), workers=1).weights, plain.weights)
    first = train(run(rounds=1), workers=1)
    close(train(run(method="fedavgm", hp={"beta": 0.97}, rounds=1), workers=1).weights, first.weights)


def test_moon_in_the_first_visit_is_fedavg(run):  # I-50: l_con = log 2, no gradient
    plain, moon = (train(run(method=m, hp=hp, rounds=1, epochs=None, steps=1), workers=1)
                   for m, hp in (("fedavg", {}), ("moon", {"mu": 5.0})))  # fmt: skip
    close(moon.weights, plain.weights, 1e-5)
    assert moon.rows[0]["train_loss"] - plain.rows[0]["train_loss"] == pytest.approx(5 * math.log(2), rel=1e-5)


def test_fedadam_first_update_has_the_sign_of_the_difference(run):  # I-53
    start, plain = Reference(run()).w, train(run(rounds=1), workers=1).weights
    adam = train(run(method="fedadam", rounds=1), workers=1).weights
    for name, w in start.items():
        moved = (plain[name] - w).abs() > 1e-6
        assert torch.equal(torch.sign(adam[name] - w)[moved], torch.sign(plain[name] - w)[moved])


def test_one_client_is_central_sgd(run):  # I-46 exact
    r = run(clients=1, per_round=1, rounds=1, split="iid")
    ref = Reference(r)
    theta, _, _ = ref.local(1, 0)
    got = train(r, workers=1).weights
    close(got, theta)


def test_one_full_batch_step_is_gradient_descent_on_the_mean_loss(run):  # I-46
    r = run(clients=3, per_round=3, epochs=None, steps=1, batch=10_000, rounds=1)
    ref, worker = Reference(r), Worker(r)
    rows = worker.parts.order.long()
    loss = F.cross_entropy(worker.model(worker.data.batch(worker.data.train_x[rows])), worker.data.train_y[rows])
    grads = dict(zip(ref.w, torch.autograd.grad(loss, list(worker.model.parameters())), strict=True))
    close(train(r, workers=1).weights, {k: w - r.lr * grads[k] for k, w in ref.w.items()})


def test_partial_work_shortens_only_limited_devices(run):
    from fedrepro.simulation.client import Local

    r = run(method="fedprox", hp={"partial": True}, epochs=4, limited=0.5)
    worker = Worker(r)
    drawn = {worker.method.steps(Local(worker, t, 0, 0, True, 100)) for t in range(1, 60)}
    assert drawn == {3, 6, 9, 12}  # 1..4 epochs of ceil(100 / 40) steps
    assert worker.method.steps(Local(worker, 1, 0, 0, False, 100)) == 12
    assert train(r, workers=1).digest != train(run(method="fedprox", epochs=4, limited=0.5), workers=1).digest


def test_batchnorm_statistics_are_averaged_and_teachers_keep_theirs(small):
    common = {"model": "small:norm=batch", "rounds": 2, "data": "synthetic:classes=4,channels=3,size=32,train=700"}
    plain = train(small(**common), workers=1)
    assert plain.buffers
    assert train(small(method="moon", hp={"mu": 0.0}, **common), workers=1).digest == plain.digest  # I-06


def test_bytes_of_every_method(small):  # I-64, I-65
    bytes_of = {}
    for method in ("fedavg", "fedprox", "fedavgm", "fedadam", "feddyn", "moon", "scaffold"):
        result = train(small(method=method, rounds=1), workers=1)
        row = result.rows[0]
        assert row["bytes_down"] == row["bytes_up"]
        bytes_of[method] = row["bytes_down"]
        assert row["buffer_bytes_down"] == 0
    b = 3 * result.weights.nbytes
    assert bytes_of.pop("scaffold") == 2 * b
    assert set(bytes_of.values()) == {b}


def test_stacks():
    stack = build("fedprox+feddyn", mu=0.5, alpha=0.2)
    assert (stack.mu, stack.alpha) == (0.5, 0.2)
    with pytest.raises(BadInput, match=r"fedavgm and fedadam .*replace the step 'aggregate'"):
        build("fedavgm+fedadam")
    with pytest.raises(BadInput, match=r"fedprox and moon .*hyperparameter 'mu'"):
        build("fedprox+moon")
    with pytest.raises(BadInput, match="cannot be stacked"):
        build("fedavg+fedprox")


def test_a_stack_is_the_sum_of_its_parts(run):
    close(train(run(method="fedprox+fedavgm", hp={"mu": 0.0, "beta": 0.5}), workers=1).weights,
          train(run(method="fedavgm", hp={"beta": 0.5}), workers=1).weights, 0)  # fmt: skip
    alone = train(run(method="fedprox", hp={"mu": 0.7}, rounds=1), workers=1).weights
    close(train(run(method="fedprox+fedavgm", hp={"mu": 0.7}, rounds=1), workers=1).weights, alone)


@pytest.mark.parametrize("method", ["fedavg", "fedavgm", "fedadam", "scaffold", "feddyn"])
def test_a_round_without_uploads_moves_nothing(small, method):
    """All are late, for instance: momentum is no reason to go on without the clients."""
    with serve(small(method=method)) as federation:
        federation.advance()
        federation.advance()
        before = federation.server
        after = federation.method.aggregate(before, [], federation._round([]))
    assert all(torch.equal(after["w"][name], before["w"][name]) for name in before["w"])
