"""Data sets from objects of other libraries: frames, data sets of PyTorch and of Hugging Face.

None of these libraries is imported here: an object is read by the few methods that its kind has.
"""

import logging
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fedjax_ht.check.names import kind_of_value, listed
from fedjax_ht.data.conversion import as_array
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.labels import as_labels
from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers.hf import from_disk, hugging_face_table
from fedjax_ht.lab.readers.image_arrays import image_or_stored
from fedjax_ht.lab.readers.raw import Raw, ReadOptions, dataset_of, read_options
from fedjax_ht.lab.readers.table import Table, arrow_column, table_raw
from fedjax_ht.lab.safe.limits import numbered_classes

_LOGGER = logging.getLogger(__name__)


def from_frame(
    frame: Any, *, split: str | None, client: str | None, name: str, **options: Any
) -> Dataset:
    """Returns the set of a frame; see `Dataset.from_pandas`."""
    chosen = read_options(**options)
    raw = table_raw(_frame_table(frame), chosen, split=split or "", client=client or "")
    return _told(name, raw, chosen)


def _frame_table(frame: Any) -> Table:
    if hasattr(frame, "__arrow_c_stream__") and not hasattr(frame, "iloc"):
        data = pa.table(frame)
        names = data.column_names
    else:  # pandas, whose columns of objects Arrow takes one by one
        if not hasattr(frame, "columns") or not hasattr(frame, "__getitem__"):
            raise ValueError(
                f"the frame is {kind_of_value(frame)}; it must be a pandas.DataFrame, or another "
                "frame that Arrow reads"
            )
        data, names = None, list(map(str, frame.columns))
    if len(set(names)) < len(names):
        raise ValueError(f"its columns are {listed(names)}; each needs its own name")
    if data is None:
        data = pa.table({str(c): arrow_column(str(c), frame[c]) for c in frame.columns})
    return Table(data, counts=[len(data)])


def from_hugging_face(
    dataset: Any, *, split: str | None, client: str | None, name: str | None, **options: Any
) -> Dataset:
    """Returns the set of a data set of Hugging Face, or of a folder; see `Dataset.from_hf`."""
    chosen, path = read_options(**options), ""
    if isinstance(dataset, str | os.PathLike):
        path = os.fspath(dataset)
        dataset = from_disk(path)
    table = hugging_face_table(dataset, own_files=not path)._replace(path=path)
    raw = table_raw(table, chosen, split=split or "", client=client or "")
    return _told(name or (f"hf:{path}" if path else "hf"), raw, chosen)


def from_torch(dataset: Any, class_names: Sequence[str] | None, name: str) -> Dataset:
    """Returns the set of a map-style data set of pairs; see `Dataset.from_torch`."""
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ValueError(
            f"{name} is {kind_of_value(dataset)}; it must have a length and samples by index, as a "
            "map-style torch.utils.data.Dataset"
        )
    count = len(dataset)
    pairs = [_pair(name, i, dataset) for i in range(count)]
    if not pairs:
        raise ValueError(f"{name} has no samples")
    again = _pair(name, 0, dataset)[0]
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
    samples = image_or_stored("x", x)
    raw = Raw(
        np.ascontiguousarray(samples.inputs),
        labels,
        tuple(map(str, names)),
        preprocess=samples.preprocess,
        reading=Reading(converted=samples.converted, warnings=samples.warnings),
    )
    return _told(name, raw, ReadOptions())


def _pair(name: str, i: int, dataset: Any) -> tuple[np.ndarray, Any]:
    """The arrays of a sample and of its label."""
    try:
        item = dataset[i]
    except Exception as error:  # of a user's own code
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"{name}: item {i} cannot be read ({reason})") from error
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


def _told(name: str, raw: Raw, options: ReadOptions) -> Dataset:
    """Makes the data set, and logs its warnings as `load_dataset` does."""
    dataset = dataset_of(name, raw, options)
    for line in (*raw.reading.warnings, *dataset.doubts):
        _LOGGER.warning(f"{dataset.name}: {line}")
    return dataset
