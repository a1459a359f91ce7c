from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from fedrepro.methods.base import FedAvg, Local, Message, State, hp


@dataclass(frozen=True)
class Moon(FedAvg):
    """MOON (Li et al., CVPR 2021, Algorithm 1): contrast with the global and the previous local model.

    The representation is what enters the last linear layer; a model built with `:proj=256` puts MOON's
    projection head there. BatchNorm statistics are averaged; the two frozen models do not change theirs.
    """

    mu: float = hp(5.0)
    temperature: float = hp(0.5, low=1e-6)

    def client_init(self, k: Local) -> State:
        return {**super().client_init(k), "moon/prev": {"w": k.start, "b": k.buffers.clone()}}

    def loss(self, k: Local, x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        previous = k.client["moon/prev"]
        z = k.model.features(k.taps)
        z_glob = representation(k.teacher("moon/global", k.start, k.start_buffers), x)
        z_prev = representation(k.teacher("moon/prev", previous["w"], previous["b"]), x)
        similar = F.cosine_similarity(z, z_glob) / self.temperature
        dissimilar = F.cosine_similarity(z, z_prev) / self.temperature
        contrast = F.softplus(dissimilar - similar).mean()  # -log(e^s / (e^s + e^d)) = softplus(d - s)
        return super().loss(k, x, y, out) + self.mu * contrast

    def finish(self, k: Local) -> tuple[Message, State]:
        sent, kept = super().finish(k)
        return sent, {**kept, "moon/prev": {"w": sent["w"], "b": sent["b"]}}


def representation(model, x):
    taps = []
    model(x, taps=taps)
    return model.features(taps)
