"""What a few clients make of the same test images after the last round: computed once, kept beside
the checkpoints."""

import itertools
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.core.federation import Federation
from fedjax_ht.core.files import atomic_open
from fedjax_ht.data.client_data import mixed
from fedjax_ht.data.dataset import Partition
from fedjax_ht.data.partition import class_counts
from fedjax_ht.experiment.build import Experiment
from fedjax_ht.experiment.run_folder import MAP
from fedjax_ht.simulation.simulation import Simulation, SimulationState
from fedjax_ht.simulation.trials import of_trial

CLIENTS, CLASSES, IMAGES = 6, 10, 120  # at most, of each of an entry's maps


class FeatureMap(NamedTuple):
    """One entry's, of the first trial.

    Attributes:
      round: rounds done.
      labels: int32 [n], the images' classes.
      clients: int32 [m], ids.
      trains_on: bool [m, C], which classes a client has training images of.
      features: float32 [n, K] a client; K may differ between architectures.
      prototypes: float32 [p, K], the server's; p is 0 without any.
      prototype_labels: int32 [p].
      flat: name of an embedding -> float32 [m n + p, 2], where it puts all clients' features and
        the prototypes.
    """

    round: int
    labels: np.ndarray
    clients: np.ndarray
    trains_on: np.ndarray
    features: tuple[np.ndarray, ...]
    prototypes: np.ndarray
    prototype_labels: np.ndarray
    flat: dict[str, np.ndarray]


def remember_map(
    label: str,
    experiment: Experiment,
    simulation: Simulation,
    state: SimulationState,
    folder: Path,
    write: bool,
    warn: Callable[[str], None],
) -> None:
    """Brings an entry's features.npz up to the state's round; nothing happens where it is, or where
    the method has no features. Every process of a run makes the call, and the one that may `write`
    writes."""
    kept = load_map(folder)
    if experiment.methods[label].view.features is None or (
        kept is not None and kept.round == state.round
    ):
        return
    try:
        found = feature_map(label, experiment, simulation, state)
    except Exception as error:  # of a method of one's own; no picture is worth the end of a run
        warn(
            f"{label}: no map of its features ({type(error).__name__}: "
            f"{str(error).partition(chr(10))[0]})"
        )
        return
    if write and found is not None:
        save_map(found, folder)


def feature_map(
    label: str, experiment: Experiment, simulation: Simulation, state: SimulationState
) -> FeatureMap | None:
    """The map of an entry as it stands; None where nobody has test images."""
    dataset, partition = experiment.dataset, experiment.partitions[0]
    federation, method = experiment.federations[label], experiment.methods[label]
    counts = class_counts(dataset.labels, partition, num_classes=dataset.num_classes)
    clients = shown_clients(federation, counts)
    indices = shown_images(dataset.labels, partition, counts[clients].sum(0))
    if not len(indices):
        return None
    features = simulation.features(state, clients, indices)
    prototypes, labels = np.zeros((0, features[0].shape[1]), np.float32), np.zeros(0, np.int32)
    if method.view.prototypes is not None:
        values, mask = method.view.prototypes(of_trial(state.servers, 0))
        labels = np.intersect1d(np.flatnonzero(mask), dataset.labels[indices]).astype(np.int32)
        prototypes = np.asarray(values, np.float32)[labels]
    return FeatureMap(
        state.round,
        dataset.labels[indices],
        np.array(clients, np.int32),
        counts[clients] > 0,
        tuple(features),
        prototypes,
        labels,
        {},
    )


def shown_clients(federation: Federation, counts: np.ndarray) -> list[int]:
    """Up to `CLIENTS` ids, ascending, of as many architectures as there are; those with training
    images, of which `counts` has int [clients, C], go first."""
    trained = counts.sum(1) > 0
    members = [federation.members(bucket) for bucket in federation.buckets]
    in_turn = [i for some in itertools.zip_longest(*members) for i in some if i is not None]
    return sorted(sorted(in_turn, key=lambda i: not trained[i])[:CLIENTS])


def shown_images(labels: np.ndarray, partition: Partition, weight: np.ndarray) -> np.ndarray:
    """Indices of up to `IMAGES` of all clients' test images, as many of each of up to `CLASSES`
    classes: those of the largest `weight` [C]."""
    pool = np.random.default_rng(0).permutation(
        np.unique(np.concatenate([client.test for client in partition]))
    )
    there = np.bincount(labels[pool], minlength=len(weight)) > 0
    classes = np.sort(
        np.argsort(np.where(there, -weight, np.inf), kind="stable")[: min(CLASSES, there.sum())]
    )
    each = [pool[labels[pool] == c][: IMAGES // len(classes)] for c in classes.tolist()]
    return mixed(np.concatenate([pool[:0], *each]))


def save_map(found: FeatureMap, folder: Path) -> None:
    """Writes features.npz; without pickle, whole or not at all."""
    arrays = {
        name: value for name, value in found._asdict().items() if name not in ("features", "flat")
    }
    arrays |= {f"features_{i}": x for i, x in enumerate(found.features)}
    arrays |= {f"flat_{name}": places for name, places in found.flat.items()}
    with atomic_open(folder / MAP, "wb") as file:
        np.savez_compressed(file, **arrays)


def load_map(folder: Path) -> FeatureMap | None:
    """What `save_map` wrote; None where there is none, or none that can be read."""
    try:
        with np.load(folder / MAP, allow_pickle=False) as stored:
            fields = {
                name: stored[name]
                for name in FeatureMap._fields
                if name not in ("features", "flat")
            }
            features = tuple(stored[f"features_{i}"] for i in range(len(stored["clients"])))
            flat = {
                name.removeprefix("flat_"): stored[name]
                for name in stored.files
                if name.startswith("flat_")
            }
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None
    return FeatureMap(
        **fields | {"round": int(fields["round"]), "features": features, "flat": flat}
    )
