"""Figures as files: their colours, their legends, and how they are saved."""

import io
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from fedjax_ht.lab.config.entries import BASELINE, method_of, number_of
from fedjax_ht.lab.files import atomic_open

DPI = 120
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
    *("#832DB6", "#A96B59", "#717581"),
)
"""Okabe and Ito's, which the colour-blind tell apart, without the yellow, which is faint on white,
and without the black, which is local training's; and three of Petroff's."""
BLACK = "#000000"
MARKERS = "osD^vP*X"
DASHES = (
    "-",
    "--",
    "-.",
    ":",
    (0, (8, 2, 2, 2, 2, 2)),
    (0, (1, 4)),
    (0, (10, 2)),
    (0, (2, 4, 8, 4)),
)
VECTOR = ("svg", "pdf")
TIMELESS = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""Metadata without the time, so that the same figure is the same file."""
FEW = 4  # entries whose legend lies within the axes


def subplots(*grid: int, **options: Any) -> tuple[Figure, Any]:
    """Returns a figure and its axes. It belongs to no window, and the caller's matplotlib backend
    stays what it is."""
    figure = Figure(figsize=options.pop("figsize"), layout="constrained")
    return figure, figure.subplots(*grid, **options)


def styles(labels: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns colour, line and marker of each entry, by its label.

    A method has its own colour in every report, local training black. Where two have the same, the
    later method takes the next that is free, whatever the order of the entries; a colour that is
    used again comes with another line. Markers tell neighbours apart as well.
    """
    looks: dict[str, dict[str, Any]] = {}
    taken: set[int] = set()
    for label in _by_method(labels):
        if method_of(label) == BASELINE and not looks:
            looks[label] = {"color": BLACK, "ls": "-", "marker": "o"}
            continue
        first, count = number_of(method_of(label)) % len(COLOURS), len(COLOURS)
        order = itertools.chain(range(first, count), range(first), itertools.count(count))
        number = next(i for i in order if i not in taken)
        taken.add(number)
        looks[label] = {
            "color": COLOURS[number % len(COLOURS)],
            "ls": DASHES[number // len(COLOURS) % len(DASHES)],
            "marker": MARKERS[number % len(MARKERS)],
        }
    return looks


def _by_method(labels: Iterable[str]) -> list[str]:
    """Returns labels in an order that does not depend on theirs: methods by their numbers, and
    behind all of them further entries of the same methods."""
    first, variants = {}, []
    for label in sorted(labels, key=lambda label: (number_of(method_of(label)), len(label), label)):
        if method_of(label) in first:
            variants.append(label)
        else:
            first[method_of(label)] = label
    return [*first.values(), *variants]


def legend(axes: Axes, entries: int) -> None:
    """Draws the legend: within the axes for a few entries, beside them for more."""
    beside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "fontsize": 8}
    axes.legend(frameon=False, **(beside if entries > FEW else {}))


def save(figure: Figure, path: Path, also: Sequence[str] = ()) -> Path:
    """Writes a figure as PNG, and beside it in the formats `also`. All text is drawn as it is."""
    layout = figure.get_layout_engine()
    for kind in ("png", *also):
        with atomic_open(path.with_suffix(f".{kind}"), "wb") as file:
            file.write(rendered(figure, kind))
        # The axes stay where the PNG has them: to lay them out again is half of each format's time.
        figure.set_layout_engine("none")
    figure.set_layout_engine(layout)
    return path


def rendered(figure: Figure, kind: str) -> bytes:
    """Returns a figure as the content of a file: "png", "svg" or "pdf"."""
    # A class may be called "$5$", which is no formula: neither in the text that there is nor in the
    # ticks that drawing adds.
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    file = io.BytesIO()
    # Names within an SVG are random without a salt.
    with matplotlib.rc_context({"svg.hashsalt": "fedjax_ht", "text.parse_math": False}):
        figure.savefig(file, format=kind, dpi=DPI, metadata=TIMELESS.get(kind))
    return file.getvalue()
