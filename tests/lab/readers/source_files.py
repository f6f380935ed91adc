"""Files, images and errors for the tests of data sources."""

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedjax_ht.lab.readers import load_dataset

_RNG = np.random.default_rng(0)


def pixels(*shape: int) -> np.ndarray:
    return _RNG.integers(0, 256, shape, dtype=np.uint8)


def write(path: Path, content: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def text(rows: np.ndarray) -> str:
    """Numbers, a row a line, as UCI HAR has them."""
    number = "%d" if rows.dtype.kind == "i" else " %.7e"
    lines = [" ".join(number % value for value in row) for row in rows.reshape(len(rows), -1)]
    return "\n".join(lines) + "\n"


def encoded(image: np.ndarray, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, kind, quality=95)
    return file.getvalue()


def write_jpegs(path: Path, labels: Sequence[int], sizes: Sequence[int] = (4, 4, 4)) -> None:
    """Writes an .npz of JPEG files of one colour each, of the classes r, g and b."""
    files = []
    for colour, size in zip(("red", "green", "blue", "white"), sizes):
        content = encoded(np.asarray(Image.new("RGB", (size, size), colour)), "JPEG")
        files.append(np.frombuffer(content, np.uint8))
    offset = np.cumsum([0, *map(len, files)])
    names = {"label": np.int16(labels), "wnid": ["r", "g", "b"]}
    np.savez(path, jpeg=np.concatenate(files), offset=offset, **names)


def load_error(kind: type[Exception], *args, **options) -> str:
    """The message of the error that `load_dataset(*args)` gives, which must be one line."""
    with pytest.raises(kind) as error:
        load_dataset(*args, **options)
    message = str(error.value)
    assert "\n" not in message
    return message


def refused(words: str, *args, kind: type[Exception] = ValueError, **options) -> None:
    """`load_dataset` refuses these arguments in one line that has these words."""
    assert words in load_error(kind, *args, **options)


def sets(dataset) -> dict[str, list[int]]:
    """The official sets of a data set, as lists."""
    return {name: indices.tolist() for name, indices in dataset.official.items()}


def tar(folder: Path, archive: Path, mode: str = "w:gz") -> None:
    with tarfile.open(archive, mode) as file:
        file.add(folder, folder.name)
