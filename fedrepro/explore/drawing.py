"""What the lessons' figures share. Figures are made without pyplot: nothing is left open between two drawings."""

import gc
import io
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import seaborn as sns
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedrepro import figures

DPI = 100
WIDTH = 9.8  # inches: what JupyterLab shows beside its sidebar on a laptop's or a projector's 1366 pixels
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


def png(figure: Figure) -> bytes:
    """Text is what takes the time in a figure: few ticks."""
    for place in figure.axes:
        for axis in (place.xaxis, place.yaxis):
            if isinstance(axis.get_major_locator(), MaxNLocator):
                axis.get_major_locator().set_params(nbins=4)
        place.set_title(place.get_title(), y=1.0)  # else matplotlib measures every label to find a place for it
    file = io.BytesIO()
    figure.savefig(file, format="png", pil_kwargs={"compress_level": 1})
    return file.getvalue()


def heat(place, values, *, colours: str = "rocket_r", numbers: str | None = None, where=True, low=None, high=None):
    """A matrix as colours; `numbers` writes the values into the cells of `where`, if they are few enough to read.
    Zeros, which their colour says, are left out."""
    values = np.asarray(values, dtype=float)
    picture = place.imshow(values, cmap=sns.color_palette(colours, as_cmap=True), aspect="auto", vmin=low, vmax=high)
    place.grid(False)
    if numbers and values.size <= 100:
        dark = picture.norm(values) > 0.55
        for i, j in np.argwhere((values != 0) & where):
            colour = "white" if dark[i, j] else "0.15"
            place.text(j, i, numbers.format(values[i, j]), ha="center", va="center", fontsize=9, color=colour)
    return picture


def columns(place, x, heights, *, width: float = 0.8, bottom=0.0, **style) -> None:
    """Vertical bars as one artist: many rectangles take long."""
    x, bottom = np.asarray(x, dtype=float), np.broadcast_to(bottom, len(x))
    left, right, top = x - width / 2, x + width / 2, bottom + np.asarray(heights)
    corners = np.stack([np.stack(c, 1) for c in ((left, bottom), (left, top), (right, top), (right, bottom))], 1)
    place.add_collection(PolyCollection(corners, linewidth=0, **style))
    place.autoscale_view()


def ticks(count: int, most: int = 12) -> list[int]:
    """0..count-1, thinned out so that the labels do not touch."""
    return list(range(0, count, -(-count // most)))
