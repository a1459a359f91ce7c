"""torchvision's light networks, cut at module borders. Without dropout, unless a model has an option for it."""

from torch import nn

from fedrepro.errors import bad
from fedrepro.vision import torchvision

from .net import take_channels


def mobilenet_v2(*, classes: int, channels: int, size: int, dropout: float) -> dict[str, nn.Module]:
    """Sandler et al. 2018; torchvision's own has dropout=0.2."""
    net = torchvision.models.mobilenet_v2(num_classes=classes)
    take_channels(net.features[0][0], channels)
    return _cut(net.features, 2, 4, 7, 14) | {"fc": _pooled(net.classifier[1], dropout)}


def shufflenet(*, classes: int, channels: int, size: int) -> dict[str, nn.Module]:
    """Ma et al. 2018, ShuffleNetV2 1.0x."""
    net = torchvision.models.shufflenet_v2_x1_0(num_classes=classes)
    take_channels(net.conv1[0], channels)
    return {
        "conv1": nn.Sequential(net.conv1, net.maxpool),
        "conv2_x": net.stage2,
        "conv3_x": net.stage3,
        "conv4_x": net.stage4,
        "conv5_x": net.conv5,
        "fc": _pooled(net.fc),
    }


def squeezenet(*, classes: int, channels: int, size: int) -> dict[str, nn.Module]:
    """Iandola et al. 2016, version 1.1. The head is a 1x1 convolution, averaged over the image."""
    if size < 17:
        raise bad("model", f"squeezenet at {size}x{size}", "images of at least 17x17")
    net = torchvision.models.squeezenet1_1(num_classes=classes)
    take_channels(net.features[0], channels)
    return _cut(net.features, 3, 6, 9, 11) | {"fc": nn.Sequential(*net.classifier[1:], nn.Flatten())}


def _cut(features: nn.Sequential, *cuts: int) -> dict[str, nn.Module]:
    ends = (*cuts, len(features))
    return {f"conv{i}_x": features[a:b] for i, (a, b) in enumerate(zip((0, *cuts), ends, strict=True), 1)}


def _pooled(head: nn.Linear, dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), *[nn.Dropout(dropout)] * bool(dropout), head)
