"""FedBR with block-wise regularisation; not the FedBR of ICML 2023, which reduces bias."""

from dataclasses import dataclass
from math import exp, log, sqrt

import torch
from torch import Tensor

from fedrepro.errors import bad
from fedrepro.methods.base import FedAvg, Local, Message, Net, Round, Run, State, Upload, hp
from fedrepro.methods.fedmlb import count_blocks, hybrid_loss
from fedrepro.simulation.rng import stream
from fedrepro.simulation.tree import Tree


@dataclass(frozen=True)
class FedBR_Ran(FedAvg):
    """FedBR-Ran (Liu et al., IEEE/ACM ToN 2023, Fig. 4): FedBR with a random number of blocks.

    The server sends the last alpha of M blocks, BatchNorm statistics included, and the client puts them on the
    first blocks of the model it trained last. Every tau+1 rounds, from the first, and at a client's first visit
    it sends the whole model (errata FB-02, FB-14); then there are M-1 hybrid paths and no decision (FB-15).
    The mean of Eq. (2) is unweighted, whichever weights the run sets (FB-23).
    """

    lambda1: float = hp(1.0)
    lambda2: float = hp(1.0)
    delta: float = hp(1.0, low=1e-6)  # temperature of Eq. (17)
    tau: int = hp(1)
    alpha: int = hp(0)  # blocks sent in every partial round; 0: the method decides
    replaces = frozenset({"aggregate"})
    plain = ("w", "b")

    def check(self, run: Run) -> None:
        super().check(run)
        if self.alpha and self.alpha >= (blocks := count_blocks(run.model)):
            raise bad(f"hp.alpha ({run.method})", self.alpha, f"0 (the method decides), or 1..{blocks - 1} blocks")

    def server_init(self, model: Net) -> State:
        blocks = list(model.block_params.values())
        return {**super().server_init(model), "fedbr/blocks": blocks, "fedbr/sent": {}}

    def decide(self, server: State, cid: int, r: Round) -> int:
        draw = stream(r.run.seed, "alpha", r.t, cid)
        return int(torch.randint(1, self._whole(server), (), generator=draw))

    def _whole(self, server: State) -> int:
        return len(server["fedbr/blocks"])  # M

    def plan(self, server: State, r: Round) -> State:
        server = super().plan(server, r)
        sent = dict(server["fedbr/sent"])  # client: how many blocks it got last
        for cid in r.participants:
            whole = (r.t - 1) % (self.tau + 1) == 0 or cid not in sent
            sent[cid] = self._whole(server) if whole else self.alpha or self.decide(server, cid, r)
        return {**server, "fedbr/sent": sent}

    def broadcast(self, server: State, cid: int, r: Round) -> Message:
        alpha = server["fedbr/sent"][cid]
        last = {name for block in server["fedbr/blocks"][-alpha:] for name in block}
        message = super().broadcast(server, cid, r)
        parts = {key: message[key].pick(name for name in message[key] if name in last) for key in ("w", "b")}
        return {**message, **parts, "fedbr/alpha": alpha}

    def receive(self, k: Local, message: Message) -> None:
        own = k.client.get("fedbr/x", {"w": {}, "b": {}})  # Model Combination
        super().receive(k, message | {key: Tree({**own[key], **message[key]}) for key in own})
        k.scratch |= {"fedbr/alpha": message["fedbr/alpha"], "fedbr/zeta": 0.0}

    def loss(self, k: Local, x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        main, blocks = super().loss(k, x, y, out), len(k.model.blocks)  # Eq. (15)
        k.scratch["fedbr/zeta"] += main.detach()
        paths = hybrid_paths(k.scratch["fedbr/alpha"], blocks)
        return main + hybrid_loss(k, x, y, out, paths, self.lambda1, self.lambda2, self.delta)

    def finish(self, k: Local) -> tuple[Message, State]:
        sent, kept = super().finish(k)
        zeta = float(k.scratch["fedbr/zeta"]) / max(k.steps, 1)
        feedback = {"fedbr/alpha": k.scratch["fedbr/alpha"], "fedbr/zeta": zeta}
        return sent | feedback, {**kept, "fedbr/x": {"w": sent["w"], "b": sent["b"]}}

    def aggregate(self, server: State, uploads: list[Upload], r: Round) -> State:
        new = super().aggregate(server, uploads, r)
        return new | {key: r.mean(uploads, key, plain=True) for key in ("w", "b") if uploads}  # Eq. (2)

    def columns(self, server: State, r: Round) -> dict[str, float]:
        """How many blocks were sent (M: the whole model), and what the paper's Eqs. (3) and (4) make of it:
        a client's computation against FedAvg's, and all clients' bytes if every block weighed b/M (FB-02, FB-04)."""
        count, alphas = self._whole(server), [server["fedbr/sent"][cid] for cid in r.participants]
        return super().columns(server, r) | {
            "alpha": sum(alphas) / len(alphas),
            **{f"alpha_{m}": alphas.count(m) for m in range(1, count + 1)},
            "paper_compute": sum(paper_compute(alpha, count) for alpha in alphas) / len(alphas),
            "paper_bytes": sum(paper_traffic(alpha, count) for alpha in alphas) * server["w"].nbytes,
        }


@dataclass(frozen=True)
class FedBR(FedBR_Ran):
    """FedBR (Liu et al., IEEE/ACM ToN 2023, Algorithm 1): a bandit, GMBS, decides how many blocks are sent.

    Eq. (21)'s previous loss is that of the client's last visit, whole-model rounds included, and a decision
    without one changes no p (FB-12). If a total is zero, as for the times of a run without a clock, shares are equal
    (I-16).
    """

    ema: float = hp(0.5, high=1)  # lambda of Eq. (23), which the paper does not give
    whole = ("w",)  # Eq. (19) measures every model against their mean

    def server_init(self, model: Net) -> State:
        return {**super().server_init(model), "fedbr/p": {}, "fedbr/n": {}, "fedbr/zeta": {}}

    def decide(self, server: State, cid: int, r: Round) -> int:
        if cid not in server["fedbr/n"]:  # no feedback yet: random (Alg. 1)
            return super().decide(server, cid, r)
        p, n = server["fedbr/p"].get(cid, {}), server["fedbr/n"][cid]
        V = upper_bounds(p, n, r.t, self._whole(server))
        return max(V, key=V.__getitem__)  # ties: the fewest blocks (FB-13)

    def plan(self, server: State, r: Round) -> State:
        server = super().plan(server, r)
        n = dict(server["fedbr/n"])  # client: {alpha: how often it was decided}
        for cid in r.participants:
            if (alpha := server["fedbr/sent"][cid]) < self._whole(server):
                n_k = n.get(cid, {})
                n[cid] = n_k | {alpha: n_k.get(alpha, 0) + 1}  # Alg. 1, line 8
        return {**server, "fedbr/n": n}

    def aggregate(self, server: State, uploads: list[Upload], r: Round) -> State:
        new = super().aggregate(server, uploads, r)
        p, zeta = dict(server["fedbr/p"]), dict(server["fedbr/zeta"])
        shares = zip(
            share([float((new["w"] - u.sent["w"]).sq()) for u in uploads]),  # d_k, Eq. (19)
            share([u.communicate for u in uploads]),  # t'_b, Eq. (20)
            share([u.compute for u in uploads]),  # t'_c
            strict=True,
        )
        for u, (d, t_b, t_c) in zip(uploads, shares, strict=True):
            alpha, now = u.sent["fedbr/alpha"], u.sent["fedbr/zeta"]
            if alpha < self._whole(server) and u.cid in zeta:
                reward = d * (zeta[u.cid] - now) / exp(t_c + t_b)  # Eq. (21)
                p_k = p.get(u.cid, {})
                p[u.cid] = p_k | {alpha: self.ema * reward + (1 - self.ema) * p_k.get(alpha, 0.0)}  # Eq. (23)
            zeta[u.cid] = now
        return {**new, "fedbr/p": p, "fedbr/zeta": zeta}


def hybrid_paths(alpha: int, blocks: int) -> range:
    """The paths of Eqs. (16)-(18), each named by the local block after which it leaves: M-alpha..M-1."""
    return range(max(blocks - alpha, 1), blocks)


def paper_compute(alpha: int, blocks: int) -> float:
    """Eq. (3): a client's computation against FedAvg's; M-1 paths where all M blocks came (FB-15)."""
    m = len(hybrid_paths(alpha, blocks))
    return 1 + m * (m + 1) / (2 * blocks)


def paper_traffic(alpha: int, blocks: int) -> float:
    """Eq. (4): up and down against the model's bytes, if every block weighed the same (FB-02, FB-04)."""
    return 1 + alpha / blocks


def upper_bounds(p: dict[int, float], n: dict[int, int], t: int, blocks: int) -> dict[int, float]:
    """V of Eq. (24) for each number of blocks that may be sent."""
    return {m: p.get(m, 0.0) + sqrt(log(t + 1)) / (n.get(m, 0) + 1) for m in range(1, blocks)}


def share(values: list[float]) -> list[float]:
    """Every value divided by their sum; equal shares if that is zero."""
    total = sum(values)
    return [v / total if total else 1 / len(values) for v in values]
