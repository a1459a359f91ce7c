"""The controls of each lesson: they read values, call the lesson's pure functions and show what comes back."""

import ipywidgets as w
from IPython.display import HTML, Image, display

from fedrepro.data.partition import PARAMETERS
from fedrepro.lessons import cube as cube_lesson
from fedrepro.lessons import first_round as first_round_lesson
from fedrepro.lessons import gmbs as gmbs_lesson
from fedrepro.lessons import live as live_lesson
from fedrepro.lessons import mixing as mixing_lesson
from fedrepro.lessons import partitions as partitions_lesson
from fedrepro.lessons import paths as paths_lesson
from fedrepro.lessons import soft_targets as soft_targets_lesson
from fedrepro.lessons.controls import Control, Panel, choice, real, slider, whole
from fedrepro.lessons.drawing import png
from fedrepro.lessons.live_panel import Live


def _stepper(moved: Control) -> tuple[Control, ...]:
    """Buttons that move a slider: one step, and all the way."""
    step = w.Button(description="Step", icon="step-forward")
    step.on_click(lambda _: setattr(moved, "value", min(moved.value + 1, moved.max)))
    play = w.Play(value=moved.value, min=moved.min, max=moved.max, interval=700)
    w.jslink((play, "value"), (moved, "value"))
    return (step, play)


def first_round() -> Panel:
    start = first_round_lesson.Setting()
    moment = whole("moment (3 per round)", 0, 0, first_round_lesson.MOMENTS)
    controls = {
        "moment": moment,
        "steps": whole("E: local steps", start.steps, 1, 40),
        "rate": real("η: learning rate", start.rate, 0.05, 1.5, 0.05),
        "skew": real("share of A's images that are 3s", start.skew, 0.5, 1, 0.05),
        "size": real("A's share of all images", start.size, 0.1, 0.9, 0.1, 1),
        "mu": real("μ: pull to the start (FedProx)", start.mu, 0, 2, 0.1, 1),
    }
    return Panel(first_round_lesson.ALT, first_round_lesson.view, controls, more=_stepper(moment))


def partitions() -> Panel:
    parameter = {
        "dirichlet": slider(w.FloatLogSlider, "concentration", 0.3, -2, 2, step=0.1, readout_format=".2f"),
        "level": whole("level", 7, 0, 9),
        "dominant": real("share of one class", 0.8, 0.05, 1.0, 0.05),
        "shards": whole("shards per client", 2, 1, 12),
    }
    owner = {"dirichlet_unequal": "dirichlet"}  # whose slider a split uses

    def view(data, kind: str, clients, seed, **values):
        value = values.get(owner.get(kind, kind))
        return partitions_lesson.view(data, kind if value is None else f"{kind}:{value:g}", clients, seed)

    def unused(kind, **_):
        return set(parameter) - {owner.get(kind, kind)}

    controls = {
        "data": choice("data", partitions_lesson.ready()),
        "kind": choice("split", list(PARAMETERS), value="dirichlet"),
        **parameter,
        "clients": whole("clients", 10, 2, 50),
        "seed": whole("seed", 0, 0, 20),
    }
    return Panel(partitions_lesson.ALT, view, controls, unused)


def paths() -> Panel:
    for model in paths_lesson.MODELS:
        paths_lesson.step_flops(model)  # counted now, so that choosing a model takes no time
    controls = {
        "method": choice("method", {"FedBR": "fedbr", "FedMLB": "fedmlb"}),
        "model": choice("network", paths_lesson.MODELS),
        "alpha": whole("α: blocks sent", 2, 1, 8),
        "tau": whole("τ: partial rounds", 1, 0, 6),
        "lambda1": real("λ1: cross-entropy", 1, 0, 3, 0.25),
        "lambda2": real("λ2: distillation", 1, 0, 3, 0.25),
    }
    unused = {"fedmlb": {"alpha", "tau"}, "fedbr": set()}
    return Panel(paths_lesson.ALT, paths_lesson.view, controls, lambda method, **_: unused[method])


def gmbs() -> Panel:
    start = gmbs_lesson.Setting()
    t = whole("round", 12, 1, gmbs_lesson.ROUNDS)
    controls = {
        "t": t,
        "client": choice("client to watch", gmbs_lesson.CLIENTS),
        "blocks": whole("blocks of the network", start.blocks, 3, 8),
        "tau": whole("τ: partial rounds", start.tau, 1, 6),
        "ema": real("λ: memory of p", start.ema, 0, 1, 0.05),
        "rate": real("how fast clients learn", start.rate, 0, 0.9, 0.05),
        "slow": real("slow client: × time", start.slow, 1, 20, 1, 0),
        "far": real("far client: × distance", start.far, 1, 10, 0.5, 1),
        "noise": real("noise in the losses", start.noise, 0, 0.3, 0.01),
    }
    return Panel(gmbs_lesson.ALT, gmbs_lesson.view, controls, more=_stepper(t))


def cube() -> Panel:
    start = cube_lesson.SETTINGS
    controls = {
        "t": whole("round", cube_lesson.ROUNDS, 1, cube_lesson.ROUNDS),
        "client": whole("client", 0, 0, cube_lesson.CLIENTS - 1),
        "mu": real("μ: layers below it are sent", 0.5, 0, 1, 0.05),
        "lam": real("λ: pull to the others", start["lam"], 0, 0.5, 0.05),
        "beta": real("β: pull to the mean", start["beta"], 0, 1, 0.01),
        "rate": real("η: step size of R", start["rate"], 0, 0.3, 0.01),
        "updates": whole("steps of R per round", start["updates"], 0, 30),
    }
    return Panel(cube_lesson.ALT, cube_lesson.view, controls)


def mixing() -> Panel:
    start = mixing_lesson.Setting()
    controls = {
        "alpha0": real("α₀: old model, at first", start.alpha0, 0, 1, 0.05),
        "eta": real("η: increase per round", start.eta, 0, 0.03, 0.0025, 4),
        "b": real("b: trust in late updates", start.b, 0, 1, 0.05),
        "late": real("share that is late", start.late, 0, 1, 0.05),
        "max_delay": whole("longest delay, in rounds", start.max_delay, 1, 15),
        "rounds": whole("rounds", start.rounds, 5, 60),
        "at": whole("round to look at", start.at, 1, 60),
        **{f"late{i}": whole(f"extra update {i}: rounds late", 0, 0, 15) for i in (1, 2, 3)},
    }
    return Panel(mixing_lesson.ALT, mixing_lesson.view, controls)


def soft_targets() -> Panel:
    names = {"threshold, ρ = max(1 - r/R, T)": "threshold", "dynamic, ρ = 1 - r/R": "dynamic", "fixed ρ": "fixed"}
    trained = soft_targets_lesson.TRAINED.rounds
    controls = {
        "t": whole("rounds trained", trained, 0, trained),
        "owner": choice("whose table", soft_targets_lesson.OWNERS),
        "label": whole("true label", 8, 0, 9),
        "strategy": choice("ratio", names),
        "threshold": real("threshold T", 0.6, 0, 1, 0.05),
        "ratio": real("fixed ρ", 0.6, 0, 1, 0.05),
        "rounds": whole("R: rounds planned", 100, 5, 200),
        "r": whole("r: this round", 30, 1, 200),
    }
    only = {"threshold": {"ratio"}, "dynamic": {"ratio", "threshold"}, "fixed": {"threshold"}}
    return Panel(soft_targets_lesson.ALT, soft_targets_lesson.view, controls, lambda strategy, **_: only[strategy])


live = Live


def live_example() -> None:
    curves = live_lesson.example()
    display(Image(png(live_lesson.draw(curves)), alt=live_lesson.ALT))
    display(HTML(live_lesson.as_html(live_lesson.summary(curves))))
