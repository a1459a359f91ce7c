"""Models of your own: a function that gives the blocks of a network."""

import inspect
import itertools
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from fedrepro import own
from fedrepro.errors import BadInput, bad

Make = Callable[..., Any]
Function = TypeVar("Function", bound=Make)
SHAPE = ("classes", "channels", "size")
LAYERS = (nn.Conv2d, nn.Linear)
_registered: dict[str, Make] = {}  # by `model`, in this process


def model(function: Function) -> Function:
    """Register a function of yours: `Run(model=...)` takes its name. A decorator.

    It is called with the keywords classes, channels and size; further keywords with a default are the model's options
    (`mynet:width=32`). It returns an nn.Sequential, or a dict of named blocks of which the last holds one layer with
    weights. Ids of its runs cover its source."""
    name = getattr(function, "__name__", "")
    _check(name, function)
    _registered[name] = function
    return function


def _check(name: str, function: Any) -> None:
    from fedrepro.models import MODELS

    if not inspect.isfunction(function) or not name.isidentifier():
        raise bad("model", function, "a function with a name")
    if name in MODELS:
        raise bad("model", name, "another name: fedrepro already has a model of this name")
    given = inspect.signature(function).parameters
    if missing := [key for key in SHAPE if key not in given]:
        raise BadInput(f"model: {name} must take the keywords {', '.join(SHAPE)}; it lacks {', '.join(missing)}")
    for key, parameter in given.items():
        if key not in SHAPE and not isinstance(parameter.default, int | float | str):
            raise BadInput(f"model: option {key} of {name} needs a default that is a number or text")
    own.fingerprint(function)


def known() -> dict[str, Make]:
    """Registered models, and those of installed packages."""
    return {**own.packaged("models", _check), **_registered}


def fingerprint(text: str) -> str:
    """Of the function behind a model from outside fedrepro; empty for fedrepro's own models."""
    make = known().get(text.partition(":")[0])
    return own.fingerprint(make) if make else ""


def options(name: str) -> dict[str, Any]:
    """The options of a model with their defaults."""
    given = inspect.signature(known()[name]).parameters
    return {key: parameter.default for key, parameter in given.items() if key not in SHAPE}


def blocks(name: str, **options: Any) -> dict[str, Any]:
    """What the function gives, as named blocks; the last of them ends in the head."""
    made = known()[name](**options)
    found = _cut(made) if isinstance(made, nn.Sequential) else made
    if not isinstance(found, dict) or not found or not all(isinstance(block, nn.Module) for block in found.values()):
        raise bad("model", name, "a function that returns an nn.Sequential or a dict of named blocks")
    *_, key = found
    last = found[key] if isinstance(found[key], nn.Sequential) else nn.Sequential(found[key])
    if [isinstance(layer, LAYERS) for layer in last.children()].count(True) != 1 or len(found) < 2:
        raise bad("model", name, "at least two blocks, of which the last holds one Linear or Conv2d layer, the head")
    return {**found, key: last}


def _cut(layers: nn.Sequential) -> dict[str, nn.Module]:
    """One block per layer with weights: it begins there and takes the norms, activations and pooling that follow."""
    starts = [i for i, layer in enumerate(layers) if any(isinstance(part, LAYERS) for part in layer.modules())]
    cuts = sorted({0, *(starts[1:] or starts), len(layers)})
    return {f"block{i}": layers[a:b] for i, (a, b) in enumerate(itertools.pairwise(cuts), 1)}
