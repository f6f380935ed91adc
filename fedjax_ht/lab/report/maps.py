"""Features of the same test images by a few clients' models after the last round: computed once,
kept beside the checkpoints."""

import itertools
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.core.federation import Federation
from fedjax_ht.data.client_data import mixed
from fedjax_ht.data.dataset import Partition
from fedjax_ht.data.partition import class_counts
from fedjax_ht.lab.files import atomic_open
from fedjax_ht.lab.runs.arm import Arm
from fedjax_ht.lab.runs.run_folder import MAP
from fedjax_ht.simulation.simulation import Simulation, SimulationState

CLIENTS, CLASSES, IMAGES = 6, 10, 120  # at most, of each of an entry's maps


class FeatureMap(NamedTuple):
    """Features of one entry's clients in the first trial.

    Attributes:
      round: number of rounds done.
      labels: int32 [n], the images' classes.
      clients: int32 [m], ids.
      trains_on: bool [m, C], the classes that a client has training images of.
      features: one array a client, float32 [n, K]; K may differ between architectures.
      prototypes: float32 [p, K], the server's prototypes; p is 0 without any.
      prototype_labels: int32 [p], their classes.
      flat: name of an embedding -> float32 [m n + p, 2], places of all clients' features and of the
        prototypes.
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
    arm: Arm,
    simulation: Simulation,
    state: SimulationState,
    folder: Path,
    *,
    write: bool,
    warn: Callable[[str], None],
) -> None:
    """Brings an arm's features.npz up to the state's round; nothing happens where it is, where
    the method has no features, or where the config draws no maps.

    Args:
      arm: the arm.
      simulation, state: the simulation of one of its runs, and the state to map.
      folder: the entry's folder.
      write: True in the process that writes; every process of a run makes the call.
      warn: called with the reason where there is no map.
    """
    if arm.config.report.maps == "none" or arm.method.view.features is None:
        return
    kept = load_map(folder)
    if kept is not None and kept.round == state.round:
        return
    try:
        computed = feature_map(arm, simulation, state)
    except Exception as error:  # of a user's method; no picture is worth the end of a run
        reason = str(error).partition("\n")[0]
        warn(f"{arm.label}: no map of its features ({type(error).__name__}: {reason})")
        return
    if write and computed is not None:
        save_map(computed, folder)


def feature_map(arm: Arm, simulation: Simulation, state: SimulationState) -> FeatureMap | None:
    """Computes the map of an arm's state; None where no client has test images."""
    dataset, partition, method = arm.dataset, arm.partitions[0], arm.method
    counts = class_counts(dataset.labels, partition, num_classes=dataset.num_classes)
    clients = shown_clients(arm.federation, counts)
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
        flat={},
    )


def shown_clients(federation: Federation, counts: np.ndarray) -> list[int]:
    """Chooses up to `CLIENTS` ids, ascending, of as many architectures as there are; clients with
    training images, of which `counts` has int [clients, C], go first."""
    trained = counts.sum(1) > 0
    members = [federation.members(bucket) for bucket in federation.buckets]
    # The first client of each bucket, then the second of each, and so on.
    turns = itertools.chain.from_iterable(itertools.zip_longest(*members))
    in_turn = np.array([i for i in turns if i is not None])
    first = in_turn[np.argsort(~trained[in_turn], kind="stable")]
    return sorted(first[:CLIENTS].tolist())


def shown_images(labels: np.ndarray, partition: Partition, weight: np.ndarray) -> np.ndarray:
    """Draws up to `IMAGES` of all clients' test images, as many of each of up to `CLASSES` classes:
    those of the largest `weight` [C]. Returns their indices."""
    tested = np.unique(np.concatenate([client.test for client in partition]))
    pool = np.random.default_rng(0).permutation(tested)
    present = np.bincount(labels[pool], minlength=len(weight)) > 0
    heaviest = np.argsort(np.where(present, -weight, np.inf), kind="stable")
    classes = np.sort(heaviest[: min(CLASSES, present.sum())])
    each = [pool[labels[pool] == c][: IMAGES // len(classes)] for c in classes.tolist()]
    return mixed(np.concatenate([pool[:0], *each]))


def save_map(feature_map: FeatureMap, folder: Path) -> None:
    """Writes features.npz; without pickle, whole or not at all."""
    arrays = feature_map._asdict()
    for i, features in enumerate(arrays.pop("features")):
        arrays[f"features_{i}"] = features
    for name, places in arrays.pop("flat").items():
        arrays[f"flat_{name}"] = places
    with atomic_open(folder / MAP, "wb") as file:
        np.savez_compressed(file, **arrays)


def load_map(folder: Path) -> FeatureMap | None:
    """Reads a map that `save_map` wrote; None where there is none, or none that can be read."""
    try:
        with np.load(folder / MAP, allow_pickle=False) as file:
            stored = {name: file[name] for name in file.files}
        features = [stored.pop(f"features_{i}") for i in range(len(stored["clients"]))]
        number, flat = int(stored.pop("round")), {}
        for name in list(stored):
            if name.startswith("flat_"):
                flat[name.removeprefix("flat_")] = stored.pop(name)
        return FeatureMap(**stored, round=number, features=tuple(features), flat=flat)
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        return None
