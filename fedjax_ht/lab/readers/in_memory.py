"""Data sets from objects of other libraries: frames, data sets of PyTorch and of Hugging Face.

None of these libraries is imported here: an object is read by the few methods that its kind has.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_ht.core.names import kind_of_value, listed
from fedjax_ht.data.conversion import as_array
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.labels import as_labels
from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers.as_stored import as_stored
from fedjax_ht.lab.readers.columns import Columns
from fedjax_ht.lab.readers.frames import Frame, frame_set
from fedjax_ht.lab.readers.image_arrays import guess, to_bytes, to_nhwc
from fedjax_ht.lab.readers.sizes import Sizes
from fedjax_ht.lab.readers.split_names import sets_of
from fedjax_ht.lab.safe.limits import numbered_classes

_LOGGER = logging.getLogger(__name__)


def named(label: str | None, features: Sequence[str], group: str | None) -> Columns:
    """Returns the columns that a user names."""
    if isinstance(features, str):
        raise ValueError(f"features is {features!r}; give a list of names, [{features!r}]")
    return Columns(label or "", tuple(features), group or "")


def of_frame(
    frame: Any, columns: Columns, *, split: str, client: str, name: str, sizes: Sizes
) -> Dataset:
    """Returns the set of a frame of pandas, or of another library with its columns; see
    `Dataset.from_pandas`."""
    if not hasattr(frame, "columns") or not hasattr(frame, "__getitem__"):
        raise ValueError(f"the frame is {kind_of_value(frame)}; it must be a pandas.DataFrame")
    names = list(frame.columns)
    if len(set(map(str, names))) < len(names):
        raise ValueError(
            f"its columns are {listed(list(map(str, names)))}; each needs its own name"
        )
    values = {str(column): frame[column] for column in names}
    table = Frame(name, values, counts=[len(frame)])
    return told(frame_set(table, columns, split=split, client=client, sizes=sizes))


def of_hugging_face(
    dataset: Any,
    named_columns: Columns,
    *,
    name: str,
    sizes: Sizes,
    split: str = "",
    client: str = "",
    shown: str = "",
    path: str = "",
) -> Dataset:
    """Returns the set of a `datasets.Dataset`, or of a dict of them by set; see
    `Dataset.from_hf`."""
    sets = dict(dataset) if isinstance(dataset, Mapping) else {"": dataset}
    for part in sets.values():
        if not all(hasattr(part, name) for name in ("column_names", "features", "__len__")):
            raise ValueError(
                f"it is {kind_of_value(part)}; it must be a datasets.Dataset with a length, a "
                "DatasetDict of them, or the folder that save_to_disk wrote"
            )
    official, first = _official(sets), next(iter(sets.values()))
    columns, class_names = {}, {}
    parts = [(_arrow(part), part) for part in sets.values()]
    for column in first.column_names:
        columns[column] = _joined([_values(tables, part, column) for tables, part in parts])
        names = getattr(first.features[column], "names", None)
        if names:
            class_names[column] = tuple(names)
    table = Frame(
        name,
        columns,
        counts=[len(part) for part in sets.values()],
        shown=shown,
        path=path,
        official=official,
        class_names=class_names,
    )
    return frame_set(table, named_columns, split=split, client=client, sizes=sizes)


def _arrow(part: Any) -> Any:
    """The `pyarrow.Table` of a `datasets.Dataset`; None for an object without one."""
    return part.with_format("arrow")[:] if hasattr(part, "with_format") else None


def _values(table: Any, part: Any, name: str) -> Any:
    """The values of a column: an array of numbers or texts from Arrow, else a list.

    A list of Python objects takes fifty times as long; lists and images in a column need one.
    """
    if table is None or table.column(name).type.num_fields:
        return part[name]
    return table.column(name).to_numpy()


def _joined(parts: Sequence[Any]) -> Any:
    """The values of all parts, one after another."""
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return [value for part in parts for value in part]


def _official(sets: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The rows of each set, which are joined in order; {} for data without sets."""
    if list(sets) == [""]:
        return {}
    called = sets_of(map(str, sets))
    if other := [key for key in sets if key not in called]:
        raise ValueError(
            f"its sets are {listed(list(map(str, sets)))}, of which {listed(other)} is not "
            "called like train, val or test; give a dict of those that are"
        )
    columns = {key: set(part.column_names) for key, part in sets.items()}
    different = set.union(*columns.values()) - set.intersection(*columns.values())
    if different:
        raise ValueError(f"its sets differ in the columns {listed(sorted(different))}")
    ends = np.cumsum([0, *map(len, sets.values())])
    official = {}
    for key, start, end in zip(sets, ends, ends[1:]):
        official[called[key]] = np.arange(start, end)
    return official


def of_torch(dataset: Any, class_names: Sequence[str] | None, name: str) -> Dataset:
    """Returns the set of a map-style data set of pairs; see `Dataset.from_torch`."""
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ValueError(
            f"{name} is {kind_of_value(dataset)}; it must have a length and samples by index, as a "
            "map-style torch.utils.data.Dataset"
        )
    count = len(dataset)
    pairs = [_pair(name, i, dataset[i]) for i in range(count)]
    if not pairs:
        raise ValueError(f"{name} has no samples")
    again = _pair(name, 0, dataset[0])[0]
    if again.shape == pairs[0][0].shape and not np.array_equal(again, pairs[0][0]):
        raise ValueError(
            f"{name}: sample 0 differs when it is read again, as of a random transform; leave that "
            "out, since samples are read once (training.augmentation augments in training)"
        )
    labels = as_labels(name, [label for _, label in pairs])
    x = as_array(f"{name}: samples", [sample for sample, _ in pairs])
    names = class_names or getattr(dataset, "classes", None)
    if not names:
        names = numbered_classes(int(labels.max()) + 1)
    if x.ndim == 1:
        x = x[:, None]  # one number a sample
    kind = guess("x", x)
    warnings = tuple(filter(None, [kind.line]))
    if not kind.is_image:
        made = Dataset(
            name,
            as_stored("x", x),
            labels,
            tuple(map(str, names)),
            reading=Reading(warnings=warnings),
        )
        return told(made)
    images, change = to_bytes(to_nhwc(x))
    converted = tuple(filter(None, [change]))
    return told(
        Dataset(
            name,
            np.ascontiguousarray(images),
            labels,
            tuple(map(str, names)),
            reading=Reading(converted=converted, warnings=warnings),
        )
    )


def _pair(name: str, i: int, item: Any) -> tuple[np.ndarray, Any]:
    """The arrays of a sample and of its label."""
    if not isinstance(item, Sequence) or isinstance(item, str) or len(item) != 2:
        raise ValueError(
            f"{name}: item {i} is {kind_of_value(item)}; it must be a pair of sample and label"
        )
    sample, label = (as_array(f"{name}: item {i}", _plain(part)) for part in item)
    if sample.dtype.kind not in "biuf":
        raise ValueError(
            f"{name}: sample {i} is {kind_of_value(item[0])}; it must be a tensor, an image or "
            "numbers"
        )
    if label.size != 1:
        raise ValueError(f"{name}: the label of sample {i} is {list(label.shape)}, not one number")
    return sample, label.item()


def _plain(part: Any) -> Any:
    """A number as an array without axes; all else as it is."""
    return np.asarray(part) if np.isscalar(part) else part


def told(dataset: Dataset) -> Dataset:
    """Logs the lines on choices that may have been meant otherwise, as `load_dataset` does."""
    reading = dataset.reading or Reading()
    for line in (*reading.warnings, *dataset.doubts):
        _LOGGER.warning(f"{dataset.name}: {line}")
    return dataset
