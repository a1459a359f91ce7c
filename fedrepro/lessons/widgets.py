"""Controls on the lessons: they read values, call the pure functions and show what comes back."""

import base64
import gc
import html
import threading
import time
from collections.abc import Callable

import ipywidgets as w
from IPython.display import HTML, Image, display

from fedrepro.data.partition import PARAMETERS
from fedrepro.errors import BadInput
from fedrepro.lessons import cube as cube_lesson
from fedrepro.lessons import gmbs as gmbs_lesson
from fedrepro.lessons import live as live_lesson
from fedrepro.lessons import mixing as mixing_lesson
from fedrepro.lessons import partitions as partitions_lesson
from fedrepro.lessons import paths as paths_lesson
from fedrepro.lessons import soft_targets as soft_targets_lesson
from fedrepro.lessons.drawing import png, undisturbed

STYLE = {"description_width": "150px"}
REDRAW = 0.5  # seconds between two drawings of a training


def _slider(kind: type, text: str, value, low, high, step=None, **more) -> w.Widget:
    """A slider that acts when it is let go, so that drawings do not queue up."""
    more |= {"step": step} if step else {}
    return kind(value=value, min=low, max=high, description=text, continuous_update=False, style=STYLE,
                layout=w.Layout(width="380px"), **more)  # fmt: skip


def _whole(text: str, value: int, low: int, high: int) -> w.IntSlider:
    return _slider(w.IntSlider, text, value, low, high)


def _real(text: str, value: float, low: float, high: float, step: float, digits: int = 2) -> w.FloatSlider:
    return _slider(w.FloatSlider, text, value, low, high, step, readout_format=f".{digits}f")


def _choice(text: str, options, value=None) -> w.Dropdown:
    chosen = {} if value is None else {"value": value}
    return w.Dropdown(options=options, **chosen, description=text, style=STYLE, layout=w.Layout(width="380px"))


def _figure() -> w.Image:
    return w.Image(format="png", layout=w.Layout(max_width="100%", object_fit="contain")).add_class("explore-figure")


def _text(name: str) -> w.HTML:
    return w.HTML(style={"font_size": "15px"}).add_class(f"explore-{name}")


def _problem(error: Exception) -> str:
    """What was refused, in the page; an error that nobody expected is named too."""
    text = str(error) if isinstance(error, BadInput) else f"{type(error).__name__}: {error}"
    return ("<div style='border-left:4px solid #d55e00;background:#fdf0e7;color:#222;padding:6px 12px;margin:6px 0'>"
            f"<b>This cannot be done.</b> {html.escape(text)}</div>")  # fmt: skip


class Panel:
    """Controls, a line of numbers, a figure. Where widgets cannot be shown, the figure is there as a picture."""

    def __init__(self, view: Callable, controls: dict[str, w.Widget], unused: Callable[..., set] | None = None,
                 more: tuple[w.Widget, ...] = ()):  # fmt: skip
        self.view, self.controls, self.unused = view, controls, unused
        self.image, self.numbers, self.problem = _figure(), _text("numbers"), _text("problem")
        for control in controls.values():
            control.observe(self.refresh, "value")
        rows = w.Box([*controls.values(), *more], layout=w.Layout(flex_flow="row wrap", align_items="center"))
        self.box = w.VBox([rows, self.problem, self.numbers, self.image])
        gc.freeze()  # what is here stays here: collections will look at new objects only
        self.refresh()

    @undisturbed()
    def refresh(self, _=None) -> None:
        values = {name: control.value for name, control in self.controls.items()}
        for name in values if self.unused else ():
            self.controls[name].layout.display = "none" if name in self.unused(**values) else ""
        try:
            figure, numbers = self.view(**values)
        except BadInput as error:
            self.problem.value, self.numbers.value, self.image.layout.display = _problem(error), "", "none"
            return
        picture = png(figure)
        self.problem.value, self.numbers.value, self.image.layout.display = "", numbers, ""
        self.image.value = picture

    def _repr_mimebundle_(self, **options) -> dict:
        return {**self.box._repr_mimebundle_(**options), "image/png": base64.b64encode(self.image.value).decode()}


def partitions() -> Panel:
    parameter = {
        "dirichlet": _slider(w.FloatLogSlider, "concentration", 0.3, -2, 2, 0.1, readout_format=".2f"),
        "level": _whole("level", 7, 0, 9),
        "dominant": _real("share of one class", 0.8, 0.05, 1.0, 0.05),
        "shards": _whole("shards of a client", 2, 1, 12),
    }  # fmt: skip
    owner = {"dirichlet_unequal": "dirichlet"}  # whose slider a split uses

    def view(data, kind, clients, seed, **values):
        value = values.get(owner.get(kind, kind))
        return partitions_lesson.view(data, kind if value is None else f"{kind}:{value:g}", clients, seed)

    def unused(kind, **_):
        return set(parameter) - {owner.get(kind, kind)}

    controls = {
        "data": _choice("data", partitions_lesson.ready()),
        "kind": _choice("split", list(PARAMETERS), "dirichlet"),
        **parameter,
        "clients": _whole("clients", 10, 2, 50),
        "seed": _whole("seed", 0, 0, 20),
    }
    return Panel(view, controls, unused)


def paths() -> Panel:
    for model in paths_lesson.MODELS:
        paths_lesson.step_flops(model)  # counted now, so that choosing a model takes no time
    controls = {
        "method": _choice("method", {"FedBR": "fedbr", "FedMLB": "fedmlb"}),
        "model": _choice("network", paths_lesson.MODELS),
        "alpha": _whole("α: blocks sent", 2, 1, 8),
        "tau": _whole("τ: partial rounds", 1, 0, 6),
        "lambda1": _real("λ1: cross-entropy", 1, 0, 3, 0.25),
        "lambda2": _real("λ2: distillation", 1, 0, 3, 0.25),
    }
    return Panel(paths_lesson.view, controls, lambda method, **_: {"alpha", "tau"} if method == "fedmlb" else set())


def gmbs() -> Panel:
    start = gmbs_lesson.Setting()
    t = _whole("round", 12, 1, gmbs_lesson.ROUNDS)
    step, play = (
        w.Button(description="Step", icon="step-forward"),
        w.Play(value=12, min=1, max=gmbs_lesson.ROUNDS, interval=700),
    )
    step.on_click(lambda _: setattr(t, "value", min(t.value + 1, t.max)))
    w.jslink((play, "value"), (t, "value"))
    controls = {
        "t": t,
        "client": _choice("watch the client", gmbs_lesson.CLIENTS),
        "blocks": _whole("blocks of the network", start.blocks, 3, 8),
        "tau": _whole("τ: partial rounds", start.tau, 1, 6),
        "ema": _real("λ: memory of p", start.ema, 0, 1, 0.05),
        "rate": _real("how fast they learn", start.rate, 0, 0.9, 0.05),
        "slow": _real("slow client: × time", start.slow, 1, 20, 1, 0),
        "far": _real("far client: × distance", start.far, 1, 10, 0.5, 1),
        "noise": _real("noise of the losses", start.noise, 0, 0.3, 0.01),
    }
    return Panel(gmbs_lesson.view, controls, more=(step, play))


def cube() -> Panel:
    run = cube_lesson.TRAINED
    controls = {
        "t": _whole("round", run.rounds, 1, run.rounds),
        "client": _whole("client", 0, 0, run.clients - 1),
        "mu": _real("μ: sent below it", 0.5, 0, 1, 0.05),
        "lam": _real("λ: pull to the others", run.hp["lam"], 0, 0.5, 0.05),
        "beta": _real("β: pull to the mean", run.hp["beta"], 0, 1, 0.01),
        "rate": _real("η: step of R", run.hp["rate"], 0, 0.3, 0.01),
        "updates": _whole("steps of R a round", run.hp["updates"], 0, 30),
    }
    return Panel(cube_lesson.view, controls)


def mixing() -> Panel:
    start = mixing_lesson.Setting()
    controls = {
        "alpha0": _real("α₀: old, at first", start.alpha0, 0, 1, 0.05),
        "eta": _real("η: more each round", start.eta, 0, 0.03, 0.0025, 4),
        "b": _real("b: trust in the late", start.b, 0, 1, 0.05),
        "late": _real("share that is late", start.late, 0, 1, 0.05),
        "max_delay": _whole("rounds late, at most", start.max_delay, 1, 15),
        "rounds": _whole("rounds", start.rounds, 5, 60),
        "at": _whole("look at round", start.at, 1, 60),
        **{f"late{i}": _whole(f"drop in, rounds late ({i})", 0, 0, 15) for i in (1, 2, 3)},
    }
    return Panel(mixing_lesson.view, controls)


def soft_targets() -> Panel:
    names = {"threshold, ρ = max(1 - r/R, T)": "threshold", "dynamic, ρ = 1 - r/R": "dynamic", "fixed ρ": "fixed"}
    controls = {
        "t": _whole("trained for rounds", soft_targets_lesson.TRAINED.rounds, 0, soft_targets_lesson.TRAINED.rounds),
        "owner": _choice("whose table", soft_targets_lesson.owners()),
        "label": _whole("true label", 8, 0, 9),
        "strategy": _choice("ratio", names),
        "threshold": _real("threshold T", 0.6, 0, 1, 0.05),
        "ratio": _real("fixed ρ", 0.6, 0, 1, 0.05),
        "rounds": _whole("R: rounds planned", 100, 5, 200),
        "r": _whole("r: this round", 30, 1, 200),
    }
    only = {"threshold": {"ratio"}, "dynamic": {"ratio", "threshold"}, "fixed": {"threshold"}}
    return Panel(soft_targets_lesson.view, controls, lambda strategy, **_: only[strategy])


class Side:
    """One method and its hyperparameters."""

    def __init__(self, name: str, method: str):
        self.first = method
        self.method = _choice(f"method {name}", list(live_lesson.registry()), method)
        self.method.observe(self._show, "value")
        self.options = w.VBox()
        self.box = w.VBox([self.method, self.options], layout=w.Layout(width="384px"))
        self._show()

    def _show(self, _=None) -> None:
        self.controls = {f.name: _option(f) for f in live_lesson.hyperparameters(self.method.value)}
        self.options.children = tuple(self.controls.values())

    def reset(self) -> None:
        self.method.value = self.first
        self._show()

    @property
    def hp(self) -> dict:
        return {name: control.value for name, control in self.controls.items()}

    def enable(self, on: bool) -> None:
        for control in (self.method, *self.controls.values()):
            control.disabled = not on


def _option(field) -> w.Widget:
    kind = {bool: w.Checkbox, int: w.IntText, float: w.FloatText, str: w.Text}[type(field.default)]
    layout = {"description": field.name, "style": STYLE, "layout": w.Layout(width="380px")}
    if choices := field.metadata["choices"]:
        return w.Dropdown(options=choices, value=field.default, **layout)
    return kind(value=field.default, **layout, **({"indent": True} if kind is w.Checkbox else {}))


class Live:
    """Run, Pause, Stop, Reset around a Session."""

    def __init__(self):
        first = live_lesson.DEFAULTS
        self.common = {
            "data": _choice("data", live_lesson.DATA),
            "split": w.Combobox(value=first["split"], options=live_lesson.SPLITS, description="split", style=STYLE,
                                layout=w.Layout(width="380px")),
            "clients": _whole("clients", first["clients"], 2, 50),
            "per_round": _whole("clients a round", first["per_round"], 1, 50),
            "rounds": _whole("rounds", first["rounds"], 1, 100),
            "epochs": _whole("local epochs", first["epochs"], 1, 10),
            "lr": w.FloatText(value=first["lr"], description="learning rate", style=STYLE,
                              layout=w.Layout(width="380px")),
            "seed": _whole("seed", first["seed"], 0, 20),
        }  # fmt: skip
        self.sides = [Side(name, method) for name, method in zip("AB", live_lesson.METHODS, strict=True)]
        icons = {"Run": "play", "Pause": "pause", "Stop": "stop", "Reset": "refresh"}
        self.buttons = {name: w.Button(description=name, icon=icon) for name, icon in icons.items()}
        for name, button in self.buttons.items():
            button.on_click(getattr(self, f"_{name.lower()}"))
        self.bar = w.IntProgress(layout=w.Layout(width="300px"))
        self.status, self.problem, self.table = _text("numbers"), _text("problem"), _text("table")
        self.image, self.session, self.last, self._drawn = _figure(), None, None, 0.0
        self._turn = threading.Lock()  # buttons and training write to the page from threads of their own
        wrap = w.Layout(flex_flow="row wrap", align_items="flex-start")
        self.box = w.VBox([
            w.Box(list(self.common.values()), layout=wrap),
            w.Box([side.box for side in self.sides], layout=wrap),
            w.HBox([*self.buttons.values(), self.bar]),
            self.problem, self.status, self.image, self.table,
        ])  # fmt: skip
        self._clear()

    def _clear(self) -> None:
        self.session, self.table.value, self.problem.value, self.bar.value = None, "", "", 0
        self.image.value = png(live_lesson.draw([]))
        self._state("ready: press Run", running=False)

    def _state(self, text: str, *, running: bool) -> None:
        self.status.value = text
        self.buttons["Run"].disabled = running
        for name in ("Pause", "Stop"):
            self.buttons[name].disabled = not running
        for control in self.common.values():
            control.disabled = running
        for side in self.sides:
            side.enable(not running)

    def _run(self, _=None) -> None:
        try:
            common = {name: control.value for name, control in self.common.items()}
            runs = [live_lesson.describe(common, side.method.value, side.hp) for side in self.sides]
        except BadInput as error:
            self.problem.value = _problem(error)
            return
        self._clear()
        self.session = self.last = live_lesson.Session(runs, self._progress, self._ended, before=self.last)
        self.bar.max = sum(run.rounds for run in runs)
        self._state("reading the data (Fashion-MNIST is fetched once) ...", running=True)
        self.session.start()

    def _ended(self, session) -> None:
        with self._turn:
            if session is not self.session:  # reset meanwhile
                return
            self.problem.value = _problem(session.error) if session.error else ""
            self._draw()
            self.table.value = live_lesson.as_html(live_lesson.summary(session.curves))
            text = "finished" if session.finished else "not finished" if session.error else "stopped"
            self._state(f"{text}: {self._rounds()}", running=False)
            self.buttons["Pause"].description = "Pause"

    def _rounds(self) -> str:
        return ", ".join(f"{side} round {len(rows)} of {run.rounds}, accuracy {rows[-1]['accuracy']:.3f}"
                         for side, (run, rows) in zip("AB", self.session.curves, strict=True) if rows)  # fmt: skip

    def _progress(self, session) -> None:
        with self._turn:
            if session is not self.session:
                return
            self.bar.value = sum(len(rows) for _, rows in session.curves)
            if not session.paused:
                self.status.value = f"training: {self._rounds()}"
            if time.monotonic() - self._drawn > REDRAW:
                self._draw()

    def _draw(self) -> None:
        self.image.value = png(live_lesson.draw(self.session.curves))
        self._drawn = time.monotonic()

    def _pause(self, button) -> None:
        with self._turn:
            if self.session.paused:
                self.session.resume()
                button.description = "Pause"
            else:
                self.session.pause()
                button.description = "Resume"
                self.status.value = f"paused: {self._rounds()}"

    def _stop(self, _) -> None:
        self.status.value = "stopping after this round ..."
        self.session.stop()

    def _reset(self, _) -> None:
        """Everything as at the start, at any time; a training that is under way ends after its round."""
        with self._turn:
            if self.session:
                self.session.stop()
            self.buttons["Pause"].description = "Pause"
            for name, control in self.common.items():
                control.value = live_lesson.DEFAULTS[name]
            for side in self.sides:
                side.reset()
            self._clear()

    def _repr_mimebundle_(self, **options) -> dict:
        return {**self.box._repr_mimebundle_(**options), "image/png": base64.b64encode(self.image.value).decode()}


def live() -> Live:
    return Live()


def live_example() -> None:
    curves = live_lesson.example()
    display(Image(png(live_lesson.draw(curves))), HTML(live_lesson.as_html(live_lesson.summary(curves))))
