"""Keeps decoded sets on disk, so that JPEG files and long texts are read once.

Images are never in memory as a whole.
"""

import contextlib
import errno
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.files import is_caused_by
from fedjax_ht.lab.readers.images import mapped
from fedjax_ht.lab.readers.source import Raw
from fedjax_ht.lab.safe.archive import stamp_of
from fedjax_ht.lab.safe.arrays import opened_npz
from fedjax_ht.lab.safe.bounded import open_regular

_FORMAT = 3  # raise it when decoding changes, so that older files are not used
_DAY = 86_400  # seconds


def cached(
    name: str,
    place: Path,
    sources: Sequence[Path],
    build: Callable[[Path | None], Raw],
) -> Raw:
    """Returns `build(target)`, or its last result if the files of `sources` are the same.

    They are the same by their stamp, see `stamp_of`. There are two files per name, which is that of
    a set and a size, in `.fedjax_ht_cache` of the folder `place`, or in the user's cache folder if
    that is not writable: the images as an .npy, which the set maps, and an .npz of the rest, which
    has their SHA-256 and is renamed into place last. `target` is where `build` stacks the images
    (`images.Pile`); without a
    writable folder, or room in it, it is None, nothing is kept, and the images are in memory.
    """
    first = str(sources[0].resolve()).encode("utf-8", "surrogatepass")
    stem = f"{name}-{hashlib.sha256(first).hexdigest()[:16]}"
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedjax_ht"
    folders = (place / ".fedjax_ht_cache", user_cache)
    stamp = hashlib.sha256(f"{_FORMAT} {stamp_of(sources)}".encode()).hexdigest()
    for folder in folders:
        if raw := _load(folder / f"{stem}.npz", stamp):
            return raw
    for folder in folders:
        with contextlib.ExitStack() as stack:
            try:
                target = stack.enter_context(_temporary(folder))
            except OSError:
                continue
            try:
                raw = build(target)
            except Exception as error:
                if _is_full(error):
                    continue
                raise
            with contextlib.suppress(OSError):  # the map outlives the name
                _save(raw, target, folder / f"{stem}.npz", stamp)
            return raw
    return build(None)


@contextlib.contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    """A new file. It is gone afterwards, unless it was given another name."""
    folder.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, suffix=".tmp")
    os.close(handle)
    try:
        yield Path(temporary)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _load(path: Path, stamp: str) -> Raw | None:
    """The set in `path` and the .npy beside it.

    None if it is absent, damaged, or made from other files.
    """
    try:
        with opened_npz(path) as arrays:
            if str(arrays["stamp"]) != stamp:
                return None
            images = _images(path, stamp)
            if str(arrays["images_sha256"]) != _sha256(images):
                return None
            official = {}
            for key in arrays:
                if key.startswith("official_"):
                    official[key.removeprefix("official_")] = arrays[key]
            names = tuple(map(str, arrays["class_names"]))
            return Raw(
                mapped(images),
                arrays["labels"],
                names,
                official=official,
                groups=arrays.get("groups"),
                reading=Reading.from_json(str(arrays["reading"])),
            )
    except Exception:  # zipfile, zlib and numpy each have their own for a damaged file
        return None


def _save(raw: Raw, target: Path, path: Path, stamp: str) -> None:
    """Gives the images in `target` their name, and then puts the rest at `path`."""
    arrays: dict[str, Any] = {f"official_{k}": v for k, v in raw.official.items()}
    arrays |= {"labels": raw.labels, "class_names": np.array(raw.class_names)}
    if raw.groups is not None:
        arrays["groups"] = raw.groups
    arrays["reading"] = np.array(raw.reading.to_json())
    arrays |= {"stamp": np.array(stamp), "images_sha256": np.array(_sha256(target))}
    with _temporary(path.parent) as rest:
        with open(rest, "wb") as file:
            np.savez(file, **arrays)
        for temporary, final in ((target, _images(path, stamp)), (rest, path)):
            temporary.chmod(0o644)  # data folders are shared
            temporary.replace(final)
    _sweep(path, stamp)


def _images(path: Path, stamp: str) -> Path:
    """The file with the images of the set at `path`.

    Each state of the sources has a file for itself, so that neither a process that is killed here
    nor one that has the former mapped sees a mixture.
    """
    return path.with_name(f"{path.stem}-{stamp[:16]}.npy")


def _sweep(path: Path, stamp: str) -> None:
    """Removes the images of former states of the sources, and files that a killed process has
    left."""
    former = [
        file for file in path.parent.glob(f"{path.stem}-*.npy") if file != _images(path, stamp)
    ]
    for file in (*former, *path.parent.glob("*.tmp")):
        with contextlib.suppress(OSError):
            if file in former or time.time() - file.stat().st_mtime > _DAY:
                file.unlink()


def _sha256(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_full(error: BaseException) -> bool:
    """Returns whether a disk without room caused the error, whatever a reader has made of it."""
    return is_caused_by(error, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
