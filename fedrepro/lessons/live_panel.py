"""Run, Pause, Stop and Reset for the lesson `live`."""

import threading
import time
from functools import partial

import ipywidgets as w

from fedrepro.errors import BadInput
from fedrepro.lessons import live
from fedrepro.lessons.controls import FULL, Control, Page, Picture, choice, refusal, text, whole
from fedrepro.lessons.drawing import png

REDRAW = 0.5  # seconds between two drawings of a training
ICONS = {"Run": "play", "Pause": "pause", "Stop": "stop", "Reset": "refresh"}


class Side:
    """One method and its hyperparameters."""

    def __init__(self, name: str, method: str):
        self.first = method
        self.method = choice(f"method {name}", list(live.registry()), value=method)
        self.method.observe(self._show, "value")
        self.options = w.VBox()
        self.box = w.VBox([self.method, self.options])
        self._show()

    def _show(self, _=None) -> None:
        self.controls = {f.name: _option(f) for f in live.hyperparameters(self.method.value)}
        self.options.children = tuple(self.controls.values())

    def reset(self) -> None:
        self.method.value = self.first
        self._show()

    @property
    def hp(self) -> dict:
        return {name: control.value for name, control in self.controls.items()}


def _option(field) -> Control:
    if choices := field.metadata["choices"]:
        return choice(field.name, choices, value=field.default)
    kinds = {bool: partial(w.Checkbox, indent=False), int: w.IntText, float: w.FloatText, str: w.Text}
    return kinds[type(field.default)](value=field.default, description=field.name, layout=FULL)


def _common() -> dict[str, Control]:
    first = live.DEFAULTS
    return {
        "data": choice("data", live.DATA),
        "split": w.Combobox(value=first["split"], options=live.SPLITS, description="split", layout=FULL),
        "clients": whole("clients", first["clients"], 2, 50),
        "per_round": whole("clients per round", first["per_round"], 1, 50),
        "rounds": whole("rounds", first["rounds"], 1, 100),
        "epochs": whole("local epochs", first["epochs"], 1, 10),
        "lr": w.FloatText(value=first["lr"], description="learning rate", layout=FULL),
        "seed": whole("seed", first["seed"], 0, 20),
    }


class Live(Page):
    def __init__(self):
        self.common = _common()
        self.sides = [Side(name, method) for name, method in zip("AB", live.METHODS, strict=True)]
        half = w.Layout(width="calc(50% - 4px)")
        self.buttons = {name: w.Button(description=name, icon=icon, layout=half) for name, icon in ICONS.items()}
        for name, button in self.buttons.items():
            button.on_click(getattr(self, f"_{name.lower()}"))
        self.bar = w.IntProgress(layout=FULL)
        self.status, self.problem, self.table = text("numbers"), text("problem"), text("table")
        self.session, self.last, self._drawn = None, None, 0.0
        self._turn = threading.Lock()  # buttons and training write to the page from threads of their own
        buttons = w.Box(list(self.buttons.values()), layout=w.Layout(flex_flow="row wrap"))
        tabs = w.Tab([w.VBox(list(self.common.values())), *(side.box for side in self.sides)])
        tabs.titles = ("Clients", "A", "B")
        picture = Picture()
        super().__init__([buttons, self.bar, tabs], [self.problem, self.status, picture, self.table], picture)
        self._clear()

    def _clear(self) -> None:
        self.session, self.table.value, self.problem.value, self.bar.value = None, "", "", 0
        self.picture.show(png(live.draw([])), live.ALT)
        self._state("ready: press Run", running=False)

    def _state(self, status: str, *, running: bool) -> None:
        self.status.value = status
        sides = [control for side in self.sides for control in (side.method, *side.controls.values())]
        for control in (self.buttons["Run"], *self.common.values(), *sides):
            control.disabled = running
        for name in ("Pause", "Stop"):
            self.buttons[name].disabled = not running

    def _run(self, _=None) -> None:
        try:
            common = {name: control.value for name, control in self.common.items()}
            runs = [live.describe(common, side.method.value, side.hp) for side in self.sides]
        except BadInput as error:
            self.problem.value = refusal(error)
            return
        self._clear()
        self.session = self.last = live.Session(runs, self._progress, self._ended, before=self.last)
        self.bar.max = sum(run.rounds for run in runs)
        self._state("reading the data (Fashion-MNIST is fetched once) ...", running=True)
        self.session.start()

    def _ended(self, session: live.Session) -> None:
        with self._turn:
            if session is not self.session:  # reset meanwhile
                return
            self.problem.value = refusal(session.error) if session.error else ""
            self._draw(session)
            self.table.value = live.as_html(live.summary(session.curves))
            state = "finished" if session.finished else "not finished" if session.error else "stopped"
            self._state(f"{state}: {_rounds(session)}", running=False)
            self.buttons["Pause"].description = "Pause"

    def _progress(self, session: live.Session) -> None:
        with self._turn:
            if session is not self.session:
                return
            self.bar.value = sum(len(rows) for _, rows in session.curves)
            if not session.paused:
                self.status.value = f"training: {_rounds(session)}"
            if time.monotonic() - self._drawn > REDRAW:
                self._draw(session)

    def _draw(self, session: live.Session) -> None:
        self.picture.show(png(live.draw(session.curves)), f"{live.ALT} {_rounds(session)}")
        self._drawn = time.monotonic()

    def _pause(self, button) -> None:
        with self._turn:
            if (session := self.session) is None:
                return
            if session.paused:
                session.resume()
                button.description = "Pause"
            else:
                session.pause()
                button.description = "Resume"
                self.status.value = f"paused: {_rounds(session)}"

    def _stop(self, _) -> None:
        if self.session:
            self.status.value = "stopping after this round ..."
            self.session.stop()

    def _reset(self, _) -> None:
        """Back to the start at any time; a training under way ends after its round."""
        with self._turn:
            if self.session:
                self.session.stop()
            self.buttons["Pause"].description = "Pause"
            for name, control in self.common.items():
                control.value = live.DEFAULTS[name]
            for side in self.sides:
                side.reset()
            self._clear()


def _rounds(session: live.Session) -> str:
    return ", ".join(
        f"{side} round {len(rows)} of {run.rounds}, accuracy {rows[-1]['accuracy']:.3f}"
        for side, (run, rows) in zip("AB", session.curves, strict=True)
        if rows
    )
