"""Files that claim to be large, in a header, a list or a link; and pipes in the place of files."""

import functools
import os
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np

from tests.lab.readers.attack_bombs import HUGE, Attack, dataset_file, npy_header, tar_header


def _npz(folder: Path, **arrays) -> tuple:
    np.savez(folder / "x.npz", **arrays)
    return "dataset", "npz:x.npz"


def _entry(content: bytes) -> Attack:
    """An .npz whose images are this .npy file."""

    def write(folder):
        with zipfile.ZipFile(folder / "x.npz", "w") as archive:
            archive.writestr("images.npy", content)
            archive.writestr("labels.npy", npy_header("(1,)") + b"\0")
        return "dataset", "npz:x.npz"

    return write


def _repeated(file: str, dataset: str, *pieces: tuple[bytes, int]) -> Attack:
    """A file of byte strings, each so many times; made when it is written."""

    def write(folder):
        content = b"".join(piece * count for piece, count in pieces)
        return dataset_file(file, dataset, content)(folder)

    return write


_config = functools.partial(_repeated, "config.json", "client_folders:.")
_recording = functools.partial(_repeated, "Protocol/subject101.dat", "pamap2")
_table = functools.partial(_repeated, "x.csv", "csv:x.csv")
_texts = functools.partial(_repeated, "x.csv", "text:x.csv")


def _png(folder: Path) -> tuple:
    def chunk(kind, x):
        return struct.pack(">I", len(x)) + kind + x + struct.pack(">I", zlib.crc32(kind + x))

    head = struct.pack(">2I5B", 20_000, 20_000, 8, 2, 0, 0, 0)
    (folder / "a").mkdir()
    content = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(bytes(10_000_000)))
    )
    (folder / "a/1.png").write_bytes(content + chunk(b"IEND", b""))
    return "dataset", "folder:."


def _zeros(folder: Path) -> tuple:
    with (folder / "train-images-idx3-ubyte").open("wb") as file:
        file.truncate(1 << 40)  # takes no space on disk
    return "dataset", "mnist"


def _sparse(folder: Path) -> tuple:
    header = bytearray(tar_header("c/data_batch_1.bin", 0, tarfile.GNUTYPE_SPARSE))
    header[483:495] = b"%011o\0" % (HUGE - 1)  # its size when it is unpacked
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * 32 + sum(header[156:512]))
    (folder / "cifar-10-binary.tar").write_bytes(bytes(header) + bytes(1024))
    return "dataset", "cifar10"


def _loop(folder: Path) -> tuple:
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / "x.png").write_bytes(b"no image")
        for link in ("1", "2"):
            (folder / name / link).symlink_to(folder)
    return "dataset", "folder:."


def _leaf(*pieces: tuple[bytes, int]) -> Attack:
    def write(folder):
        (folder / "shakespeare/test").mkdir(parents=True)
        (folder / "shakespeare/test/a.json").write_text('{"users": [], "user_data": {}}')
        return _repeated("shakespeare/train/a.json", "shakespeare", *pieces)(folder)

    return write


def _large_label(folder: Path) -> tuple:
    return _npz(folder, images=np.zeros((2, 2, 2), np.uint8), labels=[0, 10**9])


def _numbers(count: int, form: bytes) -> bytes:
    return b"".join(form.replace(b"%d", b"%d" % i) for i in range(count))


def _many_columns(folder: Path) -> tuple:
    return _table((_numbers(1_000_000, b"%d,") + b"y\n", 1))(folder)


def _many_labels(folder: Path) -> tuple:
    return _table((b"a,y\n" + _numbers(1_000_000, b"%d,%d\n"), 1))(folder)


def _many_classes(folder: Path) -> tuple:
    return _texts((_numbers(500_000, b"%d,a\n"), 1))(folder)


def _many_words(folder: Path) -> tuple:
    lines = []
    for first in range(0, 3_000_000, 30):
        names = [b"%x" % i for i in range(first, first + 30)]
        lines.append(b"1,%s\n" % b" ".join(names))
    return _texts((b"".join(lines), 1))(folder)


CLAIMS: dict[str, Attack] = {
    "a text of one line": _recording((b"1 ", 100 << 20)),
    "a text of long lines": _recording((b"1 " * 54 + b"\n" + b"1 " * 10**7, 10)),
    "labels of 100 MB": _repeated("train/y_train.txt", "har", (b"1\n", 50 << 20)),
    "label of 10^9": _large_label,
    "array of 10^12": _entry(npy_header("(1000000000000,)") + bytes(10)),
    "array of 10^40": _entry(npy_header(f"({'9' * 20}, {'9' * 20})") + bytes(10)),
    "header in brackets": _entry(npy_header("(" * 5000)),
    "header of signs": _entry(npy_header("-" * 9000 + "1")),
    "header half written": _entry(npy_header("'''")),
    "10^12 classes": _config((b'{"num_clients": 1, "num_classes": 1000000000000}', 1)),
    "10^12 clients": _config((b'{"num_clients": 1000000000000, "num_classes": 2}', 1)),
    "JSON in brackets": _config((b"[", 10_000_000)),
    "table of 20,000,000 rows": _table((b"a,y\n", 1), (b"1,2\n", 20_000_000)),
    "table of 20,000,000 cells": _table(
        (_numbers(99, b"%d,") + b"y\n", 1), (b"1," * 99 + b"2\n", 200_000)
    ),
    "table of a million labels": _many_labels,
    "table of one long cell": _table((b"a,y\n", 1), (b"1", 100_000_000), (b",2\n", 1)),
    "table of a million columns": _many_columns,
    "LEAF in brackets": _leaf((b"[", 10_000_000)),
    "LEAF of 100 MB": _leaf((b"[", 1), (b"[],", 33_000_000), (b"0]", 1)),
    "LEAF of one text": _leaf((b'{"users": ["', 1), (rb"\ud83d\ude00", 8_000_000), (b'"]}', 1)),
    "texts of one word each": _texts((b"1,a\n", 30_000_000)),
    "words that differ": _many_words,
    "as many classes as texts": _many_classes,
    "a CSV in quotes": _texts((b'1,"', 1), (b"a,", 30_000_000)),
    "JSON of 100 MB": _config((b"[", 1), (b"[],", 33_000_000), (b"0]", 1)),
    "image of 20,000 x 20,000": _png,
    "a file of 1 TiB": _zeros,
    "sparse tar": _sparse,
    "links in a circle": _loop,
}


def pipes() -> dict[str, Attack]:
    """Pipes in the place of files, which nobody writes to."""
    attacks = {}
    for file, dataset in (
        ("train-images-idx3-ubyte.gz", "mnist"),
        ("cifar-10-python.tar.gz", "cifar10"),
        ("cifar-10-batches-py/data_batch_1", "cifar10"),
        ("tiny-imagenet-200.zip", "tiny_imagenet"),
        ("train_32x32.mat", "svhn"),
        ("UCI HAR Dataset/train/y_train.txt", "har"),
        ("Protocol/subject101.dat", "pamap2"),
        ("x.npz", "npz:x.npz"),
        ("a/b/1.png", "domains:."),
        ("config.json", "client_folders:."),
        ("x.csv", "csv:x.csv"),
        ("y.csv", "text:y.csv"),
        ("ag_news_test.csv", "ag_news_test"),
        ("a/1.png", "folder:."),
        ("tfds/dataset_info.json", "tfds:tfds"),
    ):
        attacks[file] = functools.partial(_pipe, file, "dataset", dataset)
    for file, kind in (
        ("x.pth", "weights"),
        ("x.safetensors", "weights"),
        ("x.pkl", "generator"),
        ("y.npz", "generator"),
    ):
        attacks[file] = functools.partial(_pipe, file, kind, "")
    return attacks


def _pipe(file: str, kind: str, dataset: str, folder: Path) -> tuple:
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(folder / file)
    return kind, dataset or str(folder / file)
