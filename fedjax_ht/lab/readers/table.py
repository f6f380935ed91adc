"""Builds a data set from a `pyarrow.Table`, whichever file or library it comes from.

The column types determine the samples: numbers, texts, or one column of arrays or images.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute

from fedjax_ht.check.names import listed, short, unknown
from fedjax_ht.check.options import FLOAT
from fedjax_ht.core.inputs import Standardised
from fedjax_ht.data.conversion import as_array, as_groups
from fedjax_ht.data.indices import ClientIndices, Partition
from fedjax_ht.data.meaning import MISSING, spelling
from fedjax_ht.data.reading import LeftOut, Reading
from fedjax_ht.lab.readers.image_arrays import Samples, image_or_stored
from fedjax_ht.lab.readers.images import Pile, decode
from fedjax_ht.lab.readers.roles import (
    Owners,
    Roles,
    leave_out,
    refuse_index,
    refuse_no_classes,
    roles_of,
    set_of,
)
from fedjax_ht.lab.readers.source import Raw, ReadOptions
from fedjax_ht.lab.safe import limits

pc: Any = pyarrow.compute  # its functions are made at import, unknown to type checkers

FILL = "fill in these values, or drop the row or column"
_IMAGES = ("image", "images", "img", "imgs")
"""Lower-case names of image columns; other columns of arrays are judged by their values."""

_NO_NAME = ("", "nan", "<na>")
"""Lower-case cells that mark a class, group, set or client as missing."""

_PADDED = re.compile(r"[+-]?0\d")
"""Digits after a leading zero: often a name, not a number."""


class Table(NamedTuple):
    """A table as read.

    Attributes:
      columns: columns by name; `table_raw` removes each feature, which frees it.
      counts: number of rows of each file or set that was joined.
      place: describes a row, given its index, for messages.
      roles: roles of the columns; None to find them by name.
      owners: sets or clients of the rows, if files are such.
      class_names: class names of each column with numbered labels.
      left_out: columns and files that are not data.
    """

    columns: dict[str, pa.ChunkedArray]
    counts: Sequence[int]
    place: Callable[[int], str] = "row {}".format
    roles: Roles | None = None
    owners: Owners = Owners(None, (), {})
    class_names: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    left_out: tuple[LeftOut, ...] = ()


def table_raw(
    table: Table,
    options: ReadOptions,
    *,
    split: str = "",
    client: str = "",
    numbers_only: bool = False,
) -> Raw:
    """Builds the data set of a table.

    Args:
      table: the table.
      options: the options, with the columns that the user names.
      split: column with train, val or test for each row; "" for none.
      client: column with each row's client, in the set that `split` says; "" for none.
      numbers_only: True if columns of text are spelt-out numbers.

    Raises:
      ValueError: the columns do not fit their roles. One line.
    """
    columns, place = table.columns, table.place
    if not sum(table.counts):
        raise ValueError("it has no rows")
    if split and table.owners.official:
        raise ValueError(
            f"split is {split!r}, but the data are the sets {listed(list(table.owners.official))}; "
            "leave split out, or concatenate the sets"
        )
    rest = _without(list(columns), split=split, client=client)
    roles = table.roles or roles_of(rest, options)
    official, clients = table.owners.official, None
    if split:
        official = _sets(split, codes_of(split, columns[split], place))
    if client:
        clients = _clients(client, codes_of(client, columns[client], place), official)
    groups, group_names = table.owners.groups, table.owners.names
    if roles.group:
        if groups is not None:
            raise ValueError(
                f"every file of the folder is a client, and column {roles.group!r} is named like "
                f"a group; {leave_out(roles.group)}, or merge the files"
            )
        codes = codes_of(roles.group, columns[roles.group], place)
        groups, group_names = _groups(roles.group, codes)
    targets = None
    if options.task == "classification":
        labels, class_names = _labels(table, roles.label)
        refuse_no_classes(f"column {roles.label!r}", labels, class_names)
    else:
        class_names = roles.targets
        targets = _targets(table, class_names, numbers_only)
        labels = np.zeros(len(targets), np.int64)
    if numbers_only:
        spelt = (_spelt_numbers(name, columns.pop(name), table) for name in roles.features)
        samples = _numbers(roles, spelt, table)
    else:
        features = [
            _values(name, columns.pop(name), place, options.image_size) for name in roles.features
        ]
        samples = _samples(roles, features, table)
    # without a header, the columns' names are made up
    label = ", ".join(roles.targets) or roles.label
    known = {"label": label, "features": roles.features} if table.roles is None else {}
    return Raw(
        samples.inputs,
        labels,
        class_names,
        official=official,
        clients=clients,
        groups=groups,
        preprocess=samples.preprocess,
        reading=Reading(
            **known,
            group_names=group_names,
            left_out=table.left_out,
            converted=samples.converted,
            warnings=tuple(
                filter(None, [roles.sentence, *table.owners.warnings, *samples.warnings])
            ),
        ),
        targets=targets,
    )


def _samples(roles: Roles, features: list[Any], table: Table) -> Samples:
    """Returns the samples of number or text columns, or of one column of arrays."""
    kind = _kind(roles.features, features)
    if kind == "arrays":
        name = roles.features[0]
        is_image = True if name.lower() in _IMAGES else None
        return image_or_stored(name, features[0], is_image)
    if kind == "texts":
        numbers = [[float(x) if x.isdecimal() else 0.5 for x in column] for column in features]
        refuse_index(roles, list(map(np.array, numbers)) if len(features) > 1 else ())
        texts = list(map(" ".join, zip(*features)))
        if blank := [row for row, text in enumerate(texts) if not text.strip()][:1]:
            raise ValueError(
                f"{table.place(blank[0])} has no text in {listed(roles.features)}; {FILL}"
            )
        return Samples(texts, None, (), ())
    columns = (features.pop(0) for _ in roles.features)  # frees each as it is copied
    return _numbers(roles, columns, table)


def _numbers(roles: Roles, columns: Iterable[np.ndarray], table: Table) -> Samples:
    """Returns columns of numbers as float32 [N, columns]."""
    inputs, bad = np.empty((sum(table.counts), len(roles.features))), []
    for i, column in enumerate(columns):
        bad += [(row, i) for row in np.flatnonzero(~(np.abs(column) <= FLOAT))[:1].tolist()]
        inputs[:, i] = column
    pa.default_memory_pool().release_unused()  # frees the columns' text before they are copied
    if bad:
        row, i = min(bad)
        raise ValueError(
            f"{table.place(row)} has {inputs[row, i]:g} in column {roles.features[i]!r}; {FILL}"
        )
    refuse_index(roles, list(inputs.T))
    stored = inputs.astype(np.float32)
    return Samples(stored, Standardised(), (), _merged(roles.features, inputs, stored))


def _merged(names: Sequence[str], inputs: np.ndarray, stored: np.ndarray) -> tuple[str, ...]:
    """Returns warnings on columns with different integers that are equal in float32."""
    lines = []
    for name, column, rounded in zip(names, inputs.T, stored.T):
        if (column == rounded).all() or (column != np.floor(column)).any():
            continue
        many, few = len(np.unique(column)), len(np.unique(rounded))
        if few < many:
            lines.append(
                f"column {name!r} has {many} different integers, which are {few} numbers in "
                "float32; subtract an offset, or drop the column"
            )
    return tuple(lines)


def _without(columns: Sequence[str], **owners: str) -> list[str]:
    """Returns the columns except those with a row's set or client."""
    for role, column in owners.items():
        if column and column not in columns:
            known = f"the columns are {listed(columns, most=20)}"
            raise ValueError(unknown(f"{role} column", column, columns, known))
    return [column for column in columns if not column or column not in owners.values()]


def _kind(names: Sequence[str], features: Sequence[Any]) -> str:
    """Returns "numbers", "texts" or "arrays".

    Raises:
      ValueError: columns are of several kinds, or several hold arrays.
    """
    kinds: dict[str, list[str]] = {"arrays": [], "texts": [], "numbers": []}
    for name, x in zip(names, features):
        kind = "texts" if isinstance(x, list) else "arrays" if x.ndim > 1 else "numbers"
        kinds[kind].append(name)
    present = [kind for kind, columns in kinds.items() if columns]
    if len(present) == 1 and (present != ["arrays"] or len(features) == 1):
        return present[0]
    parts = ", ".join(f"{kind} {listed(kinds[kind])}" for kind in present)
    most = max(present, key=lambda kind: len(kinds[kind]))
    example = kinds["arrays"][:1] or kinds[most][:5]
    raise ValueError(
        f"its columns are {parts}; a sample has one kind, and one array: name the feature "
        f"columns, as features={example}, or convert text to numbers"
    )


# Columns


class Codes(NamedTuple):
    """A column of labels, groups, sets or clients.

    Attributes:
      places: index of each row's text, int [N].
      texts: the different texts, in order of appearance.
    """

    places: np.ndarray
    texts: list[str]


def codes_of(name: str, column: pa.ChunkedArray, place: Callable[[int], str]) -> Codes:
    """Numbers the different values of a column, read as text; bytes are UTF-8.

    Raises:
      ValueError: a cell is missing or not UTF-8, or there are more than `limits.CLASSES` different
        ones.
    """
    column = _plain(name, column)
    if pa.types.is_nested(column.type):
        raise ValueError(f"column {name!r} holds {column.type}; name one with one value per row")
    encoded = column.combine_chunks().dictionary_encode()
    texts = [_text(name, value).strip() for value in encoded.dictionary.to_pylist()]
    limits.keep("a column", len(texts), limits.CLASSES, "classes or groups")
    places = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    gaps = [-1, *(i for i, text in enumerate(texts) if spelling(text).lower() in _NO_NAME)]
    missing = np.flatnonzero(np.isin(places, gaps))
    if missing.size:
        raise ValueError(f"{place(int(missing[0]))} has no value in column {name!r}")
    numbers: dict[str, int] = {}  # texts that differ only in outer white space are the same
    merged = np.array([numbers.setdefault(text, len(numbers)) for text in texts])
    return Codes(merged[places], list(numbers))


def _text(name: str, value: Any) -> str:
    """Returns a cell of a column as text.

    Raises:
      ValueError: it is bytes that are not UTF-8. One line.
    """
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ValueError(
            f"column {name!r} has bytes that are not UTF-8, {short(value)}; convert it to text or "
            "integers"
        ) from None


def _plain(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column without extension types, dictionaries and views, which kernels lack."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks])
    if pa.types.is_dictionary(column.type):
        chunks, size = [], 0
        for chunk in column.chunks:
            values = _plain(name, pa.chunked_array([chunk.dictionary])).combine_chunks()
            if pa.types.is_large_string(values.type):  # every row may repeat a long text
                size += pc.sum(pc.binary_length(values).take(chunk.indices)).as_py() or 0
                limits.keep(f"column {name!r}", size, limits.FILE_BYTES)
            chunks.append(values.take(chunk.indices))
        column = pa.chunked_array(chunks)
    if str(column.type) in ("string", "string_view"):
        column = column.cast(pa.large_string())
    return column


def _values(
    name: str, column: pa.ChunkedArray, place: Callable[[int], str], image_size: int | None
) -> np.ndarray | list[str]:
    """Returns a column of features: numbers [N], N texts, or arrays [N, ...].

    Missing numbers are NaN. Images are file contents as Hugging Face keeps them, {"bytes": ...};
    they become uint8 [N, H, W, C], resized to `image_size` if given.

    Raises:
      ValueError: the column holds something else, or images of several sizes. One line.
    """
    column = _plain(name, column)
    kind = column.type
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        return _images(name, column, place, image_size)
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    elif pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return column.to_numpy()
    is_text = pa.types.is_large_string(kind)
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    is_list = is_list or pa.types.is_fixed_size_list(kind)
    if not is_text and not is_list:
        held = "no values" if pa.types.is_null(kind) else str(kind)
        raise ValueError(
            f"column {name!r} has {held}; convert it to numbers or text, or drop the column"
        )
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy())[0])
        raise ValueError(f"{place(row)} has no value in column {name!r}; {FILL}")
    return column.to_pylist() if is_text else _arrays(name, column)


def _arrays(name: str, column: pa.ChunkedArray) -> np.ndarray:
    """Returns lists of equal length, possibly nested, as an array [N, ...]."""
    flat, sides = column.combine_chunks(), []
    if isinstance(flat, pa.ChunkedArray):
        flat = pa.concat_arrays(flat.chunks)
    while pa.types.is_nested(flat.type):
        lengths = pc.unique(pc.list_value_length(flat)).to_pylist()
        if len(lengths) != 1 or flat.null_count:
            raise ValueError(
                f"column {name!r} has arrays of several lengths; all samples need one shape"
            )
        sides.append(lengths[0])
        flat = flat.flatten()
    x = flat.to_numpy(zero_copy_only=False)
    if x.dtype.kind not in "iuf":
        raise ValueError(f"column {name!r} has lists of {flat.type}; convert them to numbers")
    return x.reshape(len(column), *sides)


def _images(
    name: str, column: pa.ChunkedArray, place: Callable[[int], str], size: int | None
) -> np.ndarray:
    images: list[np.ndarray] = []
    for row, image in enumerate(column):
        content = image.as_py() and image.as_py()["bytes"]
        if content is None:
            raise ValueError(f"{place(row)} has no image in column {name!r}; drop the row")
        images.append(decode(f"of {place(row)} in column {name!r}", content, size, as_shown=True))
    return Pile(enumerate(images), None).stack(range(len(images)))


def _spelt_numbers(name: str, column: pa.ChunkedArray, table: Table) -> np.ndarray:
    """Parses spelt-out numbers, float64 [N].

    Raises:
      ValueError: a cell is not a number. The message names it.
    """
    column = pc.utf8_trim_whitespace(column)
    try:
        return column.cast(pa.float64()).to_numpy()
    except pa.ArrowInvalid:
        pass
    numbers = []  # Arrow reads fewer spellings than Python, "+1" and "Infinity" among them
    for row, cell in enumerate(column.to_pylist()):
        try:
            numbers.append(float(cell))
            # Python reads 1_000 and digits of every script, which no other program writes
            is_number = "_" not in cell and cell.isascii()
        except ValueError:
            is_number = False
        if is_number:
            continue
        if spelling(cell).lower() in MISSING:
            raise ValueError(f"{table.place(row)} has no value in column {name!r}; {FILL}")
        raise ValueError(
            f"column {name!r} has text, {short(cell)} in {table.place(row)}; convert it to "
            "numbers, or drop the column"
        )
    return np.array(numbers)


def arrow_column(name: str, values: Any) -> pa.Array | pa.ChunkedArray:
    """Converts a column of a frame, or of another object in memory, for Arrow.

    Raises:
      ValueError: its values have several types, or are arrays of several shapes. One line.
    """
    if np.ma.isMaskedArray(values):
        values = as_array(f"column {name!r}", values)
    first = next((value for value in values if value is not None), None)
    if first is not None and np.ndim(first) > 0 and not isinstance(first, str | bytes | Mapping):
        arrays = [as_array(f"row {i} of column {name!r}", value) for i, value in enumerate(values)]
        x = as_array(f"column {name!r}", arrays)
        flat = pa.array(x.reshape(-1))
        for side in reversed(x.shape[1:]):
            flat = pa.FixedSizeListArray.from_arrays(flat, side)
        return flat
    try:
        return pa.array(values, from_pandas=True)
    except OverflowError:
        raise ValueError(
            f"column {name!r} has integers beyond 64 bits; convert it to text, or drop the column"
        ) from None
    except pa.ArrowException:
        kinds = sorted({type(value).__name__ for value in values if value is not None})
        raise ValueError(
            f"column {name!r} has {' and '.join(kinds)}; convert it to numbers or text, or drop "
            "the column"
        ) from None


# Labels, groups, sets and clients


def _labels(table: Table, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns the rows' classes and the class names; numbered classes keep their order."""
    column = table.columns[name]
    if name not in table.class_names:
        labels, names = _numbered(name, codes_of(name, column, table.place))
        return labels, tuple(map(str, names))
    names, labels = table.class_names[name], column.to_numpy()
    bad = np.flatnonzero(~((labels >= 0) & (labels < len(names))))
    if bad.size:
        raise ValueError(
            f"column {name!r} has {labels[bad[0]]} in {table.place(int(bad[0]))}, which is not one "
            f"of its {len(names)} classes, as in samples without a label; drop these rows"
        )
    return labels.astype(np.int64), names


def _targets(table: Table, names: Sequence[str], are_spelt: bool) -> np.ndarray:
    """Returns the target columns, float64 [N, columns].

    Raises:
      ValueError: a column does not hold numbers, or a value is missing or infinite. One line.
    """
    targets = np.empty((sum(table.counts), len(names)))
    for i, name in enumerate(names):
        column = table.columns[name]
        if are_spelt:
            values = _spelt_numbers(name, column, table)
        else:
            values = _values(name, column, table.place, None)
        if not isinstance(values, np.ndarray) or values.ndim > 1:
            raise ValueError(f"target {name!r} has no numbers; name another column, or convert it")
        targets[:, i] = values
        bad = np.flatnonzero(~np.isfinite(targets[:, i]))
        if bad.size:
            place = table.place(int(bad[0]))
            raise ValueError(f"{place} has {values[bad[0]]:g} in target {name!r}; drop these rows")
    return targets


def _numbered(name: str, codes: Codes) -> tuple[np.ndarray, list[Any]]:
    """Returns each row's index among a column's sorted values, int [N], and these values.

    Values are whole numbers if all are, without leading zeros; otherwise they are texts.

    Raises:
      ValueError: the values are numbers, but not whole.
    """
    values: list[Any] = _whole_numbers(name, codes.texts) or codes.texts
    ordered = sorted(set(values))
    number = dict(zip(ordered, range(len(ordered))))
    return np.array([number[value] for value in values])[codes.places], ordered


def _whole_numbers(name: str, texts: Sequence[str]) -> list[int] | None:
    """Returns texts as whole numbers, such as "3" or "3.0"; None if a text is no number.

    Raises:
      ValueError: all are numbers, but some are not whole.
    """
    if any("_" in text or not text.isascii() or _PADDED.match(text) for text in texts):
        return None  # 007 is a name, and differs from 7
    try:
        return [int(text) for text in texts]
    except ValueError:
        pass
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        return None
    for number in numbers:
        if not number.is_integer():
            raise ValueError(
                f"column {name!r} has {number}; classes and groups are integers or strings, and "
                "numeric targets need dataset.task=regression (from Python task='regression')"
            )
    return [int(number) for number in numbers]


def _groups(name: str, codes: Codes) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns each row's group, int32 [N], and the names of groups that are not numbers."""
    places, values = _numbered(name, codes)
    if isinstance(values[0], int):
        return as_groups(name, np.array(values)[places]), ()
    return as_groups(name, places), tuple(map(str, values))


def _sets(name: str, codes: Codes) -> dict[str, np.ndarray]:
    """Returns the rows of each set, from a column that names it."""
    sets = np.array([set_of(text) for text in codes.texts])[codes.places]
    unnamed = np.flatnonzero(sets == "")
    if unnamed.size:
        row = int(unnamed[0])
        raise ValueError(
            f"column {name!r} has {short(codes.texts[codes.places[row]])} in row {row}; every row "
            "must be train, val or test"
        )
    return {str(of_set): np.flatnonzero(sets == of_set) for of_set in dict.fromkeys(sets.tolist())}


def _clients(name: str, codes: Codes, official: Mapping[str, np.ndarray]) -> Partition:
    """Returns the split over clients, in the order of their numbers or names."""
    if not official:
        raise ValueError(
            f"client is {name!r}, but no rows are called train or test: name that column with "
            f"split='SPLIT', or deal each client's rows by group={name!r} and "
            "partition='natural'"
        )
    owners, values = _numbered(name, codes)
    clients = []
    for client in range(len(values)):
        rows, held = np.flatnonzero(owners == client), {}
        for part in ("train", "val", "test"):
            held[part] = np.intersect1d(rows, official.get(part, np.array([], int)))
        clients.append(ClientIndices(**held))
    return tuple(clients)
