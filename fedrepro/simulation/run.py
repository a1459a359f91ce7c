"""Run: the frozen description of one federated training, validated field by field."""

import hashlib
import json
import math
import os
import tomllib
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from fedrepro.checks import choose, number
from fedrepro.errors import BadInput, bad

Row = dict[str, Any]  # one round of a run: its measures, by column
AUGMENTATIONS = ("none", "flip", "crop", "crop+flip")
MOST_SAMPLES = 10**8  # of all clients together, when they may overlap
# limits of a number: (type, lowest, highest, whether the lowest itself is allowed)
COUNT = (int, 1, math.inf, True)
POSITIVE = (float, 0, math.inf, False)
SHARE = (float, 0, 1, True)
PART = (float, 0, 1, False)  # a share above 0


def about(text: str, default: Any, limits: tuple | None = None) -> Any:
    """A field with its line of help and, if it is a number, the limits that are checked."""
    return field(default=default, metadata={"help": text, "limits": limits})


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The fields of a run as a TOML file gives them, not yet checked."""
    try:
        return tomllib.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadInput(f"{os.fspath(path)}: not a run in TOML that can be read ({why})") from None


def _toml(value: Any) -> str:
    """A value of a run's description; JSON writes text, numbers, booleans and lists of them as TOML does."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def identify(described: dict[str, Any]) -> str:
    """The id of the run with this description."""
    text = json.dumps(described, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Run:
    """One training. Runs with the same description have the same id and give the same bytes.

    A feature that is off is None and is left out of the id, so that new features do not rename old runs.
    """

    data: str = about("data set, e.g. digits, cifar10, synthetic:classes=10,size=16", "digits")
    split: str = about("iid, dirichlet:0.3, dirichlet_unequal:0.1, level:7, dominant:0.8, shards:2, writers", "iid")
    clients: int = about("registered clients", 10, (int, 1, 10**7, True))
    per_round: int = about("clients drawn each round", 5, COUNT)
    model: str = about("architecture, e.g. lenet, small, resnet18:norm=group", "lenet")
    method: str = about("method or stack, e.g. fedavg, fedmlb+feddyn", "fedavg")
    hp: dict[str, Any] = field(default_factory=dict, metadata={"help": "the method's hyperparameters"})
    rounds: int = about("communication rounds", 10, COUNT)
    epochs: int | None = about("local epochs (default: 5, unless steps are given)", None, COUNT)
    steps: int | None = about("local steps instead of epochs", None, COUNT)
    batch: int = about("local batch size", 20, COUNT)
    lr: float = about("local learning rate", 0.1, POSITIVE)
    lr_decay: float = about("the learning rate is multiplied by this after each round", 1.0, PART)
    momentum: float = about("local momentum", 0.0, SHARE)
    weight_decay: float = about("local weight decay", 0.0, (float, 0, math.inf, True))
    clip: float | None = about("largest norm of a local gradient", None, POSITIVE)
    augment: str = about("none, flip, crop, crop+flip", "none")
    seed: int = about("seed of every random stream of the run", 0, (int, 0, 2**63 - 1, True))
    weights: str = about("aggregation weights: size (of the client's data) or equal", "size")
    samples: int | None = about("training samples per client (default: all data, divided)", None, COUNT)
    share: float | None = about("random share of the training set that is used", None, PART)
    holdout: float | None = about(
        "share of the training images held out and tested instead of the test set, for tuning",
        None,
        (float, 0, 0.5, False),
    )
    eval_every: int | None = about("rounds between two tests (default: 1)", None, COUNT)
    personal: str | None = about("also test each client's own model: selected, all or trained", None)
    limited: float | None = about("share of computing-limited devices", None, SHARE)
    delay: float | None = about("probability that an update is late", None, SHARE)
    max_delay: int | None = about("largest delay in rounds", None, COUNT)
    bandwidth: tuple[float, float] | None = about("low:high Mbit/s of a device, for the virtual clock", None)
    download: tuple[float, float] | None = about("low:high Mbit/s of the downlink (default: as bandwidth)", None)
    compute: tuple[float, float] | None = about("low:high seconds of computing per device and round", None)
    redraw: int | None = about("rounds after which bandwidth and compute are drawn again (default: 10)", None, COUNT)
    code: dict[str, str] | None = field(
        default=None, init=False, metadata={"help": "checksums of a method, model or data set from outside fedrepro"}
    )

    def __post_init__(self):
        for f in fields(self):
            value, limits = getattr(self, f.name), f.metadata.get("limits")
            if limits and (value is not None or f.default is not None):
                self._set(f.name, number(f.name, value, *limits))
        if self.epochs is None and self.steps is None:
            self._set("epochs", 5)
        if self.epochs is not None and self.steps is not None:
            raise bad("steps", self.steps, f"either epochs ({self.epochs}) or steps, not both")
        if self.per_round > self.clients:
            raise bad("per_round", self.per_round, f"at most clients ({self.clients})")
        if self.samples is not None and self.samples * self.clients > MOST_SAMPLES:
            raise bad("samples", self.samples, f"at most {MOST_SAMPLES // self.clients} for {self.clients} clients")
        if (self.delay is None) != (self.max_delay is None):
            raise bad("max_delay", self.max_delay, "delay and max_delay go together")
        for name in ("bandwidth", "download", "compute"):
            self._set(name, self._range(name))
        if self.download is not None and self.bandwidth is None:
            raise bad("download", self.download, "bandwidth too, for the uplink")
        choose("augment", self.augment, AUGMENTATIONS)
        choose("weights", self.weights, ("size", "equal"))
        if self.personal is not None:
            choose("personal", self.personal, ("selected", "all", "trained"))
        self._check_parts()

    def _check_parts(self) -> None:
        """Names and options of data, split, model and method."""
        from fedrepro import data, methods, models
        from fedrepro.data import partition

        for name in ("data", "split", "model", "method"):
            if not isinstance(getattr(self, name), str):
                raise bad(name, getattr(self, name), "text")
        if not isinstance(self.hp, dict) or not all(isinstance(key, str) for key in self.hp):
            raise bad("hp", self.hp, "a mapping of hyperparameter names to values")
        data.check(self.data)
        partition.check(self.split, self.clients)
        models.check(self.model)
        method = methods.build(self.method, **self.hp)
        self._set("hp", asdict(method))
        method.check(self)
        self._set("code", self._outside())

    def _outside(self) -> dict[str, str] | None:
        """The current checksums of what is not part of fedrepro; None if everything is."""
        from fedrepro import data, methods, models

        modules = {"data": data, "model": models, "method": methods}
        found = {part: module.fingerprint(getattr(self, part)) for part, module in modules.items()}
        return {part: checksum for part, checksum in found.items() if checksum} or None

    def check_code(self) -> None:
        """Refuse a run whose method, model or data were registered again with other code since it was made."""
        self._compare(self.code, "make the Run again")

    def _compare(self, described: dict[str, str] | None, advice: str) -> None:
        now, then = self._outside() or {}, described or {}
        if changed := [part for part in {**then, **now} if then.get(part) != now.get(part)]:
            part = changed[0]
            was, is_ = (f"code {code[part]}" if part in code else "fedrepro's own" for code in (then, now))
            raise BadInput(f"{part}: {getattr(self, part)!r} has changed, it was {was} and is {is_}; {advice}")

    def _range(self, name: str) -> tuple[float, float] | None:
        value = getattr(self, name)
        if value is None:
            return None
        try:
            low, high = map(float, value.split(":")) if isinstance(value, str) else value
            low, high = (number(name, v, float, 0, math.inf, closed=False) for v in (low, high))
        except (TypeError, ValueError):
            raise bad(name, value, "two positive numbers low:high") from None
        if low > high:
            raise bad(name, value, "low:high with low <= high")
        return (low, high)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def local_steps(self, per_epoch: int) -> int:
        """The steps of a client's visit, if one of its epochs has `per_epoch`."""
        return self.steps or (self.epochs or 0) * per_epoch

    @property
    def described(self) -> dict[str, Any]:
        """The canonical description: every field that is on, hyperparameters with their defaults."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items() if v is not None}

    @cached_property
    def id(self) -> str:
        return identify(self.described)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Run":
        """The run with these fields; refuses fields it does not know."""
        known = [f.name for f in fields(cls)]
        if not isinstance(values, dict):
            raise bad("run", values, f"a mapping with the fields {', '.join(known)}")
        for name in values:
            choose("run field", name, known)
        described = values.get("code")
        run = cls(**{name: value for name, value in values.items() if name != "code"})
        if "code" in values:
            run._compare(described, "a run with the code of now needs a description without `code`")
        return run

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the description as TOML, for `Run.load` and `fedrepro run --config`."""
        plain = {name: value for name, value in self.described.items() if not isinstance(value, dict)}
        lines = [f"{name} = {_toml(value)}" for name, value in plain.items()]
        for name in ("hp", "code"):
            if table := getattr(self, name):
                lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
        Path(path).write_text("\n".join(lines) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Run":
        """The run that a TOML file describes; what it leaves out has its default, unknown fields are refused."""
        values = read_toml(path)
        try:
            return cls.from_dict(values)
        except BadInput as error:
            raise BadInput(f"{os.fspath(path)}: {error}") from None
