"""Tables in a .parquet file of anyone."""

from pathlib import Path

import numpy as np

from fedjax_ht.core.extras import needing
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.reading import LeftOut
from fedjax_ht.lab.readers.columns import NOT_NAMED, Columns, named_in
from fedjax_ht.lab.readers.frames import Frame, frame_set
from fedjax_ht.lab.readers.sizes import AS_THEY_ARE, Sizes
from fedjax_ht.lab.readers.source import Source
from fedjax_ht.lab.readers.table_files import table_place
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.archive import Origin, reading

_ORIGIN = Origin(
    "a .parquet file with a column of labels, and columns of numbers or of text",
    "name the columns as parquet:PATH:LABEL or parquet:PATH:LABEL:GROUP if they are not called "
    "label and group",
)
_INDEX = "__index_level_"  # begins the names of columns in which pandas keeps its index


def read_parquet(
    path: str, data_dir: Path | None, sizes: Sizes = AS_THEY_ARE, columns: Columns = NOT_NAMED
) -> Dataset:
    """Reads PATH, PATH:LABEL or PATH:LABEL:GROUP, PATH one of the current folder or `data_dir`.

    Columns have roles, and samples are numbers, texts or arrays, as `frames.frame_set` says. The
    index of pandas is left out.

    Raises:
      ValueError: the file is damaged or too large, or columns cannot be what they are taken for.
      ImportError: `pyarrow` is not installed. One line.
    """
    place = table_place(path, data_dir)
    with reading(place, _ORIGIN):
        with needing("reading a .parquet file"):
            import pyarrow
            from pyarrow import parquet
        file_bytes = place.stat().st_size
        try:
            with parquet.ParquetFile(place) as file:
                about = file.metadata
                limits.keep("the table", about.num_rows, limits.TABLE_ROWS, "rows")
                cells = about.num_rows * about.num_columns
                limits.keep("the table", cells, limits.TABLE_CELLS, "cells")
                groups = [about.row_group(i) for i in range(about.num_row_groups)]
                size = sum(group.total_byte_size for group in groups)
                limits.keep("the table", size, limits.decompressed(file_bytes))
                table = file.read()
        except pyarrow.ArrowException as error:
            raise ValueError(str(error).partition("\n")[0]) from error
        values, left_out = {}, []
        for name in table.column_names:
            if name.startswith(_INDEX):
                left_out.append(LeftOut(0, f"column {name}", "the index of pandas"))
            else:
                values[name] = np.asarray(table.column(name).to_numpy())
        frame = Frame(
            f"parquet:{path}",
            values,
            counts=[table.num_rows],
            shown=f"parquet:{path.partition(':')[0]}",
            path=str(place),
            left_out=tuple(left_out),
        )
        return frame_set(frame, named_in(path, columns), sizes=sizes)


PARQUET = Source(
    name="parquet",
    argument="PATH",
    about="it is a table of your own, and nothing is to be downloaded",
    read=read_parquet,
    place=table_place,
    columns=True,
    any_kind=True,
)
