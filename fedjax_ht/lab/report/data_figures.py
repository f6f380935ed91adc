"""Figures of a data set: its classes by set, its values, and single windows."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedjax_ht.lab.report.figures import COLOURS, FEW, legend, subplots

MOST = 40  # classes, and no more, that have a bar each
BINS = 64
WIDTH = 5.5  # inches: words stay readable where a phone shrinks the picture


def class_counts_picture(counts: Mapping[str, np.ndarray], class_names: Sequence[str]) -> Figure:
    """Draws the samples of every class, stacked by set; of more classes than have room, how many
    classes have how many samples.

    Args:
      counts: name of a set -> int [classes].
      class_names: names of all classes.
    """
    if len(class_names) > MOST:
        return _sizes_picture(counts)
    figure, axes = subplots(figsize=(WIDTH, 0.26 * len(class_names) + 1.2))
    left = np.zeros(len(class_names), int)
    for i, (name, of_set) in enumerate(counts.items()):
        axes.barh(range(len(class_names)), of_set, left=left, label=name, color=_colour(i))
        left = left + of_set
    axes.set_yticks(range(len(class_names)), [_short(name) for name in class_names], fontsize=8)
    axes.invert_yaxis()  # the first class on top
    axes.set(xlabel="samples")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3, axis="x")
    if len(counts) > 1:
        legend(axes, FEW + 1)
    return figure


def _sizes_picture(counts: Mapping[str, np.ndarray]) -> Figure:
    figure, axes = subplots(figsize=(WIDTH, 2.6))
    axes.hist(list(counts.values()), BINS, label=list(counts), color=_colours(len(counts)))
    axes.set(xlabel="samples of a class", ylabel="classes")
    axes.grid(alpha=0.3)
    if len(counts) > 1:
        legend(axes, FEW + 1)
    return figure


def values_picture(values: Mapping[str, np.ndarray], label: str) -> Figure:
    """Draws how often values occur, a line each.

    Args:
      values: name -> its values, such as those of a channel.
      label: the label of the axis, which names the kind of value.
    """
    figure, axes = subplots(figsize=(WIDTH, 2.6))
    edges = _edges(np.concatenate([np.ravel(each) for each in values.values()]))
    for i, (name, each) in enumerate(values.items()):
        counts, _ = np.histogram(each, edges)
        axes.stairs(counts / max(1, counts.sum()), edges, label=name, color=_colour(i))
    axes.set(xlabel=label, ylabel="share of the values")
    axes.grid(alpha=0.3)
    if len(values) > 1:
        legend(axes, FEW + 1)
    return figure


def feature_picture(column: np.ndarray) -> Figure:
    """Draws a histogram of one feature's values, [N]."""
    figure, axes = subplots(figsize=(2.4, 1.3))
    axes.hist(column, _edges(column), color=COLOURS[0])
    axes.tick_params(labelsize=6)
    return figure


def _edges(values: np.ndarray) -> np.ndarray:
    """Borders of bins; around whole numbers where all values are such."""
    if not values.size:
        return np.array([0.0, 1.0])
    low, high = float(values.min()), float(values.max())
    if high - low < 2**31 and (values == np.floor(values)).all():
        step = -(-int(high - low + 1) // BINS)
        return np.arange(low, high + 1 + step, step) - 0.5
    return np.histogram_bin_edges(values, BINS)


def window_svg(window: np.ndarray) -> bytes:
    """Draws one window of sensors, float [T, ...], as an SVG file: a line a signal, against
    time."""
    signals = window.reshape(len(window), -1).T.astype(np.float64)
    low, high = signals.min(), signals.max()
    height = 100 * (high - signals) / max(high - low, 1e-12)
    times = np.linspace(0, 200, len(window))
    lines = []
    for i, signal in enumerate(height):
        points = " ".join(f"{time:.1f},{value:.1f}" for time, value in zip(times, signal))
        look = f'fill="none" stroke="{_colour(i)}" stroke-width="0.8"'
        lines.append(f'<polyline {look} points="{points}"/>')
    size = 'width="200" height="100" viewBox="0 -1 200 102"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(lines)}</svg>'.encode()


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _colours(count: int) -> list[str]:
    return [_colour(i) for i in range(count)]


def _short(name: str) -> str:
    return name if len(name) <= 24 else f"{name[:23]}…"
