"""What the lessons' figures share. Figures are made without pyplot: nothing is left open between two drawings."""

import io
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import EllipseCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation
from PIL import Image

from fedrepro.evidence import figures

DPI = 100
WIDTH = 7.6  # inches: what JupyterLab has room for beside the controls on a screen of 1366 pixels
X_LABEL = 25  # points from an axis down to its label
TEXT: dict[Any, int] = {"axes.titlesize": 12, "axes.labelsize": 12, "xtick.labelsize": 11, "ytick.labelsize": 11}
_blue, _orange, _green, _, _purple, _brown, _, _grey, _, _sky = sns.color_palette("colorblind", 10).as_hex()
# A colour means the same in every lesson and method notebook
LOCAL = FIRST = _blue  # what a client has or trained; the first of two clients or methods
OLDER = _sky  # what a client kept from an earlier visit
SECOND = _purple  # the second of two clients or methods
GLOBAL = _green  # what the server has or sends
LATE = "#b2182b"  # late, or not sent: red, and darker than the orange
CHOSEN = _orange  # what the controls point at
GIVEN = _grey  # what does not depend on training: formulas, hard labels, counts
OTHER = _brown
INK = "0.2"


def _style() -> None:
    figures.style()
    mpl.rcParams.update(TEXT)


def canvas(height: float) -> Figure:
    _style()
    figure = Figure(figsize=(WIDTH, height), dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


def kept(layout: Callable[[], Figure]) -> Callable[[], Figure]:
    """Make the figure once and empty it before each drawing, because making axes takes as long as drawing them. Titles,
    labels and ticks stay until they are set again; drawn artists and limits do not."""
    made = cache(layout)

    @wraps(layout)
    def emptied() -> Figure:
        _style()
        figure = made()
        figure.images.clear()
        for ax in figure.axes:
            for artist in [*ax.lines, *ax.patches, *ax.collections, *ax.images, *ax.texts]:
                artist.remove()
            ax.relim()
            ax.autoscale()
        return figure

    return emptied


def png(figure: Figure) -> bytes:
    """Text is the slow part of a figure: use few ticks, and do not measure them to place labels."""
    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis):
            if isinstance(locator := axis.get_major_locator(), MaxNLocator):
                locator.set_params(nbins=4)
        ax.set_title(ax.get_title(), y=1.0)
        below = ScaledTranslation(0, -X_LABEL / 72, figure.dpi_scale_trans)
        ax.xaxis.set_label_coords(0.5, 0, ax.transAxes + below)
        if not ax.get_ylabel():
            ax.yaxis.set_label_coords(0, 0.5)
    with mpl.rc_context({"text.hinting": "no_hinting"}):  # a third of the time
        canvas: Any = figure.canvas
        canvas.draw()
    picture = Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba())
    file = io.BytesIO()
    picture.convert("RGB").save(file, format="png", compress_level=1)
    return file.getvalue()


def matrix(ax, values, *, colours: str = "mako_r", numbers: str = "", where=True, low=None, high=None, key=None):
    """A matrix as colours, with the axes `key` as their scale. `numbers` writes the nonzero values into the cells of
    `where`, if there is room and time."""
    values = np.asarray(values, dtype=float)
    shades = sns.color_palette(colours, as_cmap=True)
    picture = ax.imshow(values, cmap=shades, aspect="auto", vmin=low, vmax=high)
    ax.grid(False)
    if key is not None:
        bottom, top = picture.get_clim()
        key.imshow(
            np.linspace(0, 1, 64)[:, None], cmap=shades, aspect="auto", origin="lower", extent=(0, 1, bottom, top)
        )
        key.set(yticks=[bottom, top], yticklabels=[f"{bottom:g}", f"{top:g}"])
    written = np.argwhere((values != 0) & where)
    height, width = ax.bbox.size[::-1] / values.shape
    if numbers and height >= 15 and width >= 20 and len(written) <= 100:
        dark = picture.to_rgba(values)[..., :3] @ (0.299, 0.587, 0.114) < 0.5
        for i, j in written:
            colour, number = "white" if dark[i, j] else INK, numbers.format(values[i, j])
            number = number.removeprefix("0") if width < 28 else number
            ax.text(j, i, number, ha="center", va="center", fontsize=9, color=colour)


def contours(ax, least, curves, turn, above, linewidth: float) -> None:
    """Where a bowl with its minimum at `least` is `above` it: one ellipse each, 2 sqrt(2 above / curve) wide along its
    axes, of which the first is turned by `turn` degrees."""
    wide, high = np.sqrt(8 * np.asarray(above) / np.reshape(curves, (2, 1)))
    at = {"units": "xy", "offsets": [least for _ in above], "offset_transform": ax.transData}
    style = {"facecolor": "none", "edgecolor": "0.8", "linewidth": linewidth}
    ax.add_collection(EllipseCollection(wide, high, np.full(len(above), turn), **at, **style))


def keyed(figure: Figure, place: SubplotSpec, widths: list[float], wspace: float = 0.03) -> list[Axes]:
    """Axes side by side. The second are for the scale of a matrix's colours, whose numbers have the third place."""
    places = place.subgridspec(1, len(widths), width_ratios=widths, wspace=wspace)
    axes = [figure.add_subplot(places[i]) for i in range(len(widths)) if i != 2]
    axes[1].grid(False)
    axes[1].set(xticks=[])
    axes[1].yaxis.set_tick_params(left=False, labelleft=False, labelright=True, pad=1)
    return axes


def columns(ax, x, heights, *, width: float = 0.8, bottom: Any = 0.0, flat: bool = False, **style) -> None:
    """Bars, upright or `flat`, as one artist: many rectangles are slow."""
    x, bottom = np.asarray(x, dtype=float), np.broadcast_to(bottom, len(x))
    left, right, top = x - width / 2, x + width / 2, bottom + np.asarray(heights)
    corners: Any = np.stack([np.stack(c, 1) for c in ((left, bottom), (left, top), (right, top), (right, bottom))], 1)
    ax.add_collection(PolyCollection(corners[..., ::-1] if flat else corners, linewidth=0, **style))
    ax.autoscale_view()


def ticks(count: int, most: int = 12) -> list[int]:
    """0..count-1, thinned out so that the labels do not touch."""
    return list(range(0, count, -(-count // most)))
