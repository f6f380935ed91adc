"""The public set of a deployment: every side reads its own copy, and the checksums are compared."""

import numpy as np

from fedjax_ht.core.federation import PublicSet
from fedjax_ht.core.mesh import client_mesh, collect
from fedjax_ht.core.samples import PUBLIC, Data, Split
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.public import hold_out_share
from fedjax_ht.data.standardise import is_pending
from fedjax_ht.deploy.client_samples import PUBLIC_FILE
from fedjax_ht.lab.config.sections import DatasetConfig
from fedjax_ht.lab.readers import load_dataset
from fedjax_ht.lab.runs.folder import fingerprints


def read_public(config: DatasetConfig) -> Dataset:
    """Reads the public set of a config.

    Raises:
      ValueError, OSError: it is a share of the clients' samples, which no side has together, it
        cannot be read, or it is to be standardised by samples that clients keep. One line.
    """
    name = config.public or ""
    if hold_out_share(name) is not None:
        raise ValueError(
            f"dataset.public is {name!r}, a share of all samples, which no side of a deployment "
            f"has; name a set that every side has a copy of, such as the npz:{PUBLIC_FILE} that "
            "fedjax-ht deploy split writes"
        )
    sizes = config.data_dir, config.image_size, config.text_length
    public = load_dataset(name, *sizes, tokenizer=config.tokenizer)
    if is_pending(public):
        raise ValueError(
            f"dataset.public is {name!r}, a table to be standardised by the clients' training "
            "samples, which do not leave them; standardise its columns, and name an .npz of them"
        )
    return public


def checksum(public: Dataset) -> str:
    """Returns the SHA-256 sum of the samples and labels, by which two copies are compared."""
    return fingerprints(public, ())["data"]


def public_size(public: Dataset | None, num_classes: int) -> PublicSet | None:
    """Returns the size of the public set as the server knows it, who has no names of classes: its
    labels count if it has as many classes as the clients."""
    if public is None:
        return None
    return PublicSet(len(public.labels), public.num_classes == num_classes)


def public_split(dataset: Dataset) -> dict[str, Split]:
    """Returns the public samples of a set as its split `PUBLIC`; {} without any."""
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
