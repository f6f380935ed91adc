"""Curves of a run: accuracy against rounds, and against what it cost to get there."""

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from fedjax_ht.report.figures import FEW, legend, style, subplots
from fedjax_ht.report.rows import values
from fedjax_ht.simulation.history import Row, by_trial, evaluated, has_clock, wire_bytes

ACCURACY = "test accuracy, mean over clients (%)"
MARKS = 10  # small marks on a curve, about


def accuracy_curves(histories: Mapping[str, Sequence[Row]]) -> Figure:
    """Draws mean accuracy over clients against rounds, one line an entry, its best round marked;
    and beside it against simulated seconds, where devices are simulated.

    Several trials: their mean, and a band from the lowest to the highest.
    """
    if has_clock(histories):
        figure, (left, right) = two_panels(len(histories))
        draw_accuracy(right, histories, simulated_seconds)
        right.set(xlabel="simulated seconds")
        draw_rounds(left, histories)
        two_panels_legend(left, right, len(histories))
        return figure
    figure, axes = subplots(figsize=(6.4 + legend_room(len(histories)), 4))
    draw_rounds(axes, histories)
    legend(axes, len(histories))
    return figure


def two_panels(entries: int) -> tuple[Figure, tuple[Axes, Axes]]:
    """Returns a figure of two panels with one axis of accuracy, with room for a legend of so many
    entries."""
    return subplots(1, 2, sharey=True, figsize=(11 + legend_room(entries), 4))


def legend_room(entries: int) -> float:
    """Returns the inches that a legend of so many entries takes beside the axes."""
    return 0.0 if entries <= FEW else 2.0


def two_panels_legend(left: Axes, right: Axes, entries: int) -> None:
    """Draws the legend of two panels: within the left one for a few entries, beside the right one
    for more."""
    legend(left if entries <= FEW else right, entries)


def accuracy_and_bytes(histories: Mapping[str, Sequence[Row]], target: float) -> Figure:
    """Draws accuracy against rounds and, beside it, against the bytes sent until then, by all
    clients, up and down.

    The dotted line is the target, a share in [0, 1]. An entry that sends nothing is a dashed line
    at its best accuracy.
    """
    figure, (left, right) = two_panels(len(histories))
    draw_rounds(left, histories)
    draw_accuracy(right, histories, mebibytes_sent)
    scale_bytes(right, histories)
    right.set(xlabel="MiB sent, up and down, all clients together")
    for axes in (left, right):
        axes.axhline(100 * target, color="grey", ls=":", lw=1)
    two_panels_legend(left, right, len(histories))
    return figure


def costs(histories: Mapping[str, Sequence[Row]]) -> Figure:
    """Draws accuracy against what it took until then, of all clients together: bytes both ways,
    training FLOPs, seconds. Of several entries the broad grey line is the frontier: the highest
    accuracy of any that had taken no more."""
    figure, axes = subplots(1, 3, sharey=True, figsize=(11, 4))
    labels = ("MiB sent, up and down", "TFLOP of training", "seconds of rounds, this machine")
    for place, position, label in zip(axes, (mebibytes_sent, teraflop, seconds), labels):
        curves = draw_accuracy(place, histories, position)
        if len(curves) > 1:
            draw_frontier(place, curves)
        place.set(xlabel=label)
    scale_bytes(axes[0], histories)
    axes[0].set(ylabel=ACCURACY)
    handles, names = axes[1].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def rounds_evaluated(trial: Sequence[Row]) -> list[int]:
    """Returns the rounds of one trial's evaluations."""
    return values(evaluated(trial), "round")


def draw_rounds(axes: Axes, histories: Mapping[str, Sequence[Row]]) -> None:
    """Draws accuracy on an axis of rounds from 0 to the last one."""
    draw_accuracy(axes, histories, rounds_evaluated)
    last = max(values(itertools.chain(*histories.values()), "round"))
    axes.set(xlabel="round", xlim=(0, max(1, last)), ylabel=ACCURACY)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for line in axes.lines:
        line.set_clip_on(False)  # marks at the ends of the axis are drawn in full


def scale_bytes(axes: Axes, histories: Mapping[str, Sequence[Row]]) -> None:
    """Scales an axis of bytes by orders of magnitude, where anything was sent."""
    if not any(map(wire_bytes, itertools.chain(*histories.values()))):
        return
    axes.set_xscale("log", nonpositive="mask")  # the untrained federation has sent nothing
    few_decades = axes.dataLim.x1 < 300 * axes.dataLim.minposx
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few_decades else (1,), numticks=7))
    axes.xaxis.set_major_formatter(FuncFormatter(_plain))
    axes.xaxis.set_minor_locator(NullLocator())


def _plain(value: float, _: int) -> str:
    return f"{value:g}"


def draw_frontier(axes: Axes, curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
    """Draws the highest of all curves (places, scores) up to each place, as steps."""
    places, scores = map(np.concatenate, zip(*curves))
    order = np.argsort(places, kind="stable")
    highest = np.maximum.accumulate(scores[order])
    axes.step(places[order], highest, where="post", color="0.8", lw=4, zorder=0)


def until_evaluations(trial: Sequence[Row], spent: Sequence[float] | np.ndarray) -> np.ndarray:
    """Sums what rounds took until each evaluation of one trial; `spent` is by row."""
    return np.cumsum(spent)[["accuracy" in row for row in trial]]


def teraflop(trial: Sequence[Row]) -> np.ndarray:
    """Returns the TFLOP of all clients until each evaluation of one trial."""
    return until_evaluations(trial, [row.get("flops", 0.0) for row in trial]) / 1e12


def seconds(trial: Sequence[Row]) -> np.ndarray:
    """Returns the seconds of rounds, without evaluations, until each evaluation of one trial. The
    first round, which compiles, counts as the median of the others, where there are any."""
    rounds = np.array(values(trial, "round"))
    spent = np.array(values(trial, "seconds_round"))
    if (rounds > 1).any():
        spent[rounds == 1] = np.median(spent[rounds > 1])
    return until_evaluations(trial, spent)


def simulated_seconds(trial: Sequence[Row]) -> list[float]:
    """Returns the seconds of rounds on the clients' devices until each evaluation of one trial."""
    return [row.get("simulated_clock", 0.0) for row in evaluated(trial)]


def mebibytes_sent(trial: Sequence[Row]) -> np.ndarray:
    """Returns the MiB sent both ways until each evaluation of one trial."""
    return until_evaluations(trial, list(map(wire_bytes, trial))) / 2**20


def draw_accuracy(
    axes: Axes,
    histories: Mapping[str, Sequence[Row]],
    position: Callable[[Sequence[Row]], Sequence[float] | np.ndarray],
    score: str = "accuracy",
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draws the curves of `accuracy_curves`.

    Args:
      axes: to draw on.
      histories: label of an entry -> rows.
      position: rows of one trial -> where its evaluations lie; the mean over trials is taken.
      score: the accuracy that is drawn.

    Returns:
      (places, scores in percent) of each entry, float [evaluations].
    """
    curves = []
    for i, (name, history) in enumerate(histories.items()):
        trials = by_trial(history)
        places = np.mean([np.asarray(position(trial)) for trial in trials], axis=0)
        scores = 100 * np.array([values(evaluated(trial), score) for trial in trials])
        mean, look = scores.mean(0), style(i)
        colour = look["color"]
        curves.append((places, mean))
        if not places.any():  # an entry that has sent nothing has no place on a log scale
            axes.axhline(mean.max(), label=name, lw=1.8, color=colour, ls="--")
            continue
        every = max(1, len(places) // MARKS)
        # Marks of neighbouring entries start at different evaluations, so that they do not meet.
        axes.plot(places, mean, label=name, lw=1.8, markevery=(i % every, every), ms=4, **look)
        if len(trials) > 1:
            low, high = scores.min(0), scores.max(0)
            axes.fill_between(places, low, high, color=colour, alpha=0.2, lw=0)
        best = mean.argmax()
        mark = {"color": colour, "ms": 9, "mfc": "white", "mew": 1.8}
        axes.plot(places[best], mean[best], look["marker"], **mark)
    axes.grid(alpha=0.3)
    return curves
