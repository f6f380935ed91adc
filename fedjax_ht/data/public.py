"""Public sets: samples that the server and all clients have, and that no client owns.

A public set is held out of a data set before it is split (`held_out`), or is another set appended
to it (`beside`). In both cases its samples are in the data set's own arrays, and `Dataset.public`
has their indices: no program holds a second copy.
"""

import dataclasses
import logging

import jax
import numpy as np

from fedjax_ht.check.names import listed
from fedjax_ht.core.inputs import described
from fedjax_ht.data.copies import same_samples
from fedjax_ht.data.dataset import ClientIndices, Dataset, Partition
from fedjax_ht.data.reading import Reading
from fedjax_ht.data.selection import of_samples

_LOGGER = logging.getLogger(__name__)

HOLD_OUT = "hold_out:"


def hold_out_share(text: str) -> float | None:
    """Returns the share of "hold_out:SHARE"; None for other strings, which name a data set.

    Raises:
      ValueError: the share is not a number between 0 and 1.
    """
    if not text.startswith(HOLD_OUT):
        return None
    try:
        share = float(text.removeprefix(HOLD_OUT))
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise ValueError(
            f"dataset.public is {text!r}; after {HOLD_OUT} it must have a share above 0 and below "
            f"1, such as {HOLD_OUT}0.1"
        )
    return share


def held_out(dataset: Dataset, share: float, seed: int) -> Dataset:
    """Makes a random share of a dataset its public set, the same for every split.

    It is a share of the official training set if there is one, else of all samples.

    Raises:
      ValueError: the data came split over clients, or the share is less than one sample or all
        samples.

    Example:
      >>> dataset = fl.Dataset("mine", np.zeros((10, 2)), np.arange(10) % 2, ("a", "b"))
      >>> held_out(dataset, share=0.2, seed=1).public.shape
      (2,)
    """
    if dataset.clients is not None:
        raise ValueError(
            f"public is {HOLD_OUT}{share:g}, but the clients of {dataset.name} come with their "
            "samples; name another data set"
        )
    pool = np.asarray(dataset.official.get("train", np.arange(len(dataset.labels))))
    count = round(share * len(pool))
    if not 0 < count < len(pool):
        raise ValueError(
            f"public is {HOLD_OUT}{share:g}, {count} of the {len(pool)} samples of {dataset.name}; "
            "it must leave a sample on each side"
        )
    # Splits draw from NumPy's legacy generator. A different generator makes this draw independent
    # of them.
    public = np.sort(np.random.default_rng(seed).permutation(pool)[:count])
    return dataclasses.replace(dataset, public=public)


def beside(dataset: Dataset, other: Dataset) -> Dataset:
    """Appends another set to a dataset as its public set.

    Its labels are used if its classes have the same names, in any order; otherwise they are hidden
    as 0. Columns of a table are matched by name.

    Raises:
      ValueError: its samples have another shape, dtype, vocabulary or other columns, or some of
        them are samples of the dataset, which clients may test on. One line.
    """
    other = _in_columns_of(dataset, other)
    _check_alike(dataset, other)
    first = len(dataset.labels)
    same_classes = set(dataset.class_names) == set(other.class_names)
    labels = np.zeros_like(other.labels)
    if same_classes:
        labels = np.array([dataset.class_names.index(name) for name in other.class_names])
        labels = labels[other.labels]
    elif set.intersection(*(set(map(str.casefold, x.class_names)) for x in (dataset, other))):
        _LOGGER.warning(
            f"public is {other.name!r}: its labels are hidden, as its classes are "
            f"{listed(other.class_names)}, not {listed(dataset.class_names)}"
        )
    groups, targets = dataset.groups, dataset.targets
    if groups is not None:
        groups = np.pad(groups, (0, len(labels)))  # never read: no client owns public samples
    if targets is not None:
        same_classes = False  # labels only group the targets
        targets = np.concatenate([targets, dataset.task.no_targets(len(labels))])
    return dataclasses.replace(
        dataset,
        inputs=jax.tree.map(lambda x, y: np.concatenate([x, y]), dataset.inputs, other.inputs),
        labels=np.concatenate([dataset.labels, labels]),
        targets=targets,
        groups=groups,
        public=np.arange(first, first + len(labels)),
        public_is_labelled=same_classes,
    )


def _in_columns_of(dataset: Dataset, other: Dataset) -> Dataset:
    """Returns the other set with its columns in the dataset's order.

    Raises:
      ValueError: it has other columns, or its ids stand for other tokens. One line.
    """
    (columns, tokens), (of_other, other_tokens) = map(_names, (dataset, other))
    place = f"public is {other.name!r}, whose"
    if tokens and other_tokens and tokens != other_tokens:
        raise ValueError(
            f"{place} token ids mean other tokens than those of {dataset.name}; set "
            "dataset.tokenizer for both"
        )
    if not columns or not of_other or columns == of_other:
        return other
    if different := set(columns) ^ set(of_other):
        raise ValueError(
            f"{place} columns are not those of {dataset.name}: only one of the two has "
            f"{listed(sorted(different))}; both must have the same"
        )
    order = [of_other.index(column) for column in columns]
    return dataclasses.replace(other, inputs=other.inputs[:, order])


def _names(dataset: Dataset) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the column names of a table of numbers, and the token texts; () if there are none."""
    reading, inputs = dataset.reading or Reading(), dataset.inputs
    is_table = isinstance(inputs, np.ndarray) and inputs.shape[1:] == (len(reading.features),)
    columns = reading.features if is_table and dataset.vocabulary is None else ()
    return columns, reading.token_texts


def _check_alike(dataset: Dataset, other: Dataset) -> None:
    def form(of: Dataset) -> str:
        leaves = [f"{x.dtype} {list(x.shape[1:])}" for x in jax.tree.leaves(of.inputs)]
        return ", ".join(leaves) + ("" if of.vocabulary is None else f" of {of.vocabulary} tokens")

    place = f"public is {other.name!r}, whose samples are {form(other)}"
    if form(dataset) != form(other):
        raise ValueError(
            f"{place}; those of {dataset.name} are {form(dataset)} (a model sees "
            f"{described(dataset.input_shape)}), and both must be the same: set "
            "dataset.image_size, or choose another set"
        )
    every, others = (np.arange(len(each.labels)) for each in (dataset, other))
    shared = np.count_nonzero(same_samples(dataset.inputs, every, other.inputs, others))
    if shared:
        raise ValueError(
            f"public is {other.name!r}, of which {shared} samples are also in {dataset.name}, "
            f"where clients may test on them; choose a set without them, or {HOLD_OUT}0.1"
        )


def private_indices(dataset: Dataset) -> np.ndarray:
    """Returns the indices of the samples that clients may own, ascending."""
    every = np.arange(len(dataset.labels))
    return every if dataset.public is None else np.setdiff1d(every, dataset.public)


def private_part(dataset: Dataset) -> tuple[Dataset, np.ndarray]:
    """Returns the samples that clients may own, as a set, and their indices in `dataset`."""
    kept = private_indices(dataset)
    # a split that came with the data has indices in the whole set
    return of_samples(dataclasses.replace(dataset, public=None, clients=None), kept), kept


def at_places(partition: Partition, kept: np.ndarray) -> Partition:
    """Converts a split of a `private_part` to a split of the whole dataset."""
    return tuple(ClientIndices(*(kept[indices] for indices in client)) for client in partition)


def check_apart(dataset: Dataset, partition: Partition) -> None:
    """Checks that a split gives no client a public sample.

    Raises:
      ValueError: a client has a public sample. One line.
    """
    if dataset.public is None:
        return
    for i, client in enumerate(partition):
        for name, indices in client._asdict().items():
            shared = np.intersect1d(indices, dataset.public)
            if len(shared):
                raise ValueError(
                    f"{dataset.name}: {len(shared)} {name} samples of client {i} are public, first "
                    f"sample {shared[0]}; remove them from one of the two"
                )
