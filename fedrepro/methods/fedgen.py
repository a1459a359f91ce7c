import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedrepro.errors import bad
from fedrepro.methods.base import FedAvg, Local, Message, Net, Round, Run, State, Upload, hp
from fedrepro.simulation.rng import derive, stream
from fedrepro.simulation.tree import Tree

RUNNING = ("mean", "var")  # of the generator's BatchNorm: not trained, sent with it


@dataclass(frozen=True)
class FedGen(FedAvg):
    """FedGen (Zhu et al., ICML 2021, Algorithm 1): a generator of features, trained on the server, for each label.

    Settings are those of the authors' MNIST configuration; the generator's output is as wide as the model's features
    (erratum DF-21). It travels down from the first round and is used from the second; label counts travel up.
    Differences from the authors' code: the generator learns from the ensemble's weighted logits, as in the paper, on
    labels drawn by their counts; alpha and beta decay without a lower bound, so that 0 is FedAvg.
    BatchNorm statistics of the model are averaged.
    """

    alpha: float = hp(10.0)  # weight of the cross-entropy on generated features
    beta: float = hp(10.0)  # weight of the divergence from what the head says of generated features of the same label
    decay: float = hp(0.98, high=1.0)  # of alpha, beta and generator_lr, every round
    hidden: int = hp(256, low=1, high=100_000)
    noise: int = hp(32, low=1, high=100_000)
    generated: int = hp(32, low=2, high=100_000)  # features in a batch, on the server and on a client
    generator_steps: int = hp(50, low=1, high=100_000)  # on the server, every round
    generator_lr: float = hp(3e-4)
    whole = ("w",)  # the generator learns from every head

    def check(self, run: Run) -> None:
        super().check(run)
        if run.model.startswith("squeezenet"):
            raise bad("model", run.model, f"one that ends in a fully connected layer ({run.method})")

    def server_init(self, model: Net) -> State:
        return {**super().server_init(model), "fedgen/head": model.head}

    def plan(self, server: State, r: Round) -> State:
        server = super().plan(server, r)
        if "fedgen/g" in server:
            return server
        weight = server["w"][server["fedgen/head"][0]]
        classes, features = weight.shape
        g = generator(classes, features, self.hidden, self.noise, derive(r.run.seed, "fedgen"))
        return {**server, "fedgen/g": g.to(weight.device), "fedgen/adam": {}}

    def broadcast(self, server: State, cid: int, r: Round) -> Message:
        return {**super().broadcast(server, cid, r), "fedgen/g": server["fedgen/g"]}

    def receive(self, k: Local, message: Message) -> None:
        super().receive(k, message)
        k.scratch |= {"fedgen/g": message["fedgen/g"], "fedgen/rng": k.rng("fedgen")}

    def loss(self, k: Local, x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        ce = super().loss(k, x, y, out)
        if k.t == 1 or self.alpha == self.beta == 0:
            return ce
        g, rng = k.scratch["fedgen/g"], k.scratch["fedgen/rng"]
        head = [k.model.get_parameter(name) for name in k.model.head]
        labels = torch.randint(out.shape[1], (self.generated,), generator=rng).to(y.device)
        generated = F.cross_entropy(F.linear(generate(g, labels, self._noise(labels, rng)), *head), labels)
        target = F.linear(generate(g, y, self._noise(y, rng)), *head).detach().softmax(1)
        latent = F.kl_div(F.log_softmax(out, 1), target, reduction="batchmean")
        fade = self.decay ** (k.t - 1)
        return ce + fade * (self.alpha * self.generated / k.run.batch * generated + self.beta * latent)

    def finish(self, k: Local) -> tuple[Message, State]:
        sent, kept = super().finish(k)
        labels = k.worker.data.train_y[k.worker.parts[k.cid]]
        counts = torch.bincount(labels, minlength=k.worker.data.classes).int()
        return {**sent, "fedgen/counts": counts}, kept

    def aggregate(self, server: State, uploads: list[Upload], r: Round) -> State:
        new = super().aggregate(server, uploads, r)
        return {**new, **self._train_generator(server, uploads, r)} if uploads else new

    def _noise(self, y: Tensor, rng: torch.Generator) -> Tensor:
        return torch.rand(len(y), self.noise, generator=rng).to(y.device)

    def _train_generator(self, server: State, uploads: list[Upload], r: Round) -> State:
        """min over G of E_y CE(sum_k weight_k(y) h_k(G(y)), y) + diversity, with the uploaded heads h_k."""
        g, rng = server["fedgen/g"].clone(), stream(r.run.seed, "fedgen", r.t)
        counts = torch.stack([u.sent["fedgen/counts"] for u in uploads], 1)  # label x upload
        counts = counts.cpu().to(torch.get_default_dtype())
        drawn, share = counts.sum(1), counts / counts.sum(1, keepdim=True).clamp(min=1)
        heads = [torch.stack([u.sent["w"][name] for u in uploads]) for name in server["fedgen/head"]]
        trained = [tensor.requires_grad_() for name, tensor in g.items() if name not in RUNNING]
        adam = torch.optim.Adam(trained, weight_decay=1e-2)
        if server["fedgen/adam"]:
            adam.load_state_dict(copy.deepcopy(server["fedgen/adam"]))
        adam.param_groups[0]["lr"] = self.generator_lr * self.decay ** (r.t - 1)
        for _ in range(self.generator_steps):
            picked = torch.multinomial(drawn, self.generated, replacement=True, generator=rng)
            y = picked.to(heads[0].device)
            noise = self._noise(y, rng)
            z = generate(g, y, noise, training=True)
            logits = torch.einsum("bf,kcf->bkc", z, heads[0]) + heads[1]
            ensemble = (share[picked].to(y.device)[:, :, None] * logits).sum(1)
            adam.zero_grad()
            (F.cross_entropy(ensemble, y) + diversity(noise, z)).backward()
            adam.step()
        return {"fedgen/g": g.clone(), "fedgen/adam": adam.state_dict()}


def generator(classes: int, features: int, hidden: int, noise: int, seed: int) -> Tree:
    """Label and noise -> hidden, BatchNorm, ReLU -> features."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first, norm, last = nn.Linear(noise + classes, hidden), nn.BatchNorm1d(hidden), nn.Linear(hidden, features)
    layers = nn.ModuleDict({"in": first, "norm": norm, "out": last})
    return Tree({**dict(layers.named_parameters()), "mean": torch.zeros(hidden), "var": torch.ones(hidden)}).clone()


def generate(g: Tree, y: Tensor, noise: Tensor, training: bool = False) -> Tensor:
    """G(y, noise); `training` uses the batch's statistics and moves the running ones in place."""
    label = F.one_hot(y, g["in.weight"].shape[1] - noise.shape[1])
    z = F.linear(torch.cat([noise, label], 1), g["in.weight"], g["in.bias"])
    z = F.batch_norm(z, g["mean"], g["var"], g["norm.weight"], g["norm.bias"], training)
    return F.linear(F.relu(z), g["out.weight"], g["out.bias"])


def diversity(noise: Tensor, z: Tensor) -> Tensor:
    """exp(-mean over pairs of |noise_i - noise_j|^2 |z_i - z_j|_1), each a mean over its elements."""
    far = (noise[:, None] - noise).square().mean(2)
    return torch.exp(-(far * (z[:, None] - z).abs().mean(2)).mean())
