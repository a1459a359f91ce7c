import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedrepro.methods.base import Local, Message, Round, State, Upload, hp
from fedrepro.methods.kapc import KAPC
from fedrepro.simulation.tree import Tree


@dataclass(frozen=True)
class KAPC_BLS(KAPC):
    """KAPC with bidirectional layer selection (Zhi et al., IEEE TMC 2024, Algorithms 3 to 6).

    Down: no layer whose self-relationship among the participants is mu or more. Up: layers 1..Omega, with Omega from
    the criterion (29), and BatchNorm's weights; its statistics stay with the client as in KAPC.
    A convolution counts as the matrix out x (in k k) and d as its number of outputs (KA-09); a layer's norm includes
    its bias. Bounds B and tau are kept over rounds (KA-07), Omega stays in 1..L (KA-08), and a layer that was not
    received has no pull and tau = 0 (KA-10). As printed, Algorithm 4 searches away from what (29) allows; by default
    its two branches are exchanged (KA-06). `search = "none"` uploads every layer.
    """

    mu: float = hp(0.7)
    search: str = hp("exchanged", choices=("exchanged", "printed", "none"))

    def broadcast(self, server: State, cid: int, r: Round) -> Message:
        own = r.scratch["kapc/slice"][:, (i := r.participants.index(cid)), i]
        s = super().broadcast(server, cid, r)["s"]
        sent = [names for names, r_ii in zip(server["kapc/layers"], own, strict=True) if r_ii < self.mu]
        return {"s": s.pick(name for names in sent for name in names)}

    def client_init(self, k: Local) -> State:
        columns, outputs = shapes(k)
        bounds = {"bls/B": torch.zeros_like(columns), "bls/tau": torch.zeros_like(columns)}
        sizes = {"bls/columns": columns, "bls/outputs": outputs}
        return {**super().client_init(k), "bls/omega": len(columns), **bounds, **sizes}

    def finish(self, k: Local) -> tuple[Message, State]:
        sent, kept = super().finish(k)
        if self.search == "none":
            return sent, kept
        layers = list(k.model.layers().values())
        kept = kept | self._select(k, layers)
        withheld = {name for names in layers[kept["bls/omega"] :] for name in names}
        return {**sent, "w": sent["w"].without(withheld)}, kept

    def _select(self, k: Local, layers: list[list[str]]) -> State:
        """Algorithm 4 -> what it changes of the client's state."""
        s, client, most = k.scratch["kapc/s"], k.client, len(layers)
        norms = lengths(k.params, layers)  # Eq. (30)
        moved = lengths(Tree((n, k.params[n] - s[n]) for n in s), layers)  # Eq. (31)
        if client["bls/omega"] == most:  # also at the first visit: every layer was coached
            bounds = {"bls/B": norms.maximum(client["bls/B"]), "bls/tau": moved.maximum(client["bls/tau"])}
            return {**bounds, "bls/omega": max(most - 1, 1)}
        classes = len(k.worker.data.train_y[k.worker.parts[k.cid]].unique())  # c_i
        holds = [False, *(bool(excess(o, norms, moved, client, classes) <= 0) for o in range(1, most + 1))]
        return {"bls/omega": walk(client["bls/omega"], holds, self.search == "exchanged")}

    def aggregate(self, server: State, uploads: list[Upload], r: Round) -> State:
        r.scratch["bls/omega"] = [sum(names[0] in u.sent["w"] for names in server["kapc/layers"]) for u in uploads]
        return super().aggregate(server, uploads, r)

    def columns(self, server: State, r: Round) -> dict[str, float]:
        """Over the participants: the mean number of layers uploaded, and the share of layers not sent down."""
        up, withheld = r.scratch["bls/omega"], math.nan
        if r.participants:
            withheld = float((r.scratch["kapc/slice"].diagonal(dim1=1, dim2=2) >= self.mu).double().mean())
        return {**super().columns(server, r), "omega": sum(up) / len(up) if up else math.nan, "withheld": withheld}


def shapes(k: Local) -> tuple[Tensor, Tensor]:
    """Of every layer, n^l (columns of its matrix) and d (numbers it puts out for one image)."""
    layers = list(k.model.layers())
    modules = [k.model.get_submodule(name) for name in layers]
    sizes = {}
    hooks = [m.register_forward_hook(lambda m, _, out: sizes.__setitem__(m, out.numel())) for m in modules]
    k.model.eval()
    with torch.no_grad():
        k.model(k.worker.data.batch(k.worker.data.train_x[:1]).to(k.worker.device))
    k.model.train()
    for hook in hooks:
        hook.remove()
    columns = [k.model.get_parameter(f"{name}.weight")[0].numel() for name in layers]
    return torch.tensor(columns, dtype=torch.float64), torch.tensor([sizes[m] for m in modules], dtype=torch.float64)


def lengths(tree: Tree, layers: list[list[str]]) -> Tensor:
    """The Frobenius norm of every layer; 0 where the tree does not have it."""
    squares = [sum(float(tree[n].double().square().sum()) for n in names if n in tree) for names in layers]
    return torch.tensor(squares, dtype=torch.float64).sqrt()


def log_m(omega: int, tau: Tensor, b: Tensor, columns: Tensor) -> Tensor:
    """log M of Eq. (27): layer l <= omega weighs tau^l / (2 B^l) times the product of sqrt(n) of the layers above."""
    roots = columns[:omega].log() / 2
    above = roots.flip(0).cumsum(0).flip(0) - roots
    return torch.logsumexp(tau[:omega].log() - (2 * b[:omega]).log() + above, 0)


def excess(omega: int, norms: Tensor, moved: Tensor, client: State, classes: int) -> Tensor:
    """log of the left side of (29) over its right side: the criterion holds where this is at most 0."""
    layers, d = len(norms), client["bls/outputs"][omega - 1]
    left = math.log(layers / (omega * classes)) + d.log() - (layers - omega) * math.log(2)
    left = left + log_m(omega, moved, norms, client["bls/columns"]) + (norms.log() - client["bls/B"].log()).sum()
    right = log_m(layers, client["bls/tau"], client["bls/B"], client["bls/columns"])
    return left - right if left > -math.inf else left  # nothing moved: 0 <= M


def walk(omega: int, holds: list[bool], exchanged: bool) -> int:
    """The search of Algorithm 4 from the last Omega; holds[o] says whether (29) holds at o."""
    first = holds[omega]
    ahead = 1 if first == exchanged else -1
    while 1 <= omega + ahead < len(holds):
        omega += ahead
        if holds[omega] != first:
            break
    return omega
