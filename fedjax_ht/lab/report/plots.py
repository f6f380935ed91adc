"""Pictures of a run.

They show accuracy against rounds and costs, the accuracy of each client and its spread, the (first)
split, and images of the server.
"""

import io
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from fedjax_ht.data.dataset import Dataset, Partition
from fedjax_ht.data.partition import class_counts
from fedjax_ht.lab.config.entries import BASELINE, method_of, number_of
from fedjax_ht.lab.files import write_whole
from fedjax_ht.lab.report.compared import Compared
from fedjax_ht.lab.report.rows import Score, has_clock, rows_of_all, score_in, values
from fedjax_ht.simulation.history import best, wire_bytes
from fedjax_ht.simulation.rows import History, Runs, evaluated, score_of

AT_BEST = " at the best round"
MARKS = 10  # small marks on a curve, about
EARLY = 0.3  # share of the rounds, from the first, whose values may leave their panel


def axis_label(score: Score, of: str = ", mean over clients") -> str:
    """Returns the label of an axis of scores."""
    return f"test {score.name}{of}{' (%)' if score.is_share else ''}"


def accuracy_curves(histories: Mapping[str, Runs], baseline: str | None = None) -> Figure:
    """Draws mean accuracy over clients against rounds, one line per entry, its best round marked.

    Further panels show the difference to the baseline and, if devices are simulated, accuracy
    against simulated seconds. Several trials have a line for their mean, and a band from the lowest
    to the highest.

    Args:
      histories: label of an entry -> its runs.
      baseline: label of the entry to compare the others with; None compares none.
    """
    extra = [baseline is not None, has_clock(histories)].count(True)
    few = len(histories) <= FEW  # then the legend lies within the axes
    width = (11 if extra else 6.4) + (0 if few else 2)
    figure, panels = subplots(1, 1 + extra, figsize=(width, 4), squeeze=False)
    first, *further = panels[0]
    draw_rounds(first, histories)
    if baseline is not None:
        draw_differences(further[0], histories, baseline)
    if has_clock(histories):
        further[-1].sharey(first)
        draw_accuracy(further[-1], histories, simulated_seconds)
        further[-1].set(xlabel="simulated seconds")
    legend(first if few else panels[0][-1], len(histories))
    return figure


def draw_differences(axes: Axes, histories: Mapping[str, Runs], baseline: str) -> None:
    """Draws each entry's accuracy minus the baseline's, trial by trial.

    At the rounds in which both are evaluated, it shows the mean over trials, and a band from the
    lowest to the highest.
    """
    looks, beyond = styles(histories), []
    axes.axhline(0, lw=1.8, label=baseline, color=looks[baseline]["color"])
    for name, runs in histories.items():
        if name == baseline:
            continue
        rounds, points = paired_points(runs, histories[baseline])
        draw_mean(axes, rounds, points, label=name, **looks[name] | {"marker": ""})
        # the first rounds differ by tens of points, which would flatten the later ones
        beyond.append(points[:, rounds >= EARLY * rounds.max()].ravel())
    span, score = finite(np.concatenate([[0.0], *beyond])), score_in(histories)
    margin = max(0.5 if score.is_share else 0, 0.1 * np.ptp(span)) or 0.5
    ahead = f"{'points' if score.is_share else score.name} ahead of {baseline}"
    axes.set(ylim=(span.min() - margin, span.max() + margin), ylabel=ahead)
    scale_rounds(axes, histories)
    axes.grid(alpha=0.3)


def draw_mean(axes: Axes, places: np.ndarray, of_runs: np.ndarray, **look: Any) -> None:
    """Draws the mean over runs, float [runs, places].

    Several runs also have a band from the lowest to the highest.
    """
    axes.plot(places, of_runs.mean(0), lw=1.8, **look)
    if len(of_runs) > 1:
        low, high = of_runs.min(0), of_runs.max(0)
        axes.fill_between(places, low, high, color=look["color"], alpha=0.2, lw=0)


def scale_rounds(axes: Axes, histories: Mapping[str, Runs]) -> None:
    """Scales an axis of rounds, from 0 to the last one."""
    last = max(values(rows_of_all(histories), "round"))
    axes.set(xlabel="round", xlim=(0, 1.02 * max(1, last)))  # with room for the last mark
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


@np.errstate(invalid="ignore")  # two diverged entries: inf - inf
def paired_points(runs: Runs, baseline: Runs) -> tuple[np.ndarray, np.ndarray]:
    """Subtracts a baseline's scores, trial by trial, at the rounds in which all are evaluated.

    Returns:
      Rounds, int [evaluations], and differences, above 0 if `runs` are better, float [trials,
      evaluations]; for shares in percentage points.
    """
    pairs, score = list(zip(runs, baseline)), score_in({"": runs})
    rounds = shared_rounds([history for pair in pairs for history in pair])
    ours, theirs = (at_rounds(side, rounds, score_of_rows(score)) for side in zip(*pairs))
    return np.array(rounds), score.sign * score.factor * (ours - theirs)


def costs(histories: Mapping[str, Runs]) -> Figure:
    """Draws accuracy against the costs so far of all clients together.

    The costs are bytes both ways, training FLOPs, and seconds.
    """
    figure, axes = subplots(1, 3, sharey=True, figsize=(11, 4))
    labels = ("MiB sent, up and down", "FLOPs of training", "seconds of rounds, this machine")
    for place, position, label in zip(axes, (mebibytes_sent, operations, seconds), labels):
        draw_accuracy(place, histories, position)
        place.set(xlabel=label)
        place.xaxis.set_major_locator(MaxNLocator(5))
    axes[1].xaxis.set_major_formatter(EngFormatter())
    scale_bytes(axes[0], histories)
    axes[0].set(ylabel=axis_label(score_in(histories)))
    handles, names = axes[1].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def rounds_evaluated(history: History) -> list[int]:
    """Returns the rounds of a run's evaluations."""
    return values(evaluated(history), "round")


def shared_rounds(runs: Runs) -> list[int]:
    """Returns the rounds that all runs evaluate, in order: one may have stopped between two."""
    return sorted(set.intersection(*(set(rounds_evaluated(history)) for history in runs)))


def at_rounds(
    runs: Runs, rounds: Sequence[int], values_of: Callable[[History], Sequence[float] | np.ndarray]
) -> np.ndarray:
    """Returns the values of the runs' evaluations in `rounds`, float [runs, rounds]."""
    return np.array([np.asarray(values_of(x))[np.isin(rounds_evaluated(x), rounds)] for x in runs])


def score_of_rows(score: Score) -> Callable[[History], list[float]]:
    """Returns the function (rows of a run) -> the score of each of its evaluations."""
    return lambda history: values(evaluated(history), score.key)


def draw_rounds(axes: Axes, histories: Mapping[str, Runs]) -> None:
    """Draws accuracy on an axis of rounds from 0 to the last one."""
    draw_accuracy(axes, histories, rounds_evaluated)
    scale_rounds(axes, histories)
    axes.set(ylabel=axis_label(score_in(histories)))


def scale_bytes(axes: Axes, histories: Mapping[str, Runs]) -> None:
    """Gives an axis of bytes a logarithmic scale, if anything was sent."""
    if not any(map(wire_bytes, rows_of_all(histories))):
        return
    axes.set_xscale("log", nonpositive="mask")  # the untrained federation has sent nothing
    few_decades = axes.dataLim.x1 < 300 * axes.dataLim.minposx
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few_decades else (1,), numticks=7))
    axes.xaxis.set_major_formatter(FuncFormatter(_plain))
    axes.xaxis.set_minor_locator(NullLocator())


def _plain(value: float, _: int) -> str:
    return f"{value:g}"


def until_evaluations(history: History, spent: Sequence[float] | np.ndarray) -> np.ndarray:
    """Sums the costs of rounds up to each evaluation of a run; `spent` is by row."""
    return np.cumsum(spent)[[score_of(row) in row for row in history]]


def operations(history: History) -> np.ndarray:
    """Returns the FLOPs of all clients' training up to each evaluation of a run."""
    return until_evaluations(history, [row.get("flops", 0.0) for row in history])


def seconds(history: History) -> np.ndarray:
    """Returns the seconds of rounds, without evaluations, up to each evaluation of a run.

    The first round, which compiles, counts as the median of the others, if there are any.
    """
    rounds = np.array(values(history, "round"))
    spent = np.array(values(history, "seconds_round"))
    if (rounds > 1).any():
        spent[rounds == 1] = np.median(spent[rounds > 1])
    return until_evaluations(history, spent)


def simulated_seconds(history: History) -> list[float]:
    """Returns the seconds of rounds on the clients' devices up to each evaluation of a run."""
    return [row.get("simulated_clock", 0.0) for row in evaluated(history)]


def mebibytes_sent(history: History) -> np.ndarray:
    """Returns the MiB sent both ways up to each evaluation of a run."""
    return until_evaluations(history, list(map(wire_bytes, history))) / 2**20


def draw_accuracy(
    axes: Axes,
    histories: Mapping[str, Runs],
    position: Callable[[History], Sequence[float] | np.ndarray],
    score: Score | None = None,
) -> None:
    """Draws the curves of `accuracy_curves`.

    Args:
      axes: the axes to draw on.
      histories: label of an entry -> its runs.
      position: rows of a run -> coordinates of its evaluations, which are averaged over runs.
      score: the score to draw; None for that of the rows.
    """
    looks, score = styles(histories), score or score_in(histories)
    for i, (name, runs) in enumerate(histories.items()):
        rounds = shared_rounds(runs)
        places = at_rounds(runs, rounds, position).mean(0)
        scores = score.factor * at_rounds(runs, rounds, score_of_rows(score))
        mean, look = scores.mean(0), looks[name]
        colour = look["color"]
        if len(places) > 1 and not places.any():  # nothing sent: no position on a log scale
            top = mean[(score.sign * mean).argmax()]
            axes.axhline(top, label=name, lw=1.8, color=colour, ls="--")
            continue
        every = max(1, len(places) // MARKS)
        # Marks of neighbouring entries start at different evaluations, so that they do not overlap.
        draw_mean(axes, places, scores, label=name, markevery=(i % every, every), ms=4, **look)
        best = (score.sign * mean).argmax()
        mark = {"color": colour, "ms": 9, "mfc": "white", "mew": 1.8}
        axes.plot(places[best], mean[best], look["marker"], **mark)
    axes.set(ylim=late_range(histories, score))
    axes.grid(alpha=0.3)


def late_range(histories: Mapping[str, Runs], score: Score) -> tuple[float, float]:
    """Returns the range of a score, as shown, after the first rounds, including each run's best.

    With few rounds, it is the range of all. Without a finite score, it is around 0.
    """
    last = max(values(rows_of_all(histories), "round"))
    first = EARLY * last if last > 3 else 0
    late = values([row for row in rows_of_all(histories) if row["round"] >= first], score.key)
    for runs in histories.values():
        late += [max(values(history, score.key), key=lambda x: score.sign * x) for history in runs]
    late = score.factor * finite(late)
    if not late.size:
        late = np.zeros(1)
    margin = max(0.5 if score.is_share else 0, 0.05 * np.ptp(late)) or 0.5
    return late.min() - margin, late.max() + margin


def finite(scores: Sequence[float] | np.ndarray) -> np.ndarray:
    """Returns the finite ones of scores: a diverged run's error is infinite, an axis is not."""
    scores = np.asarray(scores)
    return scores[np.isfinite(scores)]


WIDE = 11  # inches: a page would shrink wider pictures until their text is too small
ROOM = 50  # clients up to which each is shown separately
NAMED = 30  # classes up to which names are written beside a split


def write_plots(
    shown: Compared,
    dataset: Dataset,
    partition: Partition,
    workdir: Path | str,
) -> list[Path]:
    """Writes accuracy, costs, clients, spread and split to `workdir`/plots as PNG, SVG and PDF.

    Returns the paths of the PNGs.
    """
    histories = shown.histories
    counts = class_counts(dataset.labels, partition, num_classes=dataset.num_classes)
    figures = {
        "accuracy.png": accuracy_curves(histories, shown.baseline if shown.compares else None),
        "costs.png": costs(histories),
        "clients.png": client_accuracy(histories),
        "spread.png": client_spread(histories),
        "split.png": split_picture(counts, dataset.class_names),
    }
    folder = Path(workdir) / "plots"
    return [save(figure, folder / name, VECTOR) for name, figure in figures.items()]


def client_accuracy(histories: Mapping[str, Runs]) -> Figure:
    """Draws every client's accuracy at the entry's best round.

    Clients are ordered by the first entry's accuracy. If there are several trials, whose splits may
    differ, or too many clients to show separately, each entry's own clients of all trials are
    ordered from worst to best.
    """
    score, values = score_in(histories), {}
    for name, runs in histories.items():
        values[name] = np.concatenate([scores_of_clients(history, score) for history in runs])
    first = next(iter(values.values()))
    order = np.argsort(np.nan_to_num(score.sign * first, nan=-np.inf), kind="stable")
    is_small = len(first) <= ROOM and all(len(x) == len(first) for x in values.values())
    one_by_one = is_small and all(len(runs) == 1 for runs in histories.values())
    width = max(8.4, 0.22 * len(order) + 2) if one_by_one else 8.4
    figure, axes = subplots(figsize=(min(WIDE, width), 4))
    looks = styles(values)
    for name, accuracy in values.items():
        label = f"{name} (mean {np.nanmean(accuracy):{score.form}})"
        if one_by_one:
            look = looks[name] | {"ls": "none", "ms": 5, "alpha": 0.8}
            axes.plot(accuracy[order], label=label, **look)
            continue
        ordered = score.sign * np.sort(score.sign * accuracy[~np.isnan(accuracy)])
        share = 100 * (np.arange(len(ordered)) + 0.5) / max(1, len(ordered))
        every = max(1, len(ordered) // MARKS)
        axes.plot(share, ordered, label=label, ms=4, lw=1.5, markevery=every, **looks[name])
    if one_by_one:
        ids = evaluated_ids(next(iter(histories.values()))[0])
        axes.set_xticks(range(len(order)), [str(ids[i]) for i in order], fontsize=7)
    axes.set_xlabel("client id" if one_by_one else "clients, from worst to best (%)")
    axes.set_ylabel(axis_label(score, AT_BEST))
    axes.grid(alpha=0.3)
    legend(axes, FEW + 1)  # beside the axes, which have points everywhere
    return figure


def client_spread(histories: Mapping[str, Runs]) -> Figure:
    """Draws the spread of accuracy over the clients of all trials at the entry's best round.

    A box spans the quartiles with the median, whiskers reach to the furthest client within 1.5 box
    heights, other clients are dots, and the mean is a triangle.
    """
    figure, axes = subplots(figsize=(7, 0.45 * len(histories) + 1.1))
    score, boxes = score_in(histories), []
    for runs in histories.values():
        accuracy = np.concatenate([scores_of_clients(history, score) for history in runs])
        boxes.append(accuracy[~np.isnan(accuracy)])
    # Grey, since in the other figures each colour belongs to an entry.
    grey = {"markerfacecolor": "white", "markeredgecolor": "0.35"}
    axes.boxplot(
        boxes,
        orientation="horizontal",
        tick_labels=list(histories),
        showmeans=True,
        flierprops={"markersize": 3},
        medianprops={"color": "0.35", "linewidth": 2},
        meanprops={"marker": "^", **grey},
    )
    axes.invert_yaxis()  # the first entry on top
    axes.set(xlabel=axis_label(score, " of a client at the best round"))
    axes.grid(alpha=0.3, axis="x")
    return figure


def evaluated_ids(history: History) -> Sequence[int]:
    """Returns the ids of the evaluated clients."""
    row = best(history).on_test
    return row.get("client_ids", range(len(row["clients"])))


def scores_of_clients(history: History, score: Score) -> np.ndarray:
    """Returns each evaluated client's score at the best round of a run, float [clients].

    Shares are in percent; clients without a score have NaN.
    """
    return score.factor * np.array(best(history).on_test["clients"], np.float64)


def split_picture(counts: np.ndarray, class_names: Sequence[str]) -> Figure:
    """Draws the training samples of every class (rows) at every client (columns); darker is more.

    Args:
      counts: int [clients, classes].
      class_names: names of all classes.
    """
    clients, classes = counts.shape
    with_names = classes <= NAMED
    height = 0.25 * classes + 1 if with_names else min(9, 0.08 * classes + 1)
    figure, axes = subplots(figsize=(min(WIDE, max(6.4, 0.12 * clients + 2)), max(3.2, height)))
    look = {"aspect": "auto", "origin": "lower", "cmap": "Blues", "interpolation": "nearest"}
    figure.colorbar(axes.imshow(counts.T, **look), ax=axes, label="training samples")
    axes.set(xlabel="client id", ylabel="class")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if with_names:
        axes.set_yticks(range(classes), class_names, fontsize=8)
    return figure


def image_grid(blocks: Mapping[str, np.ndarray], class_names: Sequence[str]) -> Figure:
    """Draws titled blocks of images, enlarged without smoothing.

    The first image of each class has its name above.

    Args:
      blocks: title -> images, float [n, H, W, 1 or 3] in [0, 1]; image i is of class i mod the
        number of classes.
      class_names: names of all classes.
    """
    columns = min(len(class_names), 10)
    rows = [-(-len(images) // columns) for images in blocks.values()]
    size = columns * 0.9, sum(rows) * 0.95 + len(blocks) * 0.35
    figure = Figure(figsize=size, layout="constrained")
    heights = np.add(rows, 0.3)
    parts = figure.subfigures(len(blocks), squeeze=False, height_ratios=heights)[:, 0]
    for part, count, (title, images) in zip(parts, rows, blocks.items()):
        part.suptitle(title, fontsize=9)
        axes = part.subplots(count, columns, squeeze=False)
        for cell in axes.flat:
            cell.axis("off")
        for index, (cell, image) in enumerate(zip(axes.flat, images)):
            grey = np.squeeze(image, -1) if image.shape[-1] == 1 else image
            cell.imshow(grey, cmap="gray", vmin=0, vmax=1)
            if index < len(class_names):
                cell.set_title(class_names[index], fontsize=7, pad=2)
    return figure


DPI = 120
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
    *("#832DB6", "#A96B59", "#717581"),
)
"""Okabe and Ito's, which the colour-blind can distinguish, and three of Petroff's. Without the
yellow, which is faint on white, and without the black, which is local training's."""
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
"""Metadata without the time, so that equal figures are equal files."""
FEW = 4  # entries up to which the legend lies within the axes


def subplots(*grid: int, **options: Any) -> tuple[Figure, Any]:
    """Returns a figure and its axes, without a window or a change of the matplotlib backend."""
    figure = Figure(figsize=options.pop("figsize"), layout="constrained")
    return figure, figure.subplots(*grid, **options)


def styles(labels: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns colour, line and marker of each entry by label.

    A method has the same colour in every report, local training black. If two methods share a
    colour, the later one takes the next free colour, whatever the order of the entries. A colour
    that is used again comes with another line. Markers also distinguish neighbours.
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
    """Returns labels in canonical order: methods by number, then further entries of the same."""
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
    """Writes a figure as PNG, and beside it in the formats `also`. Text is drawn verbatim."""
    layout = figure.get_layout_engine()
    # Keeps the axes of the PNG: an engine, even "none", would lay out each format again.
    without: Any = {"figure.autolayout": False, "figure.constrained_layout.use": False}
    for kind in ("png", *also):
        write_whole(path.with_suffix(f".{kind}"), rendered(figure, kind))
        with matplotlib.rc_context(without):
            figure.set_layout_engine(None)
    figure.set_layout_engine(layout)
    return path


def rendered(figure: Figure, kind: str) -> bytes:
    """Returns a figure as the content of a "png", "svg" or "pdf" file."""
    # A class may be called "$5$", which is not a formula. This covers the existing text, and
    # the rc parameter the ticks that drawing adds.
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    file = io.BytesIO()
    # Without a salt, names within an SVG are random.
    with matplotlib.rc_context({"svg.hashsalt": "fedjax_ht", "text.parse_math": False}):
        figure.savefig(file, format=kind, dpi=DPI, metadata=TIMELESS.get(kind))
    return file.getvalue()
