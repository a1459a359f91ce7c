"""The checks of the exercises recognise the usual slips and say which one it was."""

from math import exp, log, sqrt

import pytest
import torch
import torch.nn.functional as F

from fedrepro.lessons.exercises import fedbr, fedmlb


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


@pytest.mark.parametrize(("check", "answer", "said"), MLB + BR)
@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=["single", "double"])
def test_a_check_says_what_is_off(check, answer, said, kind):
    """Also in double precision, in which the notebooks run; `said` is empty for a right answer."""
    torch.set_default_dtype(kind)
    try:
        found = check(answer)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.right == (not said) and said in found.message, found
