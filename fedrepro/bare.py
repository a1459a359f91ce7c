"""FedAvg and FedProx as one would write them for a single experiment in plain PyTorch, for `fedrepro bench`."""

import signal
from collections.abc import Generator
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier

import torch
import torch.nn.functional as F
from torch import nn

from fedrepro import data


def lenet() -> nn.Module:
    """The PyTorch-tutorial LeNet for 1x28x28, written without fedrepro."""
    convolutions = [nn.Conv2d(1, 6, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU()]
    classifier = [nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    return nn.Sequential(*convolutions, nn.Flatten(), *classifier)


def resnet18() -> nn.Module:
    """torchvision's."""
    from fedrepro.models.vision import torchvision

    return torchvision.models.resnet18(num_classes=10)


class Bare:
    """FedAvg, or with mu FedProx: float tensors in memory, channels_last, torch.optim."""

    def __init__(self, model: nn.Module, settings: dict, mu: float = 0.0):
        self.settings, self.mu = settings, mu
        self.model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        images = data.load(settings["data"])
        self.x = images.batch(images.train_x).contiguous(memory_format=torch.channels_last)
        self.y = images.train_y.clone()
        self.test_x = images.batch(images.test_x).contiguous(memory_format=torch.channels_last)
        self.test_y = images.test_y.clone()
        self.size = settings.get("samples") or len(self.y) // settings["clients"]
        self.order = torch.randperm(len(self.y))
        self.weights = [p.detach().clone() for p in model.parameters()]

    def client(self, cid: int) -> list[torch.Tensor]:
        mine = self.order[cid * self.size : (cid + 1) * self.size]
        x, y = self.x[mine].contiguous(memory_format=torch.channels_last), self.y[mine]
        params = list(self.model.parameters())
        with torch.no_grad():
            for p, w in zip(params, self.weights, strict=True):
                p.copy_(w)
        optimiser = torch.optim.SGD(params, lr=self.settings["lr"])
        self.model.train()
        for _ in range(self.settings["epochs"]):
            for rows in torch.randperm(self.size).split(self.settings["batch"]):
                optimiser.zero_grad()
                F.cross_entropy(self.model(x[rows]), y[rows]).backward()
                if self.mu:
                    with torch.no_grad():
                        for p, w in zip(params, self.weights, strict=True):
                            p.grad.add_(p - w, alpha=self.mu)
                optimiser.step()
        return [p.detach().clone() for p in params]

    @torch.no_grad()
    def test(self, part: int, parts: int) -> int:
        self.model.eval()
        for p, w in zip(self.model.parameters(), self.weights, strict=True):
            p.copy_(w)
        batches = list(zip(self.test_x.split(500), self.test_y.split(500), strict=True))
        cut = slice(len(batches) * part // parts, len(batches) * (part + 1) // parts)
        return sum(int((self.model(x).argmax(1) == y).sum()) for x, y in batches[cut])

    def rounds(self) -> Generator[int]:
        while True:
            chosen = torch.randperm(self.settings["clients"])[: self.settings["per_round"]].tolist()
            locals_ = [self.client(cid) for cid in chosen]
            self.weights = [torch.stack(group).mean(0) for group in zip(*locals_, strict=True)]
            yield self.test(0, 1)


def _half(bare: Bare, part: int, shared: torch.Tensor, sums: torch.Tensor, barrier: Barrier) -> None:
    """One of the two processes: its half of the clients, then of the test images, again and again."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    while True:
        barrier.wait()
        torch.manual_seed(int(shared[0]))
        chosen = torch.randperm(bare.settings["clients"])[: bare.settings["per_round"]].tolist()
        sums[part].zero_()
        for cid in chosen[part::2]:
            sums[part].add_(torch.cat([p.flatten() for p in bare.client(cid)]))
        barrier.wait()
        mean = (sums[0] + sums[1]) / bare.settings["per_round"]
        for w, flat in zip(bare.weights, mean.split([w.numel() for w in bare.weights]), strict=True):
            w.copy_(flat.view_as(w))
        shared[1 + part] = bare.test(part, 2)
        barrier.wait()


def split_in_two(bare: Bare) -> Generator[int]:
    """The bare loop over two processes: clients and test images divided evenly, sums through shared memory."""
    fork = get_context("fork")
    shared = torch.zeros(3, dtype=torch.long).share_memory_()
    sums = torch.zeros(2, sum(w.numel() for w in bare.weights)).share_memory_()
    barrier = fork.Barrier(3)
    processes = [fork.Process(target=_half, args=(bare, i, shared, sums, barrier), daemon=True) for i in range(2)]
    for process in processes:
        process.start()
    try:
        while True:
            shared[0] += 1
            barrier.wait()
            barrier.wait()
            barrier.wait()
            yield int(shared[1:].sum())
    finally:
        for process in processes:
            process.terminate()
