"""CIFAR-10 and CIFAR-100 in their publisher's python or binary version, as an archive or
extracted."""

import io
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.files.archive import Origin, members, reading, search, take
from fedjax_ht.data.files.safe_pickle import load_pickle
from fedjax_ht.data.sources.checksums import check_sum
from fedjax_ht.data.sources.images import resize


class _Layout(NamedTuple):
    stem: str  # of the archives
    folders: tuple[str, str]  # what the archives extract to
    train: tuple[str, ...]
    test: str
    meta: tuple[str, str]  # class names: the python version's file, the binary version's
    names_key: str
    label_bytes: int  # of a binary record; the last one is the class


_LAYOUTS = {
    "cifar10": _Layout(
        "cifar-10",
        ("cifar-10-batches-py", "cifar-10-batches-bin"),
        tuple(f"data_batch_{i}" for i in range(1, 6)),
        "test_batch",
        ("batches.meta", "batches.meta.txt"),
        "label_names",
        1,
    ),
    "cifar100": _Layout(
        "cifar-100",
        ("cifar-100-python", "cifar-100-binary"),
        ("train",),
        "test",
        ("meta", "fine_label_names.txt"),
        "fine_label_names",
        2,
    ),
}


def _origin(name: str) -> Origin:
    stem = _LAYOUTS[name].stem
    return Origin(
        f"{stem}-python.tar.gz, {stem}-binary.tar.gz or the extracted folder of one",
        f"download it from the dataset's page (Krizhevsky, {stem.upper()} python version)",
    )


def find_cifar(name: str, data_dir: Path | None) -> tuple[Path, ...]:
    """The archive, the folder, or a file of the folder; see `archive.search`."""
    layout = _LAYOUTS[name]
    archives = [
        f"{layout.stem}-{kind}{ending}"
        for kind in ("python", "binary")
        for ending in (".tar.gz", ".tar")
    ]
    files = (*layout.folders, *archives, *layout.meta)
    return (search(name, data_dir, (name, ""), files, _origin(name)),)


def read_cifar(name: str, data_dir: Path | None, image_size: int | None) -> Dataset:
    """`name` is "cifar10" or "cifar100" (its 100 fine classes); official sets train and test,
    32x32x3."""
    layout, origin = _LAYOUTS[name], _origin(name)
    (source,) = find_cifar(name, data_dir)
    if source.name in layout.meta:  # the folder given is the extracted one, under whatever name
        source = source.parent
    with reading(source, origin):
        wanted = "|".join(map(re.escape, (*layout.train, layout.test)))
        meta = "|".join(map(re.escape, layout.meta))
        pattern = re.compile(rf"^(?:\./)?(?:[^/]+/)?(?P<file>(?:{wanted})(?:\.bin)?|{meta})$")
        if source.is_file():
            check_sum(name, source)
        found = {match["file"]: content for match, content in members(source, pattern)}
        if source.is_dir():
            for file, content in found.items():
                check_sum(name, source / file, content)
        binary = layout.meta[1] in found
        meta, *batches = take(
            found,
            [
                layout.meta[binary],
                *(f"{file}{'.bin' * binary}" for file in (*layout.train, layout.test)),
            ],
            "files",
        )
        if binary:
            class_names = tuple(meta.decode().split())
            batches = [_parse_binary(batch, layout.label_bytes) for batch in batches]
        else:
            (class_names,) = take(_load_dict(meta), (layout.names_key,), "entries")
            class_names = tuple(c.decode() if isinstance(c, bytes) else str(c) for c in class_names)
            batches = [_parse_python(batch) for batch in batches]
    images = (
        np.concatenate([images for images, _ in batches])
        .reshape(-1, 3, 32, 32)
        .transpose(0, 2, 3, 1)
    )
    train = sum(len(labels) for _, labels in batches[:-1])
    official = {"train": np.arange(train), "test": np.arange(train, len(images))}
    labels = np.concatenate([labels for _, labels in batches])
    return Dataset(name, resize(images, image_size), labels, class_names, official=official)


def _parse_binary(content: bytes, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """uint8 images [n, 3072] and labels [n] of records of label bytes and pixels."""
    size = label_bytes + 3072
    if not content or len(content) % size:
        raise ValueError(f"a batch has {len(content)} bytes, not a multiple of {size}")
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    return records[:, label_bytes:], records[:, label_bytes - 1]


def _parse_python(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """uint8 images [n, 3072] and integer labels [n] of a pickled batch."""
    match _load_dict(content):
        case ({"data": np.ndarray() as images, "fine_labels": list() as labels}) | (
            {"data": np.ndarray() as images, "labels": list() as labels}
        ) if images.dtype == np.uint8 and images.shape == (len(labels), 3072):
            return images, np.asarray(labels, np.int64)
    raise ValueError("a batch is not a dict of uint8 data [n, 3072] and n labels")


def _load_dict(content: bytes) -> dict:
    """A pickled dict; Python 3 makes its keys bytes where Python 2 had written them."""
    value = load_pickle(io.BytesIO(content))
    if not isinstance(value, dict):
        raise ValueError(f"a pickle holds a {type(value).__name__}, not a dict")
    return {
        key.decode("latin1") if isinstance(key, bytes) else key: entry
        for key, entry in value.items()
    }
