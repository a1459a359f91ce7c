"""The checks of the exercises recognise common mistakes and name them."""

from math import exp, log, sqrt

import pytest
import torch
import torch.nn.functional as F

from fedrepro.lessons.exercises import ama, dfl, fedbr, fedmlb


def kl(z, main, temperature=1.0):
    p, q = F.log_softmax(z / temperature, 1), F.log_softmax(main / temperature, 1)
    return F.kl_div(q, p, reduction="batchmean", log_target=True)


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def chain(blocks, x):
    for block in blocks:
        x = block(x)
    return x


def paths(first, second, x):
    """Path m: the blocks 1..m of the first network, then m+1..M of the second."""
    first, second = list(first.blocks.values()), list(second.blocks.values())
    return [chain(second[m:], chain(first[:m], x)) for m in range(1, len(first))]


def bounds(p, n, t, root=True, inside=False, shift=1):
    top = log(t + shift)
    if inside:
        return [v + sqrt(top / (k + 1)) for v, k in zip(p, n, strict=True)]
    return [v + (sqrt(top) if root else top) / (k + 1) for v, k in zip(p, n, strict=True)]


def first_best(V):
    return V.index(max(V)) + 1


def reward(x, models, before, now, t_b, t_c, power=2, sign=1, time=lambda t: exp(-t)):
    far = [float((x - model).norm()) ** power for model in models]
    return [far[k] / sum(far) * sign * (before[k] - now[k]) * time(t_b[k] / sum(t_b) + t_c[k] / sum(t_c))
            for k in range(len(far))]  # fmt: skip


def stepping(parameters, times=1.0):
    """fes_step on the wrong parameters, or with the gradient times something."""

    def step(model, x, y, lr):
        F.cross_entropy(model(x), y).backward()
        for p in parameters(model):
            p.data -= times * lr * p.grad

    return step


def everyone(old, uploads):
    total = sum(n for n, *_ in uploads)
    return sum(n * f for n, _, f, _ in uploads) / total, sum(n * c for n, *_, c in uploads) / total


def capable(old, uploads):
    """Right, but for a round without a capable device."""
    able = [(n, f) for n, limited, f, _ in uploads if not limited]
    return sum(n * f for n, f in able) / max(sum(n for n, _ in able), 1), everyone(old, uploads)[1]


MLB = [
    (fedmlb.block_runs, lambda M: M + M * (M - 1) // 2, ""),
    (fedmlb.block_runs, lambda M: M * M, "again for every path"),
    (fedmlb.block_runs, lambda M: M * (M - 1) // 2, "main path runs M blocks too"),
    (fedmlb.block_runs, lambda M: 17, "off by"),
    (fedmlb.hybrid_cross_entropy, lambda z, y: mean(F.cross_entropy(p, y) for p in z), ""),
    (fedmlb.hybrid_cross_entropy, lambda z, y: sum(F.cross_entropy(p, y) for p in z), "you summed"),
    (fedmlb.hybrid_cross_entropy, lambda z, y: sum(F.cross_entropy(p, y) for p in z) / (len(z) + 1), "over M paths"),
    (fedmlb.hybrid_cross_entropy, lambda z, y: mean(F.cross_entropy(p.softmax(1), y) for p in z), "takes logits"),
    (fedmlb.hybrid_cross_entropy, lambda z, y: 1 / 0, "ZeroDivisionError"),
    (fedmlb.hybrid_kl, lambda z, m, T: mean(kl(p, m, T) for p in z), ""),
    (fedmlb.hybrid_kl, lambda z, m, T: mean(kl(m, p, T) for p in z), "this is KL(main || hybrid)"),
    (fedmlb.hybrid_kl, lambda z, m, T: T**2 * mean(kl(p, m, T) for p in z), "temperature²"),
    (fedmlb.hybrid_kl, lambda z, m, T: mean(kl(p, m, T) for p in z) / m.shape[1], "batchmean"),
    (fedmlb.hybrid_kl, lambda z, m, T: mean(kl(p.detach(), m, T) for p in z), "hybrid logits: do not detach"),
    (fedmlb.hybrid_kl, lambda z, m, T: mean(kl(p, m.detach(), T) for p in z), "main logits: do not detach"),
    (fedmlb.hybrid_kl, lambda z, m, T: mean(kl(p, m, T) for p in z).item(), "no gradient"),
    (fedmlb.global_to_local, lambda L, G, x: paths(G, L, x), ""),
    (fedmlb.global_to_local, lambda L, G, x: paths(L, G, x), "local blocks first"),
    (fedmlb.global_to_local, lambda L, G, x: [z.detach() for z in paths(G, L, x)], "no gradient"),
    (fedmlb.global_to_local, lambda L, G, x: [*paths(G, L, x), G(x)], "expected 4 paths"),
]
BR = [
    (fedbr.sent_blocks, lambda a, M: list(range(M - a + 1, M + 1)), ""),
    (fedbr.sent_blocks, lambda a, M: list(range(1, a + 1)), "these are the first blocks"),
    (fedbr.sent_blocks, lambda a, M: list(range(M - a, M)), "from 0"),
    (fedbr.mean_traffic, lambda a, M, tau: 1 + (1 + tau * a / M) / (tau + 1), ""),
    (fedbr.mean_traffic, lambda a, M, tau: 1 + 1 / tau + (1 - 1 / tau) * a / M, "as printed"),
    (fedbr.mean_traffic, lambda a, M, tau: (1 + tau * a / M) / (tau + 1), "way down only"),
    (fedbr.mean_traffic, lambda a, M, tau: 1 + a / M, "partial round"),
    (fedbr.decision, lambda p, n, t: first_best(bounds(p, n, t)), ""),
    (fedbr.decision, lambda p, n, t: first_best(bounds(p, n, t)) - 1, "counted from 0"),
    (fedbr.decision, lambda p, n, t: 5 - bounds(p, n, t)[::-1].index(max(bounds(p, n, t))), "on a tie"),
    (fedbr.decision, lambda p, n, t: first_best(p), "only looked at p"),
    (fedbr.decision, lambda p, n, t: first_best(bounds(p, n, t, inside=True)), "UCB1"),
    (fedbr.decision, lambda p, n, t: first_best(bounds(p, n, t, root=False)), "root over the logarithm"),
    (fedbr.decision, lambda p, n, t: first_best(bounds(p, n, t, shift=0)), "not of t"),
    (fedbr.decision, lambda p, n, t: 3, "V is highest at"),
    (fedbr.rewards, reward, ""),
    (fedbr.rewards, lambda *given: reward(*given, power=1), "squared distances"),
    (fedbr.rewards, lambda *given: reward(*given, sign=-1), "before minus the loss now"),
    (fedbr.rewards, lambda *given: reward(*given, time=lambda t: 1 / t), "divided by the times"),
    (fedbr.rewards, lambda *given: reward(*given, time=exp), "divides by it"),
    (fedbr.rewards, lambda *given: reward(*given, time=lambda t: 1.0), "the time is missing"),
    (fedbr.rewards, lambda *given: [0.0] * 4, "off by"),
]


AMA = [
    (ama.largest_eta, lambda alpha0, rounds: 1 / rounds, "starts at α₀"),
    (ama.largest_eta, lambda alpha0, rounds: (1 - alpha0) / (rounds - 1), "rounds count from 1"),
    (ama.largest_eta, lambda alpha0, rounds: 0.5, "off by up to"),
    (ama.takeover, lambda s, b: 1, "one too few"),
    (ama.takeover, lambda s, b: 1.5, "not a whole number"),
    (ama.takeover, lambda s, b: {(1, 0.6): 2}.get((s, b), 3), "one too many"),
    (ama.fes_step, lambda model, x, y, lr: model, "no weight has changed"),
    (ama.fes_step, stepping(lambda m: m.parameters()), "the extractor has changed"),
    (ama.fes_step, stepping(lambda m: m[:6].parameters()), "AM-03"),
    (ama.fes_step, stepping(lambda m: m[6:].parameters(), -1), "uphill"),
    (ama.fes_step, stepping(lambda m: m[6:].parameters(), 2), "learning rate is missing"),  # the check's is 0.5
    (ama.noise_left, lambda alpha: (1 - alpha) ** 2, "newest round only"),
    (ama.noise_left, lambda alpha: 1 - alpha, "squares of the weights"),
    (ama.noise_left, lambda alpha: ((1 - alpha) / (1 + alpha)) ** 0.5, "standard deviation"),
    (ama.aggregate, everyone, "limited devices count"),
    (ama.aggregate, capable, "old extractor must stay"),
    (ama.aggregate, lambda old, uploads: old[0], "return a pair"),
]
DFL = [
    (dfl.first_round, lambda R, T: int((1 - T) * R) + 1, "one round late"),
    (dfl.first_round, lambda R, T: round((1 - T) * R), "one round early"),  # 0 for R = 8, T = 0.99
    (dfl.first_round, lambda R, T: 1 / 0, "ZeroDivisionError"),
    (dfl.label_means, lambda p, y: torch.eye(p.shape[1]).double()[y].T @ p, "sums"),
    (dfl.label_means, lambda p, y: torch.eye(p.shape[1]).double()[y].T @ p / len(p), "number of all images"),
    (dfl.label_means, lambda p, y: torch.stack([p[y == c].mean(0) for c in range(p.shape[1])]), "0/0"),
    (dfl.merge, lambda old, tables, n: sum(s * t for s, t in zip(n, tables, strict=True)) / sum(n), "DF-07"),
    (dfl.merge, lambda old, tables, n: dfl.merged(torch.zeros_like(old), tables, n), "stay as it was"),
    (dfl.merge, lambda old, tables, n: dfl.merged(old, tables, [1, 1, 1]), "same weight"),
    (dfl.merge, lambda old, tables, n: torch.tensor(1.0), "shape"),
    (dfl.softened, lambda table, y, rho: (1 - rho) * torch.eye(6)[y] + rho * table[y], "swapped"),
    (dfl.softened, lambda table, y, rho: rho * torch.eye(6)[y] + (1 - rho) * table[:, y].T, "columns"),
    (dfl.softened, lambda table, y, rho: torch.eye(6)[y] + table[y], "add up to one"),
    (dfl.from_others, lambda tables, i: dfl.merged(torch.zeros(4, 4).double(), [*tables.values()], [1] * 4), "own"),
    (dfl.from_others, lambda tables, i: mean([t for k, t in tables.items() if k != i]), "have the label"),
]


@pytest.mark.parametrize(("check", "answer", "message"), MLB + BR + AMA + DFL)
@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=["single", "double"])
def test_a_check_says_what_is_wrong(check, answer, message, kind):
    """In single and in double precision, which some notebooks use; `message` is empty for a right answer."""
    torch.set_default_dtype(kind)
    try:
        found = check(answer)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.right == (not message) and message in found.message, found
