"""Features and prototypes in two dimensions: by PCA, and by t-SNE and UMAP where scikit-learn and
umap-learn are."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedjax_ht.experiment.build import Experiment
from fedjax_ht.report.maps import FeatureMap, load_map, save_map
from fedjax_ht.report.plots import MARKERS, save

COLOURS = matplotlib.color_sequences["petroff10"]
"""One a class; Petroff's ten, chosen so that the colour-blind tell them apart."""

Embedding = Callable[[np.ndarray], np.ndarray]  # float [n, K] -> float [n, 2]


def principal(rows: np.ndarray) -> tuple[Embedding, float]:
    """The projection on the two directions in which `rows`, float [n, K], vary most, and their
    share of the variance, in [0, 1]; 0 where nothing varies."""
    mean = rows.mean(0, dtype=np.float64)
    _, lengths, axes = np.linalg.svd(rows - mean, full_matrices=False)
    two = np.zeros((2, rows.shape[1]))
    two[: len(axes)] = axes[:2]
    # a sign of its own
    two *= np.where(np.take_along_axis(two, np.abs(two).argmax(1)[:, None], 1) < 0, -1, 1)
    total = (lengths**2).sum()
    return lambda x: (x - mean) @ two.T, float((lengths[:2] ** 2).sum() / total) if total else 0.0


def embedded(found: FeatureMap, warn: Callable[[str], None] = print) -> FeatureMap:
    """The map with all embeddings of the libraries that are installed; it stays where the clients
    share no space. An embedding that fails is left out, with a warning: no picture is worth the end
    of a run."""
    if not one_space(found):
        return found
    rows, flat = np.concatenate([*found.features, found.prototypes]), dict(found.flat)
    for name, embed in embeddings().items():
        if name not in flat:
            try:
                flat[name] = embed(rows).astype(np.float32)
            except Exception as error:
                reason = str(error).partition("\n")[0]
                warn(f"no {name} of the features ({type(error).__name__}: {reason})")
    return found._replace(flat=flat)


def embeddings() -> dict[str, Embedding]:
    """What bends a space into two dimensions, of the libraries that are installed."""
    found: dict[str, Embedding] = {}
    if importlib.util.find_spec("sklearn"):
        found["t-SNE"] = tsne
    if importlib.util.find_spec("umap"):
        found["UMAP"] = umap
    return found


def tsne(rows: np.ndarray) -> np.ndarray:
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # scikit-learn requires it

    perplexity = min(30.0, (len(rows) - 1) / 3)
    # So few rows are no work for several threads, which on busy cores wait for each other.
    with threadpool_limits(limits=1):
        return TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(rows)


def umap(rows: np.ndarray) -> np.ndarray:
    from umap import UMAP

    return UMAP(n_neighbors=min(15, len(rows) - 1), random_state=0, n_jobs=1).fit_transform(rows)


def write_maps(
    folders: Mapping[str, Path], experiment: Experiment, warn: Callable[[str], None] = print
) -> list[Path]:
    """Draws the map of every entry that has one, by its folder, as features.png and .svg beside it;
    returns the paths of the PNGs."""
    pictures = []
    for label, folder in folders.items():
        found = load_map(folder)
        if found is None:
            continue
        whole = embedded(found, warn)
        if whole.flat.keys() != found.flat.keys():  # they take seconds
            save_map(whole, folder)
        federation = experiment.federations[label]
        names = [federation.buckets[federation.assignment[i]].name for i in found.clients]
        figure = feature_picture(whole, experiment.dataset.class_names, names)
        pictures.append(save(figure, folder / "features.png", ["svg"]))
    return pictures


def feature_picture(
    found: FeatureMap, class_names: Sequence[str], architectures: Sequence[str]
) -> Figure:
    """A map of one entry.

    Above, a client each, by a PCA of its own features: filled are the classes it trains on, rings
    the others, stars the server's prototypes. Below, all clients in one PCA, t-SNE and UMAP, where
    their features have one width: a client's images as points, and its mean of each class that it
    trains on as its marker.

    Args:
      found: the entry's.
      class_names: of all classes.
      architectures: of the clients shown.
    """
    classes = np.unique(found.labels).tolist()
    colour = {c: COLOURS[i % len(COLOURS)] for i, c in enumerate(classes)}
    whole = one_space(found)
    heights = [2.2, 4.0 if found.flat else 3.2][: 1 + whole]
    figure = Figure(figsize=(11, sum(heights) + 0.8), layout="constrained")
    upper, *lower = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for i, axes in enumerate(np.ravel(upper.subplots(1, len(found.clients)))):
        draw_client(axes, found, i, colour)
        axes.set_title(
            f"client {found.clients[i]}, {architectures[i]}\n{axes.get_title()}", fontsize=8
        )
    if whole:
        draw_together(lower[0], found, colour)
    legend(figure, found, colour, class_names, whole)
    return figure


def one_space(found: FeatureMap) -> bool:
    """Whether the clients' features can stand in one picture."""
    return (
        len(found.clients) > 1
        and len({x.shape[1] for x in found.features}) == 1
        and all(map(finite, found.features))
    )


def finite(rows: np.ndarray) -> bool:
    return bool(np.isfinite(rows).all())


def draw_client(axes: Axes, found: FeatureMap, i: int, colour: dict[int, Any]) -> None:
    """Client `i` of a map in its own PCA."""
    rows = found.features[i]
    bare(axes)
    if not finite(rows):
        axes.set_title("not finite")
        return
    project, share = principal(rows)
    edges = np.array([(*colour[c], 1.0) for c in found.labels.tolist()])
    faces = edges * found.trains_on[i][found.labels][:, None]  # transparent elsewhere
    axes.scatter(*project(rows).T, s=9, lw=0.6, facecolors=faces, edgecolors=edges, rasterized=True)
    if found.prototypes.shape[1] == rows.shape[1]:
        draw_prototypes(axes, project(found.prototypes), found, colour)
    axes.set_title(f"{100 * share:.0f} % of the variance")


def draw_together(part: Any, found: FeatureMap, colour: dict[int, Any]) -> None:
    """All clients in one space: by a PCA, and as they are embedded."""
    images, labels, rows = len(found.labels), found.labels, np.concatenate(found.features)
    project, share = principal(rows)
    linear = project(np.concatenate([rows, found.prototypes]))
    drawn = {f"PCA, {100 * share:.0f} % of the variance": linear} | found.flat
    for axes, (title, places) in zip(np.ravel(part.subplots(1, len(drawn))), drawn.items()):
        bare(axes)
        axes.set_title(f"all clients, {title}", fontsize=9)
        each, stars = np.split(places, [len(found.clients) * images])
        paint = [colour[c] for c in labels.tolist()]
        axes.scatter(*each.T, s=5, lw=0, c=paint * len(found.clients), alpha=0.45, rasterized=True)
        for marker, own, trains_on in zip(MARKERS, each.reshape(-1, images, 2), found.trains_on):
            shown = [c for c in colour if trains_on[c]]
            if shown:
                means = np.stack([own[labels == c].mean(0) for c in shown])
                axes.scatter(
                    *means.T,
                    s=50,
                    marker=marker,
                    c=[colour[c] for c in shown],
                    edgecolors="black",
                    lw=0.7,
                )
        draw_prototypes(axes, stars, found, colour)


def draw_prototypes(
    axes: Axes, places: np.ndarray, found: FeatureMap, colour: dict[int, Any]
) -> None:
    paint = [colour[c] for c in found.prototype_labels.tolist()]
    axes.scatter(
        *places.T, s=150, marker="*", c=paint or None, edgecolors="white", lw=1.0, zorder=3
    )


def bare(axes: Axes) -> None:
    """No numbers: the directions have no meaning of their own. Both have one unit."""
    axes.set(xticks=[], yticks=[])
    axes.set_aspect("equal", adjustable="datalim")


def legend(
    figure: Figure,
    found: FeatureMap,
    colour: dict[int, Any],
    class_names: Sequence[str],
    whole: bool,
) -> None:
    """Classes to the left, markers to the right."""

    def point(label, marker, **look):
        return Line2D([], [], ls="none", marker=marker, label=label, **look)

    classes = [point(class_names[c], "o", color=rgb) for c, rgb in colour.items()]
    markers = (
        [point(f"client {i}", m, color="0.5") for i, m in zip(found.clients, MARKERS)]
        if whole
        else []
    )
    markers += [point("prototype", "*", color="0.5", ms=10)] if len(found.prototypes) else []
    for handles, side, columns in ((classes, "left", 5), (markers, "right", 4)):
        if handles:
            figure.legend(
                handles=handles,
                loc=f"outside lower {side}",
                ncols=columns,
                fontsize=8,
                frameon=False,
            )
