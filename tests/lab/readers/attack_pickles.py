"""Pickles that ask for too much, in every kind of file that is read as a pickle."""

import functools
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path

from fedjax_ht.lab.safe.limits import PICKLE_STEPS
from tests.lab.readers.attack_bombs import Attack, file_of_kind, npy_header


def _int(opcode: bytes, value: int, length: int) -> bytes:
    return opcode + value.to_bytes(length, "little")


def _named(content: bytes) -> bytes:
    """A dict in which `content` is the value of every key that a reader of ours looks for."""
    entries = [content, b"q\xff", b"0", b"}("]
    for name in ("label_names", "data", "labels", "x", "y", "G_ema"):
        entries += [pickle.dumps(name, 2)[2:-1], b"h\xff"]
    return b"".join(entries) + b"u"


def _colliding(count: int) -> bytes:
    """A dict of integers that have one hash."""
    keys = []
    for i in range(1, count):
        number = (i * ((1 << 61) - 1)).to_bytes(10, "little")
        keys.append(_int(b"\x8a", 10, 1) + number + b"N")
    return b"}(" + b"".join(keys) + b"u"


PICKLES = {  # without the protocol in front and the stop behind
    "deep tuple as a key": b"}K\x01" + b"\x85" * 1_000_000 + b"K\x01s",
    "shared tuples as a key": b"}K\x01" + b"2\x86" * 100 + b"K\x01s",
    "shared tuples in a set": b"\x8f(K\x01" + b"2\x86" * 100 + b"\x90",
    "shared tuples as an ordered key": b"ccollections\nOrderedDict\n](K\x01"
    + b"2\x86" * 100
    + b"K\x01\x86e\x85R",
    "nested lists": _named(b"]" * 1_000_000 + b"a" * 999_999),
    "shared lists": _named(b"]" + b"2\x86" * 100),
    "memo index 2^28": b"}" + _int(b"r", 1 << 28, 4),
    "memo index 2^31": b"}" + _int(b"r", (1 << 31) - 1, 4),
    "bytes of 2^62": _int(b"\x8e", 1 << 62, 8),
    "bytes of 3 GB": _int(b"B", 3 << 30, 4),
    "byte array of 8 GB": _int(b"\x96", 8 << 30, 8),
    "frame of 3 GB": _int(b"\x95", 3 << 30, 8),
    "empty lists": b"]" * 30_000_000,
    "integers": b"](" + b"M\xff\x7f" * 10_000_000 + b"e",
    "integers of 4 bytes": b"](" + b"J\xff\xff\x7f\x7f" * 4_000_000 + b"e",
    "integers and lists": b"K\x01]" * 5_000_000,
    "integers, as many as may be": _named(b"](" + b"M\xff\x7f" * (PICKLE_STEPS - 99) + b"e"),
    "names": b"cnumpy\ndtype\n0" * 1_000_000 + b"}",
    "a long number": _int(b"\x8b", 10_000_000, 4) + b"\x7f" * 10_000_000 + b"}",
    "numbers that collide": _colliding(50_000),
}


def _as_cifar(content: bytes, folder: Path) -> tuple:
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (folder / name).write_bytes(content)
    (folder / "batches.meta").write_bytes(content)
    return "dataset", "cifar10"


def _as_client(content: bytes, folder: Path) -> tuple:
    (folder / "config.json").write_text('{"num_clients": 1, "num_classes": 2}')
    for split in ("train", "test"):
        (folder / split).mkdir()
        with zipfile.ZipFile(folder / split / "0.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("data.npy", npy_header("()", "|O") + content)
    return "dataset", "client_folders:."


def _as_weights(content: bytes, folder: Path) -> tuple:
    with zipfile.ZipFile(folder / "x.pth", "w") as archive:
        archive.writestr("top/data.pkl", content)
    return "weights", str(folder / "x.pth")


def _as_snapshot(content: bytes, folder: Path) -> tuple:
    return file_of_kind("generator", "x.pkl", content)(folder)


def pickles() -> Iterator[tuple[str, Attack]]:
    """Each pickle in every kind of file that is read as one."""
    for name, content in PICKLES.items():
        whole = b"\x80\x04" + content + b"."
        for kind, write in (
            ("CIFAR", _as_cifar),
            ("client", _as_client),
            ("weights", _as_weights),
            ("snapshot", _as_snapshot),
        ):
            yield f"{name}, {kind}", functools.partial(write, whole)
