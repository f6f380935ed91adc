"""Pictures of feature maps: features and prototypes in two dimensions, by PCA, and by t-SNE and
UMAP where scikit-learn and umap-learn are installed."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedjax_ht.lab.report.figures import MARKERS, save
from fedjax_ht.lab.report.maps import FeatureMap, load_map, save_map
from fedjax_ht.lab.runs.build import Experiment

COLOURS = matplotlib.color_sequences["petroff10"]
"""A colour for each class; Petroff's ten, chosen so that the colour-blind tell them apart."""

Embedding = Callable[[np.ndarray], np.ndarray]  # float [n, K] -> float [n, 2]
Colours = dict[int, Any]  # class -> RGB


def principal(rows: np.ndarray) -> tuple[Embedding, float]:
    """Computes the projection on the two directions in which rows vary most.

    Args:
      rows: float [n, K].

    Returns:
      The projection, float [m, K] -> float [m, 2], and the two directions' share of the variance,
      in [0, 1]; 0 where nothing varies.
    """
    mean = rows.mean(0, dtype=np.float64)
    _, lengths, axes = np.linalg.svd(rows - mean, full_matrices=False)
    directions = np.zeros((2, rows.shape[1]))
    directions[: len(axes)] = axes[:2]
    # Directions are given up to their sign: the largest entry of each is made positive.
    largest = np.take_along_axis(directions, np.abs(directions).argmax(1)[:, None], 1)
    directions *= np.where(largest < 0, -1, 1)
    total = (lengths**2).sum()

    def project(x: np.ndarray) -> np.ndarray:
        return (x - mean) @ directions.T

    return project, float((lengths[:2] ** 2).sum() / total) if total else 0.0


def embedded(feature_map: FeatureMap, warn: Callable[[str], None] = print) -> FeatureMap:
    """Adds the embeddings of the libraries that are installed to a map; it stays as it is where the
    clients share no space. An embedding that fails is left out, with a warning: no picture is worth
    the end of a run."""
    if not one_space(feature_map):
        return feature_map
    rows = np.concatenate([*feature_map.features, feature_map.prototypes])
    flat = dict(feature_map.flat)
    for name, embed in embeddings().items():
        if name in flat:
            continue
        try:
            flat[name] = embed(rows).astype(np.float32)
        except Exception as error:
            reason = str(error).partition("\n")[0]
            warn(f"no {name} of the features ({type(error).__name__}: {reason})")
    return feature_map._replace(flat=flat)


def embeddings() -> dict[str, Embedding]:
    """Returns the embeddings into two dimensions of the libraries that are installed, by name."""
    installed: dict[str, Embedding] = {}
    if importlib.util.find_spec("sklearn"):
        installed["t-SNE"] = tsne
    if importlib.util.find_spec("umap"):
        installed["UMAP"] = umap
    return installed


def tsne(rows: np.ndarray) -> np.ndarray:
    """Embeds rows, float [n, K], by scikit-learn's t-SNE."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # scikit-learn requires it

    perplexity = min(30.0, (len(rows) - 1) / 3)
    # So few rows are no work for several threads, which on busy cores wait for each other.
    with threadpool_limits(limits=1):
        return TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(rows)


def umap(rows: np.ndarray) -> np.ndarray:
    """Embeds rows, float [n, K], by umap-learn's UMAP."""
    from umap import UMAP

    return UMAP(n_neighbors=min(15, len(rows) - 1), random_state=0, n_jobs=1).fit_transform(rows)


def write_maps(
    folders: Mapping[str, Path], experiment: Experiment, warn: Callable[[str], None] = print
) -> list[Path]:
    """Draws the map of every entry that has one, by its folder, as features.png and .svg beside it;
    returns the paths of the PNGs."""
    pictures = []
    for label, folder in folders.items():
        stored = load_map(folder)
        if stored is None:
            continue
        feature_map = embedded(stored, warn)
        if feature_map.flat.keys() != stored.flat.keys():  # embeddings take seconds
            save_map(feature_map, folder)
        federation = experiment.arms[label].federation
        assignment = np.array(federation.assignment)[feature_map.clients]
        names = [federation.buckets[bucket].name for bucket in assignment]
        figure = feature_picture(feature_map, experiment.dataset.class_names, names)
        pictures.append(save(figure, folder / "features.png", ["svg"]))
    return pictures


def feature_picture(
    feature_map: FeatureMap, class_names: Sequence[str], architectures: Sequence[str]
) -> Figure:
    """Draws the map of one entry.

    Above, a panel for each client, by a PCA of its own features: filled are the classes it trains
    on, rings the others, stars the server's prototypes. Below, all clients in one PCA, t-SNE and
    UMAP, where their features have one width: a client's images as points, and its mean of each
    class that it trains on as its marker.

    Args:
      feature_map: the map of the entry.
      class_names: names of all classes.
      architectures: the architecture of each client shown.
    """
    classes = np.unique(feature_map.labels).tolist()
    colours = {label: COLOURS[i % len(COLOURS)] for i, label in enumerate(classes)}
    together = one_space(feature_map)
    heights = [2.2]
    if together:
        heights.append(4.0 if feature_map.flat else 3.2)
    figure = Figure(figsize=(11, sum(heights) + 0.8), layout="constrained")
    parts = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    panels = np.ravel(parts[0].subplots(1, len(feature_map.clients)))
    for i, (axes, client) in enumerate(zip(panels, feature_map.clients)):
        variance = draw_client(axes, feature_map, i, colours)
        axes.set_title(f"client {client}, {architectures[i]}\n{variance}", fontsize=8)
    if together:
        draw_together(parts[1], feature_map, colours)
    draw_legends(figure, feature_map, colours, class_names)
    return figure


def one_space(feature_map: FeatureMap) -> bool:
    """Returns whether the clients' features can stand in one picture."""
    widths = {features.shape[1] for features in feature_map.features}
    if len(feature_map.clients) < 2 or len(widths) > 1:
        return False
    return all(map(finite, feature_map.features))


def finite(rows: np.ndarray) -> bool:
    """Returns whether all numbers are finite."""
    return bool(np.isfinite(rows).all())


def draw_client(axes: Axes, feature_map: FeatureMap, i: int, colours: Colours) -> str:
    """Draws client `i` of a map in its own PCA; returns the PCA's share of the variance in
    words."""
    rows = feature_map.features[i]
    without_numbers(axes)
    if not finite(rows):
        return "not finite"
    project, share = principal(rows)
    edges: Any = np.array(paint(feature_map.labels, colours))
    edges = np.concatenate([edges, np.ones((len(edges), 1))], axis=1)  # opaque
    # Images of classes that the client does not train on are rings: their faces are transparent.
    faces = edges * feature_map.trains_on[i][feature_map.labels][:, None]
    axes.scatter(*project(rows).T, s=9, lw=0.6, facecolors=faces, edgecolors=edges, rasterized=True)
    if feature_map.prototypes.shape[1] == rows.shape[1]:
        draw_prototypes(axes, project(feature_map.prototypes), feature_map, colours)
    return f"{100 * share:.0f} % of the variance"


def draw_together(part: Any, feature_map: FeatureMap, colours: Colours) -> None:
    """Draws all clients in one space: by a PCA, and as they are embedded."""
    rows = np.concatenate(feature_map.features)
    project, share = principal(rows)
    linear = project(np.concatenate([rows, feature_map.prototypes]))
    drawn = {f"PCA, {100 * share:.0f} % of the variance": linear} | feature_map.flat
    for axes, (title, places) in zip(np.ravel(part.subplots(1, len(drawn))), drawn.items()):
        without_numbers(axes)
        axes.set_title(f"all clients, {title}", fontsize=9)
        draw_space(axes, places, feature_map, colours)


def draw_space(axes: Axes, places: np.ndarray, feature_map: FeatureMap, colours: Colours) -> None:
    """Draws all clients' images, their means by class and the prototypes.

    Args:
      axes: the axes to draw on.
      places: float [m n + p, 2], of every client's images and of the prototypes.
      feature_map: the map of m clients, n images and p prototypes.
      colours: class -> its colour.
    """
    labels, clients = feature_map.labels, len(feature_map.clients)
    points, stars = np.split(places, [clients * len(labels)])
    point_colours = paint(labels, colours) * clients
    axes.scatter(*points.T, s=5, lw=0, c=point_colours, alpha=0.45, rasterized=True)
    of_clients = points.reshape(clients, len(labels), 2)
    for marker, images, trains_on in zip(MARKERS, of_clients, feature_map.trains_on):
        trained = np.array([label for label in colours if trains_on[label]])
        if not len(trained):
            continue
        means = np.stack([images[labels == label].mean(0) for label in trained])
        look = {"s": 50, "marker": marker, "edgecolors": "black", "lw": 0.7}
        axes.scatter(*means.T, c=paint(trained, colours), **look)
    draw_prototypes(axes, stars, feature_map, colours)


def draw_prototypes(
    axes: Axes, places: np.ndarray, feature_map: FeatureMap, colours: Colours
) -> None:
    """Draws the server's prototypes as stars at `places`, float [p, 2]."""
    star_colours = paint(feature_map.prototype_labels, colours)
    look = {"s": 150, "marker": "*", "edgecolors": "white", "lw": 1.0, "zorder": 3}
    axes.scatter(*places.T, c=star_colours or None, **look)  # an empty list of colours is an error


def paint(labels: np.ndarray, colours: Colours) -> list[Any]:
    """Returns the colours of classes, int [n]."""
    return [colours[label] for label in labels.tolist()]


def without_numbers(axes: Axes) -> None:
    """Removes the ticks, since the directions have no meaning of their own, and gives both one
    unit."""
    axes.set(xticks=[], yticks=[])
    axes.set_aspect("equal", adjustable="datalim")


def draw_legends(
    figure: Figure, feature_map: FeatureMap, colours: Colours, class_names: Sequence[str]
) -> None:
    """Draws the legends below the figure: classes to the left, markers to the right."""

    def point(label: str, marker: str, **look: Any) -> Line2D:
        return Line2D([], [], ls="none", marker=marker, label=label, **look)

    classes = [point(class_names[label], "o", color=rgb) for label, rgb in colours.items()]
    markers = []
    if one_space(feature_map):  # a panel of one client has no markers of clients
        for client, marker in zip(feature_map.clients, MARKERS):
            markers.append(point(f"client {client}", marker, color="0.5"))
    if len(feature_map.prototypes):
        markers.append(point("prototype", "*", color="0.5", ms=10))
    for handles, side, columns in ((classes, "left", 5), (markers, "right", 4)):
        if handles:
            place = {"loc": f"outside lower {side}", "ncols": columns}
            figure.legend(handles=handles, fontsize=8, frameon=False, **place)
