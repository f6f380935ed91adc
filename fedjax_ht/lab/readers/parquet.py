"""Tables in a .parquet file of anyone."""

from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from fedjax_ht.data.reading import LeftOut
from fedjax_ht.lab.readers.client_files import table_place
from fedjax_ht.lab.readers.columns import named_in
from fedjax_ht.lab.readers.raw import Raw, ReadOptions
from fedjax_ht.lab.readers.source import Source
from fedjax_ht.lab.readers.table import Table, table_raw
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.archive import Origin
from fedjax_ht.lab.safe.bounded import open_regular

_ORIGIN = Origin(
    "a .parquet file with a column of labels, and columns of numbers or of text",
    "name the columns as parquet:PATH:LABEL or parquet:PATH:LABEL:GROUP if they are not called "
    "label and group",
)
_INDEX = "__index_level_"  # begins the names of columns in which pandas keeps its index
_ROWS = 1 << 12  # rows that are decoded between two looks at their size


def read_parquet(path: str, data_dir: Path | None, options: ReadOptions) -> Raw:
    """Reads PATH, PATH:LABEL or PATH:LABEL:GROUP, PATH one of the current folder or `data_dir`.

    Columns have roles, and samples are numbers, texts or arrays, as `table.table_raw` says. The
    index of pandas is left out.

    Raises:
      ValueError: the file is damaged or too large, or columns cannot be what they are taken for.
    """
    place = table_place(path, data_dir)
    open_regular(place).close()  # Arrow opens it by itself
    try:
        data = _bounded(place)
    except pa.ArrowException as error:
        raise ValueError(str(error).partition("\n")[0]) from error
    index = [name for name in data.column_names if name.startswith(_INDEX)]
    table = Table(
        data.drop_columns(index),
        counts=[len(data)],
        shown=f"parquet:{path.partition(':')[0]}",
        path=str(place),
        left_out=tuple(LeftOut(0, f"column {name}", "the index of pandas") for name in index),
    )
    return table_raw(table, named_in(path, options))


def _bounded(place: Path) -> pa.Table:
    """The table of a file, part by part: few bytes may stand for many rows of one long text."""
    with parquet.ParquetFile(place, page_checksum_verification=True) as file:
        about = file.metadata
        limits.keep("the table", about.num_rows, limits.TABLE_ROWS, "rows")
        limits.keep("the table", about.num_rows * about.num_columns, limits.TABLE_CELLS, "cells")
        groups = [about.row_group(i) for i in range(about.num_row_groups)]
        most = limits.decompressed(place.stat().st_size)
        limits.keep("the table", sum(group.total_byte_size for group in groups), most)
        size, batches = 0, []
        for batch in file.iter_batches(_ROWS, use_threads=False):
            size += batch.nbytes
            limits.keep("the table", size, most)
            batches.append(batch)
        return pa.Table.from_batches(batches, file.schema_arrow)


PARQUET = Source(
    name="parquet:PATH",
    about="it is a table of your own, and nothing is to be downloaded",
    read=read_parquet,
    place=table_place,
    origin=_ORIGIN,
)
