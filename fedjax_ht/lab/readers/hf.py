"""Folders that Hugging Face's `save_to_disk` wrote; nothing is downloaded."""

import os
from pathlib import Path
from typing import Any

from fedjax_ht.core.extras import needing
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.lab.readers.columns import NOT_NAMED, Columns, named_in
from fedjax_ht.lab.readers.in_memory import of_hugging_face
from fedjax_ht.lab.readers.sizes import AS_THEY_ARE, Sizes
from fedjax_ht.lab.readers.source import Source
from fedjax_ht.lab.readers.table_files import table_place
from fedjax_ht.lab.safe.archive import Origin, reading

_ORIGIN = Origin(
    "a folder that save_to_disk of Hugging Face's datasets wrote",
    "name the columns as hf:PATH:LABEL or hf:PATH:LABEL:GROUP if they are not called label and "
    "group",
)


def read_hf(
    path: str, data_dir: Path | None, sizes: Sizes = AS_THEY_ARE, columns: Columns = NOT_NAMED
) -> Dataset:
    """Reads PATH, PATH:LABEL or PATH:LABEL:GROUP, PATH one of the current folder or `data_dir`.

    Splits of a DatasetDict are official sets. Columns have roles, and samples are numbers, texts or
    images, as `frames.frame_set` says.

    Raises:
      ValueError: it is no such folder, or columns cannot be what they are taken for. One line.
      ImportError: `datasets` is not installed. One line.
    """
    place = table_place(path, data_dir)
    with reading(place, _ORIGIN):
        return of_hugging_face(
            from_disk(place),
            named_in(path, columns),
            name=f"hf:{path}",
            shown=f"hf:{path.partition(':')[0]}",
            path=str(place),
            sizes=sizes,
        )


def from_disk(place: str | os.PathLike) -> Any:
    """Returns the data set, or the dict of them, in a folder.

    Raises:
      FileNotFoundError: it is no folder that save_to_disk wrote.
      ImportError: `datasets` is not installed. One line.
    """
    with needing("reading a folder of Hugging Face's save_to_disk"):
        from datasets import load_from_disk
    return load_from_disk(os.fspath(place))


HF = Source(
    name="hf",
    argument="PATH",
    about="it is a folder of your own that save_to_disk wrote, and nothing is to be downloaded",
    read=read_hf,
    place=table_place,
    columns=True,
    any_kind=True,
)
