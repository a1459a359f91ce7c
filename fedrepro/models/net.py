"""A network as an ordered chain of named blocks."""

import torch
from torch import Tensor, nn


class Net(nn.Module):
    """`net(x)` runs every block; `net(x, start=m)` enters after block m, with that block's output as x.

    The last block holds one layer with weights, the head; what comes before the head in it only pools and flattens
    (and drops out, if the model does).
    """

    def __init__(self, blocks: dict[str, nn.Module]):
        super().__init__()
        self.blocks = nn.ModuleDict(blocks)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.num_batches_tracked = None  # an unused integer: the state is float tensors only
                module.register_load_state_dict_pre_hook(_drop_counter)
        self._chain = tuple(self.blocks.values())
        last = tuple(self._chain[-1].children())
        before = last[: next(i for i, m in enumerate(last) if isinstance(m, nn.Conv2d | nn.Linear))]
        self._pool = tuple(m for m in before if not isinstance(m, nn.Dropout))

        layers = self.layers()
        self.head: list[str] = list(layers.values())[-1]
        self.classifier: list[str] = [
            parameter
            for name, parameters in layers.items()
            if isinstance(self.get_submodule(name), nn.Linear)
            for parameter in parameters
        ] or self.head
        self.block_params: dict[str, list[str]] = {
            name: [f"blocks.{name}.{key}" for key in block.state_dict()] for name, block in self.blocks.items()
        }

    def forward(self, x: Tensor, start: int = 0, taps: list[Tensor] | None = None) -> Tensor:
        for block in self._chain[start:]:
            x = block(x)
            if taps is not None:
                taps.append(x)
        return x

    def features(self, taps: list[Tensor]) -> Tensor:
        """What the head sees, flattened and before dropout, from the taps of a forward pass."""
        x = taps[-2]
        for module in self._pool:
            x = module(x)
        return x.flatten(1)

    def layers(self) -> dict[str, list[str]]:
        """Convolutions and fully connected layers in order, each with its parameter names; no normalisation."""
        return {
            name: [f"{name}.{key}" for key, _ in module.named_parameters()]
            for name, module in self.named_modules()
            if isinstance(module, nn.Conv2d | nn.Linear)
        }


def _drop_counter(module, state: dict, prefix: str, *_) -> None:
    """BatchNorm adds its counter to any state that lacks one (as version 1 did), and would then refuse it."""
    state.pop(f"{prefix}num_batches_tracked", None)


def take_channels(conv: nn.Module, channels: int) -> None:
    """Make a first convolution built for RGB take `channels` <= 3, keeping that many of its input filters."""
    assert isinstance(conv, nn.Conv2d)
    conv.weight = nn.Parameter(conv.weight.detach()[:, :channels].clone(memory_format=torch.contiguous_format))
    conv.in_channels = channels
