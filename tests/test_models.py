import copy
import pickle
import subprocess
import sys
from itertools import chain, pairwise

import pytest
import torch
from torch import nn

from fedrepro import models
from fedrepro.errors import BadInput

torch.set_num_threads(1)


def make(name, classes=10, channels=3, size=32):
    torch.manual_seed(0)
    return models.build(name, classes=classes, channels=channels, size=size).eval()


def images(channels=3, size=32, n=2):
    return torch.randn(n, channels, size, size, generator=torch.Generator().manual_seed(1))


def count(net, names):
    return sum(net.get_parameter(name).numel() for name in names)


def total(net):
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "parameters", "blocks", "layers"),
    [
        ("lenet", (10, 3, 32), 62_006, 5, 5),  # errata DF-11
        ("lenet", (20, 3, 32), 62_856, 5, 5),  # errata DF-11
        ("lenet", (10, 1, 28), 44_426, 5, 5),
        ("cnn_mnist", (10, 1, 28), 66_130, 4, 4),  # errata DF-11
        ("cnn_femnist", (62, 1, 28), 160_510, 4, 4),  # errata DF-11
        ("cnn_kapc", (10, 1, 28), 832 + 51_264 + 1024 * 512 + 512 + 512 * 128 + 128 + 1290, 5, 5),
        ("cnn_ama", (10, 1, 28), 44_426, 5, 5),
        ("cnn_mcmahan", (10, 1, 28), 1_663_370, 4, 4),  # McMahan et al. 2017
        ("resnet18", (10, 3, 32), 11_181_642, 6, 21),  # errata FB-18, KA-02
        ("resnet18", (100, 3, 32), 11_227_812, 6, 21),  # errata FB-18
        ("resnet18:stem=cifar", (10, 3, 32), 11_173_962, 6, 21),
        ("resnet18:norm=group", (10, 3, 32), 11_181_642, 6, 21),
        ("resnet20", (10, 3, 32), 220_378, 5, 23),  # errata DF-12
        ("resnet20", (10, 1, 28), 220_378 - 2 * 9 * 16, 5, 23),  # errata DF-12
        ("vgg9", (10, 3, 32), 3_491_530, 6, 9),  # FedMA
        ("vgg16", (10, 3, 32), 33_638_218, 8, 16),  # errata DF-13
        ("vgg16:norm=batch,dropout=0.5", (10, 3, 32), 33_646_666, 8, 16),  # errata DF-13
        ("mobilenet_v2", (10, 3, 32), 2_236_682, 6, 53),  # errata DF-14
        ("mobilenet_v2:norm=group", (10, 3, 32), 2_236_682, 6, 53),
        ("shufflenet", (1000, 3, 224), 1_865_728, 5, 50),  # ShuffleNet 1x, g = 3, on ImageNet
        ("shufflenet:norm=group", (10, 3, 32), 1_865_728 - 990 * 961, 5, 50),
        ("squeezenet", (10, 3, 32), 727_626, 6, 26),
        ("squeezenet:norm=group", (10, 3, 32), 727_626 + 2 * 2_944, 6, 26),  # two for each channel of 25 convolutions
        ("small", (10, 3, 32), 73_306, 6, 6),
    ],
)
def test_sizes(name, shape, parameters, blocks, layers):
    classes, channels, size = shape
    net = make(name, classes, channels, size)
    assert (total(net), len(net.blocks), len(net.layers())) == (parameters, blocks, layers)


def test_every_model_is_counted_above():
    counted = {name.partition(":")[0] for name, *_ in test_sizes.pytestmark[0].args[1]}
    assert counted == set(models.names())


def test_resnet18_blocks():
    """Errata FB-04."""
    net = make("resnet18")
    assert list(net.blocks) == ["conv1", "conv2_x", "conv3_x", "conv4_x", "conv5_x", "fc"]
    learned = dict(net.named_parameters())
    sizes = [count(net, [n for n in names if n in learned]) for names in net.block_params.values()]
    assert sizes == [9_536, 147_968, 525_568, 2_099_712, 8_393_728, 5_130]
    shares = [round(100 * sum(sizes[-alpha:]) / sum(sizes), 2 if alpha == 1 else 1) for alpha in range(1, 6)]
    assert shares == [0.05, 75.1, 93.9, 98.6, 99.9]


def test_resnet18_is_torchvisions():
    from fedrepro.models.vision import torchvision

    for name, norm in (("resnet18", None), ("resnet18:norm=group", lambda width: nn.GroupNorm(2, width))):
        net = make(name)
        torch.manual_seed(0)
        origin = torchvision.models.resnet18(num_classes=10, norm_layer=norm).eval()
        values = [v for k, v in origin.state_dict().items() if "num_batches" not in k]
        assert all(torch.equal(a, b) for a, b in zip(values, net.state_dict().values(), strict=True))
        assert torch.equal(net(images()), origin(images()))
        x, y = images(n=4), torch.tensor([0, 1, 2, 3])
        for model in (net, origin):
            nn.functional.cross_entropy(model.train()(x), y).backward()
        assert all(torch.equal(a.grad, b.grad) for a, b in zip(origin.parameters(), net.parameters(), strict=True))
        buffers = [b for b in origin.buffers() if b.is_floating_point()]
        assert all(torch.equal(a, b) for a, b in zip(buffers, net.buffers(), strict=True))


@pytest.mark.parametrize(("classes", "plain", "printed"), [(10, "134.6", "134.6"), (100, "136.0", "136.1")])
def test_dfl_vgg16_has_batchnorm(classes, plain, printed):
    """Errata DF-13, layer by layer: at 100 outputs the printed size is that of the network with BatchNorm."""
    widths = [3, 64, 64, 128, 128, 256, 256, 256, *[512] * 6]
    convs = sum(9 * a * b + b for a, b in pairwise(widths))
    linears = sum(a * b + b for a, b in ((512, 4096), (4096, 4096), (4096, classes)))
    weights, norm = convs + linears, 2 * sum(widths[1:])  # norm: scale and shift, and as much again mean and variance
    assert [f"{4 * n / 1e6:.1f}" for n in (weights, weights + 2 * norm)] == [plain, printed]
    with torch.device("meta"):
        net = models.build("vgg16:norm=batch,dropout=0.5", classes=classes, channels=3, size=32)
        assert (total(net), sum(v.numel() for v in net.state_dict().values())) == (weights + norm, weights + 2 * norm)


def test_dfl_vgg16_is_torchvisions_layer_by_layer():
    from fedrepro.models.vision import torchvision

    def layers(*parts):
        found = [m for part in parts for m in part.modules() if not list(m.children())]
        return [(type(m), getattr(m, "out_channels", getattr(m, "out_features", getattr(m, "p", None)))) for m in found]

    with torch.device("meta"):
        ours = models.build("vgg16:norm=batch,dropout=0.5", classes=10, channels=3, size=32).blocks
        origin = torchvision.models.vgg16_bn(num_classes=10)
    pooling = (nn.AdaptiveAvgPool2d, nn.Flatten)
    assert [m for m in layers(ours) if m[0] not in pooling] == layers(origin.features, origin.classifier)


def test_dropout_is_torchvisions():
    from fedrepro.models.vision import torchvision

    net = make("mobilenet_v2:dropout=0.2").train()
    torch.manual_seed(0)
    origin = torchvision.models.mobilenet_v2(num_classes=10).train()
    assert origin.classifier[0].p == 0.2
    outs = []
    for model in (net, origin, make("mobilenet_v2").train()):
        torch.manual_seed(5)
        outs.append(model(images(n=4)))
    assert torch.equal(outs[0], outs[1]) and not torch.equal(outs[0], outs[2])


SHAPES = [(3, 32), (1, 28), (3, 64)]
VARIANTS = [
    "resnet18:norm=group,stem=cifar",
    "resnet18:proj=256",
    "lenet:proj=16",
    "small:norm=batch",
    "mobilenet_v2:dropout=0.2",
    "mobilenet_v2:norm=group",
    "shufflenet:norm=group",
    "squeezenet:norm=group",
]


@pytest.mark.parametrize("name", models.names() + VARIANTS)
def test_blocks_compose(name):
    for channels, size in SHAPES[:1] if name == "vgg16" or ":" in name else SHAPES:
        net, x, taps = make(name, 10, channels, size), images(channels, size), []
        with torch.no_grad():
            out = net(x, taps=taps)
            assert out.shape == (2, 10) and len(taps) == len(net.blocks) and out is taps[-1]
            steps = [x]
            for block in net.blocks.values():
                steps.append(block(steps[-1].clone()))
            for m, (tap, step) in enumerate(zip(taps, steps[1:], strict=True), 1):
                assert torch.equal(tap, step)  # no later block has changed it in place
                rest = []
                assert torch.equal(net(tap, start=m, taps=rest), out) and len(rest) == len(taps) - m
            features = net.features(taps)
            head = [net.get_parameter(p) for p in net.head]
            if not name.startswith("squeezenet"):
                assert torch.equal(nn.functional.linear(features, *head), out)
            assert features.ndim == 2


@pytest.mark.parametrize("name", models.names() + VARIANTS)
def test_state_and_names(name):
    net = make(name)
    state = net.state_dict()
    assert all(v.is_floating_point() for v in state.values())
    assert list(chain.from_iterable(net.block_params.values())) == list(state)

    layers, learned = net.layers(), dict(net.named_parameters())
    norms = {
        f"{prefix}.{key}"
        for prefix, module in net.named_modules()
        if isinstance(module, nn.BatchNorm2d | nn.GroupNorm)
        for key, _ in module.named_parameters()
    }
    names = list(chain.from_iterable(layers.values()))
    assert len(names) == len(set(names)) and set(names) == set(learned) - norms
    assert names == [n for n in learned if n in set(names)]
    assert net.head == names[-2:] and net.get_parameter(net.head[-1]).shape == (10,)
    assert net.classifier == names[-len(net.classifier) :]
    if not name.startswith("squeezenet"):
        assert all(net.get_parameter(n).ndim <= 2 for n in net.classifier)
        assert all(net.get_parameter(n).ndim != 2 for n in names[: -len(net.classifier)])

    net.train()
    nn.functional.cross_entropy(net(images(n=4)), torch.arange(4)).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    alive = [name for name, p in net.named_parameters() if p.grad.any()]
    assert alive == list(learned)


def test_torch_init_is_pytorchs_default():
    """Uniform in +-1/sqrt(fan in) for weights and biases, a third of its square the variance; norms 1 and 0."""
    for name in ("resnet18:norm=group,stem=cifar,init=torch", "small:init=torch", "vgg9:init=torch",
                 "squeezenet:norm=group,init=torch", "mobilenet_v2:init=torch"):  # fmt: skip
        net = make(name)
        for prefix, layers in net.layers().items():
            weight = net.get_parameter(layers[0])
            bound = (weight[0].numel()) ** -0.5
            for parameter in layers:
                assert net.get_parameter(parameter).abs().max() <= bound, (name, prefix)
            if weight.numel() > 1000:
                assert weight.var().item() == pytest.approx(bound**2 / 3, rel=0.15)
        scales = [m for m in net.modules() if isinstance(m, nn.GroupNorm | nn.BatchNorm2d)]
        assert all((m.weight == 1).all() and (m.bias == 0).all() for m in scales)


def test_torch_init_of_resnet18_is_small():
    """kaiming fan_out has a variance of 2 / fan_out, six times PyTorch's where a layer keeps its width."""
    norms = [sum(float(p.detach().square().sum()) for p in make(f"resnet18:norm=group,stem=cifar,init={i}").parameters()
                 if p.ndim > 1) ** 0.5 for i in ("own", "torch")]  # fmt: skip
    assert norms == pytest.approx([88, 40], rel=0.02)
    assert make("lenet:init=torch")(images()).shape == (2, 10)


def test_shufflenet_unit_by_hand():
    """With weights that only copy, a unit shuffles 3 groups of 20 channels and adds or joins."""
    from fedrepro.models.mobile import Unit

    unit = Unit(240, 240, nn.Identity).double()
    x = torch.rand(1, 240, 4, 4, dtype=torch.double)
    weights = unit.squeeze[0].weight, unit.depthwise[0].weight, unit.expand[0].weight
    with torch.no_grad():
        for weight in weights:
            weight.zero_()
        for channel in range(60):  # each group of 20 reads the first 20 of its 80 inputs, and writes there
            weights[0][channel, channel % 20] = 1
            weights[1][channel, 0, 1, 1] = 1
            weights[2][channel // 20 * 80 + channel % 20, channel % 20] = 1
    squeezed = [80 * (c // 20) + c % 20 for c in range(60)]
    shuffled = [squeezed[20 * group + place] for place in range(20) for group in range(3)]
    expected = x.clone()
    for channel, source in enumerate(shuffled):
        expected[:, channel // 20 * 80 + channel % 20] += x[:, source]
    torch.testing.assert_close(unit(x), expected)

    grown = Unit(24, 240, nn.Identity).double()
    y = grown(torch.ones(1, 24, 4, 4, dtype=torch.double))
    assert y.shape == (1, 240, 2, 2)
    assert y[0, :24, 1, 1].tolist() == [1.0] * 24  # the mean of ones, away from the border


def test_squeezenet_head_without_relu():
    """Logits of zero have a gradient only without the ReLU behind the head."""
    for norm, alive in (("none", False), ("group", True)):
        net = make(f"squeezenet:norm={norm}")
        with torch.no_grad():
            net.get_parameter(net.head[0]).zero_()
            net.get_parameter(net.head[1]).fill_(-0.1)
        nn.functional.cross_entropy(net(images()), torch.tensor([0, 1])).backward()
        assert net.get_parameter(net.head[1]).grad.any().item() is alive


def test_classifier():
    assert len(make("cnn_ama", 10, 1, 28).classifier) == 6  # AMA's "final three FC layers"
    for name in ("resnet18", "squeezenet"):
        assert make(name).classifier == make(name).head
    with_projection = make("lenet:proj=16")
    assert list(with_projection.blocks)[-2:] == ["proj", "fc3"]
    assert count(with_projection, with_projection.head) == 16 * 10 + 10


def test_same_seed_same_weights():
    for name in ("lenet", "small", "resnet20"):
        a, b = make(name).state_dict(), make(name).state_dict()
        assert all(torch.equal(a[k], b[k]) for k in a)


def test_copies_are_whole():
    net, x = make("small:norm=batch"), images()
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        twin.load_state_dict({k: torch.zeros_like(v) for k, v in net.state_dict().items()})
        assert not twin(x).any() and net(x).any()
        twin.load_state_dict(dict(net.state_dict()))
        assert torch.equal(twin(x), net(x))


def test_small_images():
    for name in models.names():
        if name == "vgg16":
            continue
        size = 17 if name == "squeezenet" else 8
        assert make(name, 10, 1, size)(images(1, size)).shape == (2, 10)
    with pytest.raises(BadInput, match=r"model: .*at least 17x17"):
        make("squeezenet", 10, 1, 16)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet19", "model: 'resnet19' .*resnet18"),
        ("", "model: ''"),
        ("lenet:norm=batch", "model: .*proj=0"),
        ("lenet:", "model: 'lenet:' .*lenet, or lenet:key=value"),
        ("lenet:proj=8,", "model: .*proj=0"),
        ("resnet18:norm=group,norm=group", "model: .*norm once"),
        ("resnet18:norm", "model: .*norm=batch"),
        ("resnet18:norm=layer", "model option norm: 'layer' .*batch, group"),
        ("resnet18:stem=mnist", "model option stem: 'mnist' .*cifar, imagenet"),
        ("resnet18:groups=3", "model option groups: 3"),
        ("resnet18:groups=two", "model option groups: 'two'"),
        ("lenet:proj=-1", "model option proj: -1"),
        ("vgg16:dropout=1", r"model option dropout: 1.0 .*\[0, 1\)"),
        ("mobilenet_v2:dropout=nan", "model option dropout: nan"),
        ("squeezenet:proj=256", "model option proj: 256 .*squeezenet"),
    ],
)
def test_bad_names(name, message):
    with pytest.raises(BadInput, match=message):
        models.check(name)


def test_good_names():
    for name in models.names() + VARIANTS:
        models.check(name)


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_torchvision_imports():
    code = """
import torch
from fedrepro.models.vision import torchvision
import torchvision.datasets, torchvision.transforms.v2
print(torchvision.transforms.RandomCrop(4, padding=1)(torch.zeros(3, 4, 4)).shape[1])
print(torchvision.datasets.FakeData(1, (3, 8, 8))[0][0].size[0])
print(torchvision.models.squeezenet1_1(num_classes=7).eval()(torch.zeros(1, 3, 32, 32)).shape[1])
"""
    assert python(code).split() == ["4", "8", "7"]


def test_small_models_start_without_torchvision():
    code = """
import sys
from fedrepro import models
for name in models.names():
    models.check(name)
models.build("lenet", classes=10, channels=1, size=28)
models.build("small", classes=10, channels=3, size=32)
print("torchvision" in sys.modules)
"""
    assert python(code).split() == ["False"]
