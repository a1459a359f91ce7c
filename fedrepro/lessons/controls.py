"""The parts of the lessons' panels: sliders and choices on the left, numbers and a figure on the right."""

import base64
import gc
import html
import re
from collections.abc import Callable
from typing import Any

import ipywidgets as w

from fedrepro.errors import BadInput
from fedrepro.lessons.drawing import png

Control = Any  # a widget with a value, a layout and `disabled`; ipywidgets has no type for that
FULL = {"width": "100%"}  # a layout of its own for each control
STYLE = """<style>
.explore-controls .widget-inline-hbox { flex-flow: row wrap; width: 100%; height: auto; margin: 2px 0 }
.explore-controls .widget-inline-hbox > .widget-label {
  width: 100%; font-size: 15px; line-height: 20px; height: 20px; text-align: left }
.explore-controls .widget-inline-hbox .widget-readout { font-size: 15px }
.explore-controls .widget-tab-contents { padding: 4px 2px !important }
.explore-controls .widget-inline-hbox select, .explore-controls .widget-inline-hbox input { font-size: 15px }
.explore-results .widget-html-content { font-size: 16px; line-height: 1.4 }
.explore-figure { max-width: 100%; max-height: 74vh; height: auto; object-fit: contain }
[data-jp-theme-light="false"] .explore-figure:not(.photos) { filter: invert(0.93) hue-rotate(180deg) }
</style>"""


def slider(kind: type, text: str, value, low, high, **more) -> Control:
    """A slider that acts on release, so that drawings do not queue up."""
    return kind(value=value, min=low, max=high, description=text, continuous_update=False, layout=FULL, **more)


def whole(text: str, value: int, low: int, high: int) -> Control:
    return slider(w.IntSlider, text, value, low, high)


def real(text: str, value: float, low: float, high: float, step: float, digits: int = 2) -> Control:
    return slider(w.FloatSlider, text, value, low, high, step=step, readout_format=f".{digits}f")


def choice(text: str, options, **more) -> Control:
    return w.Dropdown(options=options, description=text, layout=FULL, **more)


def text(name: str) -> w.HTML:
    return w.HTML().add_class(f"explore-{name}")


def refusal(error: Exception) -> str:
    """An error for the page; an unexpected one with its type."""
    reason = str(error) if isinstance(error, BadInput) else f"{type(error).__name__}: {error}"
    style = "border-left:4px solid #d55e00;background:#fdf0e7;color:#222;padding:6px 12px;margin:6px 0"
    return f"<div style='{style}'><b>This cannot be done.</b> {html.escape(reason)}</div>"


class Picture(w.HTML):
    """A figure as an image with alternative text, which ipywidgets.Image lacks."""

    png = b""

    def show(self, picture: bytes, alt: str, photos: bool = False) -> None:
        """Photos keep their colours in the dark theme."""
        self.png, data = picture, base64.b64encode(picture).decode()
        width, height = (int.from_bytes(picture[i : i + 4], "big") for i in (16, 20))
        alt = html.escape(re.sub("<.*?>", "", alt), quote=True)
        self.value = (
            f'<img class="explore-figure{" photos" * photos}" alt="{alt}" width="{width}" height="{height}" '
            f'decoding="sync" src="data:image/png;base64,{data}">'
        )


class Page:
    """The controls stay in view beside the figure. If widgets cannot be shown, there is a picture."""

    def __init__(self, controls: list[Control], results: list[w.Widget], picture: Picture):
        left = w.VBox(controls, layout=w.Layout(flex="0 0 240px")).add_class("explore-controls")
        right = w.VBox(results, layout=w.Layout(flex="1 1 380px", min_width="0")).add_class("explore-results")
        columns = w.Box([left, right], layout=w.Layout(flex_flow="row wrap", align_items="flex-start", grid_gap="14px"))
        self.box, self.picture = w.VBox([w.HTML(STYLE), columns]), picture

    def _repr_mimebundle_(self, **options) -> dict:
        shown = self.box._repr_mimebundle_(**options) or {}
        return {**shown, "image/png": base64.b64encode(self.picture.png).decode()}


class Panel(Page):
    """Calls `view` with the values of the controls whenever one changes, and shows the figure and the sentence that it
    returns. `unused` returns the controls that have no effect at the moment; they are hidden."""

    def __init__(
        self, alt: str, view: Callable, controls: dict[str, Control], unused: Callable = lambda **_: (), more=()
    ):
        self.alt, self.view, self.controls, self.unused = alt, view, controls, unused
        self.picture, self.numbers, self.problem = Picture(), text("numbers"), text("problem")
        for control in controls.values():
            control.observe(self.refresh, "value")
        super().__init__([*controls.values(), *more], [self.problem, self.numbers, self.picture], self.picture)
        gc.freeze()  # garbage collection then looks only at new objects: searching all of torch is slower than drawing
        self.refresh()

    def refresh(self, _=None) -> None:
        values = {name: control.value for name, control in self.controls.items()}
        hidden = self.unused(**values)
        for name, control in self.controls.items():
            control.layout.display = "none" if name in hidden else ""
        try:
            figure, numbers = self.view(**values)
        except BadInput as error:
            self.problem.value, self.numbers.value, self.picture.layout.display = refusal(error), "", "none"
            return
        picture = png(figure)
        self.problem.value, self.numbers.value, self.picture.layout.display = "", numbers, ""
        self.picture.show(picture, f"{self.alt} {numbers}", figure.get_gid() == "photos")
