"""Pictures of a run: accuracy against rounds, accuracy of every client, and the (first) split as a bubble chart."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")  # files only; a notebook shows them as images
from matplotlib import pyplot as plt

from fedjax_ht.data.dataset import Dataset, Partition
from fedjax_ht.data.partition import class_counts
from fedjax_ht.io.files import atomic_open
from fedjax_ht.simulation.history import Row, best, by_trial, evaluated, wire_bytes

DPI = 120


def write_plots(
    histories: Mapping[str, Sequence[Row]], dataset: Dataset, partition: Partition, workdir: Path | str
) -> list[Path]:
    """Writes accuracy.png, clients.png, spread.png and split.png below `workdir`/plots; returns their paths."""
    figures = {
        "accuracy.png": accuracy_curves(histories),
        "clients.png": client_accuracy(histories),
        "spread.png": client_spread(histories),
        "split.png": split_bubbles(
            class_counts(dataset.labels, partition, num_classes=dataset.num_classes), dataset.class_names
        ),
    }
    return [save(figure, Path(workdir) / "plots" / name) for name, figure in figures.items()]


def save(figure: plt.Figure, path: Path) -> Path:
    """Writes a figure as PNG and closes it."""
    with atomic_open(path, "wb") as file:
        figure.savefig(file, format="png", dpi=DPI)
    plt.close(figure)
    return path


def accuracy_curves(histories: Mapping[str, Sequence[Row]]) -> plt.Figure:
    """Mean accuracy over clients against rounds, one line a method, its best round marked.

    Several trials: their mean, and a band from the lowest to the highest.
    """
    figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
    draw_accuracy(axes, histories, lambda trial: [row["round"] for row in evaluated(trial)])
    axes.set(xlabel="round", ylabel="test accuracy, mean over clients (%)")
    axes.legend(frameon=False)
    return figure


def accuracy_and_bytes(histories: Mapping[str, Sequence[Row]], target: float) -> plt.Figure:
    """Accuracy against rounds and, beside it, against the bytes sent until then, by all clients, up and down.

    The dotted line is the target, a share in [0, 1]. A method that sends nothing is a dashed line at its best accuracy.
    """
    figure, (left, right) = plt.subplots(1, 2, sharey=True, figsize=(11, 4), layout="constrained")
    draw_accuracy(left, histories, lambda trial: [row["round"] for row in evaluated(trial)])
    draw_accuracy(right, histories, mebibytes_sent)
    if any(wire_bytes(row) for history in histories.values() for row in history):
        right.set_xscale("log", nonpositive="mask")  # the untrained federation has sent nothing
    for axes in (left, right):
        axes.axhline(100 * target, color="grey", ls=":", lw=1)
    left.set(xlabel="round", ylabel="test accuracy, mean over clients (%)")
    right.set(xlabel="MiB sent, up and down, all clients together")
    left.legend(frameon=False)
    return figure


def mebibytes_sent(trial: Sequence[Row]) -> np.ndarray:
    """Both ways, until each evaluation of one trial."""
    sent = np.cumsum([wire_bytes(row) for row in trial]) / 2**20
    return sent[["accuracy" in row for row in trial]]


def draw_accuracy(
    axes: plt.Axes,
    histories: Mapping[str, Sequence[Row]],
    position: Callable[[Sequence[Row]], Sequence[float]],
    score: str = "accuracy",
) -> None:
    """Draws the curves of `accuracy_curves`; `position` places the evaluations of one trial, its mean is taken."""
    for i, (name, history) in enumerate(histories.items()):
        trials = by_trial(history)
        places = np.mean([position(trial) for trial in trials], axis=0)
        scores = 100 * np.array([[row[score] for row in evaluated(trial)] for trial in trials])
        mean, color = scores.mean(0), f"C{i}"
        if not places.any():
            axes.axhline(mean.max(), label=name, lw=1.8, color=color, ls="--")
            continue
        axes.plot(places, mean, label=name, lw=1.8, color=color, ls="-" if i < 10 else "-.")  # there are ten colours
        if len(trials) > 1:
            axes.fill_between(places, scores.min(0), scores.max(0), color=color, alpha=0.2, lw=0)
        axes.plot(places[mean.argmax()], mean.max(), "o", color=color, ms=5)
    axes.grid(alpha=0.3)


def client_accuracy(histories: Mapping[str, Sequence[Row]]) -> plt.Figure:
    """Accuracy of every client at the method's best round, mean over trials, ordered by the first method's accuracy."""
    values = {name: mean_of_clients(history) for name, history in histories.items()}
    first = next(iter(values.values()))
    order = np.argsort(np.nan_to_num(first, nan=-1.0), kind="stable")
    figure, axes = plt.subplots(figsize=(min(40, max(6.4, 0.22 * len(order))), 4), layout="constrained")
    for (name, accuracy), marker in zip(values.items(), "osD^vP*X" * len(values)):
        axes.plot(accuracy[order], marker, ms=5, label=f"{name} (mean {np.nanmean(accuracy):.1f})", alpha=0.8)
    step = max(1, len(order) // 40)
    ids = next(iter(histories.values()))[0].get("client_ids", range(len(first)))
    axes.set_xticks(range(0, len(order), step), [str(ids[i]) for i in order[::step]], fontsize=7)
    axes.set(xlabel="client id", ylabel="test accuracy at the best round (%)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def client_spread(histories: Mapping[str, Sequence[Row]]) -> plt.Figure:
    """How accuracy is spread over clients at the method's best round (mean over trials): a box from the lower to the
    upper quartile with the median, whiskers to the furthest client within 1.5 box heights, the others as dots, and the
    mean as a triangle."""
    figure, axes = plt.subplots(figsize=(max(4.0, 1.1 * len(histories) + 1.5), 4), layout="constrained")
    values = [mean_of_clients(history) for history in histories.values()]
    boxes = [accuracy[~np.isnan(accuracy)] for accuracy in values]
    axes.boxplot(boxes, tick_labels=list(histories), showmeans=True, flierprops={"markersize": 3})
    if len(histories) > 4:
        axes.tick_params(axis="x", rotation=45)
    axes.set(ylabel="test accuracy of a client at the best round (%)")
    axes.grid(alpha=0.3, axis="y")
    return figure


def mean_of_clients(history: Sequence[Row]) -> np.ndarray:
    """Percent per evaluated client at the best round, mean over the trials; NaN for clients without a score."""
    scores = [np.array(best(trial).on_test["clients"], np.float64) for trial in by_trial(history)]
    counts = np.sum([~np.isnan(s) for s in scores], axis=0)
    return np.where(counts > 0, 100 * np.nansum(scores, axis=0) / np.maximum(counts, 1), np.nan)


def split_bubbles(counts: np.ndarray, class_names: Sequence[str]) -> plt.Figure:
    """Training samples of every class (rows) at every client (columns); a bubble's area is in proportion."""
    clients, classes = counts.shape
    figure, axes = plt.subplots(
        figsize=(min(40, max(6.4, 0.3 * clients + 1.5)), max(3.2, 0.3 * classes + 1)), layout="constrained"
    )
    client, label = np.nonzero(counts)
    size = counts[client, label]
    axes.scatter(client, label, s=220 * size / max(1, counts.max()), alpha=0.75, lw=0)
    step = max(1, clients // 40)
    axes.set_xticks(range(0, clients, step))
    axes.set_yticks(range(classes), class_names, fontsize=8 if classes <= 20 else 5)
    axes.set(xlabel="client id", xlim=(-0.8, clients - 0.2), ylim=(-0.8, classes - 0.2))
    axes.set_title(f"training samples per class and client (largest bubble: {counts.max()})", fontsize=10)
    axes.grid(alpha=0.2)
    return figure


def image_grid(blocks: Mapping[str, np.ndarray], class_names: Sequence[str]) -> plt.Figure:
    """Titled blocks of images float [n, H, W, 1 or 3] in [0, 1], enlarged without smoothing, the first of each class
    with its name above: image i is of class i mod the number of classes."""
    columns = min(len(class_names), 10)
    rows = {title: -(-len(images) // columns) for title, images in blocks.items()}
    figure = plt.figure(figsize=(columns * 0.9, sum(rows.values()) * 0.95 + len(blocks) * 0.35), layout="constrained")
    parts = figure.subfigures(len(blocks), squeeze=False, height_ratios=[n + 0.3 for n in rows.values()])[:, 0]
    for part, (title, images) in zip(parts, blocks.items()):
        part.suptitle(title, fontsize=9)
        axes = part.subplots(rows[title], columns, squeeze=False)
        for cell in axes.flat:
            cell.axis("off")
        for index, (cell, image) in enumerate(zip(axes.flat, images)):
            cell.imshow(np.squeeze(image, -1) if image.shape[-1] == 1 else image, cmap="gray", vmin=0, vmax=1)
            if index < len(class_names):
                cell.set_title(class_names[index], fontsize=7, pad=2)
    return figure
