"""Models by name, with options: `build("resnet18:norm=group", classes=10, channels=3, size=32)`; `@model` adds one."""

from importlib import import_module
from typing import Any

from torch import nn

from fedrepro.checks import choose, parse_options
from fedrepro.errors import bad

from . import own
from .net import Net
from .own import fingerprint, model

# name -> (its file, its options); a tuple lists the choices, the default first
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "lenet": ("cnn", {}),
    "cnn_mnist": ("cnn", {}),
    "cnn_femnist": ("cnn", {}),
    "cnn_kapc": ("cnn", {}),
    "cnn_ama": ("cnn", {}),
    "cnn_mcmahan": ("cnn", {}),
    "resnet18": ("resnet", {"norm": ("batch", "group"), "groups": 2, "stem": ("imagenet", "cifar")}),
    "resnet20": ("resnet", {}),
    "vgg9": ("vgg", {}),
    "vgg16": ("vgg", {"norm": ("none", "batch"), "dropout": 0.0}),
    "mobilenet_v2": ("mobile", {"norm": ("batch", "group"), "dropout": 0.0}),
    "shufflenet": ("mobile", {"norm": ("batch", "group")}),
    "squeezenet": ("mobile", {"norm": ("none", "group")}),
    "small": ("small", {"norm": ("group", "none", "batch"), "groups": 2, "width": 16}),
}
EVERY = {"proj": 0, "init": ("own", "torch")}  # options of all models


def names() -> list[str]:
    return sorted({**MODELS, **own.known()})


def build(name: str, *, classes: int, channels: int, size: int) -> Net:
    """Initialised from torch's global generator; with `init=torch`, every layer by PyTorch's default. `proj=256` puts
    MOON's projection head before the last layer."""
    model, options = check(name)
    projection, init = (options.pop(key) for key in EVERY)
    shape = {"classes": classes, "channels": channels, "size": size}
    if model in MODELS:
        blocks = getattr(import_module(f".{MODELS[model][0]}", __package__), model)(**shape, **options)
    else:
        blocks = own.blocks(model, **shape, **options)
    if projection:
        key, last = blocks.popitem()
        *pool, head = last
        if not isinstance(head, nn.Linear):
            raise bad("model option proj", projection, f"only 0 for {model}, which ends in a convolution")
        width = head.in_features
        blocks["proj"] = nn.Sequential(
            *pool, nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, projection)
        )
        blocks[key] = nn.Sequential(nn.Linear(projection, classes))
    if init == "torch":
        for module in nn.ModuleList(blocks.values()).modules():
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()
    return Net(blocks)


def check(text: str) -> tuple[str, dict[str, Any]]:
    """The name and options of a model; BadInput if there is none of that name, or an option is not valid."""
    model, known = text.partition(":")[0], names()
    if model not in known:
        raise bad("model", model, f"{', '.join(known)}; register one of your own first (@fedrepro.model)", known)
    choices = (MODELS[model][1] if model in MODELS else own.options(model)) | EVERY
    defaults = {key: value[0] if isinstance(value, tuple) else value for key, value in choices.items()}
    _, options = parse_options("model", text, defaults)
    for key, value in options.items():
        if isinstance(choices[key], tuple):
            choose(f"model option {key}", value, choices[key])
    if not 0 <= options["proj"] <= 10_000 or (options["proj"] and model == "squeezenet"):
        allowed = "0 (none), or a width up to 10000; only 0 for squeezenet, which ends in a convolution"
        raise bad("model option proj", options["proj"], allowed)
    if model not in MODELS:
        return model, options  # whose function judges its own options
    if not 0 <= options.get("dropout", 0) < 1:
        raise bad("model option dropout", options["dropout"], "a number in [0, 1)")
    groups = options.get("groups", 1)
    if groups not in (1, 2, 4, 8, 16, 32):
        raise bad("model option groups", groups, "1, 2, 4, 8, 16, 32")
    if options.get("width", 16) not in range(8, 257, 8):
        raise bad("model option width", options["width"], "a multiple of 8 from 8 to 256")
    return model, options


__all__ = ["Net", "build", "check", "fingerprint", "model", "names"]
