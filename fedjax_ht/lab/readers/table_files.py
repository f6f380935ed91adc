"""Reads tables and texts from .csv and .tsv files, folders of them, and .parquet files.

In .csv and .tsv every cell is read as text: guessed types would turn 007 into 7, and blanks into
missing values.
"""

import codecs
import csv
import io
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
from pyarrow import parquet

from fedjax_ht.check.names import listed, short
from fedjax_ht.data.reading import LeftOut
from fedjax_ht.lab.readers.roles import (
    Roles,
    files_of,
    label_candidates,
    owners_of,
    refuse_same_names,
)
from fedjax_ht.lab.readers.source import Raw, ReadOptions, Source
from fedjax_ht.lab.readers.table import Table, table_raw
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.bounded import Origin, open_regular, read_whole

pc: Any = pyarrow.compute  # its functions are made at import, unknown to type checkers

_HEAD = 1 << 16  # bytes searched for the header, in which separators are counted
_BLOCK = 1 << 22  # bytes parsed at once; a row lies in one or two blocks
_ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
_TABLE = Origin(
    "a header, labels and columns of numbers",
    "as csv:PATH:LABEL:GROUP or csv:PATH:LABEL",
)
_TEXT = Origin(
    "a CSV file in UTF-8, rows of a class and one or more columns of text, or a header that names "
    "the columns",
    "name the label as text:PATH:LABEL if it is not called label",
)
_TEXTS = ("text", "texts", "title", "description", "sentence", "review", "content", "body")
_TEXTS += ("message",)
"""Lower-case column names that mark a line as a header."""
_WORD = re.compile(r"[^\W\d][\w.-]*")  # a word that may name a column


def read_csv(place: Path, options: ReadOptions) -> Raw:
    """Reads a table of numbers.

    It is a .csv, .tsv or either with .gz, or a folder of them with the same columns. In a folder,
    each file is a client whose rows are a group, or an official set, see `roles.owners_of`. GROUP
    is the column that identifies the owner of each row. Columns that are not named are found by
    `roles.LABELS` and `roles.GROUPS`. All other columns are the samples, stored as float32; models
    see them standardised by the training samples. Classes are named by the sorted labels, by value
    if all are whole numbers without leading zeros. So are groups, which keep their numbers if they
    have some.

    Raises:
      ValueError: a column does not exist, a value is missing, a column holds text, or a column
        numbers the rows. The message says which.
    """
    return table_raw(_joined(place, options), options, numbers_only=True)


def read_text(place: Path, options: ReadOptions) -> Raw:
    """Reads the same files as `read_csv`, but the samples are texts.

    Without a header, the class is the first column, and the others are the text. The vocabulary is
    that of all texts, or of the training set if files are sets.

    Raises:
      ValueError: the columns do not fit their roles, or the file is damaged. One line.
    """
    return _texts(_joined(place, options), options)


def _texts(table: Table, options: ReadOptions) -> Raw:
    limits.keep("the set", sum(table.counts), limits.TEXTS, "texts")
    raw = table_raw(table, options)
    if table.roles is not None:
        _refuse_head(raw, len(table.roles.features))
    return raw


def _refuse_head(raw: Raw, columns: int) -> None:
    """Rejects a file whose first line is the only one of its class and may be a header.

    Args:
      raw: the samples, as texts.
      columns: number of text columns.

    Raises:
      ValueError: it is, and every other class has several samples, or each cell is one word.
    """
    counts = np.bincount(raw.labels, minlength=len(raw.class_names))
    if len(raw.labels) < 4 or counts[raw.labels[0]] > 1:
        return
    name = raw.class_names[raw.labels[0]]
    cells = [name, *raw.inputs[0].split()]
    are_words = len(cells) == 1 + columns and all(map(_WORD.fullmatch, cells))
    if are_words or np.count_nonzero(counts == 1) == 1:
        raise ValueError(
            f"class {name!r} has one sample, in line 1, which looks like a header; name the label "
            "column, as text:PATH:LABEL, or remove that line"
        )


def table_with_head(file: Path) -> pa.Table:
    """Returns the cells of a file as text, with columns named by its first line.

    Raises:
      ValueError: too large or damaged, or column names are not unique.
    """
    return _named(_cells(file, are_texts=False))


def _named(data: pa.Table) -> pa.Table:
    """Uses the first row of a table as column names."""
    names = [column[0].as_py().strip() for column in data.columns]
    refuse_same_names(names)
    if len(data) == 1:
        raise ValueError("it has no rows")
    return data.slice(1).rename_columns(names)


def _joined(place: Path, options: ReadOptions) -> Table:
    files, left_out = files_of(place, _ENDINGS)
    return _table_of(files, options)._replace(left_out=left_out)


def _table_of(files: Sequence[Path], options: ReadOptions) -> Table:
    """Joins the rows of all files, which have the same columns in any order."""
    tables: list[pa.Table] = []
    are_texts, has_head = not options.name.startswith("csv:"), False
    for file in files:
        try:
            data = _cells(file, are_texts)
            has_head = not are_texts or _has_head(data, options)
            data = _named(data) if has_head else data
        except (ValueError, csv.Error) as error:
            raise error if len(files) == 1 else ValueError(f"{file.name}: {error}") from None
        tables.append(data)
        _refuse_other_columns(file, data.column_names, files[0], tables[0].column_names)
    counts = [len(data) for data in tables]

    def place(row: int) -> str:
        number = int(np.searchsorted(np.cumsum(counts), row, "right"))
        # read the file again, since only errors need the line
        lines = (line for line, _ in _text(files[number], are_texts).rows())
        line = next(itertools.islice(lines, row - sum(counts[:number]) + has_head, None))
        return f"line {line}" if len(files) == 1 else f"{files[number].name}, line {line}"

    names = tables[0].column_names
    data = pa.concat_tables(data.select(names) for data in tables)
    return Table(
        dict(zip(names, data.columns)),
        counts,
        place=place,
        # without column names, the first column is the class
        roles=None if has_head else Roles(names[0], tuple(names[1:]), "", False, ""),
        owners=owners_of(files, counts),
    )


def _refuse_other_columns(
    file: Path, columns: Sequence[str], first: Path, of_first: Sequence[str]
) -> None:
    """Rejects a file of a folder whose columns differ from those of the first file."""
    if set(columns) != set(of_first):
        different = sorted(set(columns) ^ set(of_first))
        raise ValueError(
            f"{file.name} has other columns than {first.name}: only one of them has "
            f"{listed(different)}; all files of a folder need the same columns"
        )


def _has_head(data: pa.Table, options: ReadOptions) -> bool:
    """Returns whether the first row names the columns.

    It does if the user names a column, or if it holds a usual name of labels or texts and no such
    name recurs in its column.
    """
    if options.label or options.features or options.group:
        return True
    first = [column[0].as_py().strip() for column in data.columns] if len(data) else []
    usual = {*map(str.lower, label_candidates(first)), *_TEXTS}
    places = [i for i, cell in enumerate(first) if cell.lower() in usual]
    again = [pc.index(pc.utf8_trim_whitespace(data[i].slice(1)), first[i]).as_py() for i in places]
    return bool(places) and max(again) < 0


# Cells


class _Text(NamedTuple):
    """UTF-8 content of a file, and the separator of its cells."""

    content: bytes
    mark: str

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yields (line, cells) of each row, as Python's strict reader finds them."""
        # io.StringIO would take four bytes per character
        lines = io.TextIOWrapper(io.BytesIO(self.content), "utf-8", newline="")
        reader = csv.reader(lines, delimiter=self.mark, strict=True)
        for cells in reader:
            if cells:  # skips empty lines
                yield reader.line_num, cells


def _text(file: Path, are_texts: bool) -> _Text:
    content = bytes(read_whole(file, limits.TEXTS_BYTES if are_texts else limits.FILE_BYTES))
    if content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        content = content.decode("utf-16").encode()
    content = content.removeprefix(codecs.BOM_UTF8)
    if are_texts:
        return _Text(content, "\t" if ".tsv" in file.suffixes else ",")
    head = (content[:_HEAD].lstrip(b"\r\n").splitlines() or [b""])[0].decode(errors="replace")
    return _Text(content, max(",;\t", key=head.count))


def _cells(file: Path, are_texts: bool) -> pa.Table:
    """Returns a file's cells as text, in columns "1", "2", ...; the first row may be a header.

    Raises:
      ValueError: too large, a row has more or fewer cells than the first, or a quote is not closed.
    """
    text = _text(file, are_texts)
    names = [str(i + 1) for i in range(len(next(text.rows(), (0, []))[1]))]
    if are_texts and len(names) == 1:
        raise ValueError("line 1 has 1 column, not a class and texts")
    if not names:
        raise ValueError("it has no rows")
    limits.keep("the table", len(names), limits.TABLE_COLUMNS, "columns")
    # each separator may mean a cell of at least four bytes; those in quotes do not
    marks = text.content.count(text.mark.encode()) + text.content.count(b"\n")
    limits.keep("the table", marks // 2, limits.TABLE_CELLS, "cells")
    # Arrow silently joins rows if a quote is not closed
    rows = _checked_rows(text, len(names)) if b'"' in text.content else None
    try:
        table = pyarrow.csv.read_csv(
            pa.BufferReader(text.content),
            pyarrow.csv.ReadOptions(use_threads=False, column_names=names, block_size=_BLOCK),
            pyarrow.csv.ParseOptions(delimiter=text.mark, newlines_in_values=rows is not None),
            pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid as error:
        _checked_rows(text, len(names))
        raise ValueError(str(error).partition("\n")[0]) from error
    if rows not in (None, len(table)):
        raise ValueError(f"its quotes can be read as {rows} rows and as {len(table)}")
    limits.keep("the table", len(table) - 1, limits.TABLE_ROWS, "rows")
    limits.keep("the table", (len(table) - 1) * len(names), limits.TABLE_CELLS, "cells")
    return table


def _checked_rows(text: _Text, columns: int) -> int:
    """Returns the number of rows, after checking that each has `columns` cells."""
    count = 0
    for line, cells in text.rows():
        count += 1
        if len(cells) != columns:
            raise ValueError(f"line {line} has {len(cells)} cells for {columns} columns")
    return count


CSV = Source(
    name="csv:PATH",
    about="it is your own table, or a folder of them; nothing to download",
    read=read_csv,
    origins=(_TABLE,),
    has_columns=True,
)
TEXT = Source(
    name="text:PATH",
    about="it is your own file, or a folder of them; nothing to download",
    read=read_text,
    origins=(_TEXT,),
    has_columns=True,
)


_PARQUET_ORIGIN = Origin(
    "a .parquet file with a column of labels, and columns of numbers or of text",
    "name the columns as parquet:PATH:LABEL or parquet:PATH:LABEL:GROUP if they are not called "
    "label and group",
)
_INDEX = "__index_level_"  # prefix of the columns in which pandas keeps its index
_BATCH_ROWS = 1 << 12  # rows decoded between two checks of their size


def read_parquet(place: Path, options: ReadOptions) -> Raw:
    """Reads a .parquet file.

    `table.table_raw` finds the roles of the columns, and whether samples are numbers, texts or
    arrays. The index of pandas is skipped.

    Raises:
      ValueError: the file is damaged or too large, or the columns do not fit their roles.
    """
    open_regular(place).close()  # rejects pipes: Arrow opens the file by itself
    data = _bounded(place)
    refuse_same_names(data.column_names)
    index = [name for name in data.column_names if name.startswith(_INDEX)]
    data = data.drop_columns(index)
    table = Table(
        dict(zip(data.column_names, data.columns)),
        counts=[len(data)],
        left_out=tuple(LeftOut(0, f"column {name}", "the pandas index", True) for name in index),
    )
    return table_raw(table, options)


_WIDTHS = {"INT_8": 1, "UINT_8": 1, "INT_16": 2, "UINT_16": 2, "BOOLEAN": 1, "INT32": 4, "FLOAT": 4}


def _bounded(place: Path) -> pa.Table:
    """Reads a file in parts, within the size limits: few bytes may hold many rows of a long text.

    Texts are read as indices into a part's different texts, and decoded once their size is known.
    """
    with parquet.ParquetFile(place) as file:
        about, schema, most = (
            file.metadata,
            _without_views(file.schema_arrow),
            limits.decompressed(place.stat().st_size),
        )
    leaves = [about.schema.column(i) for i in range(len(about.schema))]
    texts = [
        leaf.path
        for leaf in leaves
        if leaf.physical_type == "BYTE_ARRAY" and leaf.logical_type.type != "DECIMAL"
    ]
    limits.keep("the table", about.num_rows, limits.TABLE_ROWS, "rows")
    limits.keep("the table", about.num_rows * about.num_columns, limits.TABLE_CELLS, "cells")
    groups = [about.row_group(i) for i in range(about.num_row_groups)]
    limits.keep("the table", sum(group.total_byte_size for group in groups), most)
    size = 0
    for i, leaf in enumerate(leaves):
        width = _WIDTHS.get(leaf.converted_type) or _WIDTHS.get(leaf.physical_type) or 8
        size += max(width, leaf.length) * sum(group.column(i).num_values for group in groups)
    limits.keep("the table", size, most)
    size, parts = 0, [schema.empty_table()]
    with parquet.ParquetFile(place, read_dictionary=texts, page_checksum_verification=True) as file:
        for batch in file.iter_batches(_BATCH_ROWS, use_threads=False):
            size += sum(map(_decoded, batch.columns))
            limits.keep("the table", size, most)
            parts.append(pa.Table.from_batches([batch]).cast(schema))
    return pa.concat_tables(parts)


def _without_views(schema: pa.Schema) -> pa.Schema:
    """Replaces views by plain texts: dictionary-encoded texts cannot be cast to views."""
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return pa.schema([field.with_type(plain.get(field.type, field.type)) for field in schema])


def _is_text(kind: pa.DataType) -> bool:
    tests = pa.types.is_string, pa.types.is_binary, pa.types.is_large_string
    return any(test(kind) for test in (*tests, pa.types.is_large_binary))


def _decoded(column: pa.Array) -> int:
    """Returns the bytes of a column without dictionary encoding."""
    if isinstance(column, pa.DictionaryArray) and _is_text(column.type.value_type):
        lengths = pc.binary_length(column.dictionary)
        return column.indices.nbytes + (pc.sum(lengths.take(column.indices)).as_py() or 0)
    if isinstance(column, pa.MapArray):
        return _decoded(column.keys) + _decoded(column.items)
    if isinstance(column, pa.StructArray | pa.ListArray | pa.LargeListArray):
        parts = column.flatten()
        return sum(map(_decoded, parts)) if isinstance(parts, list) else _decoded(parts)
    return column.nbytes


PARQUET = Source(
    name="parquet:PATH",
    about="it is your own table; nothing to download",
    read=read_parquet,
    origins=(_PARQUET_ORIGIN,),
    has_columns=True,
)


_TOPIC_NUMBERS = ("1", "2", "3", "4")  # of the classes, in order
TOPICS = ("World", "Sports", "Business", "Sci/Tech")
_AG_NEWS = Origin(
    "ag_news/train.csv and ag_news/test.csv, rows of class (1 to 4), title and description",
    "extract them from the authors' ag_news_csv.tar.gz",
    fetched=False,
    folders=("ag_news", "ag_news_csv"),
)


def read_ag_news(*files: Path, options: ReadOptions) -> Raw:
    """Reads texts of title and description; official sets train and test, if both are given.

    The vocabulary is that of train.csv, or of the test set if only that is given.
    """
    raw = _texts(_table_of(files, options), options)
    for i, name in enumerate(raw.class_names):
        if name not in _TOPIC_NUMBERS:
            first = np.flatnonzero(raw.labels == i)[0]
            file = files[int("test" in raw.official and first in raw.official["test"])]
            raise ValueError(f"{file.name}: a class is {short(name)}, not 1 to 4")
    numbers = np.array([_TOPIC_NUMBERS.index(name) for name in raw.class_names])
    return raw._replace(labels=numbers[raw.labels], class_names=TOPICS)


AG_NEWS = Source(
    name="ag_news",
    about="its authors' folder has no download address; put its train.csv and "
    "test.csv into DIR/ag_news",
    read=read_ag_news,
    origins=tuple(_AG_NEWS._replace(names=(file,)) for file in ("train.csv", "test.csv")),
)
AG_NEWS_TEST = Source(
    name="ag_news_test",
    about="as for ag_news; test.csv alone is enough",
    read=read_ag_news,
    origins=(
        _AG_NEWS._replace(names=("ag_news_test.csv", "test.csv"), folders=(*_AG_NEWS.folders, "")),
    ),
)
