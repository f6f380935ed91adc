"""Data sets from objects of other libraries: data frames, PyTorch and Hugging Face data sets.

Objects are read through the few methods of their kind; only `from_disk` imports such a library.
"""

import json
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fedjax_ht.check.names import kind_of_value, listed
from fedjax_ht.check.packages import needing
from fedjax_ht.core.inputs import channels_first, looks_like_image
from fedjax_ht.data.conversion import as_array, as_labels
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers.image_arrays import image_or_stored
from fedjax_ht.lab.readers.roles import Owners, refuse_same_names, sets_of
from fedjax_ht.lab.readers.source import (
    Raw,
    ReadOptions,
    Source,
    dataset_of,
    logged,
    one_after_another,
    read_options,
)
from fedjax_ht.lab.readers.table import Table, arrow_column, table_raw
from fedjax_ht.lab.safe.bounded import Origin, files_below, in_one_line, open_regular, read_whole
from fedjax_ht.lab.safe.limits import TEXT_BYTES, numbered_classes

_UNNAMED = (
    "convert images to uint8 with 1 or 3 channels, and pass other samples as fl.Dataset(name, "
    "x.astype(np.float32), labels, preprocess=fl.AsStored())"
)
_READ_AGAIN = 50  # PyTorch items that are read twice: a random transform may leave some unchanged


def from_frame(
    frame: Any, *, split: str | None, client: str | None, name: str, **options: Any
) -> Dataset:
    """Returns the data set of a frame; see `Dataset.from_pandas`."""
    chosen = read_options(**options)
    raw = table_raw(_frame_table(frame), chosen, split=split or "", client=client or "")
    return logged(dataset_of(name, raw, chosen))


def _frame_table(frame: Any) -> Table:
    if hasattr(frame, "__arrow_c_stream__") and not hasattr(frame, "iloc"):
        data = pa.table(frame)
        names = data.column_names
    else:  # pandas: Arrow takes its object columns one by one
        if not all(hasattr(frame, name) for name in ("columns", "__getitem__", "__len__")):
            raise ValueError(
                f"the frame is {kind_of_value(frame)}; it must be a pandas.DataFrame, or another "
                "frame that Arrow reads; collect a lazy frame with frame.collect()"
            )
        data, names = None, list(map(str, frame.columns))
    refuse_same_names(names)
    if data is None:
        data = pa.table({str(c): arrow_column(str(c), frame[c]) for c in frame.columns})
    return Table(dict(zip(data.column_names, data.columns)), counts=[len(data)])


def from_hugging_face(
    dataset: Any, *, split: str | None, client: str | None, name: str | None, **options: Any
) -> Dataset:
    """Returns the data set of a Hugging Face data set or folder; see `Dataset.from_hf`."""
    chosen, path = read_options(**options), ""
    if isinstance(dataset, str | os.PathLike):
        path = os.fspath(dataset)
        dataset = from_disk(path)
    table = hugging_face_table(dataset, own_files=not path)
    raw = table_raw(table, chosen, split=split or "", client=client or "").read_from(path)
    return logged(dataset_of(name or (f"hf:{path}" if path else "hf"), raw, chosen))


def from_torch(dataset: Any, class_names: Sequence[str] | None, groups: Any, name: str) -> Dataset:
    """Returns the data set of map-style PyTorch data sets of pairs; see `Dataset.from_torch`."""
    sets, names_of_sets = {name: dataset}, []
    if isinstance(dataset, Mapping):
        called = _called(dataset)
        names_of_sets = [called[str(key)] for key in dataset]
        sets = {f"{name}[{key!r}]": part for key, part in dataset.items()}
    pairs = {key: _pairs(key, part) for key, part in sets.items()}
    official = one_after_another(zip(names_of_sets, map(len, pairs.values())))
    every = [pair for part in pairs.values() for pair in part]
    forms = sorted({str(sample.dtype) for sample, _ in every if sample.ndim})
    if len({np.dtype(form).kind for form in forms}) > 1:
        raise ValueError(
            f"{name}: samples are {' and '.join(forms)}, which may have different scales; give all "
            "samples the same type"
        )
    shapes = sorted({sample.shape for sample, _ in every})
    if len(shapes) > 1:
        raise ValueError(
            f"{name}: samples are of {len(shapes)} shapes, such as {list(shapes[0])} and "
            f"{list(shapes[-1])}; give all the same, for images by a Resize in the transform"
        )
    labels = as_labels(name, [label for _, label in every])
    x = as_array(f"{name}: samples", [sample for sample, _ in every])
    names = _classes(name, sets.values()) if class_names is None else class_names
    if not len(names):
        names = numbered_classes(int(labels.max()) + 1)
    if x.ndim == 1:
        x = x[:, None]  # one number per sample
    samples = image_or_stored(f"{name}: x", x, remedy=_UNNAMED)
    inputs, converted = samples.inputs, samples.converted
    is_image = inputs.ndim == 4 and looks_like_image(inputs.shape[2:])
    if is_image and channels_first(inputs.shape):  # normalised or resized images
        inputs, converted = inputs.transpose(0, 2, 3, 1), ("images turned to channels last",)
    raw = Raw(
        np.ascontiguousarray(inputs),
        labels,
        tuple(map(str, names)),
        official=official,
        groups=groups,
        preprocess=samples.preprocess,
        reading=Reading(converted=converted),  # no warning: a tensor has no name to change
    )
    return logged(dataset_of(name, raw, ReadOptions()))


def _pairs(name: str, dataset: Any) -> list[tuple[np.ndarray, Any]]:
    """Reads all items of a data set, and some of them twice to detect random transforms."""
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ValueError(
            f"{name} is {kind_of_value(dataset)}; it must have a length and samples by index, like "
            "a map-style torch.utils.data.Dataset"
        )
    count = len(dataset)
    pairs = [_pair(name, i, dataset) for i in range(count)]
    if not pairs:
        raise ValueError(f"{name} has no samples")
    for i in np.unique(np.linspace(0, count - 1, _READ_AGAIN, dtype=int)).tolist():
        first, again = (
            [np.asarray(part).tobytes() for part in pair]
            for pair in (pairs[i], _pair(name, i, dataset))
        )
        if first != again:
            raise ValueError(
                f"{name}: sample {i} differs when read again, as with a random transform; "
                "remove it, since samples are read once (training.augmentation augments during "
                "training)"
            )
    return pairs


def _classes(name: str, sets: Iterable[Any]) -> Sequence[str]:
    """Returns the classes of data sets, or of all parts of a `ConcatDataset`; () if unknown.

    Raises:
      ValueError: parts have different classes, or a different order of them. One line.
    """
    parts: list[Any] = []
    for dataset in sets:
        joined = getattr(dataset, "datasets", None)
        parts += joined if isinstance(joined, list) else [dataset]
    each = [tuple(map(str, getattr(part, "classes", None) or ())) for part in parts]
    known = sorted(set(filter(None, each)))
    if len(known) > 1:
        raise ValueError(
            f"{name}: its parts have different classes, or order them differently "
            f"({'; '.join(map(listed, known))}); number the labels of all the same way"
        )
    return known[0] if known and () not in each else ()


def _pair(name: str, i: int, dataset: Any) -> tuple[np.ndarray, Any]:
    """Returns a sample as an array, and its label as a number."""
    with in_one_line(f"{name}: item {i} cannot be read"):
        item = dataset[i]
    if not isinstance(item, Sequence) or isinstance(item, str) or len(item) != 2:
        raise ValueError(
            f"{name}: item {i} is {kind_of_value(item)}; it must be a pair, (sample, label)"
        )
    kinds = ("sample", "label")
    sample, label = (
        as_array(f"{name}: the {kind} of item {i}", _plain(x)) for kind, x in zip(kinds, item)
    )
    if sample.dtype.kind not in "biuf":
        raise ValueError(
            f"{name}: sample {i} is {kind_of_value(item[0])}; it must be a tensor, an image or "
            "numbers"
        )
    if label.size != 1:
        raise ValueError(f"{name}: the label of sample {i} is {list(label.shape)}, not one number")
    return sample, label.item()


def _plain(part: Any) -> Any:
    """Returns a number as an array without axes, anything else unchanged."""
    return np.asarray(part) if np.isscalar(part) else part


_ORIGIN = Origin(
    "a folder that save_to_disk of Hugging Face's datasets wrote",
    "name the columns as hf:PATH:LABEL or hf:PATH:LABEL:GROUP if they are not called label and "
    "group",
)


def read_hf(place: Path, options: ReadOptions) -> Raw:
    """Reads a folder written by save_to_disk.

    Splits of a DatasetDict are official sets. `table.table_raw` finds the roles of the columns, and
    whether samples are numbers, texts or images.

    Raises:
      FileNotFoundError: save_to_disk did not write the folder.
      ValueError: an unsafe file, see `refuse_foreign`, or columns that do not fit their roles.
      ImportError: `datasets` is not installed. One line.
    """
    return table_raw(hugging_face_table(from_disk(place)), options)


def from_disk(place: str | os.PathLike) -> Any:
    """Loads a data set, or a dict of data sets, from a folder.

    Raises:
      FileNotFoundError: save_to_disk did not write the folder.
      ImportError: `datasets` is not installed. One line.
      ValueError: a file is unsafe, see `refuse_foreign`.
    """
    with needing("reading a folder of Hugging Face's save_to_disk"):
        from datasets import load_from_disk
    refuse_foreign(Path(place))
    return load_from_disk(os.fspath(place))


def refuse_foreign(folder: Path) -> None:
    """Rejects a save_to_disk folder with files that `datasets` must not open.

    Raises:
      ValueError: a file is compressed or not a regular file (such as a pipe), or a list names a
        file outside the folder.
    """
    for file in files_below(folder):
        open_regular(file).close()
        if file.suffix == ".arrow" and _is_compressed(file):
            raise ValueError(f"{file} is compressed, which save_to_disk does not write")
        if file.name not in ("state.json", "dataset_dict.json"):
            continue
        try:
            fields = json.loads(read_whole(file, TEXT_BYTES))
            names = fields["splits"] if "splits" in fields else fields["_data_files"]
            names = [name if isinstance(name, str) else name["filename"] for name in names]
            are_own = all(name and Path(name).name == name != ".." for name in names)
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ValueError(f"{file} lists no files of data") from None
        if not are_own:
            raise ValueError(f"{file} names data outside its folder")


def _is_compressed(file: Path) -> bool:
    """Returns whether an Arrow stream is compressed: pyarrow would expand it without limit."""
    with pa.memory_map(os.fspath(file)) as source:
        for message in pa.ipc.MessageReader.open_stream(source):
            if message.type != "schema":
                metadata = message.metadata.to_pybytes()
                batch = _field(metadata, *struct.unpack_from("<I", metadata), 2)
                if message.type == "dictionary":
                    batch = _field(metadata, batch, 1)
                if _field(metadata, batch, 3):  # RecordBatch.compression
                    return True
    return False


def _field(content: bytes, table: int, number: int) -> int:
    """Returns the offset of the table in a field of a flatbuffer's table; 0 without the field."""
    offsets = table - struct.unpack_from("<i", content, table)[0]
    place = 4 + 2 * number
    if place >= struct.unpack_from("<H", content, offsets)[0]:
        return 0
    (offset,) = struct.unpack_from("<H", content, offsets + place)
    return offset and table + offset + struct.unpack_from("<I", content, table + offset)[0]


def hugging_face_table(dataset: Any, own_files: bool = False) -> Table:
    """Returns the table of a `datasets.Dataset`, or of a dict of them by set name.

    Args:
      dataset: the data set or the dict.
      own_files: True to read image files by their paths, for a user's own data set.
    """
    sets = dict(dataset) if isinstance(dataset, Mapping) else {"": dataset}
    for part in sets.values():
        if not all(hasattr(part, name) for name in ("column_names", "features", "__len__")):
            raise ValueError(
                f"it is {kind_of_value(part)}; it must be a datasets.Dataset with a length, a "
                "DatasetDict of them, or the folder that save_to_disk wrote"
            )
    official, class_names = _official(sets), {}
    columns = next(iter(sets.values())).column_names
    for column in columns:
        each = {
            tuple(getattr(part.features[column], "names", None) or ()) for part in sets.values()
        }
        if len(each) > 1:
            raise ValueError(
                f"column {column!r} has different classes, or a different order, in some of the "
                "sets; give all sets the same ClassLabel"
            )
        if names := each.pop():
            class_names[column] = names
    tables = [_arrow(part, columns, own_files) for part in sets.values()]
    with in_one_line("its sets differ in the types of their columns"):
        data = pa.concat_tables(tables, promote_options="permissive")
    counts = [len(part) for part in sets.values()]
    columns = dict(zip(data.column_names, data.columns))
    return Table(columns, counts, owners=Owners(None, (), official), class_names=class_names)


def _arrow(part: Any, columns: Sequence[str], own_files: bool) -> pa.Table:
    """Returns the table of a set; images are the contents of their files."""
    if not hasattr(part, "with_format"):  # an object with the columns of a datasets.Dataset
        return pa.table({name: _column(part, name) for name in columns})
    if part.format["type"] == "custom":
        raise ValueError(
            "it has its own transform (set_transform), which is not applied; map() its rows, "
            "or remove it with reset_format()"
        )
    # a list of Python objects would take fifty times as long
    data = part.with_format("arrow")[:].select(columns)
    for i, field in enumerate(data.schema):
        if own_files and pa.types.is_struct(field.type) and field.type.get_field_index("path") >= 0:
            images = []
            for image in data[i].to_pylist():
                if image and image["bytes"] is None and image["path"]:
                    image = {"bytes": bytes(read_whole(image["path"]))}
                images.append(image and {"bytes": image["bytes"]})
            data = data.set_column(i, field.name, pa.array(images))
    return data


def _column(part: Any, name: str) -> pa.Array | pa.ChunkedArray:
    """Returns a column of an object, after checking that a second read is equal."""
    try:
        first, again = (arrow_column(name, part[name]) for _ in range(2))
    except (LookupError, TypeError, OSError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"column {name!r} cannot be read ({reason})") from error
    if not first.equals(again) and str(first.to_pylist()) != str(again.to_pylist()):  # NaN is NaN
        raise ValueError(
            f"column {name!r} differs when read again, as with a random transform; remove it, "
            "since samples are read once"
        )
    return first


def _called(sets: Mapping[str, Any]) -> dict[str, str]:
    """Maps the name of each set to train, val or test."""
    called = sets_of(map(str, sets))
    if other := [str(key) for key in sets if key not in called]:
        raise ValueError(
            f"its sets are {listed(list(map(str, sets)))}; {listed(other)} is not "
            "named like train, val or test; give a dict of those that are"
        )
    return called


def _official(sets: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the rows of each set in the joined table; {} for data without sets."""
    if list(sets) == [""]:
        return {}
    called = _called(sets)
    columns = {key: set(part.column_names) for key, part in sets.items()}
    different = set.union(*columns.values()) - set.intersection(*columns.values())
    if different:
        raise ValueError(f"its sets have different columns: {listed(sorted(different))}")
    return one_after_another((called[key], len(part)) for key, part in sets.items())


HF = Source(
    name="hf:PATH",
    about="it is your own folder, written by save_to_disk; nothing to download",
    read=read_hf,
    origins=(_ORIGIN,),
    has_columns=True,
)
