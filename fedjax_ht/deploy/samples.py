"""Files with a client's samples, and with the public set.

Every side reads its own copy of the public set; the checksums are compared.
"""

import dataclasses
import itertools
from pathlib import Path

import jax
import numpy as np

from fedjax_ht.core.federation import PublicSet
from fedjax_ht.core.inputs import AsStored, Pixels, Standardised
from fedjax_ht.core.mesh import client_mesh, collect
from fedjax_ht.core.samples import PUBLIC, Data, Split
from fedjax_ht.core.task import CLASSIFICATION
from fedjax_ht.data.dataset import ClientIndices, Dataset, Partition
from fedjax_ht.data.public import hold_out_share
from fedjax_ht.data.standardise import completed, is_pending, with_scale
from fedjax_ht.lab.config.sections import DatasetConfig
from fedjax_ht.lab.files import atomic_open
from fedjax_ht.lab.readers import load_dataset
from fedjax_ht.lab.runs.folder import fingerprints

PUBLIC_FILE = "public.npz"


def read_public(config: DatasetConfig) -> Dataset:
    """Reads the public set of a config.

    Raises:
      ValueError, OSError: it is a share of all samples, which no side has; it cannot be read; or it
        must be standardised by samples that clients keep. One line.
    """
    name = config.public or ""
    if hold_out_share(name) is not None:
        raise ValueError(
            f"dataset.public is {name!r}, a share of all samples, which no side of a deployment "
            f"has; name a set that every side has, such as the npz:{PUBLIC_FILE} written by "
            "fedjax-ht deploy split"
        )
    sizes = config.data_dir, config.image_size, config.text_length
    public = load_dataset(name, *sizes, tokenizer=config.tokenizer)
    if config.standardise == "off":
        public = with_scale(public, "off")
    if is_pending(public):
        raise ValueError(
            f"dataset.public is {name!r}, to be standardised with the clients' training samples, "
            f"which never leave them; name the {PUBLIC_FILE} of fedjax-ht deploy split, or set "
            "dataset.standardise=off"
        )
    return public


def checksum(public: Dataset) -> str:
    """Returns the SHA-256 of the samples and labels, by which two copies are compared."""
    return fingerprints(public, ())["data"]


def public_size(public: Dataset | None, num_classes: int) -> PublicSet | None:
    """Returns the size of the public set as the server knows it.

    The server has no class names: labels count if the set has as many classes as the clients.
    """
    if public is None:
        return None
    return PublicSet(len(public.labels), public.num_classes == num_classes)


def require_one_scale(dataset: Dataset, public: Dataset) -> None:
    """Raises ValueError if a client's samples and the public set have other preprocessing.

    The client would read the public samples by its own rule, and the server by theirs.
    """
    rules = dataset.preprocess, public.preprocess
    same = type(rules[0]) is type(rules[1]) and all(
        itertools.starmap(np.array_equal, zip(*map(jax.tree.leaves, rules)))
    )
    if not same:
        raise ValueError(
            f"dataset.public is {public.name!r}, which is scaled unlike {dataset.name}; name the "
            f"{PUBLIC_FILE} that fedjax-ht deploy split wrote with the clients' samples"
        )


def public_split(dataset: Dataset) -> dict[str, Split]:
    """Returns the public samples of a set as its split `PUBLIC`; {} if there are none."""
    if dataset.public is None:
        return {}
    return {PUBLIC: Split(dataset.public.astype(np.int32), np.int32(len(dataset.public)))}


def server_data(public: Dataset | None) -> Data | None:
    """Returns the samples that the server reads, on its device; None without a public set."""
    if public is None:
        return None
    everything = Split(np.arange(len(public.labels), dtype=np.int32), np.int32(len(public.labels)))
    data = Data(public.inputs, public.labels, public.preprocess, {PUBLIC: everything})
    return collect(client_mesh(1), data)


def require_classes(dataset: Dataset) -> None:
    """Raises ValueError for another task than classification."""
    if dataset.task != CLASSIFICATION:
        raise ValueError(f"{dataset.name} is for {dataset.task.name}; deployments need classes")


def read_samples(
    name: str, data_dir: str, image_size: int | None = None
) -> tuple[Dataset, ClientIndices]:
    """Reads a client's data set, and its indices for training, validation and test.

    Args:
      name: name of the data set, such as "npz:client_3.npz"; a table's features are standardised.
      data_dir: folder of the data sets without a path in their name.
      image_size: side in pixels to which images are resized; None keeps them.

    Raises:
      ValueError, OSError: the set cannot be read, or does not mark its training and test samples.
        One line.
    """
    dataset = load_dataset(name, data_dir, image_size)
    if not {"train", "test"} <= set(dataset.official):
        raise ValueError(
            f"{name} does not say which samples train and which test; add official_test to the .npz"
        )
    empty = np.zeros(0, np.int64)
    indices = ClientIndices(*(dataset.official.get(part, empty) for part in ClientIndices._fields))
    return completed(dataset, (indices,)), indices


def client_dataset(dataset: Dataset, indices: ClientIndices) -> tuple[Dataset, ClientIndices]:
    """Extracts one client's samples from a set: training, then validation, then test samples."""
    order = np.concatenate(indices)
    ends = np.cumsum([0, *map(len, indices)])
    parts = ClientIndices(*(np.arange(start, end) for start, end in itertools.pairwise(ends)))
    taken = dataclasses.replace(
        dataset,
        inputs=jax.tree.map(lambda x: x[order], dataset.inputs),
        labels=dataset.labels[order],
        groups=None if dataset.groups is None else dataset.groups[order],
        official=dict(zip(ClientIndices._fields, parts)),
        clients=None,
        public=None,  # an index into the whole set
    )
    return taken, parts


def write_samples(path: Path, dataset: Dataset, indices: ClientIndices) -> None:
    """Writes one client's samples to an .npz that `read_samples` reads as "npz:PATH".

    Raises:
      ValueError: a sample is not one array, or the set has its own preprocessing. One line.
    """
    taken, parts = client_dataset(dataset, indices)
    is_pixels = isinstance(taken.preprocess, Pixels)
    if not isinstance(taken.inputs, np.ndarray) or not (
        is_pixels or isinstance(taken.preprocess, AsStored | Standardised)
    ):
        raise ValueError(
            f"{dataset.name} cannot be split into files: its samples are not one array as stored"
        )
    arrays = {
        "images" if is_pixels else "inputs": taken.inputs,
        "labels": taken.labels,
        "class_names": np.array(taken.class_names),
    }
    if isinstance(taken.preprocess, Standardised):
        arrays["standard_mean"] = np.asarray(taken.preprocess.mean)
        arrays["standard_std"] = np.asarray(taken.preprocess.std)
    if taken.reading and taken.inputs.shape[1:] == (len(taken.reading.features),):
        arrays["column_names"] = np.array(taken.reading.features)
    for part in ("val", "test"):
        arrays[f"official_{part}"] = np.isin(np.arange(len(taken.labels)), getattr(parts, part))
    if taken.vocabulary is not None:
        arrays["vocabulary"] = np.int64(taken.vocabulary)
    with atomic_open(path, "wb") as file:
        np.savez_compressed(file, **arrays)


def write_split(folder: Path, dataset: Dataset, partition: Partition) -> list[Path]:
    """Writes each client's samples to client_0.npz and so on; returns the paths.

    Public samples with labels go to `PUBLIC_FILE`.

    Raises:
      ValueError: the set has another task than classification. One line. Others are those of
        `write_samples`.
    """
    require_classes(dataset)
    files = {f"client_{i}.npz": indices for i, indices in enumerate(partition)}
    # an .npz needs labels: a public set without them can only be given by its name
    if dataset.public is not None and dataset.public_is_labelled:
        nothing = np.zeros(0, np.int64)
        files[PUBLIC_FILE] = ClientIndices(dataset.public, val=nothing, test=nothing)
    for name, indices in files.items():
        write_samples(folder / name, dataset, indices)
    return [folder / name for name in files]
