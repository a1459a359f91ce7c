"""What FedBR's blocks weigh."""

import numpy as np
import pandas as pd

from fedrepro.models import build


def block_sizes(model: str, classes: int = 10, channels: int = 3, size: int = 32) -> pd.DataFrame:
    """What the last blocks of a model weigh, beside the share α/M that FedBR's Eq. (4) charges for them."""
    net = build(model, classes=classes, channels=channels, size=size)
    parameters = dict(net.named_parameters())
    counts = [sum(parameters[n].numel() for n in names if n in parameters) for names in net.block_params.values()]
    blocks, last = len(counts), np.cumsum(counts[::-1])
    return pd.DataFrame({"last blocks sent (α)": range(1, blocks + 1), "from block": list(net.block_params)[::-1],
                         "parameters": last, "share of bytes": last / last[-1],
                         "charged by Eq. (4): α/M": np.arange(1, blocks + 1) / blocks})  # fmt: skip
