"""A six-block network that trains fast on a CPU: wide, downsampled early, one convolution a stage.

Its blocks are named as ResNet-18's, so that block-wise methods run on it unchanged at the reduced scale.
"""

from torch import nn

STAGES = {"conv1": (32, 2), "conv2_x": (64, 2), "conv3_x": (128, 2), "conv4_x": (128, 1), "conv5_x": (256, 1)}


def small(*, classes: int, channels: int, size: int, norm: str, groups: int) -> dict[str, nn.Module]:
    blocks = {}
    for name, (width, stride) in STAGES.items():
        conv = nn.Conv2d(channels, width, 3, stride, padding=1, bias=norm == "none")
        nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
        scale = {"none": [], "group": [nn.GroupNorm(groups, width)], "batch": [nn.BatchNorm2d(width)]}[norm]
        blocks[name] = nn.Sequential(conv, *scale, nn.ReLU(inplace=True))
        channels = width
    blocks["fc"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
    return blocks
