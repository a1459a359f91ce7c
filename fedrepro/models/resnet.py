"""ResNet-18 as torchvision lays it out, and DFL's ResNet-20."""

from functools import partial

from torch import nn

from fedrepro.models.vision import torchvision

from .net import take_channels


def resnet18(*, classes: int, channels: int, size: int, norm: str, groups: int, stem: str) -> dict[str, nn.Module]:
    """He et al. 2016. FedMLB replaces BatchNorm by GroupNorm; `stem=cifar` is 3x3, stride 1, without max-pool."""
    net = torchvision.models.resnet18(
        num_classes=classes, norm_layer=partial(nn.GroupNorm, groups) if norm == "group" else None
    )
    if stem == "cifar":
        net.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
    take_channels(net.conv1, channels)
    conv1 = nn.Sequential(net.conv1, net.bn1, net.relu)
    if stem == "imagenet":
        conv1.append(net.maxpool)
    return {
        "conv1": conv1,
        "conv2_x": net.layer1,
        "conv3_x": net.layer2,
        "conv4_x": net.layer3,
        "conv5_x": net.layer4,
        "fc": nn.Sequential(net.avgpool, nn.Flatten(), net.fc),
    }


def resnet20(*, classes: int, channels: int, size: int) -> dict[str, nn.Module]:
    """Bottlenecks [2, 2, 2] of widths 16, 32, 64 (x4): what DFL's Table IV implies (errata DF-12)."""
    width = 16
    blocks: dict[str, nn.Module] = {"conv1": torchvision.ops.Conv2dNormActivation(channels, width)}
    for stage, planes in enumerate((16, 32, 64), 2):
        stride = 1 if stage == 2 else 2
        shortcut = torchvision.ops.Conv2dNormActivation(width, 4 * planes, 1, stride, activation_layer=None)
        blocks[f"conv{stage}_x"] = nn.Sequential(
            torchvision.models.resnet.Bottleneck(width, planes, stride, shortcut),
            torchvision.models.resnet.Bottleneck(4 * planes, planes),
        )
        width = 4 * planes
    blocks["fc"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))
    for module in nn.ModuleList(blocks.values()).modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return blocks
