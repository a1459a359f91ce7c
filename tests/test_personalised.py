"""KAPC's baselines: FedAMP, pFedLA, FedBN and FedBABU by hand and by their identities I-56 to I-58."""

from dataclasses import replace

import pytest
import torch
from test_dfl import federation
from test_methods import Reference, close

from fedrepro import build, train
from fedrepro.methods import Round
from fedrepro.methods.fedbn import normal
from fedrepro.methods.pfedla import owned
from fedrepro.simulation.fleet import Fleet
from fedrepro.simulation.tree import Tree, mean

BATCHNORM = {"model": "small:norm=batch", "data": "synthetic:classes=4,channels=3,size=16,train=400,test=100",
             "samples": 40, "split": "iid", "batch": 20}  # fmt: skip
ALL = {"clients": 4, "per_round": 4}


def flat(w):
    return torch.cat([p.flatten() for p in w.values()]).double()


def same(a, b):
    assert set(a) == set(b)
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("hp", [{"sigma": 3.0, "own": 0.3, "lam": 2.0, "alpha": 5.0},
                                {"sigma": 3.0, "alpha": 5.0},
                                {"similarity": "distance", "sigma": 20.0, "alpha": 5.0}])  # fmt: skip
def test_fedamp_by_hand(small, hp, monkeypatch):
    """Three rounds; alpha_k is 5, 5 and then 0.5, with the authors' 30 rounds shortened to 2."""
    monkeypatch.setattr("fedrepro.methods.fedamp.EVERY", 2)
    run = small(method="fedamp", hp=hp, rounds=3, **ALL)
    fed, ref = federation(run), Reference(run)
    w, share = [ref.w] * 4, hp.get("own", 1 / 4)
    for t, alpha in ((1, 5.0), (2, 5.0), (3, 0.5)):
        fed.advance()
        pull = hp.get("lam", 1.0) / (2 * alpha)
        xi = torch.zeros(4, 4, dtype=torch.float64)
        for i in range(4):
            others = [j for j in range(4) if j != i]
            for j in others:
                a, b = flat(w[i]), flat(w[j])
                if "similarity" in hp:
                    xi[i, j] = alpha / 20 * (-((a - b) ** 2).sum() / 20).exp()
                else:
                    xi[i, j] = (3.0 * (a @ b) / (a.norm() * b.norm())).exp()
            if "similarity" not in hp:
                xi[i] *= (1 - share) / xi[i].sum()
            xi[i, i] = 1 - xi[i].sum()
        new = []
        for i in range(4):
            u = {n: sum(float(xi[i, j]) * w[j][n] for j in range(4)) for n in w[0]}
            ref.w = u
            near = lambda theta, taps, x, u=u, c=pull: c * sum(((theta[n] - u[n]) ** 2).sum() for n in u)  # noqa: E731
            new.append(ref.local(t, i, near)[0])
        w = new
        for i in range(4):
            close(fed.clients.get(i)["own/w"], w[i], tolerance=1e-5)


def test_fedamps_weights_at_the_ends_of_sigma():
    """Distance: sigma -> infinity is every client alone. Cosine: all on the most similar; sigma -> 0: on all alike."""
    w = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]], dtype=torch.float64)
    products = w @ w.T
    alone = build("fedamp", similarity="distance", sigma=1e12, alpha=1.0).weights(products, 1)
    torch.testing.assert_close(alone, torch.eye(3, dtype=torch.float64), rtol=0, atol=1e-11)
    nearest = build("fedamp", sigma=1e6, own=0.25).weights(products, 1)
    expected = torch.tensor([[0.25, 0.75, 0], [0.75, 0.25, 0], [0, 0.75, 0.25]], dtype=torch.float64)
    torch.testing.assert_close(nearest, expected)
    uniform = build("fedamp", sigma=1e-9, own=0.2).weights(products, 1)
    torch.testing.assert_close(uniform, torch.full((3, 3), 0.4).double() - 0.2 * torch.eye(3).double())
    follows = build("fedamp", sigma=1e-9).weights(products, 1)  # xi_ii = 1/3 of three
    torch.testing.assert_close(follows, torch.full((3, 3), 1 / 3, dtype=torch.float64))
    for weights in (alone, nearest, uniform, follows):
        torch.testing.assert_close(weights.sum(1), torch.ones(3, dtype=torch.float64))
    assert build("fedamp").weights(products[:1, :1], 1).tolist() == [[1.0]]


def test_fedamps_alpha_falls_every_30_rounds():
    method = build("fedamp")
    alphas = [method.alpha_at(t) for t in (1, 30, 31, 60, 61, 200)]
    assert alphas == pytest.approx([1e4, 1e4, 1e3, 1e3, 1e2, 1e-2])


@pytest.mark.parametrize("extra", [{}, BATCHNORM])
def test_fedamp_of_itself_alone_is_local_training(small, extra):  # I-58
    local = train(small(method="localtraining", **extra), workers=1)
    fedamp = train(small(method="fedamp", hp={"own": 1.0, "lam": 0.0}, **extra), workers=1)
    assert local.digest == fedamp.digest


def test_pfedla_by_hand(small):
    run = small(method="pfedla", hp={"rate": 0.3, "embedding": 5, "hidden": 7}, rounds=3, **ALL)
    fed, ref = federation(run), Reference(run)
    layers, w = list(ref.worker.model.layers().values()), [ref.w] * 4
    hyper = fed.method._hypernetworks(run, 5)
    for t in (1, 2, 3):
        fed.advance()
        order = Fleet(run).participants(t)
        new, new_hyper = list(w), hyper.clone()
        for i in order:
            leaves = {n: p[i].clone().requires_grad_() for n, p in hyper.items()}
            x = torch.relu(leaves["a1"] @ leaves["v"] + leaves["c1"])
            x = torch.relu(leaves["a2"] @ x + leaves["c2"])
            logits = leaves["a3"] @ x + leaves["c3"]
            alpha = torch.stack([(row[order] - row[order].logsumexp(0)).exp() for row in logits])
            mixed = {n: sum(alpha[layer, p] * w[j][n] for p, j in enumerate(order))
                     for layer, names in enumerate(layers) for n in names}  # fmt: skip
            ref.w = {n: p.detach() for n, p in mixed.items()}
            new[i] = ref.local(t, i)[0]
            loss = sum((mixed[n] * (mixed[n].detach() - new[i][n])).sum() for n in mixed)
            for (n, _), slope in zip(leaves.items(), torch.autograd.grad(loss, leaves.values()), strict=True):
                new_hyper[n][i] -= 0.3 * slope
        w, hyper = new, new_hyper
        close(fed.server["pfedla/hyper"], hyper, tolerance=1e-4)
        for i in range(4):
            close(fed.clients.get(i)["own/w"], w[i], tolerance=1e-4)
    assert not torch.equal(fed.method._hypernetworks(run, 5)["v"], hyper["v"])


def test_pfedla_on_itself_alone_is_local_training(small, monkeypatch):  # I-58
    cls = type(build("pfedla"))
    calls = iter(range(10**6))

    def only_self(self, hyper, participants):
        """The plan asks for the participants in their order, and then _learn for the uploads'."""
        row = torch.zeros(5, len(participants))
        row[:, next(calls) % len(participants)] = 1
        return row + 0 * sum(t.sum() for t in hyper.values())

    monkeypatch.setattr(cls, "weights", only_self)
    assert (train(small(method="pfedla"), workers=1).digest
            == train(small(method="localtraining"), workers=1).digest)  # fmt: skip


def test_pfedla_with_shares_of_the_data_is_fedavgs_model(small, monkeypatch):  # I-58
    setting = {"split": "dirichlet_unequal:1", "samples": None, "share": 0.3, "rounds": 1, **ALL}
    fed = federation(small(method="pfedla", **setting))
    fed.advance()
    sizes = fed.worker.parts.sizes.float()
    shares = lambda self, hyper, participants: (sizes / sizes.sum())[participants].expand(5, -1)  # noqa: E731
    monkeypatch.setattr(type(fed.method), "weights", shares)
    r = Round(2, fed.run, [0, 1, 2, 3], fed.per_client)
    server = fed.method.plan(fed.server, r)
    fedavg = train(small(**setting), workers=1)
    for cid in range(4):
        close(fed.method.broadcast(server, cid, r)["w"], fedavg.weights)


def test_every_tensor_belongs_to_one_layer(small):
    fed = federation(small(method="pfedla", **BATCHNORM))
    groups = owned(fed.worker.model)
    assert len(groups) == len(fed.worker.model.layers()) == 6
    assert sorted(n for names in groups for n in names) == sorted([*fed.server["w"], *fed.server["b"]])
    assert [n.rpartition(".")[2] for n in groups[0]] == ["weight", "weight", "bias", "running_mean", "running_var"]


@pytest.mark.parametrize("personal", [None, "selected", "trained"])
@pytest.mark.parametrize("extra", [{}, {**BATCHNORM, "model": "small:norm=group"}])
def test_fedbn_without_batchnorm_is_fedavg(small, extra, personal):  # I-56
    first, second = (train(small(method=m, personal=personal, **extra), workers=1) for m in ("fedbn", "fedavg"))
    assert first.digest == second.digest
    assert [r.get("personal_accuracy") for r in first.rows] == [r.get("personal_accuracy") for r in second.rows]


def test_fedbn_by_hand(small):
    """Two rounds: what is not BatchNorm is averaged; BatchNorm's weights and statistics go on from the client's."""
    run = small(method="fedbn", rounds=2, personal="all", **BATCHNORM, **ALL)
    fed, plain = federation(run), federation(small(**BATCHNORM, **ALL))
    private = normal(fed.worker.model)
    assert private
    w, own = fed.server["w"].clone(), {cid: (fed.server["w"], fed.server["b"].clone()) for cid in range(4)}
    for t in (1, 2):
        row = fed.advance()
        visits = {}
        for cid in Fleet(run).participants(t):
            start = Tree({**w, **own[cid][0].pick(private)})
            sent, *_ = plain.worker.client(t, cid, {"w": start, "b": own[cid][1]}, None, 0, False)
            visits[cid] = own[cid] = (sent["w"], sent["b"])
        w = Tree({**w, **mean([v[0] for v in visits.values()]).pick(n for n in w if n not in private)})
        same(fed.server["w"].pick(n for n in w if n not in private), w.pick(n for n in w if n not in private))
        scores = []
        for cid in range(4):
            got = fed.method.personal(fed.server, fed.clients.get(cid), cid)
            same(got[0], Tree({**w, **own[cid][0].pick(private)}))
            same(got[1], own[cid][1])
            scores.append(fed.worker.test_client(*got, cid))
        assert row["accuracy"] == row["personal_accuracy"] == sum(right / n for right, _, n in scores) / 4
        assert row["buffer_bytes_up"] == row["buffer_bytes_down"] == 0


@pytest.mark.parametrize("extra", [{}, BATCHNORM])
def test_fedbabu_never_moves_the_head(small, extra):  # I-57
    fed = federation(small(method="fedbabu", personal="trained", **extra))
    head, first = fed.worker.model.head, fed.server["w"].clone()
    body = [n for n in first if n not in head]
    for _ in range(3):
        row = fed.advance()
        same(fed.server["w"].pick(head), first.pick(head))
        for cid in fed.clients.version:
            state = fed.clients.get(cid)
            same(state["fedbabu/fixed"], first.pick(head))
            assert not torch.equal(state["fedbabu/tuned"][head[0]], first[head[0]])
        assert row["bytes_up"] == row["bytes_down"] == 3 * first.pick(body).nbytes
    assert all(not torch.equal(fed.server["w"][n], first[n]) for n in body)


def test_fedbabu_by_hand(small):
    """The body by FedAvg under a fixed head; the head tuned for 5 epochs by plain SGD, for the test only."""
    run = small(method="fedbabu", rounds=2, personal="trained")
    fed, ref, tuner = federation(run), Reference(run), Reference(replace(run, epochs=5))
    head = ref.worker.model.head
    fixed = {n: ref.w[n].clone() for n in head}
    for t in (1, 2):
        row, scores, visits = fed.advance(), [], {}
        for cid in Fleet(run).participants(t):
            parameters = dict(ref.worker.model.named_parameters())
            for n, p in parameters.items():
                p.requires_grad_(n not in head)
            visits[cid] = ref.local(t, cid)
            for n, p in tuner.worker.model.named_parameters():
                p.requires_grad_(n in head)
            tuner.w = visits[cid][0]
            tuned = tuner.local(t, cid)[0]
            close(fed.clients.get(cid)["fedbabu/tuned"], {n: tuned[n] for n in head}, tolerance=1e-5)
            scores.append(ref.worker.test_client(Tree(tuned), Tree(), cid))
        ref.w = ref.average(visits)
        close(fed.server["w"], ref.w)
        close(Tree(ref.w).pick(head), fixed)
        assert row["personal_accuracy"] == pytest.approx(sum(right / n for right, _, n in scores) / 3, abs=0.02)
    assert row["accuracy"] != row["personal_accuracy"]


def test_evaluation_does_not_change_fedbabu(small):  # I-73
    same(train(small(method="fedbabu"), workers=1).weights,
         train(small(method="fedbabu", personal="trained"), workers=1).weights)  # fmt: skip


def test_models_as_trained(small):
    """personal = "trained" tests what the participants themselves ended with; FedAvg's mean has no part in it."""
    run = small(personal="trained", rounds=1)
    row, ref = train(run, workers=1).rows[0], Reference(run)
    scores = [ref.worker.test_client(Tree(w), Tree(), cid) for cid, (w, *_) in ref.round(1).items()]
    assert row["personal_accuracy"] == pytest.approx(sum(right / n for right, _, n in scores) / 3, abs=0.02)
    selected = train(small(personal="selected", rounds=1), workers=1).rows[0]
    assert selected["accuracy"] == row["accuracy"]
    assert selected["personal_accuracy"] != row["personal_accuracy"]


def test_fedbn_and_fedbabu_test_the_same_model_in_either_order(small):
    """Each adds to the other's what it keeps on the client: BatchNorm, and the head."""
    runs = [small(method=m, rounds=2, personal="trained", **BATCHNORM) for m in ("fedbn+fedbabu", "fedbabu+fedbn")]
    first, second = (train(run, workers=1) for run in runs)
    same(first.weights, second.weights)
    assert [row["personal_accuracy"] for row in first.rows] == [row["personal_accuracy"] for row in second.rows]
