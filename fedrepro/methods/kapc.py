from dataclasses import dataclass

import torch
from torch import Tensor

from fedrepro.errors import bad
from fedrepro.methods.base import Local, Message, Net, Round, Run, State, Upload, hp
from fedrepro.methods.localtraining import LocalTraining
from fedrepro.methods.mixtures import Mixed, combine, gram, last_upload, last_uploads, stack
from fedrepro.simulation.tree import Tree

MOST_CLIENTS = 2000  # the cube has clients^2 coefficients per layer
VISITS = 6  # a client's first visits that have a column each


@dataclass(frozen=True)
class KAPC(LocalTraining):
    """KAPC (Zhi et al., IEEE TMC 2024, Algorithms 1, 2, first half of 5): a relationship cube coaches every client.

    Layers are convolutions and fully connected layers with their biases. BatchNorm belongs to none: its weights are
    uploaded but neither coached nor sent down, its statistics never leave the client (errata KA-01, KA-02).
    All clients start from one model and R from 1/N (Alg. 1 says random); a row is normalised by clipping at 0 and
    dividing by its sum (KA-14, KA-15). With client selection Algorithm 5 is taken as printed: the participants' part of
    R is normalised, updated and written back as it is, then the full rows are normalised, so that its mass grows at
    every visit. `rows = "mass"` scales it back to the mass it had (KA-15); with all clients the two are one rule.
    """

    lam: float = hp(1.0)  # lambda of Eq. (6)
    beta: float = hp(0.01)
    rate: float = hp(0.01)  # eta_r
    updates: int = hp(1)  # E_r
    rows: str = hp("printed", choices=("printed", "mass"))
    sends = ("w",)

    def check(self, run: Run) -> None:
        super().check(run)
        if self.rate * self.beta >= 1:
            allowed = f"below 1 / beta = {1 / self.beta:g}: otherwise r <- r - rate beta (r - 1/N) flips around 1/N"
            raise bad(f"hp.rate ({self.title()})", self.rate, allowed)
        if run.clients > MOST_CLIENTS:
            raise bad("clients", run.clients, f"at most {MOST_CLIENTS} for {self.title()} (its cube has clients^2)")

    def server_init(self, model: Net) -> State:
        return {**super().server_init(model), "kapc/layers": list(model.layers().values()), "kapc/r": None}

    def plan(self, server: State, r: Round) -> State:
        """R from the last uploads, Eqs. (10)-(13), then the participants' models s, Eq. (15), layer by layer."""
        server, layers = super().plan(server, r), server["kapc/layers"]
        cube = server["kapc/r"]
        if cube is None:  # layer x client x client; the paper's r_ij^l is cube[l, i, j]
            cube = torch.full((len(layers),) + (r.run.clients,) * 2, 1 / r.run.clients, dtype=torch.float64)
        cube, chosen = cube.clone(), torch.tensor(r.participants, dtype=torch.long)
        visits = server.get("kapc/visits", torch.zeros(r.run.clients, dtype=torch.long)).clone()
        visits[chosen] += 1
        coached, slices = Mixed(r, server["w"]), []
        for matrix, names in zip(cube, layers, strict=True):
            x = stack((u["w"] for u in last_uploads(server, r)), names)
            new, products = normalise(matrix[chosen][:, chosen]), gram(x)  # Alg. 5, line 6
            for _ in range(self.updates):
                new = step(new, products, self.lam, self.beta, self.rate)
            r.scratch.setdefault("kapc/clipped", []).append((new < 0).double().mean())
            slices.append(normalise(new))
            write_back(matrix, chosen, new, self.rows)
            coached.add(combine(slices[-1], x), names)
        r.scratch["kapc/slice"], r.scratch["kapc/visit"] = torch.stack(slices), visits[chosen]
        r.scratch["kapc/s"] = coached
        return {**server, "kapc/r": cube, "kapc/visits": visits}

    def broadcast(self, server: State, cid: int, r: Round) -> Message:
        return {"s": r.scratch["kapc/s"][cid]}

    def receive(self, k: Local, message: Message) -> None:
        super().receive(k, message)
        k.scratch["kapc/s"] = message["s"]

    def correct(self, k: Local) -> None:
        super().correct(k)
        s = k.scratch["kapc/s"]
        if self.lam and s:
            k.grads.pick(s).add_(k.params.pick(s) - s, alpha=2 * self.lam)  # Eq. (17) of f_s = ||s - w||^2 (KA-14)

    def aggregate(self, server: State, uploads: list[Upload], r: Round) -> State:
        names = [name for layer in server["kapc/layers"] for name in layer]
        for u in uploads:  # in the order of arrival; a layer that was not sent keeps its last value, Eq. (33)
            known = {**last_upload(server, u.cid, r)["w"], **u.sent["w"]}
            r.per_client.put(u.cid, {"w": Tree((n, known[n]) for n in names)}, r.t)
        return server

    def columns(self, server: State, r: Round) -> dict[str, float]:
        """Mean self-relationship of the participants in each layer, with client selection also of those who come for
        the v-th time (KA-15); how much clipping acts (KA-14)."""
        layers = len(server["kapc/layers"])
        each, clipped, visit = torch.full((layers, 1), torch.nan, dtype=torch.float64), torch.nan, torch.zeros(1)
        if r.participants:
            each, visit = r.scratch["kapc/slice"].diagonal(dim1=1, dim2=2), r.scratch["kapc/visit"]
            clipped = float(torch.stack(r.scratch["kapc/clipped"]).mean())
        own, half = each.mean(1), layers // 2
        visits = range(1, VISITS + 1) if r.run.per_round < r.run.clients else ()
        return {
            **super().columns(server, r),
            "clipped": clipped,
            "self_mean": float(own.mean()),
            "self_spread": float(each.std(1, correction=0).mean()),
            "self_deep_minus_shallow": float(own[layers - half :].mean() - own[:half].mean()) if half else 0.0,
            **{f"self_{i}": float(value) for i, value in enumerate(own)},
            **{f"self_visit_{v}": float(each[:, visit == v].mean()) for v in visits},
        }

    def record(self, server: State) -> State:
        return {} if server["kapc/r"] is None else {"relationship": server["kapc/r"]}


def step(rows: Tensor, products: Tensor, lam: float, beta: float, rate: float) -> Tensor:
    """Eq. (12): all its inner products <w_j, s_i - w_i> are (R - 1) G, with the Gram matrix G of the layer."""
    n = rows.shape[-1]
    inner = (rows - torch.eye(n, dtype=rows.dtype)) @ products
    return rows - rate * (2 * lam * inner + beta * (rows - 1 / n))


def normalise(rows: Tensor) -> Tensor:
    """Every row clipped at 0 and divided by its sum; a row of zeros becomes uniform."""
    rows = rows.clamp(min=0)
    sums = rows.sum(-1, keepdim=True)
    return torch.where(sums > 0, rows / sums, 1 / rows.shape[-1])


def write_back(matrix: Tensor, chosen: Tensor, new: Tensor, rows: str) -> None:
    """Algorithm 5, line 12: the participants' updated part goes into the full matrix, whose rows are normalised."""
    part = chosen[:, None], chosen
    if rows == "mass":
        matrix[part] = normalise(new) * matrix[part].sum(1, keepdim=True)
    else:
        matrix[part] = new
        matrix[chosen] = normalise(matrix[chosen])
