from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrepro.methods.base import Local, Message, Net, State
from fedrepro.methods.dfl import DFL, soft_targets


@dataclass(frozen=True)
class DFL_Logits(DFL):
    """DFL (Liu et al., IEEE IoT J. 2023) with the other reading of its "label-wise sample logits" (erratum DF-08).

    Logits are averaged, on the device and by Eq. (6), and each row of the global table becomes a distribution when a
    device trains with it: the softmax of a mean, where DFL has the mean of softmaxes. All else is DFL.
    """

    def server_init(self, model: Net) -> State:
        server = super().server_init(model)
        return {**server, "dfl/y": torch.zeros_like(server["dfl/y"])}  # whose softmax is uniform (DF-03)

    def receive(self, k: Local, message: Message) -> None:
        super().receive(k, message)
        k.scratch["dfl/y"] = F.softmax(k.scratch["dfl/y"], 1)

    def label_wise_average(self, k: Local) -> Tensor:
        return soft_targets(k, lambda logits: logits)
