"""Keeps decoded image sets on disk, so that a folder of JPEG files is decoded once."""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fedjax_ht.data.arrays import opened_npz
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.sources.archive import files_below

_FORMAT = 1  # raise it when decoding changes, so that older files are not used


def cached(
    name: str, image_size: int | None, data_dir: Path, sources: Sequence[Path], build: Callable[[], Dataset]
) -> Dataset:
    """`build()`, or what it gave the last time if the files of `sources` have the same names, sizes and times.

    One .npz per set and size, in `.fedjax_ht_cache` of `data_dir`, or in the user's cache folder if that is not
    writable. Without a writable folder nothing is kept.
    """
    key = hashlib.sha256(str(sources[0].resolve()).encode()).hexdigest()[:16]
    file = f"{name.partition(':')[0]}-{image_size or 'native'}-{key}.npz"
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedjax_ht"
    folders = (data_dir / ".fedjax_ht_cache", user_cache)
    stamp = _stamp(sources)
    for folder in folders:
        if dataset := _load(name, folder / file, stamp):
            return dataset
    dataset = build()
    for folder in folders:
        with contextlib.suppress(OSError):
            _save(dataset, folder / file, stamp)
            break
    return dataset


def _stamp(sources: Sequence[Path]) -> str:
    digest = hashlib.sha256(str(_FORMAT).encode())
    for source in sources:
        for path in files_below(source) if source.is_dir() else (source,):
            stat = path.stat()
            digest.update(f"{path}|{stat.st_size}|{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _load(name: str, path: Path, stamp: str) -> Dataset | None:
    """The set in `path`, or None if it is absent, damaged, or made from other files."""
    try:
        with opened_npz(path) as arrays:
            if str(arrays["stamp"]) != stamp:
                return None
            official = {k.removeprefix("official_"): arrays[k] for k in arrays if k.startswith("official_")}
            class_names = tuple(map(str, arrays["class_names"]))
            return Dataset(name, arrays["images"], arrays["labels"], class_names, official=official)
    except Exception:  # zipfile, zlib and numpy each have their own for a damaged file
        return None


def _save(dataset: Dataset, path: Path, stamp: str) -> None:
    arrays = {f"official_{k}": indices for k, indices in dataset.official.items()}
    arrays |= {"images": dataset.images, "labels": dataset.labels, "class_names": np.array(dataset.class_names)}
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, stamp=np.array(stamp), **arrays)
        os.chmod(temporary, 0o644)  # data folders are shared
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
