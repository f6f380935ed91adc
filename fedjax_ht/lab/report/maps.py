"""Maps of features: a few clients' models on the same test images, in two dimensions.

Features are computed once, after the last round, and stored beside the checkpoints.
"""

import importlib.util
import itertools
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedjax_ht.core.federation import Federation
from fedjax_ht.data.client_data import mixed
from fedjax_ht.data.dataset import Partition
from fedjax_ht.data.partition import class_counts
from fedjax_ht.lab.files import atomic_open
from fedjax_ht.lab.report.plots import MARKERS, save, subplots
from fedjax_ht.lab.runs.folder import MAP
from fedjax_ht.lab.runs.plan import Plan, Run
from fedjax_ht.lab.safe.arrays import opened_npz
from fedjax_ht.simulation.simulation import Simulation, SimulationState

CLIENTS, CLASSES, IMAGES = 6, 10, 120  # maxima of each entry's map
COLOURS = matplotlib.color_sequences["petroff10"]
"""A colour for each class; Petroff's ten, which the colour-blind can distinguish."""

Projection = Callable[[np.ndarray], np.ndarray]  # float [n, K] -> float [n, 2]
Colours = dict[int, Any]  # class -> RGB


class FeatureMap(NamedTuple):
    """Features of one entry's clients in the first trial.

    Attributes:
      round: number of completed rounds.
      labels: int32 [n], the images' classes.
      clients: int32 [m], ids.
      trains_on: bool [m, C], the classes of each client's training images.
      features: one array per client, float32 [n, K]; K may differ between architectures.
      prototypes: float32 [p, K], the server's prototypes; p is 0 without any.
      prototype_labels: int32 [p], their classes.
    """

    round: int
    labels: np.ndarray
    clients: np.ndarray
    trains_on: np.ndarray
    features: tuple[np.ndarray, ...]
    prototypes: np.ndarray
    prototype_labels: np.ndarray


def remember_map(
    run: Run,
    simulation: Simulation,
    state: SimulationState,
    folder: Path,
    *,
    write: bool,
    warn: Callable[[str], None],
) -> None:
    """Updates a run's features.npz to the state's round.

    Does nothing if it is up to date, the method has no features, or the config draws no maps.

    Args:
      run: the run.
      simulation, state: the simulation of one of its runs, and the state to map.
      folder: the entry's folder.
      write: True in the process that writes; every process of a run must make the call.
      warn: called with the reason if the map cannot be computed.
    """
    if run.config.report.maps == "none" or run.method.view.features is None:
        return
    kept = load_map(folder)
    if kept is not None and kept.round == state.round:
        return
    try:
        computed = feature_map(run, simulation, state)
    except Exception as error:  # e.g. of a user's method; a missing picture must not end a run
        reason = str(error).partition("\n")[0]
        warn(f"{run.label}: no map of its features ({type(error).__name__}: {reason})")
        return
    if write and computed is not None:
        save_map(computed, folder)


def feature_map(run: Run, simulation: Simulation, state: SimulationState) -> FeatureMap | None:
    """Computes the map of a run's state; None if no client has test images."""
    dataset, partition, method = run.dataset, run.partitions[0], run.method
    counts = class_counts(dataset.labels, partition, num_classes=dataset.num_classes)
    clients = shown_clients(run.federation, counts)
    indices = shown_images(dataset.labels, partition, counts[clients].sum(0))
    if not len(indices):
        return None
    features = simulation.features(state, clients, indices)
    prototypes, labels = np.zeros((0, features[0].shape[1]), np.float32), np.zeros(0, np.int32)
    if method.view.prototypes is not None:
        rows = method.view.prototypes(state.server)
        labels = np.intersect1d(np.flatnonzero(rows.mask), dataset.labels[indices])
        labels = labels.astype(np.int32)
        prototypes = np.asarray(rows.values, np.float32)[labels]
    return FeatureMap(
        round=state.round,
        labels=dataset.labels[indices],
        clients=np.array(clients, np.int32),
        trains_on=counts[clients] > 0,
        features=tuple(features),
        prototypes=prototypes,
        prototype_labels=labels,
    )


def shown_clients(federation: Federation, counts: np.ndarray) -> list[int]:
    """Chooses up to `CLIENTS` ids, ascending, from as many architectures as possible.

    Clients with training images, counted in int [clients, C] `counts`, come first.
    """
    trained = counts.sum(1) > 0
    members = [federation.members(bucket) for bucket in federation.buckets]
    # The first client of each bucket, then the second of each, and so on.
    turns = itertools.chain.from_iterable(itertools.zip_longest(*members))
    in_turn = np.array([i for i in turns if i is not None])
    first = in_turn[np.argsort(~trained[in_turn], kind="stable")]
    return sorted(first[:CLIENTS].tolist())


def shown_images(labels: np.ndarray, partition: Partition, weight: np.ndarray) -> np.ndarray:
    """Draws up to `IMAGES` of all clients' test images, and returns their indices.

    It draws equally many of up to `CLASSES` classes: those with the largest `weight` [C].
    """
    tested = np.unique(np.concatenate([client.test for client in partition]))
    pool = np.random.default_rng(0).permutation(tested)
    present = np.bincount(labels[pool], minlength=len(weight)) > 0
    heaviest = np.argsort(np.where(present, -weight, np.inf), kind="stable")
    classes = np.sort(heaviest[: min(CLASSES, present.sum())])
    each = [pool[labels[pool] == c][: IMAGES // len(classes)] for c in classes.tolist()]
    return mixed(np.concatenate([pool[:0], *each]))


def save_map(feature_map: FeatureMap, folder: Path) -> None:
    """Writes features.npz atomically, without pickle."""
    arrays = feature_map._asdict()
    for i, features in enumerate(arrays.pop("features")):
        arrays[f"features_{i}"] = features
    with atomic_open(folder / MAP, "wb") as file:
        np.savez_compressed(file, **arrays)


def load_map(folder: Path) -> FeatureMap | None:
    """Reads a map that `save_map` wrote; None if it is missing or unreadable."""
    try:
        with opened_npz(folder / MAP) as file:
            names = [name for name in FeatureMap._fields if name != "features"]
            stored: dict[str, Any] = {name: file[name] for name in names}
            numbers = range(min(len(stored["clients"]), CLIENTS))
            features = tuple(file[f"features_{i}"] for i in numbers)
        found = FeatureMap(**stored | {"round": int(stored["round"]), "features": features})
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        return None
    return found if _is_map(found) else None


def _is_map(found: FeatureMap) -> bool:
    """Returns whether arrays from a file are consistent with `FeatureMap`."""
    whole = (found.labels, found.clients, found.prototype_labels)
    if not all(x.ndim == 1 and x.dtype.kind == "i" and np.all(x >= 0) for x in whole):
        return False
    features = (*found.features, found.prototypes)
    if not all(x.ndim == 2 and x.dtype.kind == "f" for x in features):
        return False
    classes = found.trains_on.shape[-1] if found.trains_on.ndim == 2 else 0
    return (
        0 < len(found.labels) <= IMAGES
        and 0 < len(found.clients) == len(found.features) == len(found.trains_on)
        and all(len(x) == len(found.labels) for x in found.features)
        and len(found.prototypes) == len(found.prototype_labels)
        and max(found.labels.max(), found.prototype_labels.max(initial=0)) < classes
    )


def principal(rows: np.ndarray) -> tuple[Projection, float]:
    """Computes the projection on the two directions in which rows vary most.

    Args:
      rows: float [n, K].

    Returns:
      The projection, float [m, K] -> float [m, 2], and the two directions' share of the variance,
      in [0, 1]; 0 if nothing varies.
    """
    mean = rows.mean(0, dtype=np.float64)
    _, lengths, axes = np.linalg.svd(rows - mean, full_matrices=False)
    directions = np.zeros((2, rows.shape[1]))
    directions[: len(axes)] = axes[:2]
    # Directions are unique up to their sign: the largest entry of each is made positive.
    largest = np.take_along_axis(directions, np.abs(directions).argmax(1)[:, None], 1)
    directions *= np.where(largest < 0, -1, 1)
    total = (lengths**2).sum()

    def project(x: np.ndarray) -> np.ndarray:
        return (x - mean) @ directions.T

    return project, float((lengths[:2] ** 2).sum() / total) if total else 0.0


def tsne(rows: np.ndarray) -> np.ndarray:
    """Embeds rows, float [n, K], with scikit-learn's t-SNE."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # scikit-learn requires it

    perplexity = min(30.0, (len(rows) - 1) / 3)
    # So few rows do not pay for several threads, which on busy cores wait for each other.
    with threadpool_limits(limits=1):
        return TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(rows)


def write_maps(
    folders: Mapping[str, Path], experiment: Plan, warn: Callable[[str], None] = print
) -> list[Path]:
    """Draws the map of every entry that has one as features.png and .svg in its folder.

    Returns the paths of the PNGs.
    """
    pictures = []
    for folder in folders.values():
        stored = load_map(folder)
        if stored is not None and one_space(stored):
            figure = feature_picture(stored, experiment.dataset.class_names, warn)
            pictures.append(save(figure, folder / "features.png", ["svg"]))
    return pictures


def one_space(feature_map: FeatureMap) -> bool:
    """Returns whether the clients' features can be shown in one picture."""
    widths = {features.shape[1] for features in feature_map.features}
    return len(widths) == 1 and all(np.isfinite(rows).all() for rows in feature_map.features)


def placed(rows: np.ndarray, warn: Callable[[str], None]) -> tuple[str, np.ndarray]:
    """Returns the name of an embedding, and the positions of rows in it, float [n, 2].

    It is t-SNE if scikit-learn is installed and succeeds, else PCA: no picture should end a run.
    """
    if importlib.util.find_spec("sklearn"):
        try:
            return "t-SNE", tsne(rows)
        except Exception as error:
            reason = str(error).partition("\n")[0]
            warn(f"no t-SNE of the features ({type(error).__name__}: {reason})")
    project, share = principal(rows)
    return f"PCA, {100 * share:.0f} % of the variance", project(rows)


def feature_picture(
    feature_map: FeatureMap, class_names: Sequence[str], warn: Callable[[str], None] = print
) -> Figure:
    """Draws all clients of a map in one space.

    Images are points, a client's mean of each class that it trains on is its marker, and the
    server's prototypes are stars.
    """
    labels, clients = feature_map.labels, len(feature_map.clients)
    classes = np.unique(labels).tolist()
    colours = {label: COLOURS[i % len(COLOURS)] for i, label in enumerate(classes)}
    title, places = placed(np.concatenate([*feature_map.features, feature_map.prototypes]), warn)
    figure, axes = subplots(figsize=(8.4, 5.2))
    axes.set(xticks=[], yticks=[])  # the directions have no meaning, and a common unit
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_title(title, fontsize=9)
    points, stars = np.split(places, [clients * len(labels)])
    axes.scatter(
        *points.T, s=5, lw=0, c=paint(labels, colours) * clients, alpha=0.45, rasterized=True
    )
    of_clients = points.reshape(clients, len(labels), 2)
    for marker, images, trains_on in zip(MARKERS, of_clients, feature_map.trains_on):
        trained = np.array([label for label in colours if trains_on[label]])
        if len(trained):
            means = np.stack([images[labels == label].mean(0) for label in trained])
            look = {"s": 50, "marker": marker, "edgecolors": "black", "lw": 0.7}
            axes.scatter(*means.T, c=paint(trained, colours), **look)
    look = {"s": 150, "marker": "*", "edgecolors": "white", "lw": 1.0, "zorder": 3}
    star_colours = paint(feature_map.prototype_labels, colours)
    axes.scatter(*stars.T, c=star_colours or None, **look)  # an empty list of colours is an error
    draw_legends(figure, feature_map, colours, class_names)
    return figure


def paint(labels: np.ndarray, colours: Colours) -> list[Any]:
    """Returns the colours of classes, int [n]."""
    return [colours[label] for label in labels.tolist()]


def draw_legends(
    figure: Figure, feature_map: FeatureMap, colours: Colours, class_names: Sequence[str]
) -> None:
    """Draws the legends below the figure: classes to the left, markers to the right."""

    def point(label: str, marker: str, **look: Any) -> Line2D:
        return Line2D([], [], ls="none", marker=marker, label=label, **look)

    classes = [point(class_names[label], "o", color=rgb) for label, rgb in colours.items()]
    markers = []
    for client, marker in zip(feature_map.clients, MARKERS):
        markers.append(point(f"client {client}", marker, color="0.5"))
    if len(feature_map.prototypes):
        markers.append(point("prototype", "*", color="0.5", ms=10))
    for handles, side, columns in ((classes, "left", 5), (markers, "right", 4)):
        if handles:
            place = {"loc": f"outside lower {side}", "ncols": columns}
            figure.legend(handles=handles, fontsize=8, frameon=False, **place)
