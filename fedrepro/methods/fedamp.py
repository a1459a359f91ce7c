from dataclasses import dataclass

import torch
from torch import Tensor

from fedrepro.errors import bad
from fedrepro.methods.base import Local, Message, Round, Run, State, hp
from fedrepro.methods.localtraining import LocalTraining
from fedrepro.methods.mixtures import Mixed, combine, gram, last_uploads, stack

DECAY, EVERY = 0.1, 30  # the authors' alpha_k: multiplied by DECAY every EVERY rounds


@dataclass(frozen=True)
class FedAMP(LocalTraining):
    """FedAMP (Huang et al., AAAI 2021, Algorithm 1): every client gets its own mixture of the models like its own.

    `similarity = "cosine"` is their HeurFedAMP, which KAPC describes; "distance" is their Eq. (5) with
    A(x) = 1 - e^(-x/sigma). With client selection the mixture is over the round's participants. A client's own weight
    xi_ii is theirs, 1 / (N_i + 1), with all N_i other participants counted as similar: a Dirichlet split does not say
    which are. alpha_k falls as in their code. BatchNorm statistics are mixed as the weights are.
    """

    similarity: str = hp("cosine", choices=("cosine", "distance"))
    sigma: float = hp(25.0, low=1e-9)
    own: float = hp(0.0, high=1.0)  # xi_ii of "cosine"; 0: one over the number of participants
    alpha: float = hp(1e4, low=1e-9)  # alpha_k of the first rounds
    lam: float = hp(1.0)
    sends = ("w", "b")

    def check(self, run: Run) -> None:
        super().check(run)
        if self.similarity == "distance" and self.alpha * (run.per_round - 1) > self.sigma:
            least = f"{self.alpha * (run.per_round - 1):g}"
            raise bad(
                "hp.sigma (fedamp)", self.sigma, f"at least alpha (per_round - 1) = {least}, or weights are negative"
            )

    def alpha_at(self, t: int) -> float:
        return self.alpha * DECAY ** ((t - 1) // EVERY)

    def plan(self, server: State, r: Round) -> State:
        server = super().plan(server, r)
        mixed = r.scratch["fedamp/u"] = {key: Mixed(r, server[key]) for key in ("w", "b")}
        if not r.participants:
            return server

        def layer(key: str, name: str) -> Tensor:
            return stack((u[key] for u in last_uploads(server, r)), [name])

        products = [gram(layer("w", name)) for name in server["w"]]
        weights = self.weights(sum(products[1:], products[0]), r.t)
        for key, mixtures in mixed.items():
            for name in server[key]:
                mixtures.add(combine(weights, layer(key, name)), [name])
        return server

    def weights(self, products: Tensor, t: int) -> Tensor:
        """xi of round t from the inner products of the clients' models."""
        squares = products.diagonal()
        others = ~torch.eye(len(products), dtype=torch.bool)
        if len(products) < 2:
            return torch.ones_like(products)
        if self.similarity == "distance":
            distance = (squares[:, None] + squares - 2 * products).clamp(min=0)
            slope = (-distance / self.sigma).exp() / self.sigma
            xi = self.alpha_at(t) * slope * others  # alpha_k A'(||w_i - w_j||^2)
            return xi + torch.diag(1 - xi.sum(1))
        cosine = products / (squares[:, None] * squares).sqrt().clamp(min=1e-300)
        xi = (self.sigma * cosine).masked_fill(~others, -torch.inf).softmax(1)
        own = self.own or 1 / len(products)
        return xi * (1 - own) + own * torch.eye(len(products), dtype=xi.dtype)

    def broadcast(self, server: State, cid: int, r: Round) -> Message:
        return {key: mixtures[cid] for key, mixtures in r.scratch["fedamp/u"].items()}

    def correct(self, k: Local) -> None:
        super().correct(k)
        k.grads.add_(k.params - k.start, alpha=self.lam / self.alpha_at(k.t))  # of lam / (2 alpha_k) ||w - u||^2
