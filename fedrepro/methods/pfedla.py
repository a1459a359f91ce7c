from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedrepro.errors import bad
from fedrepro.methods.fedavg import FedAvg, Local, Round, State, hp
from fedrepro.methods.kapc import combine, fill, kept_of, stack
from fedrepro.methods.localtraining import LocalTraining
from fedrepro.rng import stream
from fedrepro.tree import Tree

MOST_CLIENTS = 300  # their hypernetworks' last layers alone have hidden x layers x clients^2 weights


@dataclass(frozen=True)
class PFedLA(LocalTraining):
    """pFedLA (Ma et al., CVPR 2022, Algorithm 1): a hypernetwork for each client weighs all clients, layer by layer.

    Client i has an embedding, two hidden layers and, for each layer of the model, softmax weights over the clients;
    they are trained on the server by the vector-Jacobian product with wbar_i - w_i. With client selection the softmax
    is over the round's participants. Late uploads do not train it: what they started from is no longer known.
    Normalisation and its statistics belong to the layer before them and are mixed as it is.
    """

    rate: float = hp(5e-3)
    embedding: int = hp(100, low=1)
    hidden: int = hp(100, low=1)

    def check(self, run) -> None:
        super().check(run)
        if run.clients > MOST_CLIENTS:
            raise bad(
                "clients", run.clients, f"at most {MOST_CLIENTS} for pfedla (its hypernetworks grow with clients^2)"
            )

    def server_init(self, model) -> State:
        return {**super().server_init(model), "pfedla/layers": owned(model), "pfedla/hyper": None}

    def plan(self, server, r: Round) -> State:
        server = super().plan(server, r)
        layers = server["pfedla/layers"]
        if server["pfedla/hyper"] is None:
            server = {**server, "pfedla/hyper": self._hypernetworks(r.run, len(layers))}
        start = {**server["w"], **server["b"]}
        models = [{**w, **kept_of(r, cid, "b")} if (w := kept_of(r, cid, "w")) else start for cid in r.participants]
        weights = [self.weights(server["pfedla/hyper"], cid, r.participants) for cid in r.participants]
        mixed = [Tree() for _ in models]
        for layer, names in enumerate(layers if models else []):
            rows = torch.stack([w[layer] for w in weights])
            fill(mixed, combine(rows, stack(models, names)), models, names)
        r.scratch["pfedla/models"], r.scratch["pfedla/mixed"] = models, dict(zip(r.participants, mixed, strict=True))
        return server

    def _hypernetworks(self, run, layers: int) -> Tree:
        """One of every client, stacked; linear layers start as torch's do, embeddings from a normal distribution."""
        generator, n = stream(run.seed, "hypernetwork"), run.clients
        sizes = {"1": (self.embedding, self.hidden), "2": (self.hidden, self.hidden), "3": (self.hidden, layers * n)}
        tree = Tree(v=torch.randn(n, self.embedding, generator=generator))
        for name, (inputs, outputs) in sizes.items():
            bound = inputs**-0.5
            tree[f"a{name}"] = (2 * torch.rand(n, outputs, inputs, generator=generator) - 1) * bound
            tree[f"c{name}"] = (2 * torch.rand(n, outputs, generator=generator) - 1) * bound
        return tree

    def weights(self, hyper: Tree, cid: int, participants: list[int], leaves: Tree | None = None) -> Tensor:
        """alpha_i: layers x participants."""
        p = leaves or Tree((name, t[cid]) for name, t in hyper.items())
        x = p["v"]
        for name in ("1", "2"):
            x = torch.relu(p[f"a{name}"] @ x + p[f"c{name}"])
        return (p["a3"] @ x + p["c3"]).view(-1, len(hyper["v"]))[:, participants].softmax(1)

    def broadcast(self, server, cid, r: Round):
        mixed = r.scratch["pfedla/mixed"][cid]
        return {"w": mixed.pick(server["w"]), "b": mixed.pick(server["b"])}

    def receive(self, k: Local, message) -> None:
        k.load(message["w"], message["b"])

    def finish(self, k: Local):
        return FedAvg.finish(self, k)[0], super().finish(k)[1]

    def aggregate(self, server, uploads, r: Round) -> State:
        hyper = server["pfedla/hyper"].clone()
        for u in uploads:
            if u.round == r.t:
                self._learn(hyper, server["pfedla/layers"], u, r)
            r.shelf.put(u.cid, {"w": u.sent["w"], "b": u.sent["b"]}, r.t)
        return {**super().aggregate(server, uploads, r), "pfedla/hyper": hyper}

    def _learn(self, hyper: Tree, layers: list[list[str]], u, r: Round) -> None:
        """One step of client i's hypernetwork, in place."""
        trained, mixed = {**u.sent["w"], **u.sent["b"]}, r.scratch["pfedla/mixed"][u.cid]
        slopes = []  # of the loss in alpha^{l,j}: <w_j^l, wbar^l - w^l>
        for names in layers:
            moved = stack([mixed], names)[0] - stack([trained], names)[0]
            slopes.append(stack(r.scratch["pfedla/models"], names) @ moved)
        leaves = Tree((name, t[u.cid].clone().requires_grad_()) for name, t in hyper.items())
        weights = self.weights(hyper, u.cid, r.participants, leaves)
        slopes = torch.stack(slopes).to(weights)
        for (name, _), slope in zip(leaves.items(), torch.autograd.grad(weights, leaves.tensors, slopes), strict=True):
            hyper[name][u.cid] -= self.rate * slope


def owned(model: nn.Module) -> list[list[str]]:
    """The parameters and statistics of every convolution or fully connected layer and of what follows it."""
    groups: list[list[str]] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            groups.append([])
        own = [key for key, _ in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))]
        if own:
            groups[-1] += [f"{name}.{key}" for key in own]
    return groups
