"""Pictures of a run's clients: accuracy of each, how it is spread, the (first) split, and images
of the server; and the files of all pictures."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedjax_ht.data.dataset import Dataset, Partition
from fedjax_ht.data.partition import class_counts
from fedjax_ht.lab.report.compared import Compared
from fedjax_ht.lab.report.curves import accuracy_curves, costs
from fedjax_ht.lab.report.figures import COLOURS, FEW, VECTOR, legend, save, styles, subplots
from fedjax_ht.simulation.history import best
from fedjax_ht.simulation.rows import Runs

WIDE = 11  # inches, so that a page need not shrink a picture until its words are too small
ROOM = 50  # clients that are shown one by one
BUBBLES = 30  # classes, and no more, whose split is shown in bubbles
TICKS = 40  # client ids below a split, at most


def write_plots(
    shown: Compared,
    dataset: Dataset,
    partition: Partition,
    workdir: Path | str,
) -> list[Path]:
    """Writes accuracy, costs, clients, spread and split below `workdir`/plots as PNG, SVG and PDF;
    returns the paths of the PNGs."""
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
    """Draws the accuracy of every client at the entry's best round, mean over trials, ordered by
    the first entry's accuracy; of more clients than have room, each entry's own from worst to
    best."""
    values = {name: mean_of_clients(runs) for name, runs in histories.items()}
    first = next(iter(values.values()))
    if len(first) > ROOM:
        return client_quantiles(values)
    order = np.argsort(np.nan_to_num(first, nan=-1.0), kind="stable")
    figure, axes = subplots(figsize=(min(WIDE, max(8.4, 0.22 * len(order) + 2)), 4))
    looks = styles(values)
    for name, accuracy in values.items():
        look = looks[name] | {"ls": "none", "ms": 5, "alpha": 0.8}
        axes.plot(accuracy[order], label=f"{name} (mean {np.nanmean(accuracy):.1f})", **look)
    ids = evaluated_ids(next(iter(histories.values())))
    axes.set_xticks(range(len(order)), [str(ids[i]) for i in order], fontsize=7)
    axes.set(xlabel="client id", ylabel="test accuracy at the best round (%)")
    axes.grid(alpha=0.3)
    legend(axes, FEW + 1)  # points are everywhere within the axes
    return figure


def client_quantiles(values: Mapping[str, np.ndarray]) -> Figure:
    """Draws the accuracies of each entry's clients in percent, from worst to best."""
    figure, axes = subplots(figsize=(8.4, 4))
    looks = styles(values)
    for i, (name, accuracy) in enumerate(values.items()):
        ordered = np.sort(accuracy[~np.isnan(accuracy)])
        share = 100 * (np.arange(len(ordered)) + 0.5) / max(1, len(ordered))
        every = max(1, len(ordered) // 10)
        marks = (i * every // len(values), every)
        look = looks[name] | {"ms": 4, "lw": 1.5, "markevery": marks}
        axes.plot(share, ordered, label=f"{name} (mean {ordered.mean():.1f})", **look)
    axes.set(xlabel="clients, from worst to best (%)", ylabel="test accuracy at the best round (%)")
    axes.grid(alpha=0.3)
    legend(axes, FEW + 1)
    return figure


def client_spread(histories: Mapping[str, Runs]) -> Figure:
    """Draws how accuracy is spread over clients at the entry's best round (mean over trials): a box
    from the lower to the upper quartile with the median, whiskers to the furthest client within 1.5
    box heights, the others as dots, and the mean as a triangle."""
    figure, axes = subplots(figsize=(7, 0.45 * len(histories) + 1.1))
    boxes = []
    for runs in histories.values():
        accuracy = mean_of_clients(runs)
        boxes.append(accuracy[~np.isnan(accuracy)])
    # Greys, since each colour is that of an entry in the other figures.
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
    axes.invert_yaxis()  # the first on top
    axes.set(xlabel="test accuracy of a client at the best round (%)")
    axes.grid(alpha=0.3, axis="x")
    return figure


def evaluated_ids(runs: Runs) -> Sequence[int]:
    """Returns the ids of the evaluated clients, which are those of all runs of an entry."""
    row = best(runs[0]).on_test
    return row.get("client_ids", range(len(row["clients"])))


def mean_of_clients(runs: Runs) -> np.ndarray:
    """Returns percent per evaluated client at the best round, mean over the runs; NaN for clients
    without a score."""
    scores = [np.array(best(history).on_test["clients"], np.float64) for history in runs]
    counts = np.sum(~np.isnan(scores), axis=0)
    # nanmean would warn of clients without a score in any trial.
    return np.where(counts > 0, 100 * np.nansum(scores, axis=0) / np.maximum(counts, 1), np.nan)


def split_picture(counts: np.ndarray, class_names: Sequence[str]) -> Figure:
    """Draws the training samples of every class (rows) at every client (columns): a bubble's area
    is in proportion, or, of more classes or clients than bubbles show, a cell's darkness.

    Args:
      counts: int [clients, classes].
      class_names: names of all classes.
    """
    clients, classes = counts.shape
    if classes > BUBBLES or clients > ROOM:
        return split_cells(counts, class_names)
    width = min(WIDE, max(6.4, 0.3 * clients + 1.5))
    figure, axes = subplots(figsize=(width, max(3.2, 0.3 * classes + 1)))
    room = min(1.0, (width - 1.5) / (0.3 * clients))
    client, label = np.nonzero(counts)
    area = 220 * room**2 * counts[client, label] / max(1, counts.max())
    axes.scatter(client, label, s=area, alpha=0.75, lw=0, color=COLOURS[0])
    axes.set_xticks(range(0, clients, 1 + clients // TICKS))
    axes.set_yticks(range(classes), class_names, fontsize=8)
    axes.set(xlabel="client id", xlim=(-0.8, clients - 0.2), ylim=(-0.8, classes - 0.2))
    axes.set_title(
        f"training samples per class and client (largest bubble: {counts.max()})", fontsize=10
    )
    axes.grid(alpha=0.2)
    return figure


def split_cells(counts: np.ndarray, class_names: Sequence[str]) -> Figure:
    """Draws `split_picture` as cells, the darker the more samples."""
    clients, classes = counts.shape
    with_names = classes <= BUBBLES
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
    """Draws titled blocks of images, enlarged without smoothing, the first of each class with its
    name above.

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
            draw_image(cell, image)
            if index < len(class_names):
                cell.set_title(class_names[index], fontsize=7, pad=2)
    return figure


def draw_image(axes: Axes, image: np.ndarray) -> None:
    """Draws an image, float [H, W, 1 or 3] in [0, 1]; one channel in grey."""
    shown = np.squeeze(image, -1) if image.shape[-1] == 1 else image
    axes.imshow(shown, cmap="gray", vmin=0, vmax=1)
