"""One client's visit, and testing: what worker processes do. They keep nothing between tasks."""

import copy
import time
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedrepro import data, methods, models
from fedrepro.data.partition import Partition, partition, personal_test
from fedrepro.errors import bad
from fedrepro.methods import FedAvg, Message, State
from fedrepro.models import Net
from fedrepro.simulation.files import load_tensors
from fedrepro.simulation.local import Local, values_of
from fedrepro.simulation.rng import derive, stream
from fedrepro.simulation.run import Run
from fedrepro.simulation.tree import Tree

TEST_BATCH = 500
Module = TypeVar("Module", bound=nn.Module)
BY_BATCH = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)  # their output depends on the batch


class Visit(NamedTuple):
    """What one visit gives back to the server's process."""

    sent: Message  # travels up
    kept: State  # stays with the client
    loss: float  # mean training loss
    n: int  # training samples
    cpu_time: float  # seconds, by the worker's clock


def freeze(model: Module) -> Module:
    """The model without gradients; its BatchNorm statistics no longer change."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = 0.0
    return model.requires_grad_(False)


class Worker:
    """The data, the split and one model in memory, in which any client of the run can be trained and tested."""

    def __init__(self, run: Run, device: str = "cpu"):
        run.check_code()
        self.run, self.device = run, torch.device(device)
        self.data = data.load(run.data)
        if run.holdout:
            self.data = self.data.held_out(run.holdout, run.seed)
        self.parts: Partition = partition(
            run.split,
            self.data.train_y,
            run.clients,
            seed=run.seed,
            samples=run.samples,
            share=run.share or 1.0,
            writers=self.data.writers,
        )
        if not int(self.parts.sizes.min()):
            raise bad("split", run.split, "a split that leaves no client empty; use fewer clients")
        self.method = methods.build(run.method, **run.hp)
        self.model = self.new_model()
        self._try_model()
        self.model.to(self.device, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.leaves = dict(self.model.named_parameters())
        self.params, self.buffers = values_of(self.model)
        self._frozen: list[tuple[Net, Tree, Tree]] = []
        if run.personal:
            self.test_parts  # noqa: B018 - an impossible split is refused before anything is written

    def new_model(self) -> Net:
        """The model that the run's seed gives to the server and to all clients."""
        shape = {"classes": self.data.classes, "channels": self.data.channels, "size": self.data.size}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(self.run.seed, "model"))
            return models.build(self.run.model, **shape)

    def clock(self) -> float:
        """CPU seconds of this process, which other processes do not lengthen; on a GPU, seconds on the wall."""
        return time.process_time() if self.device.type == "cpu" else time.perf_counter()

    def __reduce__(self):
        """Built again when unpickled, because its trees are views of its model's memory."""
        return Worker, (self.run, str(self.device))

    def _try_model(self) -> None:
        """Run the smallest batch through a copy of the model in training mode, to find errors early."""
        size = min(self.run.batch, int(self.parts.sizes.min()))
        try:
            with torch.no_grad():
                copy.deepcopy(self.model).train()(self.data.batch(self.data.train_x[:1].expand(size, -1, -1, -1)))
        except (RuntimeError, ValueError) as error:
            raise bad(
                "model", self.run.model, f"one that takes {self.run.data} in batches of {size} ({error})"
            ) from None

    @cached_property
    def test_parts(self) -> Partition:
        """Each client's own test samples."""
        return personal_test(
            self.parts, self.data.train_y, self.data.test_y, seed=self.run.seed, share=self.run.share or 1.0
        )

    def frozen(self, slot: int, w: Tree, b: Tree) -> Net:
        """Frozen copy number `slot` of the model, with these weights."""
        while len(self._frozen) <= slot:
            spare = freeze(copy.deepcopy(self.model)).train()
            self._frozen.append((spare, *values_of(spare)))
        model, params, buffers = self._frozen[slot]
        params.copy_(w)
        buffers.copy_(b)
        return model

    def batches(self, k: Local, indices: Tensor, ahead: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """k.steps batches (x, y): epochs of one permutation each, from the client's own samples.

        The first `ahead` blocks are run once on all samples: x is then what enters the next block.
        """
        run = self.run
        x = self.data.train_x.index_select(0, indices)
        y = self.data.train_y[indices].to(self.device)
        plain = run.augment == "none"
        if plain:  # normalised once per visit; N,H,W,C, so that picking rows keeps channels_last
            x = self.data.batch(x).to(self.device)
            x = self._features(x, ahead) if ahead else x.permute(0, 2, 3, 1)
        else:
            draws = k.rng("augment")
        left, epoch = k.steps, 0
        while left > 0:
            order = torch.randperm(k.n, generator=stream(run.seed, "batches", k.t, k.cid, epoch))
            parts = order.split(run.batch)
            if k.joined:
                parts = (*parts[:-2], torch.cat(parts[-2:]))
            for rows in parts[:left]:
                left -= 1
                if plain:
                    rows = rows.to(self.device)
                    picked = x.index_select(0, rows)
                    yield picked if ahead else picked.permute(0, 3, 1, 2), y.index_select(0, rows)
                else:
                    images = data.augment(x.index_select(0, rows), run.augment, draws)
                    yield self.data.batch(images).to(self.device), y[rows.to(self.device)]
            epoch += 1

    def client(
        self, t: int, cid: int, message: Message, state: State | Path | None, visit: int, limited: bool
    ) -> Visit:
        """One visit: receive, train, finish. The client's state, or the file that has it."""
        method, started = self.method, self.clock()
        before: State | None = load_tensors(state, mapped=True) if isinstance(state, Path) else state
        k = Local(self, t, cid, visit, limited, len(self.parts[cid]))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(self.run.seed, "layers", t, cid))  # dropout
            k.client = before or {}
            method.receive(k, message)
            if before is None:
                k.client = method.client_init(k)
            k.steps = method.steps(k)
            loss = self.fit(k, method.trained(k))
            sent, kept = method.finish(k)
        return Visit(sent, kept, loss, k.n, self.clock() - started)

    def fit(self, k: Local, names: list[str] | None) -> float:
        """k.steps of SGD on these parameters -> mean training loss. Only they have gradients meanwhile, so that
        autograd stops once it has reached the last of them."""
        trained = set(self.params if names is None else names)
        for name, leaf in self.leaves.items():
            leaf.requires_grad_(name in trained)
        try:
            return self._train(k, self.parts[k.cid], [name for name in self.leaves if name in trained])
        finally:
            self.model.requires_grad_(True)

    def _train(self, k: Local, indices: Tensor, names: list[str]) -> float:
        run, method, model = self.run, self.method, self.model.train()
        leaves = [self.leaves[name] for name in names]
        params = [k.params[name] for name in names]
        velocity = None
        total = torch.zeros((), device=self.device)
        ahead = self._ahead(k, names)
        for x, y in self.batches(k, indices, ahead):
            k.taps = []
            loss = method.loss(k, x, y, model(x, start=ahead, taps=k.taps))
            k.grads = Tree(zip(names, torch.autograd.grad(loss, leaves), strict=True))
            total += loss.detach()
            method.correct(k)
            grads = k.grads.tensors
            if run.clip:
                norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
                torch._foreach_mul_(grads, (run.clip / (norm + 1e-6)).clamp(max=1.0))
            if run.weight_decay:
                torch._foreach_add_(grads, params, alpha=run.weight_decay)
            if run.momentum:
                if velocity is None:
                    velocity = [g.clone() for g in grads]
                else:
                    torch._foreach_mul_(velocity, run.momentum)
                    torch._foreach_add_(velocity, grads)
                grads = velocity
            torch._foreach_add_(params, grads, alpha=-k.lr)
        k.taps, k.grads = [], Tree()  # as large as the model that `finish` is about to copy
        return float(total) / max(k.steps, 1)

    def _ahead(self, k: Local, names: list[str]) -> int:
        """How many of the first blocks need to run only once per visit: those in which nothing is trained, random or
        dependent on the batch. A method with its own loss, which may use the images or these blocks, runs them at
        every step.
        """
        plain = self.run.augment == "none" and type(self.method).loss is FedAvg.loss
        if not plain or len(names) == len(self.leaves) or k.steps < k.epoch_steps:
            return 0
        trained, blocks = set(names), self.model.block_params.items()
        first = next(i for i, (_, parameters) in enumerate(blocks) if trained.intersection(parameters))
        frozen = [module for block in list(self.model.blocks.values())[:first] for module in block.modules()]
        return 0 if any(isinstance(module, BY_BATCH) for module in frozen) else first

    @torch.no_grad()
    def _features(self, x: Tensor, ahead: int) -> Tensor:
        extractor = nn.Sequential(*list(self.model.blocks.values())[:ahead])
        return torch.cat([extractor(part) for part in x.split(TEST_BATCH)]).contiguous()

    def test(self, w: Tree, b: Tree, batches: range) -> list[tuple[int, float]]:
        """(correct, sum of losses) of the given batches of the test set."""
        rows = torch.arange(len(self.data.test_y))
        return self._test(w, b, [rows[i * TEST_BATCH : (i + 1) * TEST_BATCH] for i in batches])

    def test_client(self, w: Tree, b: Tree, cid: int) -> tuple[int, float, int]:
        """(correct, sum of losses, number) on the client's own test split."""
        rows = self.test_parts[cid]
        right, losses = zip(*self._test(w, b, rows.split(TEST_BATCH)), strict=True)
        return sum(right), sum(losses), len(rows)

    @torch.no_grad()
    def _test(self, w: Tree, b: Tree, batches: Iterable[Tensor]) -> list[tuple[int, float]]:
        self.params.copy_(w)
        self.buffers.copy_(b)
        model, scores = self.model.eval(), []
        for rows in batches:
            out = model(self.data.batch(self.data.test_x.index_select(0, rows)).to(self.device))
            y = self.data.test_y[rows].to(self.device)
            losses = F.cross_entropy(out, y, reduction="sum")
            scores.append((int((out.argmax(1) == y).sum()), float(losses)))
        return scores
