"""VGG, Simonyan and Zisserman 2015, in the sizes the papers use.

Pooling rounds up, so that 28x28 survives five poolings; at 32x32 and 64x64 that changes nothing.
"""

from torch import nn


def vgg16(*, classes: int, channels: int, size: int, norm: str, dropout: float) -> dict[str, nn.Module]:
    """Average-pooled to 512 features: the 512-4096-4096-k classifier of DFL's Table IV (errata DF-13).

    With norm=batch and dropout=0.5 it is torchvision's vgg16_bn except for that pooling and its initialisation of
    the fully connected layers, which is PyTorch's default here.
    """
    stages = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
    blocks, _ = _convs(stages, channels, size, norm == "batch")
    blocks["fc1"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 4096), nn.ReLU(inplace=True))
    blocks["fc2"] = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(inplace=True))
    blocks["fc3"] = nn.Sequential(nn.Linear(4096, classes))
    if dropout:
        for name in ("fc2", "fc3"):
            blocks[name] = nn.Sequential(nn.Dropout(dropout), *blocks[name].children())
    return blocks


def vgg9(*, classes: int, channels: int, size: int) -> dict[str, nn.Module]:
    """The VGG-9 of FedMA (Wang et al. 2020), common in federated learning; FedMLB does not describe its own."""
    blocks, size = _convs(((32, 64), (128, 128), (256, 256)), channels, size)
    blocks["fc1"] = nn.Sequential(nn.Flatten(), nn.Linear(256 * size**2, 512), nn.ReLU(inplace=True))
    blocks["fc2"] = nn.Sequential(nn.Linear(512, 512), nn.ReLU(inplace=True))
    blocks["fc3"] = nn.Sequential(nn.Linear(512, classes))
    return blocks


def _convs(stages, channels: int, size: int, norm: bool = False) -> tuple[dict[str, nn.Module], int]:
    blocks = {}
    for stage, widths in enumerate(stages, 1):
        block = blocks[f"conv{stage}_x"] = nn.Sequential()
        for width in widths:
            conv = nn.Conv2d(channels, width, 3, padding=1)
            nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(conv.get_parameter("bias"))
            block.append(conv)
            if norm:
                block.append(nn.BatchNorm2d(width))
            block.append(nn.ReLU(inplace=True))
            channels = width
        block.append(nn.MaxPool2d(2, ceil_mode=True))
        size = (size + 1) // 2
    return blocks, size
