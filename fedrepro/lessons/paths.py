"""Lesson: the hybrid paths of FedMLB and FedBR, what they cost, and what the paper's formulas say they cost."""

import copy
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch.utils.flop_counter import FlopCounterMode

from fedrepro import models
from fedrepro.lessons.drawing import GIVEN, GLOBAL, INK, LOCAL, OLDER, canvas, columns, kept
from fedrepro.methods.fedbr import hybrid_paths, paper_compute, paper_traffic
from fedrepro.models import Net
from fedrepro.simulation.client import freeze
from fedrepro.simulation.ledger import MIB
from fedrepro.simulation.run import Run

MODELS = ("small", "resnet18", "vgg9", "vgg16", "lenet")
IMAGE = {"classes": 10, "channels": 3, "size": 32}  # CIFAR-10's
BATCH = 50
ROUNDS = 12  # of the schedule that is drawn
ALT = "The blocks of the main path and of each hybrid path; the download per round; computation and traffic per round."


@cache
def network(model: str) -> Net:
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        return models.build(model, **IMAGE)


@cache
def block_bytes(model: str) -> dict[str, int]:
    """The weights of each block, without BatchNorm statistics, as the ledger counts them."""
    return {name: sum(p.nbytes for p in block.parameters()) for name, block in network(model).blocks.items()}


@cache
def step_flops(model: str) -> tuple[int, list[int]]:
    """Counted operations of one step: of the main path, and of what each path m = 1..M-1 adds.

    A path adds its frozen blocks forward and, for the gradient of what enters them, backward.
    """
    net = network(model).train()
    frozen = [freeze(copy.deepcopy(block)) for block in net.blocks.children()]
    x = torch.empty(BATCH, IMAGE["channels"], IMAGE["size"], IMAGE["size"], device="meta")
    y, taps = torch.empty(BATCH, dtype=torch.long, device="meta"), []
    with FlopCounterMode(display=False) as counter:
        torch.autograd.grad(F.cross_entropy(net(x, taps=taps), y), list(net.parameters()))
        counts = [counter.get_total_flops()]
        for tap, block in zip(taps, frozen[1:], strict=False):
            entering = tap.detach().requires_grad_().clone()  # a clone: the counter refuses leaves
            torch.autograd.grad(block(entering).sum(), entering)
            counts.append(counter.get_total_flops())
    return counts[0], [counts[-1] - before for before in counts[:-1]]


@dataclass(frozen=True)
class Setting:
    """A FedMLB or FedBR client; alpha and tau do not matter to FedMLB, which always sends the whole model."""

    method: str
    model: str
    alpha: int
    tau: int
    lambda1: float
    lambda2: float

    def __post_init__(self):
        weights = {"lambda1": self.lambda1, "lambda2": self.lambda2}
        own = {"alpha": self.alpha, "tau": self.tau} if self.method == "fedbr" else {}
        Run(method=self.method, model=self.model, hp=weights | own)  # refuses what the method refuses

    @property
    def blocks(self) -> int:
        return len(block_bytes(self.model))

    def sent(self, t: int) -> int:
        """How many last blocks the server sends in round t."""
        return self.blocks if self.method == "fedmlb" or (t - 1) % (self.tau + 1) == 0 else self.alpha

    @property
    def partial(self) -> int:
        """What a client gets between two whole models, if anything."""
        return self.sent(2)

    def download(self, alpha: int) -> int:
        return sum(list(block_bytes(self.model).values())[-alpha:])

    def costs(self) -> dict[str, tuple[float, float]]:
        """(by the formula, counted), each relative to FedAvg, the mean over a cycle of tau + 1 rounds."""
        cycle = [self.sent(t) for t in range(1, self.tau + 2)]
        whole, (main, added) = self.download(self.blocks), step_flops(self.model)

        def mean(cost) -> float:
            return sum(map(cost, cycle)) / len(cycle)

        def counted(alpha: int) -> int:
            paths = hybrid_paths(alpha, self.blocks) if self.lambda1 or self.lambda2 else ()
            return main + sum(added[m - 1] for m in paths)

        return {
            "computation": (mean(lambda a: paper_compute(a, self.blocks)), mean(counted) / main),
            "traffic": (
                mean(lambda a: paper_traffic(a, self.blocks)) / 2,
                mean(lambda a: whole + self.download(a)) / (2 * whole),
            ),
        }


COSTS = {"computation": ("client's computation", "Eq. (3)"), "traffic": ("traffic, up and down", "Eq. (4)")}


@kept
def layout() -> Figure:
    figure = canvas(5.7)
    margins = {"left": 0.155, "right": 0.985, "top": 0.91, "bottom": 0.1}
    grid = figure.add_gridspec(2, 3, height_ratios=[2.1, 1], **margins, hspace=0.55, wspace=0.5)
    network = figure.add_subplot(grid[0, :])
    network.grid(False)
    network.set(xticks=[])
    network.spines[:].set_visible(False)
    schedule = figure.add_subplot(grid[1, 0])
    schedule.set(title="download per round", xlabel="round", ylabel="MiB", xticks=[1, 4, 8, 12])
    for column, (title, formula) in enumerate(COSTS.values(), start=1):
        ax = figure.add_subplot(grid[1, column])
        ax.set(title=title, ylabel="FedAvg = 1", xticks=[0, 1], xticklabels=[formula, "counted"])
    return figure


def draw(setting: Setting) -> Figure:
    figure = layout()
    network, schedule, *bars = figure.axes
    _network(network, setting)
    rounds = range(1, ROUNDS + 1)
    columns(schedule, rounds, [setting.download(setting.sent(t)) / MIB for t in rounds], color=GLOBAL)
    schedule.set(ylim=(0, None))
    for ax, costs in zip(bars, setting.costs().values(), strict=True):
        columns(ax, [0, 1], costs, width=0.6, color=[GIVEN, INK])
        for i, cost in enumerate(costs):
            ax.text(i, cost / 2, f"{cost:.2f}", ha="center", va="center", color="white", fontweight="bold")
        ax.axhline(1, color="0.3", linestyle="--", linewidth=1)
        ax.set(ylim=(0, max(1.0, *costs) * 1.1))
    return figure


def rows(setting: Setting) -> list[tuple[str, list[str]]]:
    """The rows of the picture, a colour per block. Path m has the local blocks 1..m, then global ones, as in FedMLB's
    Eq. (4)."""
    count, alpha = setting.blocks, setting.partial
    paths = [(f"path {m}", [LOCAL] * m + [GLOBAL] * (count - m)) for m in hybrid_paths(alpha, count)]
    start = [OLDER] * (count - alpha) + [GLOBAL] * alpha
    return [("starts from", start), ("main path", [LOCAL] * count), *paths]


def _network(ax, setting: Setting) -> None:
    count, lines = setting.blocks, rows(setting)
    used = setting.lambda1 or setting.lambda2
    for row, (_, colours) in enumerate(lines):
        faint, boxes = 1.0 if row < 2 or used else 0.25, [(m + 0.08, 0.84) for m in range(count)]
        ax.broken_barh(boxes, (row - 0.33, 0.66), color=colours, alpha=faint, linewidth=0)
    steps = [(m, row) for row in range(1, len(lines)) for m in range(1, count)]
    ax.plot(*zip(*steps, strict=True), ">", color="0.3", markersize=5)
    ax.set(xlim=(0, count), ylim=(len(lines) - 0.5, -0.6), yticks=range(len(lines)))
    ax.set_yticklabels([name for name, _ in lines])
    for m, (name, size) in enumerate(block_bytes(setting.model).items()):
        amount = f"{size / MIB:.1f} MiB" if size >= MIB else f"{size / 2**10:.1f} KiB"
        ax.text(m + 0.5, -0.72, f"{name}\n{amount}", ha="center", va="bottom", fontsize=9.5)
    legend = {"local, trained": LOCAL, "local, from the last visit": OLDER, "global: received, frozen in paths": GLOBAL}
    patches, below = [Patch(color=colour) for colour in legend.values()], {"bbox_to_anchor": (0.45, 0.02)}
    ax.legend(patches, legend, ncols=3, loc="upper center", **below, frameon=False, fontsize=10.5, columnspacing=1)


def say(setting: Setting) -> str:
    count, costs = len(hybrid_paths(setting.partial, setting.blocks)), setting.costs()
    paths = f"<b>{count}</b> hybrid path{'s' if count > 1 else ''}"
    if not (setting.lambda1 or setting.lambda2):
        paths = "no hybrid paths: both λ are 0, so the client trains as in FedAvg"
    (eq3, compute), (eq4, traffic) = costs["computation"], costs["traffic"]
    return (
        f"{paths} · loss = CE + {setting.lambda1:g} · mean CE(paths) + {setting.lambda2:g} · mean KL(paths ‖ main) · "
        f"computation <b>{compute:.3f}</b> counted, {eq3:.3f} by Eq. (3) · "
        f"traffic <b>{traffic:.3f}</b> counted, {eq4:.3f} by Eq. (4)"
    )


def view(**settings) -> tuple[Figure, str]:
    setting = Setting(**settings)
    return draw(setting), say(setting)
