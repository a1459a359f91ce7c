"""What the lessons' figures share. Figures are made without pyplot: nothing is left open between two drawings."""

import gc
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation
from PIL import Image

from fedrepro.evidence import figures

DPI = 100
WIDTH = 7.6  # inches: what JupyterLab has room for beside the controls on a screen of 1366 pixels
X_LABEL = 25  # points from an axis down to its label
TEXT: dict[Any, int] = {"axes.titlesize": 12, "axes.labelsize": 12, "xtick.labelsize": 11, "ytick.labelsize": 11}
_blue, _orange, _green, _, _purple, _brown, _, _grey, _, _sky = sns.color_palette("colorblind", 10).as_hex()
# One colour, one meaning, in every lesson and method notebook
LOCAL = FIRST = _blue  # what a client has or trained; the first of two clients or methods
OLDER = _sky  # what a client kept from an earlier visit
SECOND = _purple  # the second of two clients or methods
GLOBAL = _green  # what the server has or sends
LATE = "#b2182b"  # late, or not sent: red, and darker than the orange
CHOSEN = _orange  # what the controls point at
GIVEN = _grey  # what does not depend on training: formulas, hard labels, counts
OTHER = _brown
INK = "0.2"


@contextmanager
def undisturbed() -> Iterator[None]:
    """No garbage collection meanwhile: figures are full of cycles, and to look through all of torch takes longer than
    to draw one."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _style() -> None:
    figures.style()
    mpl.rcParams.update(TEXT)


def canvas(height: float) -> Figure:
    _style()
    figure = Figure(figsize=(WIDTH, height), dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


def kept(layout: Callable[[], Figure]) -> Callable[[], Figure]:
    """The figure that `layout` makes is made once and emptied for each drawing: to make axes takes as long as to draw
    them. Titles, labels and ticks stay until others are set; what is drawn, and limits, do not."""
    made = cache(layout)

    @wraps(layout)
    def emptied() -> Figure:
        _style()
        figure = made()
        drawn = list(figure.images)
        for place in figure.axes:
            drawn += [*place.lines, *place.patches, *place.collections, *place.images, *place.texts]
        for artist in drawn:
            artist.remove()
        for place in figure.axes:
            place.containers.clear()  # of bars: remove() leaves them
            place.relim()
            place.autoscale()
        return figure

    return emptied


def png(figure: Figure) -> bytes:
    """Text is what takes the time in a figure: few ticks, and none is measured to find a place for another."""
    for place in figure.axes:
        for axis in (place.xaxis, place.yaxis):
            if isinstance(locator := axis.get_major_locator(), MaxNLocator):
                locator.set_params(nbins=4)
        place.set_title(place.get_title(), y=1.0)
        below = ScaledTranslation(0, -X_LABEL / 72, figure.dpi_scale_trans)
        place.xaxis.set_label_coords(0.5, 0, place.transAxes + below)
        if not place.get_ylabel():
            place.yaxis.set_label_coords(0, 0.5)
    with mpl.rc_context({"text.hinting": "no_hinting"}):  # a third of the time
        canvas: Any = figure.canvas
        canvas.draw()
    picture = Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba())
    file = io.BytesIO()
    picture.convert("RGB").save(file, format="png", compress_level=1)
    return file.getvalue()


def matrix(place, values, *, colours: str = "mako_r", numbers: str = "", where=True, low=None, high=None, key=None):
    """A matrix as colours, and the axes `key` as their scale. `numbers` writes the values into the cells of `where`, if
    there is room and time for them, but no zeros: their colour says it."""
    values = np.asarray(values, dtype=float)
    shades = sns.color_palette(colours, as_cmap=True)
    picture = place.imshow(values, cmap=shades, aspect="auto", vmin=low, vmax=high)
    place.grid(False)
    if key is not None:
        bottom, top = picture.get_clim()
        key.imshow(
            np.linspace(0, 1, 64)[:, None], cmap=shades, aspect="auto", origin="lower", extent=(0, 1, bottom, top)
        )
        key.set(yticks=[bottom, top], yticklabels=[f"{bottom:g}", f"{top:g}"])
    written = np.argwhere((values != 0) & where)
    height, width = place.bbox.size[::-1] / values.shape
    if numbers and height >= 15 and width >= 20 and len(written) <= 100:
        dark = picture.to_rgba(values)[..., :3] @ (0.299, 0.587, 0.114) < 0.5
        for i, j in written:
            colour, number = "white" if dark[i, j] else INK, numbers.format(values[i, j])
            number = number.removeprefix("0") if width < 28 else number
            place.text(j, i, number, ha="center", va="center", fontsize=9, color=colour)


def colour_key(place) -> None:
    """Narrow axes for the scale of a matrix's colours, its numbers at the right."""
    place.grid(False)
    place.set(xticks=[])
    place.yaxis.set_tick_params(left=False, labelleft=False, labelright=True, pad=1)


def columns(place, x, heights, *, width: float = 0.8, bottom: Any = 0.0, flat: bool = False, **style) -> None:
    """Bars, upright or `flat`, as one artist: many rectangles take long."""
    x, bottom = np.asarray(x, dtype=float), np.broadcast_to(bottom, len(x))
    left, right, top = x - width / 2, x + width / 2, bottom + np.asarray(heights)
    corners: Any = np.stack([np.stack(c, 1) for c in ((left, bottom), (left, top), (right, top), (right, bottom))], 1)
    place.add_collection(PolyCollection(corners[..., ::-1] if flat else corners, linewidth=0, **style))
    place.autoscale_view()


def ticks(count: int, most: int = 12) -> list[int]:
    """0..count-1, thinned out so that the labels do not touch."""
    return list(range(0, count, -(-count // most)))
