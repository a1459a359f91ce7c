"""FedMLB, FedBR and FedBR-Ran against path-by-path references, hand counts, and the digest's identities I-01..I-18."""

import math

import pytest
import torch
import torch.nn.functional as F

from fedrepro import build, train
from fedrepro.data.partition import partition
from fedrepro.errors import BadInput
from fedrepro.evidence.spec import find
from fedrepro.methods import Round, Upload
from fedrepro.methods.fedbr import FedBR_Ran, paper_traffic, share
from fedrepro.models import Net
from fedrepro.simulation import session, store
from fedrepro.simulation.client import Local, Worker, values_of
from fedrepro.simulation.executor import Serial
from fedrepro.simulation.federation import Federation
from fedrepro.simulation.fleet import Fleet
from fedrepro.simulation.rng import stream
from fedrepro.simulation.states import Clients
from fedrepro.simulation.store import CLOCKS
from fedrepro.simulation.tree import Tree

SIX = {"model": "small", "data": "synthetic:classes=4,channels=3,size=16,train=400,test=100", "samples": 20,
       "split": "iid", "clients": 4, "per_round": 2, "batch": 10}  # fmt: skip


def federation(run):
    worker = Worker(run)
    return Federation(run, Serial(worker), worker, Clients(None))


def visit(run, alpha=None, drift=0.0):
    """A client in float64 in the middle of its round -> (k, x, y); its weights moved by `drift` since the start."""
    worker = Worker(run)
    worker.model.double().train()
    worker.params, worker.buffers = values_of(worker.model)
    worker.leaves = list(worker.model.parameters())
    k = Local(worker, 1, 0, 0, False, 20)
    k.load(worker.params.clone(), worker.buffers.clone())
    k.client, k.scratch = {}, {"fedbr/alpha": alpha, "fedbr/zeta": 0.0}
    generator = torch.Generator().manual_seed(7)
    for p in worker.params.tensors:
        p.add_(torch.randn(p.shape, generator=generator, dtype=p.dtype), alpha=drift)
    x = torch.randn(10, worker.data.channels, worker.data.size, worker.data.size, generator=generator).double()
    return k, x, torch.arange(10) % worker.data.classes


def gradients(k, x, y, method):
    """(loss, gradient of every parameter) of the method at this batch."""
    k.taps = []
    loss = method.loss(k, x, y, k.model(x, taps=k.taps))
    return loss.detach(), dict(zip(k.params, torch.autograd.grad(loss, k.worker.leaves), strict=True))


def chain(net, h, first, last):
    """Blocks first..last of the net, counted from 1."""
    for block in list(net.blocks.values())[first - 1 : last]:
        h = block(h)
    return h


def naive(k, x, y, paths, lambda1=1.0, lambda2=1.0, temperature=1.0, swap=False, divisor=None):
    """The loss written out: every path computed from the image, divergences by their definition."""
    local, frozen, M = k.model, k.worker.frozen(5, k.start, k.start_buffers), len(k.model.blocks)
    z = chain(local, x, 1, M)
    loss = F.cross_entropy(z, y)
    for m in paths:
        first, second = (frozen, local) if swap else (local, frozen)
        h = chain(second, chain(first, x, 1, m), m + 1, M)
        p, q = torch.softmax(h / temperature, 1), torch.softmax(z / temperature, 1)
        kl = (p * (p.log() - q.log())).sum(1).mean()
        loss = loss + (lambda1 * F.cross_entropy(h, y) + lambda2 * kl) / (divisor or len(paths))
    return loss.detach(), dict(zip(k.params, torch.autograd.grad(loss, k.worker.leaves), strict=True))


def same(got, expected, tolerance=1e-9):
    torch.testing.assert_close(got[0], expected[0], rtol=tolerance, atol=tolerance)
    for name, value in expected[1].items():
        torch.testing.assert_close(got[1][name], value, rtol=tolerance, atol=tolerance)


def block_of(name, model):
    """1..M"""
    return 1 + [name in names for names in model.block_params.values()].index(True)


MODELS = ["small", "small:norm=batch", "resnet18"]


@pytest.mark.parametrize(("model", "hp", "paths"), [
    *[(m, {}, range(1, 6)) for m in MODELS],
    ("small", {"lambda1": 0.3, "lambda2": 2.0, "temperature": 2.5}, range(1, 6)),
    ("small:norm=batch", {"paths": "2,5"}, (2, 5)),
    ("small", {"paths": "2,5", "divisor": "chosen"}, (2, 5)),
    ("small", {"direction": "g2l", "temperature": 0.5}, range(1, 6)),
    ("small:norm=batch", {"direction": "g2l", "paths": "1,4"}, (1, 4)),
])  # fmt: skip
def test_fedmlb_loss_and_gradients_path_by_path(small, model, hp, paths):
    k, x, y = visit(small(**SIX | {"model": model}), drift=0.02)
    got = gradients(k, x, y, build("fedmlb", **hp))
    options = {key: hp[key] for key in ("lambda1", "lambda2", "temperature") if key in hp}
    divisor = None if hp.get("divisor") == "chosen" else 5  # M-1, however few paths there are (ML-10)
    same(got, naive(k, x, y, paths, swap=hp.get("direction") == "g2l", divisor=divisor, **options))


@pytest.mark.parametrize("alpha", [1, 3, 5, 6])
def test_fedbr_loss_and_gradients_path_by_path(small, alpha):
    k, x, y = visit(small(**SIX), alpha, drift=0.02)
    m = min(alpha, 5)  # the whole model has M-1 paths (FB-15)
    got = gradients(k, x, y, build("fedbr", lambda1=0.5, lambda2=2.0, delta=1.5))
    same(got, naive(k, x, y, [6 - j for j in range(1, m + 1)], 0.5, 2.0, 1.5))
    assert float(k.scratch["fedbr/zeta"]) == pytest.approx(F.cross_entropy(k.model(x), y).item())  # zeta_L, Eq. (15)


@pytest.mark.parametrize("model", ["lenet", "resnet20", "vgg9", "squeezenet", "shufflenet", "mobilenet_v2"])
def test_every_architecture_can_be_entered_at_every_block(small, model):
    k, x, y = visit(small(**SIX | {"model": model, "data": SIX["data"].replace("16", "32")}))
    loss, grads = gradients(k, x, y, build("fedmlb"))
    assert loss.isfinite() and all(g.isfinite().all() for g in grads.values())


@pytest.mark.parametrize("direction", ["l2g", "g2l"])
def test_first_step(small, direction):  # I-03, I-04, I-05
    k, x, y = visit(small(**SIX))
    plain, grads = gradients(k, x, y, build("fedavg"))
    loss, got = gradients(k, x, y, build("fedmlb", lambda1=0.7, lambda2=3.0, direction=direction))
    torch.testing.assert_close(loss, 1.7 * plain)  # hybrid logits = main logits, KL = 0
    for name, g in grads.items():
        b = block_of(name, k.model)
        through = 6 - b if direction == "l2g" else b - 1
        torch.testing.assert_close(got[name], g * (1 + 0.7 * through / 5))
    _, kl = gradients(k, x, y, build("fedmlb", lambda1=0.0, lambda2=1e3, direction=direction))
    same((plain, kl), (plain, grads))


@pytest.mark.parametrize("alpha", [1, 2, 4])
def test_first_step_of_a_partial_round(small, alpha):  # I-13
    k, x, y = visit(small(**SIX), alpha)
    _, plain = gradients(k, x, y, build("fedavg"))
    _, got = gradients(k, x, y, build("fedbr", lambda1=0.7, lambda2=3.0))
    for name, g in plain.items():
        torch.testing.assert_close(got[name], g * (1 + 0.7 * min(alpha, 6 - block_of(name, k.model)) / alpha))


@pytest.mark.parametrize("direction", ["l2g", "g2l"])
def test_hybrid_paths_change_no_frozen_weight_and_no_buffer(small, direction):  # I-06, FB-24
    k, x, y = visit(small(**SIX | {"model": "small:norm=batch"}), drift=0.02)
    start, before = k.start.clone(), k.buffers.clone()
    frozen = k.teacher("fedmlb", k.start, k.start_buffers)
    statistics = Tree(frozen.named_buffers()).clone()
    k.model(x)
    expected = k.buffers.clone()
    k.buffers.copy_(before)
    gradients(k, x, y, build("fedmlb", direction=direction))
    assert all(torch.equal(k.buffers[name], value) for name, value in expected.items())
    assert all(torch.equal(value, statistics[name]) for name, value in frozen.named_buffers())
    assert all(torch.equal(value, start[name]) for name, value in frozen.named_parameters())
    assert all(torch.equal(k.start[name], value) for name, value in start.items())


def test_a_hybrid_path_trains_only_its_local_blocks(small):  # I-07
    k, x, y = visit(small(**SIX), drift=0.02)
    _, plain = gradients(k, x, y, build("fedavg"))
    for m in (1, 3):
        _, got = gradients(k, x, y, build("fedmlb", lambda2=0.0, paths=str(m)))
        for name, g in plain.items():
            assert torch.equal(got[name], g) == (block_of(name, k.model) > m)


def test_subsets_and_orders_of_paths(small):  # I-08
    k, x, y = visit(small(**SIX), drift=0.02)
    whole = gradients(k, x, y, build("fedmlb"))
    same(gradients(k, x, y, build("fedmlb", paths="1,2,3,4,5")), whole, 0)
    same(gradients(k, x, y, build("fedmlb", paths="4,2,5,1,3")), whole)


def test_a_high_temperature_removes_the_divergence(small):  # I-09
    k, x, y = visit(small(**SIX), drift=0.02)
    same(gradients(k, x, y, build("fedmlb", temperature=1e6)), gradients(k, x, y, build("fedmlb", lambda2=0.0)))


def test_one_block_is_fedavg(small):  # I-02
    k, x, y = visit(small(**SIX))
    k.model = Net({"fc": torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 4))}).double()
    out = k.model(x)
    assert torch.equal(build("fedmlb").loss(k, x, y, out), F.cross_entropy(out, y))


@pytest.mark.parametrize("model", ["lenet", "small:norm=batch"])
def test_neutral_settings_are_fedavg_bit_for_bit(small, model):  # I-01, I-12
    common = SIX | {"model": model, "rounds": 2, "weights": "equal"}
    off = {"lambda1": 0.0, "lambda2": 0.0}
    plain = train(small(**common), workers=1).digest
    assert train(small(method="fedmlb", hp=off, **common), workers=1).digest == plain
    assert train(small(method="fedbr", hp=off | {"tau": 0}, **common), workers=1).digest == plain


@pytest.mark.parametrize("model", ["lenet", "small:norm=batch"])
def test_fedbr_with_the_whole_model_every_round_is_fedmlb(small, model):  # I-11
    common = SIX | {"model": model, "rounds": 3, "weights": "equal"}
    mlb = train(small(method="fedmlb", hp={"temperature": 2.0}, **common), workers=1)
    for name in ("fedbr", "fedbr_ran"):
        br = train(small(method=name, hp={"delta": 2.0, "tau": 0}, **common), workers=1)
        assert br.digest == mlb.digest
    for ours, theirs in zip(br.rows, mlb.rows, strict=True):
        assert all(ours[key] == theirs[key] for key in theirs if "bytes" in key)  # I-64


def test_server_optimisers_around_fedmlb(small):  # I-10
    run = lambda method, **hp: train(small(method=method, hp=hp, weights="equal"), workers=1).weights  # noqa: E731
    alone = run("fedmlb")
    for stack, hp in (("fedmlb+fedavgm", {"beta": 0.0}), ("fedavgm+fedmlb", {"beta": 0.0})):
        for name, w in run(stack, **hp).items():
            torch.testing.assert_close(w, alone[name], rtol=1e-5, atol=1e-6)
    assert run("fedmlb+fedadam").keys() == alone.keys()


class Hand:
    """One client's local steps on plain dictionaries; shares with the engine only the streams' addresses."""

    def __init__(self, run):
        self.run, self.worker = run, Worker(run)
        self.w = {n: p.detach().clone() for n, p in self.worker.model.named_parameters()}
        self.blocks = list(self.worker.model.block_params.values())

    def call(self, weights, h, first=1, last=None):
        """Blocks first..last with these weights."""
        chosen = list(self.worker.model.blocks.items())[first - 1 : last]
        for name, block in chosen:
            inside = {
                k.removeprefix(f"blocks.{name}."): v for k, v in weights.items() if k.startswith(f"blocks.{name}.")
            }
            h = torch.func.functional_call(block, inside, (h,))
        return h

    def local(self, t, cid, start, frozen, paths, extra=None):
        """-> (weights, mean zeta_L)"""
        run, M = self.run, len(self.blocks)
        theta = {k: v.clone().requires_grad_() for k, v in start.items()}
        rows, zetas = self.worker.parts[cid], []
        x, y = self.worker.data.batch(self.worker.data.train_x[rows]), self.worker.data.train_y[rows]
        for epoch in range(run.epochs):
            order = torch.randperm(len(rows), generator=stream(run.seed, "batches", t, cid, epoch))
            for batch in order.split(run.batch):
                z = self.call(theta, x[batch])
                loss = F.cross_entropy(z, y[batch])
                zetas.append(loss.item())
                for m in paths:
                    h = self.call(frozen, self.call(theta, x[batch], 1, m), m + 1, M)
                    p, q = h.softmax(1), z.softmax(1)
                    loss = loss + (F.cross_entropy(h, y[batch]) + (p * (p / q).log()).sum(1).mean()) / len(paths)
                if extra:
                    loss = loss + extra(theta)
                grads = torch.autograd.grad(loss, list(theta.values()))
                theta = {k: (v - run.lr * g).detach().requires_grad_()
                         for (k, v), g in zip(theta.items(), grads, strict=True)}  # fmt: skip
        return {k: v.detach() for k, v in theta.items()}, sum(zetas) / len(zetas)


def close(got, expected):
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=1e-5, atol=5e-6)


def average(models):
    return {k: sum(m[k] for m in models) / len(models) for k in models[0]}


def test_fedmlb_by_hand(small):
    fed = federation(small(method="fedmlb", weights="equal", epochs=2))
    hand = Hand(fed.run)
    for t in (1, 2):
        hand.w = average([hand.local(t, cid, hand.w, hand.w, range(1, 5))[0] for cid in fed.fleet.participants(t)])
        fed.advance()
        close(fed.server["w"], hand.w)


def test_all_paths_by_name_and_either_divisor_are_one(small):
    digests = {train(small(method="fedmlb", hp=hp), workers=1).digest
               for hp in ({}, {"divisor": "chosen"}, {"paths": "1,2,3,4"})}  # fmt: skip
    assert len(digests) == 1
    few = [train(small(method="fedmlb", hp={"paths": "2", **hp}), workers=1).digest
           for hp in ({"divisor": "chosen", "lambda1": 0.25, "lambda2": 0.25}, {})]  # fmt: skip
    assert few[0] == few[1]  # a quarter of the weight


def test_fedmlb_with_feddyn_by_hand(small):
    a = 0.3
    fed = federation(small(method="fedmlb+feddyn", hp={"alpha": a}, clients=3, per_round=3))
    hand = Hand(fed.run)
    zeros = {k: torch.zeros_like(v) for k, v in hand.w.items()}
    g, h = dict.fromkeys(range(3), zeros), zeros
    for t in (1, 2):
        start, after = hand.w, {}
        for cid in fed.fleet.participants(t):

            def dyn(theta, g=g[cid], start=start):
                return sum(a / 2 * ((theta[k] - start[k]) ** 2).sum() - (g[k] * theta[k]).sum() for k in start)

            after[cid], _ = hand.local(t, cid, start, start, range(1, 5), dyn)
        g = {cid: {k: g[cid][k] - a * (w[k] - start[k]) for k in w} for cid, w in after.items()}
        h = {k: h[k] - a / 3 * sum(w[k] - start[k] for w in after.values()) for k in h}
        mean = average(list(after.values()))
        hand.w = {k: mean[k] - h[k] / a for k in h}
        fed.advance()
        close(fed.server["w"], hand.w)


@pytest.mark.parametrize("lambdas", [1.0, 0.0])
def test_fedbr_rounds_by_hand(small, lambdas):  # I-14, and the bytes of partial rounds
    """tau = 2: round 1 whole, rounds 2 and 3 the last two of lenet's five blocks, round 4 whole."""
    hp = {"tau": 2, "alpha": 2, "lambda1": lambdas, "lambda2": lambdas}
    fed = federation(small(method="fedbr", hp=hp, clients=4, per_round=2, seed=3))
    hand, own, zeta = Hand(fed.run), {}, {}
    partial = 0
    for t in (1, 2, 3, 4):
        down = 0
        for cid in fed.fleet.participants(t):
            whole = t in (1, 4) or cid not in own
            names = [n for block in hand.blocks[0 if whole else -2 :] for n in block]
            partial += not whole
            start = {**own.get(cid, hand.w), **{n: hand.w[n] for n in names}}
            down += sum(hand.w[n].nbytes for n in names)
            paths = () if not lambdas else (1, 2, 3, 4) if whole else (3, 4)
            own[cid], zeta[cid] = hand.local(t, cid, start, hand.w, paths)
        hand.w = average([own[cid] for cid in fed.fleet.participants(t)])
        row = fed.advance()
        close(fed.server["w"], hand.w)
        assert row["bytes_down"] == down
        assert row["bytes_up"] == 2 * fed.server["w"].nbytes
        for cid in own:
            close(fed.clients.get(cid)["fedbr/x"]["w"], own[cid])
            assert fed.server["fedbr/zeta"][cid] == pytest.approx(zeta[cid], rel=1e-5)
    assert partial  # the seed makes clients return in rounds 2 and 3


def test_combination_is_exact(small):  # I-14
    fed = federation(small(**SIX | {"model": "small:norm=batch"}, method="fedbr", hp={"alpha": 2}, seed=1))
    fed.advance()
    cid, method, worker = next(iter(fed.clients.version)), fed.method, fed.worker
    server = method.plan(fed.server, Round(2, fed.run, [cid]))
    message = method.broadcast(server, cid, Round(2, fed.run, [cid]))
    last = {n for name in ("conv5_x", "fc") for n in worker.model.block_params[name]}
    assert {*message["w"], *message["b"]} == last and message["b"]
    k = Local(worker, 2, cid, 1, False, 20)
    k.client = fed.clients.get(cid)
    method.receive(k, message)
    for part, live, start in (("w", k.params, k.start), ("b", k.buffers, k.start_buffers)):
        for name, value in live.items():
            source = fed.server[part] if name in last else k.client["fedbr/x"][part]
            assert torch.equal(value, source[name]) and torch.equal(start[name], source[name])
    frozen = k.teacher("fedmlb", k.start, k.start_buffers)
    assert all(torch.equal(p, fed.server["w"][n]) for n, p in frozen.named_parameters() if n in last)


def test_equal_clients_make_partial_sending_harmless(small):  # I-15
    common = {"clients": 3, "per_round": 3, "batch": 1000, "epochs": 2, "lr": 0.5}
    br, mlb = (federation(small(method="fedbr", hp={"alpha": 2, "tau": 9}, **common)),
               federation(small(method="fedmlb", hp={"paths": "3,4", "divisor": "chosen"}, **common)))  # fmt: skip
    for fed in (br, mlb):
        fed.worker.parts = [fed.worker.parts[0]] * 3
    br.advance()
    mlb.server, mlb.t = dict(br.server), 1
    for _ in (2, 3):
        assert br.advance()["bytes_down"] < mlb.advance()["bytes_down"]
    close(br.server["w"], mlb.server["w"])


def test_the_mean_is_unweighted(small):  # Eq. (2), FB-23
    unequal = {"split": "dirichlet_unequal:1", "samples": None, "share": 0.3, "rounds": 2}
    for method, independent in (("fedbr", True), ("fedbr_ran", True), ("fedmlb", False)):
        digests = {train(small(method=method, weights=w, **unequal), workers=1).digest for w in ("size", "equal")}
        assert (len(digests) == 1) == independent


def test_shares():  # I-16
    assert share([1.0, 3.0]) == [0.25, 0.75]
    assert share([0.0, 0.0, 0.0, 0.0]) == [0.25] * 4
    assert share([]) == []


def upload(cid, w, zeta, alpha, compute, communicate, t):
    sent = {"w": Tree(w=torch.tensor([w])), "b": Tree(), "fedbr/zeta": zeta, "fedbr/alpha": alpha}
    return Upload(cid, 10, sent, t, compute, communicate)


def test_gmbs_by_hand(small):
    """Two clients, M = 5, tau large, lambda = 0.5; the first decisions, random in earnest, are 2 and 4."""
    run, method = small(method="fedbr", hp={"tau": 99}), build("fedbr", tau=99)
    server = {"w": Tree(w=torch.zeros(1)), "b": Tree(), "fedbr/blocks": [["w"]] * 5, "fedbr/sent": {},
              "fedbr/p": {}, "fedbr/n": {}, "fedbr/zeta": {}}  # fmt: skip
    r = lambda t: Round(t, run, [0, 1])  # noqa: E731

    # Round 1, whole: zeta recorded, no decision, no p.
    server = method.plan(server, r(1))
    assert server["fedbr/sent"] == {0: 5, 1: 5} and server["fedbr/n"] == {}
    server = method.aggregate(server, [upload(0, 1.0, 2.0, 5, 1, 1, 1), upload(1, 3.0, 2.0, 5, 1, 1, 1)], r(1))
    assert server["fedbr/zeta"] == {0: 2.0, 1: 2.0} and server["fedbr/p"] == {}

    # Round 2: no n yet, so the choice is random; we go on as if it had been 2 and 4.
    drawn = method.plan(server, r(2))["fedbr/sent"]
    assert drawn == build("fedbr_ran", tau=99).plan(server, r(2))["fedbr/sent"]
    server = {**server, "fedbr/sent": {0: 2, 1: 4}, "fedbr/n": {0: {2: 1}, 1: {4: 1}}}
    # x = mean(0, 4) = 2, distances 4 and 4, d = 1/2 each. Compute 1 and 3: t'_c = 1/4, 3/4;
    # communication 2 and 2: t'_b = 1/2 each. zeta falls 2.0 -> 0.4 and rises 2.0 -> 2.8:
    # r_0 = 0.5 * 1.6 / e^0.75 = 0.377893, p_0[2] = 0.188947; r_1 = 0.5 * -0.8 / e^1.25 = -0.114602, p_1[4] = -0.057301
    server = method.aggregate(server, [upload(0, 0.0, 0.4, 2, 1, 2, 2), upload(1, 4.0, 2.8, 4, 3, 2, 2)], r(2))
    assert server["fedbr/p"][0] == pytest.approx({2: 0.188947}, abs=1e-6)
    assert server["fedbr/p"][1] == pytest.approx({4: -0.057301}, abs=1e-6)

    # Round 3: sqrt(ln 4) = 1.177410. V_0 = (1.1774, 0.1889 + 0.5887 = 0.7777, 1.1774, 1.1774) -> 1 (ties: lowest);
    # V_1 = (1.1774, 1.1774, 1.1774, -0.0573 + 0.5887) -> 1.
    server = method.plan(server, r(3))
    assert server["fedbr/sent"] == {0: 1, 1: 1}
    assert server["fedbr/n"] == {0: {2: 1, 1: 1}, 1: {4: 1, 1: 1}}
    # x = 1, both models at 1: distances 0/0, d = 1/2 (I-16); no times at all: t' = 1/2 each.
    # r_0 = 0.5 * (0.4 - 0.0) / e = 0.073576, p_0[1] = 0.036788; r_1 = 0.5 * (2.8 - 0.8) / e = 0.367879, p = 0.183940
    server = method.aggregate(server, [upload(0, 1.0, 0.0, 1, 0, 0, 3), upload(1, 1.0, 0.8, 1, 0, 0, 3)], r(3))
    assert server["fedbr/p"][0] == pytest.approx({1: 0.036788, 2: 0.188947}, abs=1e-6)
    assert server["fedbr/p"][1] == pytest.approx({1: 0.183940, 4: -0.057301}, abs=1e-6)

    # With every n = 9 the second term is sqrt(ln 5)/10 = 0.126864 for all, and p decides: 2 and 1.
    often = {**server, "fedbr/n": {cid: dict.fromkeys((1, 2, 3, 4), 9) for cid in (0, 1)}}
    assert method.plan(often, r(4))["fedbr/sent"] == {0: 2, 1: 1}
    # sqrt(ln 5) = 1.268636: V[1] = 1.2686 is above V[2] = 0.61 + 0.6343 = 1.2443, and below it for p[2] = 0.64.
    for p, choice in ((0.61, 1), (0.64, 2)):
        near = {**server, "fedbr/p": {0: {2: p}}, "fedbr/n": {0: {2: 1, 3: 1, 4: 1}}}
        assert method.decide(near, 0, r(4)) == choice
    # A second reward for the same alpha: p_0[2] <- 0.5 r + 0.5 * 0.188947, with x = 2, d = 1/2, t' = 1/2 and
    # zeta 0.0 -> 1.0: r = -0.5 / e = -0.183940, p = 0.002503
    server = method.aggregate(server, [upload(0, 0.0, 1.0, 2, 0, 0, 4), upload(1, 4.0, 0.8, 5, 0, 0, 4)], r(4))
    assert server["fedbr/p"][0][2] == pytest.approx(0.002503, abs=1e-6)
    assert server["fedbr/p"][1] == pytest.approx({1: 0.183940, 4: -0.057301}, abs=1e-6)  # whole: no update (FB-15)


def test_a_decision_without_an_earlier_loss_changes_no_p(small):
    run, method = small(method="fedbr"), build("fedbr")
    server = {"w": Tree(w=torch.zeros(1)), "b": Tree(), "fedbr/blocks": [["w"]] * 5, "fedbr/sent": {0: 2},
              "fedbr/p": {}, "fedbr/n": {0: {2: 1}}, "fedbr/zeta": {}}  # fmt: skip
    new = method.aggregate(server, [upload(0, 1.0, 2.0, 2, 0, 0, 2)], Round(2, run, [0]))
    assert new["fedbr/p"] == {} and new["fedbr/zeta"] == {0: 2.0}
    assert method.aggregate(server, [], Round(2, run, [0])) == server


def test_gmbs_without_memory_is_a_round_robin(small):  # I-17, I-18
    run = small(method="fedbr", hp={"ema": 0.0, "tau": 1000}, clients=1, per_round=1)
    method, server = build("fedbr", ema=0.0, tau=1000), {"fedbr/blocks": [["w"]] * 6, "fedbr/sent": {0: 6},
                                                         "fedbr/p": {}, "fedbr/n": {}}  # fmt: skip
    chosen = []
    for t in range(2, 32):
        server = method.plan(server, Round(t, run, [0]))
        chosen.append(server["fedbr/sent"][0])
        counts = server["fedbr/n"][0]
        assert sum(counts.values()) == len(chosen)
        if len(chosen) % 5 == 0:
            assert set(counts.values()) == {len(chosen) // 5} and len(counts) == 5
        elif len(chosen) > 5:
            assert chosen[-1] == min(
                m for m in range(1, 6) if chosen[:-1].count(m) == min(map(chosen[:-1].count, range(1, 6)))
            )
    for cid in range(20):
        assert 1 <= method.decide(server, cid, Round(7, run, [cid])) <= 5


CLOCK = {"bandwidth": (40, 280), "compute": (1.0, 9.0), "redraw": 2}


def test_random_choices_forced_to_the_bandits_reproduce_it(small, monkeypatch):  # I-18
    common = {"rounds": 7, "clients": 4, "per_round": 3, **CLOCK}
    fed = federation(small(method="fedbr", **common))
    chosen = {}
    for t in range(1, 8):
        row = fed.advance()
        chosen |= {(t, cid): fed.server["fedbr/sent"][cid] for cid in fed.fleet.participants(t)}
        assert sum(row[f"alpha_{m}"] for m in range(1, 6)) == 3
    assert len(set(chosen.values())) > 2
    decisions = {cid: sum(alpha < 5 for (_, c), alpha in chosen.items() if c == cid) for cid in range(4)}
    assert {cid: sum(n.values()) for cid, n in fed.server["fedbr/n"].items()} == {
        c: d for c, d in decisions.items() if d
    }
    free = train(small(method="fedbr_ran", **common), workers=1)
    monkeypatch.setattr(FedBR_Ran, "decide", lambda self, server, cid, r: chosen[r.t, cid])
    forced = train(small(method="fedbr_ran", **common), workers=1)
    ours = store.digest(fed.server["w"], fed.server["b"], fed.rows)
    assert forced.digest == ours != free.digest
    assert [row["bytes_down"] for row in forced.rows] == [row["bytes_down"] for row in fed.rows]


def test_random_choices_are_uniform_and_keep_no_bandit(small):
    method, run = build("fedbr_ran"), small(method="fedbr_ran")
    server = {"fedbr/blocks": [["w"]] * 6}
    drawn = [method.decide(server, cid, Round(t, run, [cid])) for t in range(60) for cid in range(10)]
    assert all(90 < drawn.count(m) < 150 for m in range(1, 6)) and set(drawn) == {1, 2, 3, 4, 5}
    assert set(method.server_init(Worker(run).model)) == {"fedbr/blocks", "fedbr/sent"}


def test_bytes_and_costs_of_a_period(small):  # I-64, I-68
    """tau = 3, alpha = 2 of ResNet-20's M = 5 blocks with BatchNorm, everybody every round."""
    run = small(**SIX | {"model": "resnet20", "per_round": 4}, method="fedbr", hp={"tau": 3, "alpha": 2},
                rounds=8, eval_every=8, epochs=None, steps=1)  # fmt: skip
    fed = federation(run)
    rows = [fed.advance() for _ in range(8)]
    # conv4_x: bottlenecks 128 -> 64 -> 64 -> 256 with a shortcut 128 -> 256, and 256 -> 64 -> 64 -> 256
    convs = 128 * 64 + 9 * 64 * 64 + 64 * 256 + 128 * 256 + 256 * 64 + 9 * 64 * 64 + 64 * 256
    normed = (64 + 64 + 256 + 256) + (64 + 64 + 256)  # channels with BatchNorm: two weights, two statistics each
    last, statistics = 4 * (convs + 2 * normed + 256 * 4 + 4), 4 * 2 * normed
    b, buffers = fed.server["w"].nbytes, fed.server["b"].nbytes
    for row in rows:
        whole = row["round"] in (1, 5)
        assert row["bytes_down"] == 4 * (b if whole else last)
        assert row["buffer_bytes_down"] == 4 * (buffers if whole else statistics)
        assert (row["bytes_up"], row["buffer_bytes_up"]) == (4 * b, 4 * buffers)
        assert row["alpha"] == (5 if whole else 2)
        assert [row[f"alpha_{m}"] for m in range(1, 6)] == [0, 0 if whole else 4, 0, 0, 4 if whole else 0]
        assert row["paper_bytes"] == pytest.approx(4 * b * (2 if whole else 1 + 2 / 5))
        assert row["paper_compute"] == pytest.approx(1 + 4 * 5 / 10 if whole else 1 + 2 * 3 / 10)  # Eq. (3)
    mean = (1 + 1 / 4 + (1 - 1 / 4) * 2 / 5) * b  # Eq. (4), corrected (FB-02)
    assert sum(row["paper_bytes"] for row in rows[:4]) / 16 == pytest.approx(mean)


def test_resnet18_blocks_weigh_what_the_errata_say():  # FB-04
    from fedrepro.models import build as model

    net = model("resnet18", classes=10, channels=3, size=32)
    sizes = [
        sum(net.get_parameter(n).numel() for n in names if "running" not in n) for names in net.block_params.values()
    ]
    assert sizes == [9_536, 147_968, 525_568, 2_099_712, 8_393_728, 5_130]


@pytest.mark.parametrize("method", ["fedbr", "fedbr_ran"])
def test_interrupted_is_uninterrupted_on_any_number_of_workers(small, tmp_path, method):
    run = small(method=method, rounds=6, clients=4, delay=0.3, max_delay=2, **CLOCK)
    whole, two = train(run, workers=1), train(run, workers=2)
    for stop in (2, 4):
        going = session.rounds(run, store=tmp_path, workers=1)
        for _ in range(stop):
            next(going)
        going.close()
    resumed = train(run, store=tmp_path, workers=2)
    assert resumed.digest == whole.digest == two.digest
    strip = lambda rows: [{k: v for k, v in row.items() if k not in CLOCKS} for row in rows]  # noqa: E731
    assert strip(resumed.rows) == strip(whole.rows) == strip(two.rows)


def test_bandit_state_survives_a_checkpoint_and_workers(small, tmp_path):
    from fedrepro.simulation.executor import Processes
    from fedrepro.simulation.store import load_tensors, save_tensors

    fed = federation(small(method="fedbr", clients=3, **CLOCK))
    worker = Worker(fed.run)
    executor = Processes(worker, 2)
    try:
        other = Federation(fed.run, executor, worker, Clients(None))
        for _ in range(4):
            fed.advance()
            other.advance()
    finally:
        executor.close()
    save_tensors(tmp_path / "x.pt", fed.server)
    read = load_tensors(tmp_path / "x.pt")
    assert any(fed.server["fedbr/p"].values())
    for key in ("p", "n", "zeta", "sent", "blocks"):
        assert read[f"fedbr/{key}"] == fed.server[f"fedbr/{key}"] == other.server[f"fedbr/{key}"]


@pytest.mark.parametrize("paths", ["0", "5", "1,5", "1,1", "", "1,,2", "one", "1 2"])
def test_paths_that_do_not_exist_are_refused(small, paths):
    with pytest.raises(BadInput, match=r"hp\.paths"):
        small(method="fedmlb", hp={"paths": paths})  # lenet has five blocks


def test_other_refusals(small):
    small(method="fedmlb+feddyn", hp={"paths": "4"})
    small(method="fedmlb", hp={"paths": "5"}, model="lenet:proj=16")  # a sixth block
    small(method="fedbr", hp={"alpha": 4})
    with pytest.raises(BadInput, match=r"hp\.alpha \(fedbr\)"):
        small(method="fedbr", hp={"alpha": 5})
    with pytest.raises(BadInput, match=r"hp\.direction"):
        build("fedmlb", direction="up")
    with pytest.raises(BadInput, match=r"hp\.ema"):
        build("fedbr_ran", ema=0.5)
    with pytest.raises(BadInput, match="cannot be stacked"):
        build("fedbr+fedavgm")
    assert math.isfinite(train(small(method="fedbr+fedprox", hp={"mu": 0.1}), workers=1).rows[-1]["loss"])


@pytest.mark.parametrize(("reading", "clients", "size", "decided", "explores", "gib"), [
    ("sampled clients", 100, 500, 9.5, 0.79, 146.8),
    ("all clients", 10, 5000, 100, 0.110, 145.8),
])  # fmt: skip
def test_the_two_readings_by_arithmetic(reading, clients, size, decided, explores, gib):  # FB-01, FB-02, FB-06
    """How the data fall, how often a client is decided for in 200 rounds, and Table V's 145.1 GB with random blocks."""
    (cell,) = [c for c in find("fedbr/fig4_gmbs_vs_random").cells("paper")
               if c.labels == {"reading": reading, "dataset": "CIFAR10", "method": "FedBR-Ran"}]  # fmt: skip
    run = cell.run(0)
    parts = partition(run.split, torch.arange(50_000) % 10, run.clients, seed=0, samples=run.samples)
    assert len(parts) == clients and {len(rows) for rows in parts} == {size}
    assert len(torch.cat(list(parts)).unique()) == 50_000
    assert {int((rows % 10).bincount().max()) for rows in parts} == {7 * size // 10}

    method, fleet = build(run.method, **run.hp), Fleet(run)
    server, decisions, sent = {"fedbr/blocks": [["w"]] * 6, "fedbr/sent": {}}, 0, 0.0
    for t in range(1, run.rounds + 1):
        r = Round(t, run, fleet.participants(t))
        server = method.plan(server, r)
        alphas = [server["fedbr/sent"][cid] for cid in r.participants]
        decisions += sum(alpha < 6 for alpha in alphas)
        sent += sum(paper_traffic(alpha, 6) for alpha in alphas) * 42.65 / 1024
    # Every second round decides, except at a first visit, which falls on such a round with odds 0.09 / 0.19 for those
    # drawn: 10 - 0.47 = 9.5. First visits bring whole models: 47 times half a model more, 1 GiB.
    assert decisions / clients == pytest.approx(decided, abs=0.1)
    assert math.sqrt(math.log(201)) / (decisions / clients / 5 + 1) == pytest.approx(explores, abs=0.01)
    assert sent == pytest.approx(gib, abs=1.0)


def test_only_fedbr_trains_differently_with_another_clock(small):
    """Why Fig. 8's "all need more time" is by construction for the baselines, and not for FedBR (Eq. 21)."""
    same = {"bandwidth": (160, 160), "compute": (5.0, 5.0)}
    for method, hp in (("fedavg", {}), ("fedprox", {}), ("moon", {}), ("fedmlb", {}), ("fedbr", {"tau": 99})):
        common = {"method": method, "hp": hp, "clients": 3, "per_round": 3, "rounds": 8}
        plain, other = (train(small(**common, **clock), workers=1) for clock in (same, CLOCK))
        equal = [a["accuracy"] == b["accuracy"] and a["loss"] == b["loss"]
                 for a, b in zip(plain.rows, other.rows, strict=True)]  # fmt: skip
        assert all(equal) == (method != "fedbr")
        assert other.rows[-1]["sim_time"] > plain.rows[-1]["sim_time"]
