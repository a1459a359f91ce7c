"""FedAvg+KD, FedAvg+FitNet, FedNTD and FedGKD against plain loops, hand derivations, and I-54, I-55, I-65.

In FedGKD's first round there is no past model to learn from: the invariants hold from the second on."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from test_methods import Reference, close

from fedrepro import build, train
from fedrepro.errors import BadInput
from fedrepro.methods import Round
from fedrepro.simulation import session
from fedrepro.simulation.client import Local, Worker
from fedrepro.simulation.executor import Serial
from fedrepro.simulation.federation import Federation
from fedrepro.simulation.rng import stream
from fedrepro.simulation.states import Clients
from fedrepro.simulation.store import load_tensors, save_tensors
from fedrepro.simulation.tree import Tree

METHODS = ("fedkd", "fitnet", "fedntd", "fedgkd")
WEIGHT = {"fedkd": "lam", "fitnet": "lam", "fedntd": "beta", "fedgkd": "gamma"}
BATCHNORM = {"model": "small:norm=batch", "data": "synthetic:classes=4,channels=3,size=16,train=400,test=100",
             "samples": 40, "split": "iid", "batch": 20}  # fmt: skip


@pytest.fixture
def run(small):
    return lambda **changes: small(**{"split": "dirichlet_unequal:1", "samples": None, "share": 0.3, "rounds": 2,
                                      "epochs": 2, "lr": 0.2, **changes})  # fmt: skip


def federation(run):
    worker = Worker(run)
    return Federation(run, Serial(worker), worker, Clients(None))


class Distilled(Reference):
    """`term(out, taps, z, hints, y)` joins the local loss; z and hints are those of the model `teacher`."""

    def local(self, t, cid, term=None):
        model, teacher = self.worker.model.train(), copy.deepcopy(self.worker.model).train()
        for net, weights in ((model, self.w), (teacher, self.teacher)):
            net.load_state_dict(weights, strict=False)
        rows = self.worker.parts[cid]
        x, y = self.worker.data.batch(self.worker.data.train_x[rows]), self.worker.data.train_y[rows]
        optimiser = torch.optim.SGD(model.parameters(), lr=self.run.lr)
        for epoch in range(self.run.epochs):
            order = torch.randperm(len(rows), generator=stream(self.run.seed, "batches", t, cid, epoch))
            for batch in order.split(self.run.batch):
                taps, hints = [], []
                out, z = model(x[batch], taps=taps), teacher(x[batch], taps=hints).detach()
                loss = F.cross_entropy(out, y[batch]) + term(out, taps, z, [h.detach() for h in hints], y[batch])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        return {n: p.detach().clone() for n, p in model.named_parameters()}, len(rows), None


def kl(p, q):
    """KL(p || q) of each row's distribution, the mean over rows."""
    return sum((a * (a.log() - b.log())).sum() for a, b in zip(p, q, strict=True)) / len(p)


def kd(out, taps, z, hints, y):
    return 0.7 * 2**2 * kl((z / 2).softmax(1), (out / 2).softmax(1))


def fit(out, taps, z, hints, y):
    assert len(taps) == len(hints) == 5  # LeNet: two convolutional blocks, three fully connected ones
    return 3 * sum(((a - h) ** 2).sum() / a.numel() for a, h in zip(taps[:4], hints[:4], strict=True))


def ntd(out, taps, z, hints, y):
    rest = [[c for c in range(out.shape[1]) if c != label] for label in y.tolist()]
    p, q = ([(v[i, others] / 2).softmax(0) for i, others in enumerate(rest)] for v in (z, out))
    return 1.5 * 2**2 * kl(p, q)


def nothing(out, taps, z, hints, y):
    return 0.0


def gkd(out, taps, z, hints, y):
    return 3 / 2 * kl(z.softmax(1), out.softmax(1))


@pytest.mark.parametrize(
    ("method", "hp", "term", "rounds", "buffer"),
    [
        ("fedkd", {"lam": 0.7, "temperature": 2}, kd, 2, 1),
        ("fitnet", {"lam": 3}, fit, 2, 1),
        ("fedntd", {"beta": 1.5, "temperature": 2}, ntd, 2, 1),
        ("fedgkd", {"gamma": 3, "buffer": 2}, gkd, 4, 2),  # in round 4 the first mean is out
    ],
)
def test_by_hand(run, method, hp, term, rounds, buffer):
    r = run(method=method, hp=hp, rounds=rounds)
    ref, models = Distilled(r), []
    for t in range(1, rounds + 1):
        if first := method == "fedgkd" and t == 1:  # the initial model teaches nobody
            ref.teacher = ref.w
        else:
            models = [*models, ref.w][-buffer:]
            ref.teacher = {k: sum(m[k] for m in models) / len(models) for k in ref.w}
        ref.w = ref.average(ref.round(t, lambda cid, first=first: nothing if first else term))
    got, plain = train(r, workers=1).weights, train(run(rounds=rounds), workers=1).weights
    close(got, ref.w, 1e-5)
    assert max(float((got[k] - plain[k]).abs().max()) for k in got) > 1e-3


def student(z):
    """What a method's loss reads of a visit, with a teacher whose logits are z."""
    return SimpleNamespace(
        teacher=lambda *_: lambda x: z, start=None, start_buffers=None, scratch={"fedgkd/teacher": None}, t=2
    )


def test_not_true_softmax_worked_out():
    """Three classes, the true one in the middle: two logits remain, and the softmax is a logistic function."""
    out, z = torch.tensor([[1.0, 9.0, 4.0]], requires_grad=True), torch.tensor([[0.0, -7.0, 2 * math.log(3)]])
    loss = build("fedntd", beta=0.5, temperature=2).loss(student(z), None, torch.tensor([1]), out)
    p, q = 1 / (1 + 3), 1 / (1 + math.exp(3 / 2))  # of class 0: logits 0, ln 3 and 1/2, 4/2
    e = [math.exp(v) for v in (1, 9, 4)]
    divergence = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    assert loss.item() == pytest.approx(-math.log(e[1] / sum(e)) + 0.5 * 4 * divergence, rel=1e-5)
    # the true logit feels the cross-entropy only; the term's gradient is beta T (q - p)
    loss.backward()
    ce = [e[0] / sum(e), e[1] / sum(e) - 1, e[2] / sum(e)]
    assert out.grad[0].tolist() == pytest.approx([ce[0] + (q - p), ce[1], ce[2] + (p - q)], rel=1e-4)


def test_every_class_can_be_the_true_one():
    from fedrepro.methods.fedntd import not_true

    z = torch.arange(12.0).reshape(3, 4)
    assert not_true(z, torch.tensor([0, 2, 3])).tolist() == [[1, 2, 3], [4, 5, 7], [8, 9, 10]]


def test_kd_and_gkd_worked_out():
    """Two classes: teacher (1/4, 3/4), student (1/2, 1/2); KL(teacher || student), which is not the reverse."""
    out, z, y = torch.zeros(1, 2), torch.tensor([[0.0, math.log(3)]]), torch.tensor([0])
    kl = math.log(2) + 0.25 * math.log(0.25) + 0.75 * math.log(0.75)
    assert float(build("fedkd", lam=2).loss(student(z), None, y, out)) == pytest.approx(math.log(2) + 2 * kl)
    hot = build("fedkd", lam=2, temperature=3).loss(student(3 * z), None, y, out)
    assert float(hot) == pytest.approx(math.log(2) + 2 * 9 * kl)
    assert float(build("fedgkd", gamma=2).loss(student(z), None, y, out)) == pytest.approx(math.log(2) + kl)


def test_not_true_of_two_classes_is_nothing(small):  # I-55
    two = {"data": "synthetic:classes=2,channels=1,size=16,train=400,test=100", "split": "iid", "samples": 40}
    plain = train(small(**two), workers=1)
    ntd = train(small(method="fedntd", hp={"beta": 7, "temperature": 2}, **two), workers=1)
    assert ntd.digest == plain.digest
    assert [row["train_loss"] for row in ntd.rows] == [row["train_loss"] for row in plain.rows]


def test_fitnet_hints_are_the_blocks_before_the_head(small):
    worker = Worker(small(model="small", method="fitnet", **{k: v for k, v in BATCHNORM.items() if k != "model"}))
    k = Local(worker, 1, 0, 0, False, 20)
    k.load(worker.params.clone(), worker.buffers.clone())
    frozen = copy.deepcopy(worker.model)
    generator = torch.Generator().manual_seed(1)
    for p in worker.params.tensors:
        p.add_(torch.randn(p.shape, generator=generator), alpha=0.05)
    x, y = torch.randn(6, 3, 16, 16, generator=generator), torch.arange(6) % 4
    a, hint, apart = x, x, []
    for ours, theirs in list(zip(worker.model.blocks.values(), frozen.blocks.values(), strict=True))[:-1]:
        a, hint = ours(a), theirs(hint)
        apart.append(((a - hint) ** 2).mean().item())
    assert len(apart) == 5
    assert min(apart) > 1e-4

    def loss(lam):
        k.taps = []
        return build("fitnet", lam=lam).loss(k, x, y, worker.model(x, taps=k.taps))

    assert (loss(2.0) - loss(0.0)).item() == pytest.approx(2 * sum(apart), rel=1e-4)
    leaves = list(worker.leaves.values())
    grads = [dict(zip(k.params, torch.autograd.grad(loss(lam), leaves), strict=True)) for lam in (0.0, 2.0)]
    for name in k.params:
        assert torch.equal(grads[0][name], grads[1][name]) == (name in worker.model.head)


@pytest.mark.parametrize("buffer", [1, 2, 3])
def test_gkd_teacher_is_the_mean_of_the_last_models(small, tmp_path, buffer):
    fed = federation(small(method="fedgkd", hp={"gamma": 1, "buffer": buffer}))
    seen = []
    for t in range(1, 6):
        r = Round(t, fed.run, [0])
        message = fed.method.broadcast(fed.method.plan(fed.server, r), 0, r)
        if t > 1:  # the initial model is never among them
            seen = [*seen, fed.server["w"].clone()][-buffer:]
        if buffer == 1 or t == 1:
            assert set(message) == {"w", "b"}
        else:
            close(message["fedgkd/teacher"], {k: sum(w[k] for w in seen) / len(seen) for k in seen[0]}, 1e-7)
        fed.advance()
        held = {key: value for key, value in fed.server.items() if isinstance(value, Tree) and key != "b"}
        assert len(held) == min(t, buffer)  # the current one among them
    save_tensors(tmp_path / "server.pt", fed.server)
    again = load_tensors(tmp_path / "server.pt")
    for key, tree in held.items():
        assert type(again[key]) is Tree
        assert all(torch.equal(again[key][name], value) for name, value in tree.items())


def test_gkd_counts_a_round_in_which_nothing_arrived(small):
    fed = federation(small(method="fedgkd", hp={"buffer": 3}))
    assert "fedgkd/w-1" not in fed.method.aggregate(fed.server, [], Round(1, fed.run, []))
    new = fed.method.aggregate(fed.server, [], Round(2, fed.run, []))
    assert new["w"] is new["fedgkd/w-1"] is fed.server["w"]


def test_gkd_starts_as_fedavg(small):
    """The first round is FedAvg's bit for bit, whatever the weight and the buffer."""
    plain = train(small(rounds=1), workers=1).digest
    for buffer in (1, 5):
        assert train(small(method="fedgkd", hp={"gamma": 50, "buffer": buffer}, rounds=1), workers=1).digest == plain


@pytest.mark.parametrize("extra", [{}, BATCHNORM])
def test_weight_zero_is_fedavg_bit_for_bit(small, extra):  # I-54
    plain = train(small(**extra), workers=1).digest
    for method in METHODS:
        assert train(small(method=method, hp={WEIGHT[method]: 0}, **extra), workers=1).digest == plain, method


@pytest.mark.parametrize("extra", [{}, BATCHNORM])
def test_first_local_step_is_fedavgs(small, extra):  # I-54: the student is the teacher
    one = {"rounds": 1, "epochs": None, "steps": 1, **extra}
    plain = train(small(**one), workers=1)
    for method in METHODS:
        got = train(small(method=method, hp={WEIGHT[method]: 5}, **one), workers=1)
        close(got.weights, plain.weights)
        close(got.buffers, plain.buffers)
        assert got.rows[0]["train_loss"] == pytest.approx(plain.rows[0]["train_loss"], abs=1e-6)


def test_gkd_with_one_model_is_kd(small):  # I-55
    gkd = federation(small(method="fedgkd", hp={"gamma": 1.4, "buffer": 1}))
    kd, plain = federation(small(method="fedkd", hp={"lam": 0.7})), federation(small())
    gkd.advance()
    for other in (kd, plain):
        other.t, other.server = gkd.t, gkd.server
    for _ in range(2):
        rows = [fed.advance() for fed in (gkd, kd, plain)]
        assert rows[0]["loss"] == rows[1]["loss"] != rows[2]["loss"]
        assert all(torch.equal(gkd.server["w"][k], w) for k, w in kd.server["w"].items())
    two = train(small(method="fedgkd", hp={"gamma": 1.4, "buffer": 2}), workers=1)
    assert two.rows[1]["loss"] == gkd.rows[1]["loss"]  # one model is in the buffer
    assert two.rows[2]["loss"] != gkd.rows[2]["loss"]


@pytest.mark.parametrize("extra", [{}, BATCHNORM])
def test_bytes(small, extra):  # I-64, I-65
    def sent(method, **hp):
        rows = train(small(method=method, hp=hp, rounds=2, **extra), workers=1).rows
        names = ("bytes_down", "bytes_up", "buffer_bytes_down", "buffer_bytes_up")
        return [[row[name] for name in names] for row in rows]

    plain = sent("fedavg")
    for method, hp in (("fedkd", {}), ("fitnet", {}), ("fedntd", {}), ("fedgkd", {"buffer": 1})):
        assert sent(method, **hp) == plain
    first, *later = sent("fedgkd")
    assert first == plain[0]
    assert later == [[2 * down, up, *buffers] for down, up, *buffers in plain[1:]]
    assert sum(sum(row[:2]) for row in later) == 1.5 * sum(sum(row[:2]) for row in plain[1:])


def test_gkd_interrupted_is_uninterrupted(small, tmp_path):
    run = small(method="fedgkd", hp={"gamma": 2, "buffer": 3}, rounds=6, delay=0.3, max_delay=2)
    whole, two = train(run, workers=1), train(run, workers=2)
    for stop in (1, 4):
        going = session.rounds(run, store=tmp_path, workers=1)
        for _ in range(stop):
            next(going)
        going.close()
    assert train(run, store=tmp_path, workers=1).digest == whole.digest == two.digest


def test_stacks(small):
    two = {"gamma": 1, "buffer": 2}
    a, b = (train(small(method=m, hp={"beta": 0.5, **two}), workers=1) for m in ("fedgkd+fedavgm", "fedavgm+fedgkd"))
    assert a.digest == b.digest  # the past models are those after the server's momentum, in either order
    alone = train(small(method="fedntd", hp={"beta": 2}), workers=1)
    assert train(small(method="fedgkd+fedntd", hp={"gamma": 0, "beta": 2}), workers=1).digest == alone.digest
    out, z, y = torch.zeros(2, 3), torch.tensor([[0.0, 1, 2], [3, 1, 0]]), torch.tensor([0, 2])
    k = student(z)
    parts = [float(build(m).loss(k, None, y, out)) - math.log(3) for m in ("fedkd", "fedgkd")]
    assert float(build("fedkd+fedgkd").loss(k, None, y, out)) == pytest.approx(math.log(3) + sum(parts))
    train(small(method="fedbr+fedgkd", hp={"buffer": 2}, rounds=2), workers=1)
    for pair in ("fedkd+fitnet", "fedkd+fedntd"):
        with pytest.raises(BadInput, match=r"cannot be stacked: both have a hyperparameter '(lam|temperature)'"):
            build(pair)


def test_refusals():
    for method, hp in (("fedkd", {"temperature": 0}), ("fedntd", {"beta": -1}), ("fedgkd", {"buffer": 0}),
                       ("fedgkd", {"buffer": 1.5}), ("fitnet", {"lam": math.nan})):  # fmt: skip
        with pytest.raises(BadInput, match=rf"hp\.{next(iter(hp))} \({method}\)"):
            build(method, **hp)
