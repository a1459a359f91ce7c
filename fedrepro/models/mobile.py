"""Light networks, cut at module borders. Without dropout, unless a model has an option for it.

`norm=group` is GroupNorm of two groups, as in FedMLB's ResNet-18, in place of BatchNorm.
"""

from functools import partial

import torch
from torch import Tensor, nn

from fedrepro.errors import bad
from fedrepro.models.vision import torchvision

from .net import take_channels

GROUPED = partial(nn.GroupNorm, 2)


def mobilenet_v2(*, classes: int, channels: int, size: int, norm: str, dropout: float) -> dict[str, nn.Module]:
    """Sandler et al. 2018; torchvision's own has dropout=0.2."""
    net = torchvision.models.mobilenet_v2(num_classes=classes, norm_layer=GROUPED if norm == "group" else None)
    take_channels(net.get_submodule("features.0.0"), channels)
    return _cut(net.features, 2, 4, 7, 14) | {"fc": _pooled(net.classifier[1], dropout)}


def shufflenet(*, classes: int, channels: int, size: int, norm: str) -> dict[str, nn.Module]:
    """Zhang et al. 2018, Table 1: ShuffleNet (the first version) 1x with three groups."""
    scale = GROUPED if norm == "group" else nn.BatchNorm2d
    stem = torchvision.ops.Conv2dNormActivation(channels, 24, 3, 2, norm_layer=scale)
    blocks: dict[str, nn.Module] = {"conv1": stem.append(nn.MaxPool2d(3, stride=2, padding=1))}
    width = 24
    for stage, (outputs, units) in enumerate(((240, 4), (480, 8), (960, 4)), 2):
        rest = [Unit(outputs, outputs, scale) for _ in range(units - 1)]
        blocks[f"conv{stage}_x"] = nn.Sequential(Unit(width, outputs, scale), *rest)
        width = outputs
    return blocks | {"fc": _pooled(nn.Linear(width, classes))}


class Unit(nn.Module):
    """Zhang et al. 2018, Fig. 2: (b) adds to its input; (c), where channels grow, halves the image and joins."""

    GROUPS = 3

    def __init__(self, inputs: int, outputs: int, scale):
        super().__init__()
        self.grows = outputs > inputs
        middle, added = outputs // 4, outputs - inputs if self.grows else outputs
        first = 1 if inputs == 24 else self.GROUPS  # "not on the first pointwise layer": 24 channels are too few
        conv = partial(torchvision.ops.Conv2dNormActivation, norm_layer=scale)
        self.squeeze = conv(inputs, middle, 1, groups=first)
        self.depthwise = conv(middle, middle, 3, 1 + self.grows, groups=middle, activation_layer=None)
        self.expand = conv(middle, added, 1, groups=self.GROUPS, activation_layer=None)
        self.pool = nn.AvgPool2d(3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        shuffled = self.squeeze(x).unflatten(1, (self.GROUPS, -1)).transpose(1, 2).flatten(1, 2)
        out = self.expand(self.depthwise(shuffled))
        return torch.relu(torch.cat([self.pool(x), out], 1) if self.grows else x + out)


def squeezenet(*, classes: int, channels: int, size: int, norm: str) -> dict[str, nn.Module]:
    """Iandola et al. 2016, version 1.1, torchvision's. The head is a 1x1 convolution, averaged over the image.

    It has no normalisation, and a ReLU behind the head: at FedMLB's learning rate all logits soon are zero, where the
    ReLU has no gradient, and the loss stays at log(classes). `norm=group` puts a GroupNorm behind every convolution but
    the head and leaves that ReLU out.
    """
    if size < 17:
        raise bad("model", f"squeezenet at {size}x{size}", "images of at least 17x17")
    net = torchvision.models.squeezenet1_1(num_classes=classes)
    take_channels(net.get_submodule("features.0"), channels)
    _, head, relu, pool = net.classifier
    if norm == "group":
        _normalise(net.features)
    last = [head, pool] if norm == "group" else [head, relu, pool]
    return _cut(net.features, 3, 6, 9, 11) | {"fc": nn.Sequential(*last, nn.Flatten())}


def _normalise(module: nn.Module) -> None:
    """A GroupNorm after every convolution."""
    for name, child in module.named_children():
        if isinstance(child, nn.Conv2d):
            setattr(module, name, nn.Sequential(child, GROUPED(child.out_channels)))
        else:
            _normalise(child)


def _cut(features: nn.Sequential, *cuts: int) -> dict[str, nn.Module]:
    ends = (*cuts, len(features))
    return {f"conv{i}_x": features[a:b] for i, (a, b) in enumerate(zip((0, *cuts), ends, strict=True), 1)}


def _pooled(head: nn.Module, dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), *[nn.Dropout(dropout)] * bool(dropout), head)
