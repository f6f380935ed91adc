"""Tables whose columns are in memory, as a frame of pandas or a file of Parquet has them."""

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedjax_ht.core.inputs import AsStored
from fedjax_ht.core.names import listed, short, unknown
from fedjax_ht.data.conversion import as_array
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.indices import ClientIndices, Partition
from fedjax_ht.data.reading import LeftOut, Reading
from fedjax_ht.lab.readers.as_stored import as_stored, refuse_image_size
from fedjax_ht.lab.readers.columns import Columns, Roles, roles_of
from fedjax_ht.lab.readers.frame_columns import coded, texts_of, values_of
from fedjax_ht.lab.readers.image_arrays import Guess, guess, to_bytes, to_nhwc
from fedjax_ht.lab.readers.images import resize
from fedjax_ht.lab.readers.sizes import AS_THEY_ARE, Sizes
from fedjax_ht.lab.readers.split_names import set_of
from fedjax_ht.lab.readers.table_cells import refuse_gaps
from fedjax_ht.lab.readers.table_checks import class_lines
from fedjax_ht.lab.readers.table_set import numbers_set, texts_set
from fedjax_ht.lab.readers.table_values import class_order, group_numbers, numbered
from fedjax_ht.lab.readers.tokens import TextForm

_IMAGES = ("image", "images", "img", "imgs")
"""Names of columns, in small letters, of images: of other arrays their values tell."""


class Frame(NamedTuple):
    """A table in memory.

    Attributes:
      name: the name of the set.
      columns: name -> the values of a column, an array-like [N].
      counts: rows of each file or set that it was joined from.
      shown: the set's name without columns, "parquet:mine.parquet", for messages; "" in memory.
      path: the file that it was read from; "" in memory.
      official: name of a set -> indices of its rows, where files are sets.
      class_names: names of the classes of each column whose labels are numbered.
      left_out: columns that are no data.
    """

    name: str
    columns: Mapping[str, Any]
    counts: Sequence[int]
    shown: str = ""
    path: str = ""
    official: Mapping[str, np.ndarray] = MappingProxyType({})
    class_names: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    left_out: tuple[LeftOut, ...] = ()


def frame_set(
    frame: Frame, named: Columns, *, split: str = "", client: str = "", sizes: Sizes = AS_THEY_ARE
) -> Dataset:
    """Returns the set of a table, with the checks of `csv:` and `text:`.

    Columns of features are numbers, or all of them text, or there is one of images or other arrays
    of one shape. Texts are read as `text:` reads them, arrays as `npz:` does.

    Args:
      frame: the table.
      named: columns that are named by the user; others have the roles that `roles_of` finds.
      split: column that says train, val or test of each row; "" for none.
      client: column of the client that holds a row, in the set that `split` says; "" for none.
      sizes: sizes of images and texts.

    Raises:
      ValueError: the columns cannot be what they are taken for. One line.
    """
    rest = _without(list(frame.columns), split=split, client=client)
    roles = roles_of(rest, named, frame.shown)
    parts: dict[str, Any] = {"official": dict(frame.official)}
    if split:
        parts["official"] = _sets(split, texts_of(split, frame.columns[split]))
    if client:
        parts["clients"] = _clients(client, frame.columns[client], parts["official"])
    reading = Reading(path=frame.path, left_out=frame.left_out)
    if roles.group:
        owners = coded(roles.group, frame.columns[roles.group])
        parts["groups"], names = group_numbers(roles.group, owners)
        reading = dataclasses.replace(reading, group_names=names)
    parts["labels"], parts["class_names"] = _labels(frame, roles.label)
    features = {}
    for name in roles.features:
        features[name] = values_of(name, frame.columns[name], sizes.image)
    return _samples_set(frame, roles, features, sizes, reading=reading, **parts)


def _samples_set(
    frame: Frame,
    roles: Roles,
    features: Mapping[str, np.ndarray],
    sizes: Sizes,
    *,
    reading: Reading,
    **parts: Any,
) -> Dataset:
    """The set of these columns of features, by their kind."""
    kind, name = _kind(features), frame.name
    if kind != "texts" and sizes.text is not None:
        raise ValueError(f"text_length is {sizes.text}, but there are no texts")
    if kind != "texts" and sizes.tokenizer is not None:
        raise ValueError("a tokenizer is given, but there are no texts")
    if kind != "arrays":
        refuse_image_size(sizes.image)
    if kind == "texts":
        cells = list(zip(*(x.tolist() for x in features.values())))
        form = TextForm(sizes.text, sizes.tokenizer)
        return texts_set(name, roles, cells=cells, form=form, reading=reading, **parts)
    if kind == "arrays":
        (inputs,) = features.values()
        return _arrays_set(name, roles, inputs, sizes.image, reading=reading, **parts)
    inputs = np.stack([np.asarray(x, np.float64) for x in features.values()], 1)
    refuse_gaps(inputs, roles.features, "row {}".format)
    return numbers_set(name, roles, inputs=inputs, counts=frame.counts, reading=reading, **parts)


def _without(columns: Sequence[str], **owners: str) -> list[str]:
    """The columns without those that say a row's set or client."""
    for role, column in owners.items():
        if column and column not in columns:
            known = f"the columns are {listed(columns, most=20)}"
            raise ValueError(unknown(f"{role} column", column, columns, known))
    return [column for column in columns if column not in owners.values()]


def _kind(features: Mapping[str, np.ndarray]) -> str:
    """Returns "numbers", "texts" or "arrays".

    Raises:
      ValueError: there are columns of several kinds, or several of arrays.
    """
    kinds: dict[str, list[str]] = {"arrays": [], "texts": [], "numbers": []}
    for name, x in features.items():
        if x.dtype.kind == "O":
            kinds["texts"].append(name)
        elif x.ndim > 1:
            kinds["arrays"].append(name)
        else:
            kinds["numbers"].append(name)
    present = [kind for kind, names in kinds.items() if names]
    if len(present) == 1 and (present != ["arrays"] or len(features) == 1):
        return present[0]
    parts = ", ".join(f"{kind} {listed(kinds[kind])}" for kind in present)
    most = max(present, key=lambda kind: len(kinds[kind]))
    example = kinds["arrays"][:1] or kinds[most][:5]
    raise ValueError(
        f"its columns are {parts}; a sample is of one kind, and of one array: name the columns "
        f"that are meant, as features={example}, or make text numbers"
    )


def _labels(frame: Frame, column: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """The rows' classes, and the classes' names; of numbered classes in their own order."""
    if column not in frame.class_names:
        labels, names = numbered(column, coded(column, frame.columns[column]))
        return labels, tuple(map(str, names))
    names, labels = frame.class_names[column], as_array(column, frame.columns[column])
    bad = np.flatnonzero(~((labels >= 0) & (labels < len(names))))
    if bad.size:
        raise ValueError(
            f"column {column!r} has {labels[bad[0]]} in row {bad[0]}, which is none of its "
            f"{len(names)} classes, as samples without a label have; leave such rows out"
        )
    return labels.astype(np.int64), names


def _sets(column: str, cells: Sequence[str]) -> dict[str, np.ndarray]:
    """The rows of each set, by a column that says which."""
    sets: dict[str, list[int]] = {}
    for row, cell in enumerate(cells):
        if not set_of(cell):
            raise ValueError(
                f"column {column!r} holds {short(cell)} in row {row}; it must say train, val or "
                "test of each row"
            )
        sets.setdefault(set_of(cell), []).append(row)
    return {name: np.array(rows) for name, rows in sets.items()}


def _clients(name: str, column: Any, official: Mapping[str, np.ndarray]) -> Partition:
    """The split over clients, in the order of their numbers or names."""
    if not official:
        raise ValueError(
            f"client is {name!r}, but no rows are called train or test: name the column that says "
            f"so, split='SPLIT', or deal each client's rows by group={name!r} and "
            "partition='natural'"
        )
    cells = np.array(texts_of(name, column))
    clients = []
    for client in class_order(cells.tolist()):
        rows = {part: np.flatnonzero(cells == client) for part in ("train", "val", "test")}
        held = {
            part: np.intersect1d(indices, official.get(part, np.array([], int)))
            for part, indices in rows.items()
        }
        clients.append(ClientIndices(**held))
    return tuple(clients)


def _arrays_set(
    name: str,
    roles: Roles,
    inputs: np.ndarray,
    image_size: int | None,
    *,
    labels: np.ndarray,
    class_names: tuple[str, ...],
    reading: Reading,
    **parts: Any,
) -> Dataset:
    """The set of one column of arrays, which are images by their column's name or their values."""
    (column,) = roles.features
    lines = class_lines(f"column {roles.label!r}", labels, class_names)
    kind = Guess(True) if column.lower() in _IMAGES else guess(column, inputs)
    converted: tuple[str, ...] = ()
    if kind.is_image:
        images, change = to_bytes(to_nhwc(inputs))
        inputs, rule = resize(images, image_size), None
        converted = tuple(filter(None, [change]))
    else:
        refuse_image_size(image_size)
        inputs, rule = as_stored(column, inputs), AsStored()
    return Dataset(
        name,
        inputs,
        labels,
        class_names,
        preprocess=rule,
        reading=dataclasses.replace(
            reading,
            label=roles.label,
            features=roles.features,
            converted=converted,
            warnings=tuple(filter(None, [roles.sentence, kind.line, *lines])),
        ),
        **parts,
    )
