"""Every method again, in plain PyTorch and from the printed formulas: the other half of test_references.py.

Nothing here comes from fedrepro.methods, simulation/client.py or federation.py. A reference shares with the library
only what a run fixes before any method starts: images, split, network, the addresses of the random draws, and who
takes part, is limited or late. Objectives are written as printed and left to autograd, models are copied whole,
weights are dictionaries of tensors (parameters and BatchNorm statistics alike), and sums are loops.

A reference is a generator: after each round it yields what the library must hold then, {"w": global model, "tested":
the model whose accuracy counts, "own": {client: personal model}, "client": {client: state}, any key of the server's
state}.
"""

import copy
import math
from itertools import islice
from types import SimpleNamespace

import torch
from torch import nn

from fedrepro import data, models
from fedrepro.data.partition import partition
from fedrepro.simulation.fleet import Fleet
from fedrepro.simulation.rng import derive, stream

LAYER = nn.Conv2d | nn.Linear


class World:
    """What a run fixes before any method starts, and plain SGD."""

    def __init__(self, run):
        self.run, self.hp, self.fleet = run, SimpleNamespace(**run.hp), Fleet(run)
        source = data.load(run.data)
        self.x = ((source.train_x / 255 - torch.tensor(source.mean)) / torch.tensor(source.std)).permute(0, 3, 1, 2)
        self.y, self.classes = source.train_y, source.classes
        split = partition(run.split, self.y, run.clients, seed=run.seed)
        self.rows = [split[cid] for cid in range(run.clients)]
        with torch.random.fork_rng():
            torch.manual_seed(derive(run.seed, "model"))
            self.net = models.build(run.model, classes=self.classes, channels=source.channels, size=source.size)
        self.start = weights(self.net)
        self.names = [name for name, _ in self.net.named_parameters()]
        layers = {name: module for name, module in self.net.named_modules() if isinstance(module, LAYER)}
        self.layers = [[f"{name}.{key}" for key, _ in module.named_parameters()] for name, module in layers.items()]
        self.head = self.layers[-1]
        self.blocks = list(self.net.blocks)

    def rounds(self):
        return range(1, self.run.rounds + 1)

    def participants(self, t):
        return self.fleet.participants(t)

    def model(self, w):
        """A copy of the network with these weights, in training mode."""
        model = copy.deepcopy(self.net).train()
        model.load_state_dict(w)
        return model

    def block(self, name):
        """The number of the block, from 1, to which a weight belongs."""
        return self.blocks.index(name.split(".")[1]) + 1

    def batches(self, t, cid, epochs=None):
        """One permutation per epoch; with BatchNorm a last batch of one image joins the batch before it."""
        rows, size = self.rows[cid], self.run.batch
        x, y = self.x[rows], self.y[rows]
        for epoch in range(epochs or self.run.epochs or 1000):
            order = torch.randperm(len(rows), generator=stream(self.run.seed, "batches", t, cid, epoch))
            cuts = list(range(0, len(rows), size))
            if len(cuts) > 1 and len(rows) - cuts[-1] == 1 and len(self.names) < len(self.start):
                cuts.pop()
            for low, high in zip(cuts, [*cuts[1:], len(rows)], strict=True):
                yield x[order[low:high]], y[order[low:high]]

    def descend(self, model, t, cid, objective, names=None, epochs=None, extra=None):
        """Local SGD of objective(model, x, y) over these parameters -> number of steps; `extra` joins the gradients."""
        run, theta = self.run, dict(model.named_parameters())
        rate, velocity, steps = run.lr * run.lr_decay ** (t - 1), {}, 0
        for x, y in islice(self.batches(t, cid, epochs), None if epochs else run.steps):
            model.zero_grad()
            objective(model, x, y).backward()
            g = {name: theta[name].grad + (extra[name] if extra else 0.0) for name in names or theta}
            length = math.sqrt(sum(float((slope**2).sum()) for slope in g.values()))
            scale = min(1.0, run.clip / (length + 1e-6)) if run.clip else 1.0
            for name, slope in g.items():
                slope = scale * slope + run.weight_decay * theta[name].detach()
                velocity[name] = run.momentum * velocity.get(name, 0.0) + slope
                theta[name].data -= rate * velocity[name]
            steps += 1
        return steps

    def shares(self, cids):
        """Aggregation weights of these clients: their data, or all alike."""
        sizes = [len(self.rows[cid]) if self.run.weights == "size" else 1 for cid in cids]
        return [n / sum(sizes) for n in sizes]

    def mean(self, states):
        """{client: weights} averaged as the run says."""
        return mix(self.shares(states), states.values())


def weights(model):
    """Parameters and BatchNorm statistics."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def mix(shares, states):
    pairs = list(zip(shares, states, strict=True))
    return {name: sum(share * state[name] for share, state in pairs) for name in pairs[0][1]}


def plain_mean(states):
    states = list(states)
    return mix([1 / len(states)] * len(states), states)


def apart(model, w, names=None):
    """||theta - w||^2 over parameters, for autograd."""
    theta = dict(model.named_parameters())
    return sum(((theta[name] - w[name]) ** 2).sum() for name in names or theta)


def cross_entropy(z, y):
    return -torch.log_softmax(z, 1)[range(len(y)), y].mean()


def kl(z_p, z_q):
    """KL(softmax(z_p) || softmax(z_q)), mean over the batch."""
    log_p, log_q = torch.log_softmax(z_p, 1), torch.log_softmax(z_q, 1)
    return (log_p.exp() * (log_p - log_q)).sum(1).mean()


def chain(model, x, first, last):
    """Blocks first..last, counted from 1 -> the output of each."""
    outputs = []
    for block in list(model.blocks.values())[first - 1 : last]:
        x = block(x)
        outputs.append(x)
    return outputs


def features(model, x):
    """What enters the last linear layer."""
    *before, last = model.blocks.values()
    for block in before:
        x = block(x)
    for module in list(last)[:-1]:
        x = module(x)
    return x.flatten(1)


# Local objectives: make(world, received weights, round, client) -> objective(model, x, y).


def plain(world, w, t, cid):
    return lambda model, x, y: cross_entropy(model(x), y)


def proximal(world, w, t, cid):
    """FedProx, Algorithm 2: F_k(theta) + mu/2 ||theta - w^t||^2."""
    return lambda model, x, y: cross_entropy(model(x), y) + world.hp.mu / 2 * apart(model, w)


def distilled(world, w, t, cid):
    """FedAvg+KD: CE + lam T^2 KL(softmax(z_G/T) || softmax(z_L/T))."""
    teacher, T = world.model(w), world.hp.temperature

    def objective(model, x, y):
        z = model(x)
        return cross_entropy(z, y) + world.hp.lam * T**2 * kl(teacher(x).detach() / T, z / T)

    return objective


def hinted(world, w, t, cid):
    """FedAvg+FitNet: CE + lam sum_m mean (a_L^m - a_G^m)^2, m = 1..M-1."""
    teacher, M = world.model(w), len(world.blocks)

    def objective(model, x, y):
        own, hints = chain(model, x, 1, M), chain(teacher, x, 1, M)
        apart = sum(((own[m] - hints[m].detach()) ** 2).mean() for m in range(M - 1))
        return cross_entropy(own[-1], y) + world.hp.lam * apart

    return objective


def not_true(world, w, t, cid):
    """FedNTD: CE + beta T^2 KL(q_G || q_L) over the classes other than the true one."""
    teacher, T = world.model(w), world.hp.temperature

    def others(z, y):
        return torch.stack([torch.cat([row[:c], row[c + 1 :]]) for row, c in zip(z, y, strict=True)])

    def objective(model, x, y):
        z = model(x)
        target = teacher(x).detach()
        return cross_entropy(z, y) + world.hp.beta * T**2 * kl(others(target, y) / T, others(z, y) / T)

    return objective


def branched(world, w, t, cid):
    """FedMLB, Algorithm 1, Eqs. (3)-(8); both arguments of the KL term have gradients (ML-09)."""
    hp, frozen, M = world.hp, world.model(w), len(world.blocks)
    paths = range(1, M) if hp.paths == "all" else [int(m) for m in hp.paths.split(",")]
    divisor = M - 1 if hp.divisor == "M-1" else len(paths)  # M-1 as printed, also if few paths are chosen (ML-10)

    def objective(model, x, y):
        local = chain(model, x, 1, M)
        z = local[-1]
        hybrids = []
        if hp.direction == "l2g":
            hybrids = [chain(frozen, local[m - 1], m + 1, M)[-1] for m in paths]  # (4)
        else:  # Table 4: global blocks first; the extra passes leave the local statistics as they are (FB-24)
            received = chain(frozen, x, 1, M)
            norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
            kept = [(norm.running_mean, norm.running_var) for norm in norms]
            for norm in norms:
                norm.running_mean, norm.running_var = norm.running_mean.clone(), norm.running_var.clone()
            hybrids = [chain(model, received[m - 1].detach(), m + 1, M)[-1] for m in paths]
            for norm, statistics in zip(norms, kept, strict=True):
                norm.running_mean, norm.running_var = statistics
        ce = sum(cross_entropy(h, y) for h in hybrids) / divisor  # (6)
        divergence = sum(kl(h / hp.temperature, z / hp.temperature) for h in hybrids) / divisor  # (7)
        return cross_entropy(z, y) + hp.lambda1 * ce + hp.lambda2 * divergence  # (5), (8)

    return objective


# Servers with one global model.


def train(world, w, t, cid, make=plain, **options):
    """One visit that starts from w -> the client's weights."""
    model = world.model(w)
    world.descend(model, t, cid, make(world, w, t, cid), **options)
    return weights(model)


def fedavg(world, make=plain):
    """McMahan et al., Algorithm 1."""
    w = world.start
    for t in world.rounds():
        w = world.mean({cid: train(world, w, t, cid, make) for cid in world.participants(t)})
        yield {"w": w}


def fedprox(world):
    """Li et al., Algorithm 2; with partial work a limited device runs 1..E epochs."""
    w = world.start
    for t in world.rounds():
        sent = {}
        for cid in world.participants(t):
            epochs = world.run.epochs
            if world.hp.partial and world.fleet.limited(cid):
                draw = stream(world.run.seed, "partial work", t, cid)
                epochs = int(torch.randint(1, world.run.epochs + 1, (), generator=draw))
            sent[cid] = train(world, w, t, cid, proximal, epochs=epochs)
        w = world.mean(sent)
        yield {"w": w}


def moon(world):
    """Li et al., Algorithm 1: l_con = -log e^(sim(z, z_glob)/T) / (e^(sim(z, z_glob)/T) + e^(sim(z, z_prev)/T))."""
    w, previous, T = world.start, {}, world.hp.temperature

    def sim(a, b):
        return (a * b).sum(1) / ((a**2).sum(1).sqrt() * (b**2).sum(1).sqrt())

    def contrastive(world, w, t, cid):
        received, last = world.model(w), world.model(previous.get(cid, w))

        def objective(model, x, y):
            z = features(model, x)
            near = torch.exp(sim(z, features(received, x).detach()) / T)
            far = torch.exp(sim(z, features(last, x).detach()) / T)
            out = model.blocks[world.blocks[-1]][-1](z)
            return cross_entropy(out, y) + world.hp.mu * -torch.log(near / (near + far)).mean()

        return objective

    for t in world.rounds():
        sent = {cid: train(world, w, t, cid, contrastive) for cid in world.participants(t)}
        previous |= sent
        w = world.mean(sent)
        yield {"w": w}


def scaffold(world):
    """Karimireddy et al., Algorithm 1, option II; BatchNorm statistics as in FedAvg."""
    w, N = world.start, world.run.clients
    c = {name: torch.zeros_like(w[name]) for name in world.names}
    c_i = {cid: dict(c) for cid in range(N)}
    for t in world.rounds():
        sent, changes, rate = {}, [], world.run.lr * world.run.lr_decay ** (t - 1)
        for cid in world.participants(t):
            model = world.model(w)
            drift = {name: c[name] - c_i[cid][name] for name in c}  # y <- y - eta_l (g - c_i + c)
            K = world.descend(model, t, cid, plain(world, w, t, cid), extra=drift)
            y = sent[cid] = weights(model)
            new = {name: c_i[cid][name] - c[name] + (w[name] - y[name]) / (K * rate) for name in c}  # option II
            changes.append({name: new[name] - c_i[cid][name] for name in c})
            c_i[cid] = new
        x, w = w, world.mean(sent)
        for name in c:
            w[name] = x[name] + world.hp.eta_g * sum(y[name] - x[name] for y in sent.values()) / len(sent)
            c[name] = c[name] + len(sent) / N * sum(change[name] for change in changes) / len(sent)
        yield {"w": w, "scaffold/c": dict(c), "client": {cid: {"scaffold/c": c_i[cid]} for cid in sent}}


def feddyn(world, make=plain):
    """Acar et al., Algorithm 1; BatchNorm statistics as in FedAvg."""
    w, alpha, N = world.start, world.hp.alpha, world.run.clients
    h = {name: torch.zeros_like(w[name]) for name in world.names}
    g = {cid: dict(h) for cid in range(N)}

    def dynamic(world, w, t, cid):
        inner = make(world, w, t, cid)

        def objective(model, x, y):
            linear = sum((g[cid][name] * theta).sum() for name, theta in model.named_parameters())
            return inner(model, x, y) - linear + alpha / 2 * apart(model, w)

        return objective

    for t in world.rounds():
        sent = {cid: train(world, w, t, cid, dynamic) for cid in world.participants(t)}
        new, reported = world.mean(sent), world.mean(sent)
        for name in world.names:
            for cid, theta in sent.items():
                g[cid][name] = g[cid][name] - alpha * (theta[name] - w[name])
            h[name] = h[name] - alpha / N * sum(theta[name] - w[name] for theta in sent.values())
            reported[name] = sum(theta[name] for theta in sent.values()) / len(sent)
            new[name] = reported[name] - h[name] / alpha
        w = new
        yield {"w": w, "feddyn/h": dict(h), "tested": reported if world.hp.report == "mean" else w}


def fedavgm(world, make=plain):
    """Hsu et al.: v <- beta v + Delta, w <- w - eta_g v."""
    w = world.start
    v = {name: torch.zeros_like(w[name]) for name in world.names}
    for t in world.rounds():
        new = world.mean({cid: train(world, w, t, cid, make) for cid in world.participants(t)})
        for name in world.names:
            v[name] = world.hp.beta * v[name] + (w[name] - new[name])
            new[name] = w[name] - world.hp.eta_g * v[name]
        w = new
        yield {"w": w}


def fedadam(world, make=plain):
    """Reddi et al., Algorithm 2, v_0 = tau^2."""
    w, hp = world.start, world.hp
    m = {name: torch.zeros_like(w[name]) for name in world.names}
    v = {name: torch.full_like(w[name], hp.tau**2) for name in world.names}
    for t in world.rounds():
        new = world.mean({cid: train(world, w, t, cid, make) for cid in world.participants(t)})
        for name in world.names:
            delta = new[name] - w[name]
            m[name] = hp.beta1 * m[name] + (1 - hp.beta1) * delta
            v[name] = hp.beta2 * v[name] + (1 - hp.beta2) * delta**2
            new[name] = w[name] + hp.eta_g * m[name] / (v[name].sqrt() + hp.tau)
        w = new
        yield {"w": w}


def fedgkd(world):
    """Yao et al.: CE + gamma/2 KL(teacher || model), the teacher the mean of the last M_b global models.

    As in the authors' code the initial model is none of them, so that the first round does not distil.
    """
    w, past = world.start, []

    def guided(world, w, t, cid):
        if not past:
            return plain(world, w, t, cid)
        teacher = world.model({**w, **plain_mean([{name: old[name] for name in world.names} for old in past])})

        def objective(model, x, y):
            z = model(x)
            return cross_entropy(z, y) + world.hp.gamma / 2 * kl(teacher(x).detach(), z)

        return objective

    for t in world.rounds():
        w = world.mean({cid: train(world, w, t, cid, guided) for cid in world.participants(t)})
        past = [*past, w][-world.hp.buffer :]
        yield {"w": w}


def fedbr(world, greedy=True):
    """Liu et al., Algorithm 1 (GMBS), or with a random number of blocks (FedBR-Ran)."""
    hp, run, M = world.hp, world.run, len(world.blocks)
    x, own, alpha_of = world.start, {}, {}
    p, n, zeta = {}, {}, {}
    nbytes = {m: sum(x[name].nbytes for name in world.names if world.block(name) > M - m) for m in range(1, M + 1)}

    def decide(cid, t):
        if (t - 1) % (hp.tau + 1) == 0 or cid not in own:  # the whole model (FB-02, FB-14)
            return M
        if hp.alpha:
            return hp.alpha
        if not greedy or cid not in n:
            return int(torch.randint(1, M, (), generator=stream(run.seed, "alpha", t, cid)))
        V = [p[cid][m] + math.sqrt(math.log(t + 1)) / (n[cid][m] + 1) for m in range(1, M)]  # (24)
        return V.index(max(V)) + 1

    for t in world.rounds():
        sent, now, clock = {}, {}, {}
        for cid in world.participants(t):
            alpha = alpha_of[cid] = decide(cid, t)
            if alpha < M:
                n.setdefault(cid, dict.fromkeys(range(1, M), 0))[alpha] += 1  # line 8
                p.setdefault(cid, dict.fromkeys(range(1, M), 0.0))
            # Model Combination: blocks M-alpha+1..M from the server, those before from the client's last model
            start = {name: x[name] if world.block(name) > M - alpha else own[cid][name] for name in x}
            frozen, main, m = world.model(start), [], min(alpha, M - 1)  # M-1 paths if all M blocks came (FB-15)

            def objective(model, images, y, m=m, frozen=frozen, main=main):
                local = chain(model, images, 1, M)
                z = local[-1]
                paths = [chain(frozen, local[M - j - 1], M - j + 1, M)[-1] for j in range(1, m + 1)]
                zeta_L = cross_entropy(z, y)  # (15)
                zeta_H = sum(cross_entropy(h, y) for h in paths) / m  # (16)
                zeta_KL = sum(kl(h / hp.delta, z / hp.delta) for h in paths) / m  # (17)
                main.append(zeta_L.detach())
                return zeta_L + hp.lambda1 * zeta_H + hp.lambda2 * zeta_KL  # (18)

            model = world.model(start)
            world.descend(model, t, cid, objective)
            sent[cid] = own[cid] = weights(model)
            now[cid] = float(sum(main)) / len(main)
            clock[cid] = world.fleet.seconds(t, cid, nbytes[M], nbytes[alpha])
        x = plain_mean(sent.values())  # (2)
        far = {cid: float(sum(((x[name] - w[name]) ** 2).sum() for name in world.names)) for cid, w in sent.items()}
        for cid in sent:
            d = far[cid] / sum(far.values())  # (19)
            t_c, t_b = (clock[cid][i] / sum(each[i] for each in clock.values()) for i in (0, 1))  # (20)
            alpha = alpha_of[cid]
            if greedy and alpha < M and cid in zeta:
                r = d * (zeta[cid] - now[cid]) / math.exp(t_c + t_b)  # (21)
                p[cid][alpha] = hp.ema * r + (1 - hp.ema) * p[cid][alpha]  # (23)
            zeta[cid] = now[cid]
        state = {"w": x, "fedbr/sent": dict(alpha_of)}
        if greedy:
            state["fedbr/n"], state["fedbr/p"] = known(n), known(p)
        yield state


def known(table):
    """Of {client: {alpha: value}} what is not zero."""
    rows = {cid: {m: value for m, value in row.items() if value} for cid, row in table.items()}
    return {cid: row for cid, row in rows.items() if row}


def soft_targets(world, w, cid, logits=False):
    """LabelWiseAverage: row c is the mean softmax output over the client's images of class c; 0 if it has none."""
    rows, table = world.rows[cid], torch.zeros(world.classes, world.classes)
    outputs = world.model(w).eval()(world.x[rows]).detach()
    outputs = outputs if logits else torch.softmax(outputs, 1)
    for c in range(world.classes):
        if (world.y[rows] == c).any():
            table[c] = outputs[world.y[rows] == c].mean(0)
    return table


def kl_to_table(table, y, z):
    """KL(table[y] || softmax(z)), mean over the batch; a row of nothing adds nothing."""
    log_q, total = torch.log_softmax(z, 1), 0.0
    for i, c in enumerate(y):
        if table[c].any():
            total = total + (table[c] * (table[c].log() - log_q[i])).sum()
    return total / len(y)


def dfl(world, logits=False):
    """Liu et al., Algorithms 1, 2; r is the round (DF-01), Y starts uniform (DF-03); DF-08 in two readings."""
    w, hp, R = world.start, world.hp, world.run.rounds
    Y = torch.full((world.classes, world.classes), 0.0 if logits else 1 / world.classes)
    for t in world.rounds():
        rho = {"fixed": hp.ratio, "dynamic": 1 - t / R, "threshold": max(1 - t / R, hp.threshold)}[hp.strategy]  # (10)

        target = torch.softmax(Y, 1) if logits else Y

        def balanced(world, w, t, cid, rho=rho, target=target):
            def objective(model, x, y):
                z = model(x)
                return rho * cross_entropy(z, y) + (1 - rho) * kl_to_table(target, y, z)  # (7)

            return objective

        sent = {cid: train(world, w, t, cid, balanced) for cid in world.participants(t)}
        tables = {cid: soft_targets(world, theta, cid, logits) for cid, theta in sent.items()}
        gradients = {cid: {name: theta[name] - w[name] for name in w} for cid, theta in sent.items()}  # (9)
        w = mix([1, 1], [w, world.mean(gradients)])  # (5)
        Y = Y.clone()
        for c in range(world.classes):  # (6), each row over the devices that have the class (DF-07)
            have = [cid for cid in sent if tables[cid][c].any()]
            if have:
                sizes = [len(world.rows[cid]) for cid in have]
                Y[c] = sum(n * tables[cid][c] for n, cid in zip(sizes, have, strict=True)) / sum(sizes)
        yield {"w": w, "dfl/y": Y}


def fd(world):
    """Jeong et al.: CE + gamma KL(mean of the other clients' tables || model); models never travel."""
    own, tables, cid_of = {}, {}, range(world.run.clients)
    for t in world.rounds():
        news = {}
        for cid in world.participants(t):
            target = torch.zeros(world.classes, world.classes)
            for c in range(world.classes):
                rows = [tables[j][c] for j in cid_of if j != cid and j in tables and tables[j][c].any()]
                if rows:
                    target[c] = sum(rows) / len(rows)

            def distilled(world, w, t, cid, target=target):
                def objective(model, x, y):
                    z = model(x)
                    return cross_entropy(z, y) + world.hp.gamma * kl_to_table(target, y, z)

                return objective

            own[cid] = train(world, own.get(cid, world.start), t, cid, distilled)
            news[cid] = soft_targets(world, own[cid], cid)
        tables |= news
        yield {"w": world.start, "own": dict(own), "fd/tables": {str(cid): table for cid, table in tables.items()}}


def fedgen(world):
    """Zhu et al., Algorithm 1: a generator of features on the server; Adam is written out."""
    hp, run, w, C = world.hp, world.run, world.start, world.classes
    head, bias = world.head
    with torch.random.fork_rng():
        torch.manual_seed(derive(run.seed, "fedgen"))
        first, norm = nn.Linear(hp.noise + C, hp.hidden), nn.BatchNorm1d(hp.hidden)
        last = nn.Linear(hp.hidden, w[head].shape[1])
        G = nn.Sequential(first, norm, nn.ReLU(), last)
    m, v = ([torch.zeros_like(p) for p in G.parameters()] for _ in range(2))
    step = 0
    counts = [torch.bincount(world.y[rows], minlength=C) for rows in world.rows]

    def generate(labels, noise):
        return G(torch.cat([noise, torch.eye(C)[labels]], 1))

    def head_output(theta, labels, draw):
        """The head's output for generated features of these labels."""
        return generate(labels, torch.rand(len(labels), hp.noise, generator=draw)) @ theta[head].T + theta[bias]

    def generated(world, w, t, cid):
        draw = stream(run.seed, "fedgen", t, cid)

        def objective(model, x, y):
            z = model(x)
            ce = cross_entropy(z, y)
            if t == 1:
                return ce
            theta = dict(model.named_parameters())
            labels = torch.randint(C, (hp.generated,), generator=draw)
            made, latent = head_output(theta, labels, draw), head_output(theta, y, draw).detach()
            alpha, beta = hp.alpha * hp.decay ** (t - 1), hp.beta * hp.decay ** (t - 1)
            return ce + alpha * hp.generated / run.batch * cross_entropy(made, labels) + beta * kl(latent, z)

        return objective

    for t in world.rounds():
        G.eval()
        sent = {cid: train(world, w, t, cid, generated) for cid in world.participants(t)}
        w = world.mean(sent)
        G.train()
        draw, rate = stream(run.seed, "fedgen", t), hp.generator_lr * hp.decay ** (t - 1)
        total = sum(counts[cid] for cid in sent).to(torch.get_default_dtype())
        for _ in range(hp.generator_steps):
            y = torch.multinomial(total, hp.generated, replacement=True, generator=draw)
            noise = torch.rand(hp.generated, hp.noise, generator=draw)
            z = generate(y, noise)
            logits = {cid: z @ theta[head].T + theta[bias] for cid, theta in sent.items()}
            ensemble = sum((counts[cid] / total)[y][:, None] * logits[cid] for cid in sent)
            pairs = [(i, j) for i in range(len(y)) for j in range(len(y))]
            spread = [((noise[i] - noise[j]) ** 2).mean() * (z[i] - z[j]).abs().mean() for i, j in pairs]
            loss = cross_entropy(ensemble, y) + torch.exp(-sum(spread) / len(pairs))
            step += 1
            for i, (p, slope) in enumerate(zip(G.parameters(), torch.autograd.grad(loss, G.parameters()), strict=True)):
                slope = slope + 1e-2 * p.detach()  # weight decay
                m[i], v[i] = 0.9 * m[i] + 0.1 * slope, 0.999 * v[i] + 0.001 * slope**2
                p.data -= rate * m[i] / (1 - 0.9**step) / ((v[i] / (1 - 0.999**step)).sqrt() + 1e-8)
        parts = {"in": first, "norm": norm, "out": last}
        g = {
            f"{part}.{name}": p.detach().clone()
            for part, module in parts.items()
            for name, p in module.named_parameters()
        }
        yield {"w": w, "fedgen/g": {**g, "mean": norm.running_mean.clone(), "var": norm.running_var.clone()}}


# Li, Mahmoodi and Lam: limited devices and late updates.


def classifier(world):
    """The fully connected layers."""
    return [name for names in world.layers for name in names if world.start[names[0]].dim() == 2]


def extractor_shared(world, w, t, cid):
    """FES, Eqs. (2), (3): a limited device trains the classifier and uploads [w^f, w^c_i]."""
    if not world.fleet.limited(cid):
        return train(world, w, t, cid)
    new = train(world, w, t, cid, names=classifier(world))
    return {name: new[name] if name in classifier(world) else w[name] for name in w}


def fes(world):
    w = world.start
    for t in world.rounds():
        w = world.mean({cid: extractor_shared(world, w, t, cid) for cid in world.participants(t)})
        yield {"w": w}


def mixed(world, w, t, now, late):
    """Eq. (6) with (7)-(11); Eq. (5) is the case without late updates (client, round, weights)."""
    hp, old = world.hp, world.hp.alpha0 + world.hp.eta * t  # (8)
    sigma = [1 / (1 + math.exp(-(t - n))) for _, n, _ in late]
    gamma_, alpha_ = [hp.b * (1 - s) for s in sigma], 1 - 1 / (1 + math.exp(-1))  # (9)
    alpha = alpha_ / (alpha_ + sum(gamma_)) * old  # (10)
    gamma = [g / (alpha_ + sum(gamma_)) * old for g in gamma_]  # (11)
    fresh = world.mean(now) if now else w  # nobody on time: the old model keeps beta (AM-07)
    return mix([alpha, 1 - old, *gamma], [w, fresh, *(theta for _, _, theta in late)])


def ama(world, visit=train, capable=False):
    """Algorithm 1; `capable` averages the extractor over the devices that are not limited, which is not the paper's."""
    w, on_the_way = world.start, []
    for t in world.rounds():
        now = {}
        for cid in world.participants(t):
            theta, delay = visit(world, w, t, cid), world.fleet.delay(t, cid)
            if delay:
                on_the_way.append((t + delay, (cid, t, theta)))
            else:
                now[cid] = theta
        late = [update for due, update in on_the_way if due == t]
        new = mixed(world, w, t, now, late)
        if capable:
            able = {cid: theta for cid, theta in now.items() if not world.fleet.limited(cid)}
            extractor = mixed(world, w, t, able, [update for update in late if not world.fleet.limited(update[0])])
            new = {name: new[name] if name in classifier(world) else extractor[name] for name in new}
        w = new
        yield {"w": w}


def naive(world):
    """Section V: limited devices and late updates are left out."""
    w = world.start
    for t in world.rounds():
        able = [cid for cid in world.participants(t) if not world.fleet.limited(cid)]
        sent = {cid: train(world, w, t, cid) for cid in able if not world.fleet.delay(t, cid)}
        w = world.mean(sent) if sent else w
        yield {"w": w}


# Personal models.


def local_training(world):
    own = {}
    for t in world.rounds():
        for cid in world.participants(t):
            own[cid] = train(world, own.get(cid, world.start), t, cid)
        yield {"w": world.start, "own": dict(own)}


def fedbn(world):
    """Li et al., Algorithm 1: BatchNorm, weights and statistics, stays with the client."""
    norms = tuple(f"{key}." for key, module in world.net.named_modules() if isinstance(module, nn.BatchNorm2d))
    private = [name for name in world.start if name.startswith(norms)]
    w, kept = world.start, {cid: {name: world.start[name] for name in private} for cid in range(world.run.clients)}
    for t in world.rounds():
        sent = {cid: train(world, {**w, **kept[cid]}, t, cid) for cid in world.participants(t)}
        for cid, theta in sent.items():
            kept[cid] = {name: theta[name] for name in private}
        w = {name: world.start[name] if name in private else value for name, value in world.mean(sent).items()}
        yield {"w": w, "own": {cid: {**w, **kept[cid]} for cid in kept}}


def fedbabu(world):
    """Oh et al., Algorithm 1: the head stays as it was made; it is tuned for the personal test and then forgotten."""
    body = [name for name in world.names if name not in world.head]
    w, tuned = world.start, {}
    for t in world.rounds():
        sent = {cid: train(world, w, t, cid, names=body) for cid in world.participants(t)}
        for cid, theta in sent.items():
            new = train(world, theta, t, cid, names=world.head, epochs=world.hp.tune)
            tuned[cid] = {name: new[name] for name in world.head}
        w = world.mean(sent)
        yield {"w": w, "own": {cid: {**w, **head} for cid, head in tuned.items()}}


def flat(w, names):
    return torch.cat([w[name].flatten() for name in names])


def fedamp(world):
    """Huang et al., Algorithm 1 ("distance") and their HeurFedAMP ("cosine"), over the round's participants."""
    hp, uploaded, own = world.hp, {cid: world.start for cid in range(world.run.clients)}, {}
    for t in world.rounds():
        S = world.participants(t)
        alpha = hp.alpha * 0.1 ** ((t - 1) // 30)  # alpha_k: a tenth after every 30 rounds
        W = {cid: flat(uploaded[cid], world.names) for cid in S}
        clouds = {}
        for i in S:
            others = [j for j in S if j != i]
            if hp.similarity == "distance":  # xi_ij = alpha_k A'(||w_i - w_j||^2), A(x) = 1 - e^(-x/sigma)
                xi = {}
                for j in others:
                    square = ((W[i] - W[j]) ** 2).sum().requires_grad_()
                    (slope,) = torch.autograd.grad(1 - torch.exp(-square / hp.sigma), square)
                    xi[j] = float(alpha * slope)
                xi[i] = 1 - sum(xi.values())
            else:  # xi_ij ~ e^(sigma cos(w_i, w_j)), xi_ii given, else 1 / (N_i + 1)
                mine = hp.own or 1 / len(S)
                e = {j: float(torch.exp(hp.sigma * (W[i] @ W[j]) / (W[i].norm() * W[j].norm()))) for j in others}
                xi = {j: (1 - mine) * e[j] / sum(e.values()) for j in others} | {i: mine}
            clouds[i] = mix(xi.values(), [uploaded[j] for j in xi])

        def attracted(world, u, t, cid, alpha=alpha):
            return lambda model, x, y: cross_entropy(model(x), y) + world.hp.lam / (2 * alpha) * apart(model, u)

        for i in S:
            own[i] = uploaded[i] = train(world, clouds[i], t, i, attracted)
        yield {"w": world.start, "own": dict(own)}


def pfedla(world):
    """Ma et al., Algorithm 1: softmax weights over the participants for each layer, from a hypernetwork per client."""
    hp, N, L = world.hp, world.run.clients, len(world.layers)
    groups = []  # a layer, and the normalisation that follows it
    for key, module in world.net.named_modules():
        if isinstance(module, LAYER):
            groups.append([])
        if not list(module.children()):
            groups[-1:] and groups[-1].extend(name for name in world.start if name.startswith(key + "."))
    draw = stream(world.run.seed, "hypernetwork")
    phi = [[value] for value in torch.randn(N, hp.embedding, generator=draw)]
    for size in ((hp.hidden, hp.embedding), (hp.hidden, hp.hidden), (L, N, hp.hidden)):
        for shape in (size, size[:-1]):  # weight, bias: uniform in +- 1/sqrt(inputs)
            values = (2 * torch.rand(N, *shape, generator=draw) - 1) / math.sqrt(size[-1])
            for i in range(N):
                phi[i].append(values[i])
    uploaded, own = {cid: world.start for cid in range(N)}, {}

    def alphas(values, S):
        v, a1, c1, a2, c2, a3, c3 = values
        hidden = torch.relu(a2 @ torch.relu(a1 @ v + c1) + c2)
        return torch.softmax((a3 @ hidden + c3)[:, S], 1)

    for t in world.rounds():
        S, new = world.participants(t), {}
        for i in S:
            leaves = [value.clone().requires_grad_() for value in phi[i]]
            a = alphas(leaves, S)
            start, bar = {}, []  # wbar_i, as values and for autograd
            for layer, names in enumerate(groups):
                start |= mix(a[layer].tolist(), [{name: uploaded[j][name] for name in names} for j in S])
                bar.append(sum(a[layer, k] * flat(uploaded[j], names) for k, j in enumerate(S)))
            new[i] = train(world, start, t, i)
            delta = [(value - flat(new[i], names)).detach() for value, names in zip(bar, groups, strict=True)]
            product = sum((value * d).sum() for value, d in zip(bar, delta, strict=True))  # (grad wbar)^T Delta
            slopes = torch.autograd.grad(product, leaves)
            phi[i] = [value - hp.rate * slope for value, slope in zip(phi[i], slopes, strict=True)]
        uploaded |= new
        own |= new
        yield {"w": world.start, "own": dict(own)}


def normalised(rows):
    """Clip at 0, divide by the sum; a row of nothing becomes uniform (KA-14, KA-15)."""
    rows = torch.stack([row.clamp(min=0) for row in rows])
    return torch.stack([row / row.sum() if row.sum() > 0 else torch.full_like(row, 1 / len(row)) for row in rows])


def kapc(world, bls=False):
    """Zhi et al., Algorithms 1, 2 and 5; with bls also 3, 4 and 6."""
    hp, N, L = world.hp, world.run.clients, len(world.layers)
    own, uploaded, select = {}, {cid: world.start for cid in range(N)}, Selection(world)
    R = torch.full((N, L, N), 1 / N)  # the paper's r_ij^l is R[i, l, j]
    for t in world.rounds():
        C, coaches = world.participants(t), {}
        W = [[flat(uploaded[j], names) for j in C] for names in world.layers]  # Alg. 5, line 7
        for k, i in enumerate(C):
            mass = R[i][:, C].sum(1, keepdim=True)
            r = normalised(R[i][:, C])  # line 6
            for _ in range(hp.updates):
                r = r.clone().requires_grad_()
                s = [sum(r[layer, j] * W[layer][j] for j in range(len(C))) for layer in range(L)]
                f = hp.lam * sum(((s[layer] - W[layer][k]) ** 2).sum() for layer in range(L))
                f = f + hp.beta / 2 * ((r - 1 / len(C)) ** 2).sum()  # (11), (32)
                (slope,) = torch.autograd.grad(f, r)
                r = (r - hp.rate * slope).detach()  # (12)
            if hp.rows == "printed":  # line 12: written back as it is, then the full rows normalised
                R[i][:, C] = r
                R[i] = normalised(R[i])
            else:  # scaled to the mass it had (KA-15)
                R[i][:, C] = normalised(r) * mass
            r, coaches[i] = normalised(r), {}
            for layer, names in enumerate(world.layers):
                if not bls or r[layer, k] < hp.mu:  # Alg. 3
                    parts = [{name: uploaded[j][name] for name in names} for j in C]
                    coaches[i] |= mix(r[layer].tolist(), parts)  # (15), (34)

        def coached(world, w, t, cid, coaches=coaches):
            s = coaches[cid]
            return lambda model, x, y: cross_entropy(model(x), y) + (hp.lam * apart(model, s, s) if s else 0.0)  # (16)

        for i in C:
            own[i] = train(world, own.get(i, world.start), t, i, coached)
            omega = select(i, own[i], coaches[i]) if bls and hp.search != "none" else L
            uploaded[i] = uploaded[i] | {name: own[i][name] for names in world.layers[:omega] for name in names}  # (33)
        state = {"w": world.start, "own": dict(own), "kapc/r": R.permute(1, 0, 2).clone()}
        yield state | {"client": {i: select.state(i) for i in C}} if bls and hp.search != "none" else state


class Selection:
    """BLS on the client: Algorithm 4 with the bounds kept over rounds (KA-07) and Omega in 1..L (KA-08)."""

    def __init__(self, world):
        self.world, self.omega, self.B, self.tau = world, {}, {}, {}
        model, self.d = copy.deepcopy(world.net).eval(), []
        modules = [module for module in model.modules() if isinstance(module, LAYER)]
        for module in modules:
            module.register_forward_hook(lambda _, __, out: self.d.append(out[0].numel()))
        model(world.x[:1])
        self.n = [module.weight[0].numel() for module in modules]  # columns of the matrix out x (in k k) (KA-09)

    def state(self, i):
        bounds = {"bls/B": torch.tensor(self.B[i]), "bls/tau": torch.tensor(self.tau[i])}
        return {"bls/omega": self.omega[i], **bounds}

    def __call__(self, i, w, s):
        layers, L = self.world.layers, len(self.world.layers)
        B = [float(flat(w, names).norm()) for names in layers]  # (30)
        tau = [0.0] * L  # of a layer that did not come (KA-10)
        for layer, names in enumerate(layers):
            if names[0] in s:
                tau[layer] = float((flat(w, names) - flat(s, names)).norm())  # (31)
        if self.omega.get(i, L) == L:  # lines 3-9
            self.B[i] = [max(pair) for pair in zip(B, self.B.get(i, [0.0] * L), strict=True)]
            self.tau[i] = [max(pair) for pair in zip(tau, self.tau.get(i, [0.0] * L), strict=True)]
            self.omega[i] = max(L - 1, 1)
            return self.omega[i]
        c = len(set(self.world.y[self.world.rows[i]].tolist()))
        growth = math.prod(b / bound for b, bound in zip(B, self.B[i], strict=True))

        def M(omega, tau, B):  # below (27)
            total = tau[omega - 1] / (2 * B[omega - 1])
            for k in range(1, omega):
                product = math.prod(math.sqrt(self.n[omega - j]) for j in range(1, k + 1))  # n^{omega+1-j}
                total += tau[omega - k - 1] * product / (2 * B[omega - k - 1])
            return total

        def holds(omega):  # (29)
            left = L * self.d[omega - 1] * M(omega, tau, B) / (omega * c * 2 ** (L - omega)) * growth
            return left <= M(L, self.tau[i], self.B[i])

        omega = self.omega[i]  # line 15
        satisfied = holds(omega)  # lines 16-24; by default the two branches are exchanged (KA-06)
        down = satisfied if self.world.hp.search == "printed" else not satisfied
        while (omega > 1) if down else (omega < L):
            omega += -1 if down else 1
            if holds(omega) != satisfied:
                break
        self.omega[i] = omega
        return omega
