"""What the lessons' figures share. Figures are made without pyplot: nothing is left open between two drawings."""

import gc
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps

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
WIDTH = 9.8  # inches: what JupyterLab shows beside its sidebar on a laptop's or a projector's 1366 pixels
X_LABEL = 28  # points from an axis down to its label
BLUE, ORANGE, GREEN, RED, _, _, _, GREY, _, SKY = sns.color_palette("colorblind", 10).as_hex()


@contextmanager
def undisturbed() -> Iterator[None]:
    """No garbage collection meanwhile: figures are full of cycles, and to look through all of torch takes longer than
    to draw one."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def canvas(height: float, width: float = WIDTH) -> Figure:
    figures.style()
    figure = Figure(figsize=(width, height), dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


def kept(layout: Callable[[], Figure]) -> Callable[[], Figure]:
    """The figure that `layout` makes is made once and emptied for each drawing: to make axes takes as long as to draw
    them. Titles, labels and ticks stay until others are set; what is drawn, and limits, do not."""
    made = cache(layout)

    @wraps(layout)
    def emptied() -> Figure:
        figures.style()
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
            if isinstance(axis.get_major_locator(), MaxNLocator):
                axis.get_major_locator().set_params(nbins=4)
        place.set_title(place.get_title(), y=1.0)
        below = ScaledTranslation(0, -X_LABEL / 72, figure.dpi_scale_trans)
        place.xaxis.set_label_coords(0.5, 0, place.transAxes + below)
        if not place.get_ylabel():
            place.yaxis.set_label_coords(0, 0.5)
    with mpl.rc_context({"text.hinting": "no_hinting"}):  # a third of the time
        figure.canvas.draw()
    picture = Image.frombuffer("RGBA", figure.canvas.get_width_height(), figure.canvas.buffer_rgba())
    file = io.BytesIO()
    picture.convert("RGB").save(file, format="png", compress_level=1)
    return file.getvalue()


def heat(place, values, *, colours: str = "rocket_r", numbers: str | None = None, where=True, low=None, high=None):
    """A matrix as colours; `numbers` writes the values into the cells of `where`, if there is room and time for them.
    Zeros, which their colour says, are left out."""
    values = np.asarray(values, dtype=float)
    picture = place.imshow(values, cmap=sns.color_palette(colours, as_cmap=True), aspect="auto", vmin=low, vmax=high)
    place.grid(False)
    written = np.argwhere((values != 0) & where)
    height, width = place.bbox.size[::-1] / values.shape
    if numbers and height >= 15 and width >= 28 and len(written) <= 100:
        dark = picture.to_rgba(values)[..., :3] @ (0.299, 0.587, 0.114) < 0.5
        for i, j in written:
            colour = "white" if dark[i, j] else "0.15"
            place.text(j, i, numbers.format(values[i, j]), ha="center", va="center", fontsize=9, color=colour)


def columns(place, x, heights, *, width: float = 0.8, bottom=0.0, flat: bool = False, **style) -> None:
    """Bars, upright or `flat`, as one artist: many rectangles take long."""
    x, bottom = np.asarray(x, dtype=float), np.broadcast_to(bottom, len(x))
    left, right, top = x - width / 2, x + width / 2, bottom + np.asarray(heights)
    corners = np.stack([np.stack(c, 1) for c in ((left, bottom), (left, top), (right, top), (right, bottom))], 1)
    place.add_collection(PolyCollection(corners[..., ::-1] if flat else corners, linewidth=0, **style))
    place.autoscale_view()


def ticks(count: int, most: int = 12) -> list[int]:
    """0..count-1, thinned out so that the labels do not touch."""
    return list(range(0, count, -(-count // most)))
