from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedrepro.errors import bad
from fedrepro.methods.base import Message, Net, Round, Run, State, Upload, hp
from fedrepro.methods.localtraining import LocalTraining
from fedrepro.methods.mixtures import Mixed, combine, last_uploads, stack
from fedrepro.simulation.rng import stream
from fedrepro.simulation.tree import Tree

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
    sends = ("w", "b")

    def check(self, run: Run) -> None:
        super().check(run)
        if run.clients > MOST_CLIENTS:
            raise bad(
                "clients", run.clients, f"at most {MOST_CLIENTS} for pfedla (its hypernetworks grow with clients^2)"
            )

    def server_init(self, model: Net) -> State:
        return {**super().server_init(model), "pfedla/layers": owned(model), "pfedla/hyper": None}

    def plan(self, server: State, r: Round) -> State:
        server = super().plan(server, r)
        layers = server["pfedla/layers"]
        if server["pfedla/hyper"] is None:
            server = {**server, "pfedla/hyper": self._hypernetworks(r.run, len(layers))}
        hyper = [Tree((name, t[cid]) for name, t in server["pfedla/hyper"].items()) for cid in r.participants]
        weights = [self.weights(tree, r.participants) for tree in hyper]
        mixed = r.scratch["pfedla/mixed"] = Mixed(r, whole(server))
        for layer, names in enumerate(layers if r.participants else []):
            rows = torch.stack([w[layer] for w in weights])
            mixed.add(combine(rows, stack(map(whole, last_uploads(server, r)), names)), names)
        return server

    def _hypernetworks(self, run: Run, layers: int) -> Tree:
        """One per client, stacked; linear layers start as torch's do, embeddings from a normal distribution."""
        generator, n = stream(run.seed, "hypernetwork"), run.clients
        sizes = {"1": (self.hidden, self.embedding), "2": (self.hidden,) * 2, "3": (layers, n, self.hidden)}
        tree = Tree(v=torch.randn(n, self.embedding, generator=generator))
        for name, size in sizes.items():
            for key, shape in (("a", size), ("c", size[:-1])):
                tree[key + name] = (2 * torch.rand(n, *shape, generator=generator) - 1) * size[-1] ** -0.5
        return tree

    def weights(self, hyper: Tree, participants: list[int]) -> Tensor:
        """alpha_i, layers x participants, from one client's hypernetwork."""
        x = hyper["v"]
        for name in ("1", "2"):
            x = torch.relu(hyper[f"a{name}"] @ x + hyper[f"c{name}"])
        logits = hyper["a3"] @ x + hyper["c3"]
        return logits[:, participants].softmax(1)

    def broadcast(self, server: State, cid: int, r: Round) -> Message:
        mixed = r.scratch["pfedla/mixed"][cid]
        return {"w": mixed.pick(server["w"]), "b": mixed.pick(server["b"])}

    def aggregate(self, server: State, uploads: list[Upload], r: Round) -> State:
        hyper = self._learn(server, [u for u in uploads if u.round == r.t], r)
        return {**super().aggregate(server, uploads, r), "pfedla/hyper": hyper}

    def _learn(self, server: State, uploads: list[Upload], r: Round) -> Tree:
        """One step of every uploader's hypernetwork; the loss's slope in alpha_i^{l,j} is <w_j^l, wbar_i^l - w_i^l>."""
        if not uploads:
            return server["pfedla/hyper"]
        hyper, mixed = server["pfedla/hyper"].clone(), r.scratch["pfedla/mixed"]

        def slope(layer: int, names: list[str]) -> Tensor:
            changed = mixed.layer(layer, [u.cid for u in uploads]) - stack((whole(u.sent) for u in uploads), names)
            return changed @ stack(map(whole, last_uploads(server, r)), names).T

        slopes = torch.stack([slope(*layer) for layer in enumerate(server["pfedla/layers"])], 1)
        for u, slope_u in zip(uploads, slopes.cpu(), strict=True):
            leaves = Tree((name, t[u.cid].clone().requires_grad_()) for name, t in hyper.items())
            changes = torch.autograd.grad(self.weights(leaves, r.participants), leaves.tensors, slope_u)
            for name, change in zip(leaves, changes, strict=True):
                hyper[name][u.cid] -= self.rate * change
        return hyper


def whole(state: State) -> Tree:
    """Parameters and BatchNorm statistics as one tree."""
    return Tree({**state["w"], **state["b"]})


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
