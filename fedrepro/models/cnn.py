"""Two 5x5 convolutions and fully connected layers: the small networks of the papers.

Images under 16 pixels are padded so that a convolution keeps their size; `cnn_mcmahan` always does that.
The ReLU comes after the max-pool: the same values for a quarter of the work.
"""

from functools import partial

from torch import nn


def _cnn(convs, hidden, pad=False, *, classes: int, channels: int, size: int) -> dict[str, nn.Module]:
    padding = 2 if pad or size < 16 else 0
    blocks = {}
    for i, width in enumerate(convs, 1):
        conv = nn.Conv2d(channels, width, 5, padding=padding)
        blocks[f"conv{i}"] = nn.Sequential(conv, nn.MaxPool2d(2), nn.ReLU(inplace=True))
        channels, size = width, (size + 2 * padding - 4) // 2
    features = channels * size**2
    for i, width in enumerate((*hidden, classes), 1):
        blocks[f"fc{i}"] = nn.Sequential(nn.Linear(features, width), nn.ReLU(inplace=True))
        features = width
    blocks["fc1"].insert(0, nn.Flatten())
    del blocks[f"fc{i}"][-1]
    return blocks


lenet = partial(_cnn, (6, 16), (120, 84))  # the PyTorch tutorial's; DFL's CIFAR network (errata DF-11)
cnn_mnist = partial(_cnn, (20, 50), (50,))  # DFL (errata DF-11)
cnn_femnist = partial(_cnn, (16, 32), (256,))  # DFL (errata DF-11)
cnn_kapc = partial(_cnn, (32, 64), (512, 128))  # KAPC gives the hidden layers, not the convolutions' widths
cnn_ama = lenet  # AMA gives "2 convolutional layers, kernel size 5x5, and 3 FC layers", which LeNet is; no widths
cnn_mcmahan = partial(_cnn, (32, 64), (512,), True)  # McMahan et al. 2017
