"""Pictures of a run: accuracy against rounds, accuracy of every client, and the (first) split as a
bubble chart."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from fedjax_ht.core.files import atomic_open
from fedjax_ht.data.dataset import Dataset, Partition
from fedjax_ht.data.partition import class_counts
from fedjax_ht.simulation.history import Row, best, by_trial, evaluated, has_clock, wire_bytes

DPI = 120
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, which the colour-blind tell apart, without the yellow, which is faint on
white."""
MARKERS, DASHES = "osD^vP*X", ("-", "--", "-.", ":")
VECTOR = ("svg", "pdf")
TIMELESS = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""Metadata without the time, so that the same figure is the same file."""
FEW = 4  # entries whose legend lies within the axes
WIDE = 11  # inches, so that a page need not shrink a picture until its words are too small
ROOM = 50  # clients that are shown one by one
BUBBLES = 30  # classes, and no more, whose split is shown in bubbles


def subplots(*grid: int, **options: Any) -> tuple[Figure, Any]:
    """A figure and its axes. It belongs to no window, and the caller's matplotlib backend stays
    what it is."""
    figure = Figure(figsize=options.pop("figsize"), layout="constrained")
    return figure, figure.subplots(*grid, **options)


def style(number: int) -> dict[str, str]:
    """Colour, line and marker of an entry: each alone tells neighbours apart."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "ls": DASHES[number // len(COLOURS) % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
    }


def legend(axes: Axes, entries: int) -> None:
    """Within the axes for a few entries, beside them for more."""
    beside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "fontsize": 8}
    axes.legend(frameon=False, **(beside if entries > FEW else {}))


def write_plots(
    histories: Mapping[str, Sequence[Row]],
    dataset: Dataset,
    partition: Partition,
    workdir: Path | str,
) -> list[Path]:
    """Writes accuracy, costs, clients, spread and split below `workdir`/plots as PNG, SVG and PDF;
    returns the paths of the PNGs."""
    figures = {
        "accuracy.png": accuracy_curves(histories),
        "costs.png": costs(histories),
        "clients.png": client_accuracy(histories),
        "spread.png": client_spread(histories),
        "split.png": split_picture(
            class_counts(dataset.labels, partition, num_classes=dataset.num_classes),
            dataset.class_names,
        ),
    }
    return [
        save(figure, Path(workdir) / "plots" / name, VECTOR) for name, figure in figures.items()
    ]


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


def accuracy_curves(histories: Mapping[str, Sequence[Row]]) -> Figure:
    """Mean accuracy over clients against rounds, one line a method, its best round marked; and
    beside it against simulated seconds, where devices are simulated.

    Several trials: their mean, and a band from the lowest to the highest.
    """
    timed, few = has_clock(histories), len(histories) <= FEW
    width = (11 if few else 13) if timed else (6.4 if few else 8.4)
    figure, (axes,) = subplots(1, 1 + timed, sharey=True, squeeze=False, figsize=(width, 4))
    draw_accuracy(axes[0], histories, lambda trial: [row["round"] for row in evaluated(trial)])
    axes[0].set(ylabel="test accuracy, mean over clients (%)")
    scale_rounds(axes[0], histories)
    if timed:
        draw_accuracy(axes[1], histories, simulated_seconds)
        axes[1].set(xlabel="simulated seconds")
    legend(axes[0] if few else axes[-1], len(histories))
    return figure


def accuracy_and_bytes(histories: Mapping[str, Sequence[Row]], target: float) -> Figure:
    """Accuracy against rounds and, beside it, against the bytes sent until then, by all clients, up
    and down.

    The dotted line is the target, a share in [0, 1]. A method that sends nothing is a dashed line
    at its best accuracy.
    """
    figure, (left, right) = subplots(
        1, 2, sharey=True, figsize=(11 if len(histories) <= FEW else 13, 4)
    )
    draw_accuracy(left, histories, lambda trial: [row["round"] for row in evaluated(trial)])
    draw_accuracy(right, histories, mebibytes_sent)
    scale_bytes(right, histories)
    for axes in (left, right):
        axes.axhline(100 * target, color="grey", ls=":", lw=1)
    left.set(ylabel="test accuracy, mean over clients (%)")
    scale_rounds(left, histories)
    right.set(xlabel="MiB sent, up and down, all clients together")
    legend(left if len(histories) <= FEW else right, len(histories))
    return figure


def costs(histories: Mapping[str, Sequence[Row]]) -> Figure:
    """Accuracy against what it took until then, of all clients together: bytes both ways, training
    FLOPs, seconds. Of several entries the broad grey line is the frontier: the highest accuracy of
    any that had taken no more."""
    figure, axes = subplots(1, 3, sharey=True, figsize=(11, 4))
    labels = ("MiB sent, up and down", "TFLOP of training", "seconds of rounds, this machine")
    for place, position, label in zip(axes, (mebibytes_sent, teraflop, seconds), labels):
        curves = draw_accuracy(place, histories, position)
        if len(curves) > 1:
            draw_frontier(place, curves)
        place.set(xlabel=label)
    scale_bytes(axes[0], histories)
    axes[0].set(ylabel="test accuracy, mean over clients (%)")
    handles, names = axes[1].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def scale_rounds(axes: Axes, histories: Mapping[str, Sequence[Row]]) -> None:
    """An axis of rounds from 0 to the last one; marks at its ends are drawn in full."""
    last = max(row["round"] for history in histories.values() for row in history)
    axes.set(xlabel="round", xlim=(0, max(1, last)))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for line in axes.lines:
        line.set_clip_on(False)


def scale_bytes(axes: Axes, histories: Mapping[str, Sequence[Row]]) -> None:
    """Bytes by orders of magnitude, where anything was sent."""
    if any(wire_bytes(row) for history in histories.values() for row in history):
        axes.set_xscale("log", nonpositive="mask")  # the untrained federation has sent nothing
        few = axes.dataLim.x1 < 300 * axes.dataLim.minposx
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,), numticks=7))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.xaxis.set_minor_locator(NullLocator())


def draw_frontier(axes: Axes, curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
    """The highest of all curves (places, scores) up to each place, as steps."""
    places, scores = (np.concatenate(part) for part in zip(*curves))
    order = np.argsort(places, kind="stable")
    axes.step(
        places[order],
        np.maximum.accumulate(scores[order]),
        where="post",
        color="0.8",
        lw=4,
        zorder=0,
    )


def teraflop(trial: Sequence[Row]) -> np.ndarray:
    """Of all clients, until each evaluation of one trial."""
    spent = np.cumsum([row.get("flops", 0.0) for row in trial]) / 1e12
    return spent[["accuracy" in row for row in trial]]


def seconds(trial: Sequence[Row]) -> np.ndarray:
    """Of rounds without evaluations, until each evaluation of one trial. The first round, which
    compiles, counts as the median of the others, where there are any."""
    spent = {row["round"]: row["seconds_round"] for row in trial}
    compiled = [value for number, value in spent.items() if number > 1]
    if compiled:
        spent[1] = float(np.median(compiled))
    until = np.cumsum([spent[row["round"]] for row in trial])
    return until[["accuracy" in row for row in trial]]


def simulated_seconds(trial: Sequence[Row]) -> list[float]:
    """Of rounds on the clients' devices, until each evaluation of one trial."""
    return [row.get("simulated_clock", 0.0) for row in evaluated(trial)]


def mebibytes_sent(trial: Sequence[Row]) -> np.ndarray:
    """Both ways, until each evaluation of one trial."""
    sent = np.cumsum([wire_bytes(row) for row in trial]) / 2**20
    return sent[["accuracy" in row for row in trial]]


def draw_accuracy(
    axes: Axes,
    histories: Mapping[str, Sequence[Row]],
    position: Callable[[Sequence[Row]], Sequence[float]],
    score: str = "accuracy",
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draws the curves of `accuracy_curves`, and returns them; `position` places the evaluations of
    one trial, its mean is taken."""
    curves = []
    for i, (name, history) in enumerate(histories.items()):
        trials = by_trial(history)
        places = np.mean([position(trial) for trial in trials], axis=0)
        scores = 100 * np.array([[row[score] for row in evaluated(trial)] for trial in trials])
        mean, look = scores.mean(0), style(i)
        curves.append((places, mean))
        if not places.any():
            axes.axhline(mean.max(), label=name, lw=1.8, color=look["color"], ls="--")
            continue
        every = max(1, len(places) // 10)
        axes.plot(places, mean, label=name, lw=1.8, markevery=(i % every, every), ms=4, **look)
        if len(trials) > 1:
            axes.fill_between(
                places, scores.min(0), scores.max(0), color=look["color"], alpha=0.2, lw=0
            )
        best_place = places[mean.argmax()]
        axes.plot(
            best_place, mean.max(), look["marker"], color=look["color"], ms=9, mfc="white", mew=1.8
        )
    axes.grid(alpha=0.3)
    return curves


def client_accuracy(histories: Mapping[str, Sequence[Row]]) -> Figure:
    """Accuracy of every client at the method's best round, mean over trials, ordered by the first
    method's accuracy; of more clients than have room, each method's own from worst to best."""
    values = {name: mean_of_clients(history) for name, history in histories.items()}
    first = next(iter(values.values()))
    if len(first) > ROOM:
        return client_quantiles(values)
    order = np.argsort(np.nan_to_num(first, nan=-1.0), kind="stable")
    figure, axes = subplots(figsize=(min(WIDE, max(8.4, 0.22 * len(order) + 2)), 4))
    for i, (name, accuracy) in enumerate(values.items()):
        look = style(i) | {"ls": "none"}
        axes.plot(
            accuracy[order],
            ms=5,
            label=f"{name} (mean {np.nanmean(accuracy):.1f})",
            alpha=0.8,
            **look,
        )
    ids = next(iter(histories.values()))[0].get("client_ids", range(len(first)))
    axes.set_xticks(range(len(order)), [str(ids[i]) for i in order], fontsize=7)
    axes.set(xlabel="client id", ylabel="test accuracy at the best round (%)")
    axes.grid(alpha=0.3)
    legend(axes, FEW + 1)  # points are everywhere within the axes
    return figure


def client_quantiles(values: Mapping[str, np.ndarray]) -> Figure:
    """Accuracies of a method's clients in percent, from worst to best."""
    figure, axes = subplots(figsize=(8.4, 4))
    for i, (name, accuracy) in enumerate(values.items()):
        ordered = np.sort(accuracy[~np.isnan(accuracy)])
        share = 100 * (np.arange(len(ordered)) + 0.5) / max(1, len(ordered))
        every = max(1, len(ordered) // 10)
        look = style(i) | {"ms": 4, "lw": 1.5, "markevery": (i * every // len(values), every)}
        axes.plot(share, ordered, label=f"{name} (mean {ordered.mean():.1f})", **look)
    axes.set(xlabel="clients, from worst to best (%)", ylabel="test accuracy at the best round (%)")
    axes.grid(alpha=0.3)
    legend(axes, FEW + 1)
    return figure


def client_spread(histories: Mapping[str, Sequence[Row]]) -> Figure:
    """How accuracy is spread over clients at the method's best round (mean over trials): a box from
    the lower to the upper quartile with the median, whiskers to the furthest client within 1.5 box
    heights, the others as dots, and the mean as a triangle."""
    figure, axes = subplots(figsize=(7, 0.45 * len(histories) + 1.1))
    values = [mean_of_clients(history) for history in histories.values()]
    boxes = [accuracy[~np.isnan(accuracy)] for accuracy in values]
    # Greys, since each colour is that of an entry in the other figures.
    grey = {"markerfacecolor": "white", "markeredgecolor": "0.35"}
    looks = {"medianprops": {"color": "0.35", "linewidth": 2}, "meanprops": {"marker": "^", **grey}}
    axes.boxplot(
        boxes,
        orientation="horizontal",
        tick_labels=list(histories),
        showmeans=True,
        flierprops={"markersize": 3},
        **looks,
    )
    axes.invert_yaxis()  # the first on top
    axes.set(xlabel="test accuracy of a client at the best round (%)")
    axes.grid(alpha=0.3, axis="x")
    return figure


def mean_of_clients(history: Sequence[Row]) -> np.ndarray:
    """Percent per evaluated client at the best round, mean over the trials; NaN for clients without
    a score."""
    scores = [np.array(best(trial).on_test["clients"], np.float64) for trial in by_trial(history)]
    counts = np.sum([~np.isnan(s) for s in scores], axis=0)
    return np.where(counts > 0, 100 * np.nansum(scores, axis=0) / np.maximum(counts, 1), np.nan)


def split_picture(counts: np.ndarray, class_names: Sequence[str]) -> Figure:
    """Training samples, int [clients, classes], of every class (rows) at every client (columns): a
    bubble's area is in proportion, or, of more classes or clients than bubbles show, a cell's
    darkness."""
    clients, classes = counts.shape
    if classes > BUBBLES or clients > ROOM:
        height = 0.25 * classes + 1 if classes <= BUBBLES else min(9, 0.08 * classes + 1)
        figure, axes = subplots(figsize=(min(WIDE, max(6.4, 0.12 * clients + 2)), max(3.2, height)))
        cells = axes.imshow(
            counts.T, aspect="auto", origin="lower", cmap="Blues", interpolation="nearest"
        )
        figure.colorbar(cells, ax=axes, label="training samples")
        axes.set(xlabel="client id", ylabel="class")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if classes <= BUBBLES:
            axes.set_yticks(range(classes), class_names, fontsize=8)
        return figure
    width = min(WIDE, max(6.4, 0.3 * clients + 1.5))
    figure, axes = subplots(figsize=(width, max(3.2, 0.3 * classes + 1)))
    room = min(1.0, (width - 1.5) / (0.3 * clients))
    client, label = np.nonzero(counts)
    size = counts[client, label]
    axes.scatter(
        client,
        label,
        s=220 * room**2 * size / max(1, counts.max()),
        alpha=0.75,
        lw=0,
        color=COLOURS[0],
    )
    axes.set_xticks(range(0, clients, 1 + clients // 40))
    axes.set_yticks(range(classes), class_names, fontsize=8)
    axes.set(xlabel="client id", xlim=(-0.8, clients - 0.2), ylim=(-0.8, classes - 0.2))
    axes.set_title(
        f"training samples per class and client (largest bubble: {counts.max()})", fontsize=10
    )
    axes.grid(alpha=0.2)
    return figure


def image_grid(blocks: Mapping[str, np.ndarray], class_names: Sequence[str]) -> Figure:
    """Titled blocks of images float [n, H, W, 1 or 3] in [0, 1], enlarged without smoothing, the
    first of each class with its name above: image i is of class i mod the number of classes."""
    columns = min(len(class_names), 10)
    rows = {title: -(-len(images) // columns) for title, images in blocks.items()}
    figure = Figure(
        figsize=(columns * 0.9, sum(rows.values()) * 0.95 + len(blocks) * 0.35),
        layout="constrained",
    )
    parts = figure.subfigures(
        len(blocks), squeeze=False, height_ratios=[n + 0.3 for n in rows.values()]
    )[:, 0]
    for part, (title, images) in zip(parts, blocks.items()):
        part.suptitle(title, fontsize=9)
        axes = part.subplots(rows[title], columns, squeeze=False)
        for cell in axes.flat:
            cell.axis("off")
        for index, (cell, image) in enumerate(zip(axes.flat, images)):
            cell.imshow(
                np.squeeze(image, -1) if image.shape[-1] == 1 else image,
                cmap="gray",
                vmin=0,
                vmax=1,
            )
            if index < len(class_names):
                cell.set_title(class_names[index], fontsize=7, pad=2)
    return figure
