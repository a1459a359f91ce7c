"""Data of your own: tensors, arrays, or folders of pictures."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from fedrepro import own
from fedrepro.data import cache as files
from fedrepro.errors import BadInput, bad

if TYPE_CHECKING:
    from fedrepro.data import Dataset

MOST_CHANNELS = 4  # of images; if both ends of a shape are larger, it is unclear which is the channels
Pair = tuple[Any, Any]
_registered: dict[str, "Dataset"] = {}  # by `register`, in this process


def register(
    name: str, *, train: Pair | str | Path, test: Pair | str | Path, writers: Any = None, size: int | None = None
) -> None:
    """Register your own data under a name for `Run(data=...)`.

    `train` and `test` are each a pair of tensors or arrays (images, labels), or a folder with one folder of pictures
    per class. Images are N,H,W, N,C,H,W or N,H,W,C, square, uint8 or floating point; rows of features are N,D. Labels
    count from 0. `size` resizes the pictures of a folder; `writers` says for each training image who made it, for the
    split `writers`. Ids of its runs cover its content.
    """
    from fedrepro.data import BUILT_IN, STORED

    if not isinstance(name, str) or not name.isidentifier():
        raise bad("data", name, "a name of letters, digits and _")
    if name in (*BUILT_IN, *STORED):
        raise bad("data", name, "another name: fedrepro already has a data set of this name")
    classes = _classes(train, test)
    arrays = {}
    for part, given in (("train", train), ("test", test)):
        arrays |= _arrays(part, _pictures(Path(given), classes, size) if isinstance(given, str | Path) else given)
    if writers is not None:
        arrays["train_writers"] = _labels("writers", writers, len(arrays["train_y"]))
    _registered[name] = _made(name, arrays, max(len(classes), int(arrays["train_y"].max()) + 1))


def _made(name: str, arrays: files.Arrays, classes: int) -> "Dataset":
    from fedrepro.data import Dataset

    images, tests = arrays["train_x"], arrays["test_x"]
    if images.shape[1:] != tests.shape[1:] or images.dtype != tests.dtype:
        shapes = f"{images.dtype} {images.shape[1:]} and {tests.dtype} {tests.shape[1:]}"
        raise BadInput(f"data {name}: train and test images differ in shape or type ({shapes})")
    if int(arrays["test_y"].max()) >= classes:
        raise BadInput(f"data {name}: test label {arrays['test_y'].max()} does not occur in train (0 to {classes - 1})")
    provenance = {"name": name, "source": "registered", "sha256": files.sha256(arrays)}
    return Dataset.made(name, arrays, classes, _statistics(arrays), provenance)


def _statistics(arrays: files.Arrays) -> dict[str, list[float]]:
    """Mean and deviation of each channel in the units of a Dataset, where 255 is 1; a constant channel's is 1."""
    if arrays["train_x"].dtype == np.uint8:
        found = files.statistics(arrays)
    else:
        axes, images = (0, 1, 2), arrays["train_x"].astype(np.float64)
        found = {"mean": (images.mean(axes) / 255).tolist(), "std": (images.std(axes) / 255).tolist()}
    return {**found, "std": [value or 1.0 for value in found["std"]]}


def _arrays(part: str, given: Any) -> files.Arrays:
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise bad(part, type(given).__name__, "a pair (images, labels), or a folder of class folders")
    x = _images(part, given[0])
    return {f"{part}_x": x, f"{part}_y": _labels(f"{part} labels", given[1], len(x))}


def _images(part: str, given: Any) -> np.ndarray:
    """As N,H,W,C, uint8 or float32; features N,D as N,1,1,D."""
    x = _copy(given)
    if x.dtype != np.uint8 and x.dtype.kind != "f":
        raise bad(f"{part} images", str(x.dtype), "uint8 or floating point")
    if x.ndim in (2, 3):
        x = x[:, None, None, :] if x.ndim == 2 else x[..., None]
    elif x.ndim == 4 and x.shape[1] <= MOST_CHANNELS < x.shape[3]:
        x = x.transpose(0, 2, 3, 1)
    if x.ndim != 4 or not len(x) or x.shape[1] != x.shape[2]:
        allowed = "N,D, or square images N,H,W, N,C,H,W or N,H,W,C with at most 4 channels"
        raise bad(f"{part} images", np.shape(given), allowed)
    if x.dtype != np.uint8 and not np.isfinite(x).all():
        raise bad(f"{part} images", "nan or inf", "finite numbers")
    return np.ascontiguousarray(x if x.dtype == np.uint8 else x.astype(np.float32))


def _copy(given: Any) -> np.ndarray:
    """A copy, so that later changes to the tensor or array affect no run."""
    return np.array(given.detach().cpu().numpy() if isinstance(given, torch.Tensor) else given)


def _labels(what: str, given: Any, count: int) -> np.ndarray:
    y = _copy(given)
    if y.dtype.kind not in "iu" or y.shape != (count,) or y.min() < 0:
        raise bad(what, f"{y.dtype} {y.shape}", f"{count} whole numbers from 0, one per image")
    return y.astype(np.int64)


def _classes(*given: Any) -> list[str]:
    """The names of the class folders of the training pictures."""
    for folder in given:
        if isinstance(folder, str | Path) and not Path(folder).is_dir():
            raise bad("data", str(folder), "a folder that exists")
    train = given[0]
    return sorted(path.name for path in Path(train).iterdir() if path.is_dir()) if isinstance(train, str | Path) else []


def _pictures(folder: Path, classes: list[str], size: int | None) -> Pair:
    """Colour images and labels of <class>/<picture>, in alphabetical order; all square and of one size."""
    paths = [path for path in sorted(folder.glob("*/*")) if path.is_file() and not path.name.startswith(".")]
    unknown = sorted({path.parent.name for path in paths} - set(classes))
    if not paths or unknown:
        found = f"{folder} with the class {unknown[0]}" if unknown else f"{folder}, without pictures"
        raise bad("data", found, f"pictures in folders of the training classes: {', '.join(classes) or 'none found'}")
    images = []
    for path in paths:
        try:
            with Image.open(path) as picture:
                rgb = picture.convert("RGB")
        except OSError as error:
            raise BadInput(f"data: {path} is not a picture ({error})") from None
        images.append(np.asarray(rgb.resize((size, size)) if size else rgb))
        if images[-1].shape != images[0].shape or not (size or rgb.width == rgb.height):
            shown = f"{path} of {rgb.width}x{rgb.height}"
            raise bad("data", shown, "square pictures of one size, or size=32 to resize them")
    return np.stack(images), np.array([classes.index(path.parent.name) for path in paths])


def _packaged() -> dict[str, Any]:
    return own.packaged("data", _check_function)


def _check_function(name: str, function: Any) -> None:
    if not callable(function):
        raise bad("data", function, "a function that returns the keywords of fedrepro.data.register")


def names() -> list[str]:
    return sorted({*_registered, *_packaged()})


def registered(name: str) -> "Dataset":
    """That of a package is made at first use."""
    if name not in _registered:
        register(name, **_packaged()[name]())
    return _registered[name]


def fingerprint(text: str) -> str:
    """A checksum of data from outside fedrepro; empty for fedrepro's own data sets."""
    name = text.partition(":")[0]
    return registered(name).provenance["sha256"][:16] if name in names() else ""
