"""Figures as files: their colours, their legends, and how they are saved."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from fedjax_ht.core.files import atomic_open

DPI = 120
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, which the colour-blind tell apart, without the yellow, which is faint on
white."""
MARKERS, DASHES = "osD^vP*X", ("-", "--", "-.", ":")
VECTOR = ("svg", "pdf")
TIMELESS = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""Metadata without the time, so that the same figure is the same file."""
FEW = 4  # entries whose legend lies within the axes


def subplots(*grid: int, **options: Any) -> tuple[Figure, Any]:
    """Returns a figure and its axes. It belongs to no window, and the caller's matplotlib backend
    stays what it is."""
    figure = Figure(figsize=options.pop("figsize"), layout="constrained")
    return figure, figure.subplots(*grid, **options)


def style(number: int) -> dict[str, Any]:
    """Returns colour, line and marker of an entry: each alone tells neighbours apart."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "ls": DASHES[number // len(COLOURS) % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
    }


def legend(axes: Axes, entries: int) -> None:
    """Draws the legend: within the axes for a few entries, beside them for more."""
    beside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "fontsize": 8}
    axes.legend(frameon=False, **(beside if entries > FEW else {}))


def save(figure: Figure, path: Path, also: Sequence[str] = ()) -> Path:
    """Writes a figure as PNG, and beside it in the formats `also`. All text is drawn as it is."""
    # A class may be called "$5$", which is no formula: neither in the text that there is nor in the
    # ticks that drawing adds.
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    # Names within an SVG are random without a salt.
    with matplotlib.rc_context({"svg.hashsalt": "fedjax_ht", "text.parse_math": False}):
        for kind in ("png", *also):
            with atomic_open(path.with_suffix(f".{kind}"), "wb") as file:
                figure.savefig(file, format=kind, dpi=DPI, metadata=TIMELESS.get(kind))
    return path
