"""Files that ask for too much, each read in a process of its own: bombs, claims, pickles, pipes.

python -m tests.lab.readers.attacks FOLDER [NAME ...] makes them below FOLDER and prints a line of
JSON for each: how it ended, in how many seconds, with how much memory.
"""

import contextlib
import functools
import io
import json
import os
import pickle
import resource
import signal
import struct
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from fedjax_ht.lab.safe.limits import PICKLE_STEPS

Attack = Callable[[Path], tuple[str, str]]
"""Writes files into a folder; returns how they are read, see `attacks.read`."""

Content = bytes | Callable[[], bytes]
"""The content of a file, or a function that makes it when the file is written."""

HUGE = 4_000_000_000
_BLOCK = 1 << 20


@functools.cache
def _block() -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    # which needs nothing of what is before it
    return packer.compress(bytes(_BLOCK)) + packer.flush(zlib.Z_FULL_FLUSH)


def deflated_zeros(size: int, start: bytes = b"") -> bytes:
    """`start` and zeros, `size` bytes together, as one raw deflate stream; made in no time."""
    blocks, rest = divmod(size - len(start), _BLOCK)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + _block() * blocks + packer.compress(bytes(rest)) + packer.flush()


def gzip_bomb(size: int, start: bytes = b"") -> bytes:
    """A gzip file, but for its sum."""
    content = b"\x1f\x8b\x08" + bytes(7) + deflated_zeros(size, start)
    return content + bytes(4) + struct.pack("<I", size % (1 << 32))


def zip_bomb(
    name: str, size: int, start: bytes = b"", says: int | None = None, **plain: bytes
) -> bytes:
    """A zip file, but for the sums.

    `says` is what it gives as the bomb's size, if that is another.
    """
    entries = {name: (deflated_zeros(size, start), size if says is None else says)}
    for other, content in plain.items():
        entries[other] = deflated_zeros(len(content), content), len(content)
    local, directory = b"", b""
    for name, (content, says) in entries.items():
        sizes = (zlib.crc32(plain.get(name, b"")), len(content), says, len(name), 0)
        common = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 33, *sizes)
        place = bytes(10) + struct.pack("<I", len(local))
        directory += b"PK\x01\x02" + struct.pack("<H", 20) + common + place + name.encode()
        local += b"PK\x03\x04" + common + name.encode() + content
    ends = (0, 0, len(entries), len(entries), len(directory), len(local), 0)
    return local + directory + b"PK\x05\x06" + struct.pack("<4H2IH", *ends)


def tar_header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def npy_header(shape: str, dtype: str = "|u1") -> bytes:
    fields = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    text = fields.ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def bombs(size: int) -> dict[str, Attack]:
    """Little files that decompress to `size` bytes."""
    idx = bytes((0, 0, 8, 3)) + struct.pack(">3I", size // 784, 28, 28)
    shape = f"({size // 1024}, 32, 32)"
    labels = {"labels.npy": npy_header("(1,)") + b"\0"}
    npz = zip_bomb("images.npy", size, npy_header(shape), **labels)
    cifar = functools.partial(dataset_file, "cifar-10-python.tar.gz", "cifar10")
    tiny = functools.partial(dataset_file, "tiny-imagenet-200.zip", "tiny_imagenet")
    own = functools.partial(dataset_file, "x.npz", "npz:x.npz")
    image, har = "train/n1/images/a.JPEG", "train/Inertial Signals/body_acc_x_train.txt"
    pamap2 = zip_bomb("Protocol/subject101.dat", size)
    long_name = tar_header("x", size - 512, tarfile.GNUTYPE_LONGNAME)
    long_header = b"\x93NUMPY\x02\x00\xff\xff\xff\xff"
    client = zip_bomb("data.npy", size, npy_header("()", "|O"))
    return {
        "idx.gz": dataset_file("train-images-idx3-ubyte.gz", "mnist", gzip_bomb(size, idx)),
        "tar.gz": cifar(gzip_bomb(size, tar_header("c/data_batch_1", size - 512))),
        "tar.gz, another file in it": cifar(gzip_bomb(size, tar_header("c/readme", size - 512))),
        "tar.gz, a name in it": cifar(gzip_bomb(size, long_name)),
        "tar.gz of nothing": cifar(gzip_bomb(size, tar_header("c/meta", 0))),
        "zip": tiny(zip_bomb(image, size)),
        "zip that lies": tiny(zip_bomb(image, size, says=100)),
        "sensors' zip": dataset_file("UCI HAR Dataset.zip", "har", zip_bomb(har, size)),
        "recordings' zip": dataset_file("PAMAP2_Dataset.zip", "pamap2", pamap2),
        "npz": own(npz),
        "npz, a long header": own(zip_bomb("images.npy", size, long_header, **labels)),
        "client's npz": dataset_file("train/0.npz", "client_folders:.", client, **CONFIG),
        "csv.gz": dataset_file("x.csv.gz", "csv:x.csv.gz", gzip_bomb(size, b"a,y\n")),
        "weights": file_of_kind("weights", "x.pth", zip_bomb("top/data.pkl", size)),
        "generator": file_of_kind("generator", "x.npz", zip_bomb("metadata.npy", size)),
    }


CONFIG = {"config.json": b'{"num_clients": 1, "num_classes": 2}'}
"""The file beside the folders of one client."""


def dataset_file(file: str, dataset: str, content: Content, **siblings: Content) -> Attack:
    """Returns an attack by files of a data set; `siblings` are more of them."""

    def write(folder):
        for name, each in {file: content, **siblings}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(each() if callable(each) else each)
        return "dataset", dataset

    return write


def file_of_kind(kind: str, file: str, content: Content) -> Attack:
    """Returns an attack by a file of weights or of a generator."""

    def write(folder):
        (folder / file).write_bytes(content() if callable(content) else content)
        return kind, str(folder / file)

    return write


def _zipped(compression: int = zipfile.ZIP_STORED, **entries: bytes) -> bytes:
    """An honest zip file."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return file.getvalue()


def _entry(content: bytes) -> Attack:
    """An .npz whose images are this .npy file."""
    entries = {"images.npy": content, "labels.npy": npy_header("(1,)") + b"\0"}
    return dataset_file("x.npz", "npz:x.npz", _zipped(**entries))


def _numbers(count: int, form: bytes) -> bytes:
    return b"".join(form.replace(b"%d", b"%d" % i) for i in range(count))


def _different_words() -> bytes:
    lines = []
    for first in range(0, 3_000_000, 30):
        names = [b"%x" % i for i in range(first, first + 30)]
        lines.append(b"1,%s\n" % b" ".join(names))
    return b"".join(lines)


def _png() -> bytes:
    def chunk(kind, x):
        return struct.pack(">I", len(x)) + kind + x + struct.pack(">I", zlib.crc32(kind + x))

    head = chunk(b"IHDR", struct.pack(">2I5B", 20_000, 20_000, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes(10_000_000)))
    return b"\x89PNG\r\n\x1a\n" + head + pixels + chunk(b"IEND", b"")


def _zeros(folder: Path) -> tuple:
    with (folder / "train-images-idx3-ubyte").open("wb") as file:
        file.truncate(1 << 40)  # takes no space on disk
    return "dataset", "mnist"


def _sparse() -> bytes:
    header = bytearray(tar_header("c/data_batch_1", 0, tarfile.GNUTYPE_SPARSE))
    header[483:495] = b"%011o\0" % (HUGE - 1)  # its size when it is unpacked
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * 32 + sum(header[156:512]))
    return bytes(header) + bytes(1024)


def _loop(folder: Path) -> tuple:
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / "x.png").write_bytes(b"no image")
        for link in ("1", "2"):
            (folder / name / link).symlink_to(folder)
    return "dataset", "folder:."


def _large_label(folder: Path) -> tuple:
    np.savez(folder / "x.npz", images=np.zeros((2, 2, 2), np.uint8), labels=[0, 10**9])
    return "dataset", "npz:x.npz"


_config = functools.partial(dataset_file, "config.json", "client_folders:.")
_recording = functools.partial(dataset_file, "Protocol/subject101.dat", "pamap2")
_table = functools.partial(dataset_file, "x.csv", "csv:x.csv")
_texts = functools.partial(dataset_file, "x.csv", "text:x.csv")
_leaf = functools.partial(
    dataset_file,
    "shakespeare/train/a.json",
    "leaf:shakespeare",
    **{"shakespeare/test/a.json": b'{"users": [], "user_data": {}}'},
)
CLAIMS: dict[str, Attack] = {  # large contents are made when they are written
    "a text of one line": _recording(lambda: b"1 " * (100 << 20)),
    "a text of long lines": _recording(lambda: (b"1 " * 54 + b"\n" + b"1 " * 10**7) * 10),
    "labels of 100 MB": dataset_file("train/y_train.txt", "har", lambda: b"1\n" * (50 << 20)),
    "label of 10^9": _large_label,
    "array of 10^12": _entry(npy_header("(1000000000000,)") + bytes(10)),
    "array of 10^40": _entry(npy_header(f"({'9' * 20}, {'9' * 20})") + bytes(10)),
    "header in brackets": _entry(npy_header("(" * 5000)),
    "header of signs": _entry(npy_header("-" * 9000 + "1")),
    "header half written": _entry(npy_header("'''")),
    "10^12 classes": _config(b'{"num_clients": 1, "num_classes": 1000000000000}'),
    "10^12 clients": _config(b'{"num_clients": 1000000000000, "num_classes": 2}'),
    "JSON in brackets": _config(lambda: b"[" * 10_000_000),
    "table of 20,000,000 rows": _table(lambda: b"a,y\n" + b"1,2\n" * 20_000_000),
    "table of 20,000,000 cells": _table(
        lambda: _numbers(99, b"%d,") + b"y\n" + (b"1," * 99 + b"2\n") * 200_000
    ),
    "table of a million labels": _table(lambda: b"a,y\n" + _numbers(1_000_000, b"%d,%d\n")),
    "table of one long cell": _table(lambda: b"a,y\n" + b"1" * 100_000_000 + b",2\n"),
    "table of a million columns": _table(lambda: _numbers(1_000_000, b"%d,") + b"y\n"),
    "LEAF in brackets": _leaf(lambda: b"[" * 10_000_000),
    "LEAF of 100 MB": _leaf(lambda: b"[" + b"[]," * 33_000_000 + b"0]"),
    "LEAF of objects": _leaf(lambda: b"[" + b'{"a":0},' * 10_000_000 + b"0]"),
    "LEAF of one text": _leaf(lambda: b'{"users": ["' + rb"\ud83d\ude00" * 8_000_000 + b'"]}'),
    "texts of one word each": _texts(lambda: b"1,a\n" * 30_000_000),
    "words that differ": _texts(_different_words),
    "as many classes as texts": _texts(lambda: _numbers(500_000, b"%d,a\n")),
    "a CSV in quotes": _texts(lambda: b'1,"' + b"a," * 30_000_000),
    "JSON of 100 MB": _config(lambda: b"[" + b"[]," * 33_000_000 + b"0]"),
    "image of 20,000 x 20,000": dataset_file("a/1.png", "folder:.", _png),
    "a file of 1 TiB": _zeros,
    "sparse tar": dataset_file("cifar-10-python.tar", "cifar10", _sparse),
    "links in a circle": _loop,
}
PIPES = {  # file -> the data set, or the kind of file, that it is read as
    "train-images-idx3-ubyte.gz": "mnist",
    "cifar-10-python.tar.gz": "cifar10",
    "cifar-10-batches-py/data_batch_1": "cifar10",
    "tiny-imagenet-200.zip": "tiny_imagenet",
    "UCI HAR Dataset/train/y_train.txt": "har",
    "Protocol/subject101.dat": "pamap2",
    "x.npz": "npz:x.npz",
    "a/b/1.png": "domains:.",
    "config.json": "client_folders:.",
    "x.csv": "csv:x.csv",
    "y.csv": "text:y.csv",
    "ag_news_test.csv": "ag_news_test",
    "a/1.png": "folder:.",
    "tfds/dataset_info.json": "tfds:tfds",
    "x.pth": "weights",
    "x.safetensors": "weights",
    "x.pkl": "generator",
    "y.npz": "generator",
}


def _pipe(file: str, folder: Path) -> tuple:
    """A pipe in the place of a file, which nobody writes to."""
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(folder / file)
    how = PIPES[file]
    return (how, str(folder / file)) if how in ("weights", "generator") else ("dataset", how)


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


_ORDERED = b"ccollections\nOrderedDict\n](K\x01"
PICKLES = {  # without the protocol in front and the stop behind
    "deep tuple as a key": b"}K\x01" + b"\x85" * 1_000_000 + b"K\x01s",
    "shared tuples as a key": b"}K\x01" + b"2\x86" * 100 + b"K\x01s",
    "shared tuples in a set": b"\x8f(K\x01" + b"2\x86" * 100 + b"\x90",
    "shared tuples as an ordered key": _ORDERED + b"2\x86" * 100 + b"K\x01\x86e\x85R",
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


def _as_cifar(content: bytes) -> Attack:
    names = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
    return dataset_file("batches.meta", "cifar10", content, **dict.fromkeys(names, content))


def _as_client(content: bytes) -> Attack:
    entries = {"data.npy": npy_header("()", "|O") + content}
    part = functools.partial(_zipped, zipfile.ZIP_DEFLATED, **entries)
    siblings = CONFIG | {"test/0.npz": part}
    return dataset_file("train/0.npz", "client_folders:.", part, **siblings)


def _as_weights(content: bytes) -> Attack:
    part = functools.partial(_zipped, **{"top/data.pkl": content})
    return file_of_kind("weights", "x.pth", part)


def _as_snapshot(content: bytes) -> Attack:
    return file_of_kind("generator", "x.pkl", content)


def pickles() -> Iterator[tuple[str, Attack]]:
    """Each pickle in every kind of file that is read as one."""
    kinds = {"CIFAR": _as_cifar, "client": _as_client}
    kinds |= {"weights": _as_weights, "snapshot": _as_snapshot}
    for name, content in PICKLES.items():
        for kind, attack in kinds.items():
            yield f"{name}, {kind}", attack(b"\x80\x04" + content + b".")


# that an attack may take, the latter above what the process has when it starts
SECONDS, BYTES = 20, 1 << 30


def all_attacks() -> dict[str, Attack]:
    """All attacks by "class: name"."""
    pipes = {file: functools.partial(_pipe, file) for file in PIPES}
    groups = {"bomb": bombs(HUGE), "claim": CLAIMS, "pickle": dict(pickles()), "pipe": pipes}
    attacks = {}
    for group, members in groups.items():
        for name, attack in members.items():
            attacks[f"{group}: {name}"] = attack
    return attacks


def read(folder: Path, kind: str, argument: str) -> None:
    """Reads a "dataset" of this name in a folder, or a file of "weights" or of a "generator"."""
    from fedjax_ht.lab.generators import open_generator
    from fedjax_ht.lab.readers import load_dataset
    from fedjax_ht.lab.readers.registry import SOURCES
    from fedjax_ht.lab.safe.torch_files import load_state_dict

    if kind == "dataset":
        for file in SOURCES[argument].files if argument == "mnist" else ():
            if not (folder / file).exists() and not (folder / Path(file).stem).exists():
                (folder / file).touch()  # no file of the set is missing
        load_dataset(argument, folder)
    else:
        {"weights": load_state_dict, "generator": open_generator}[kind](argument)


def attacked(attack: Attack, folder: Path) -> dict:
    """Reads the files of an attack in a child that has only so much memory and time.

    Returns:
      "end" and "line": "read", "refused" with the line, or another error or a signal; "seconds";
      "busy" and "mib", the child's time on a processor and its most memory above what it starts
      with, which holds all these files.
    """
    folder.mkdir(parents=True)
    how, result = attack(folder), folder / "result.json"
    start, child = time.monotonic(), os.fork()
    if not child:
        try:
            result.write_text(json.dumps(_limited_read(folder, how)))
        finally:
            os._exit(0)
    _, status, used = os.wait4(child, 0)
    outcome = {"end": f"signal {status & 127}", "line": "", "kib": 0}
    if result.exists():
        outcome = json.loads(result.read_text())
    outcome["seconds"] = round(time.monotonic() - start, 2)
    outcome["busy"] = round(used.ru_utime + used.ru_stime, 2)
    outcome["mib"] = (used.ru_maxrss - outcome.pop("kib")) >> 10
    return outcome


def _limited_read(folder: Path, how: tuple[str, str]) -> dict:
    """Limits this process and reads; returns "end", "line", and the KiB that it began with."""
    page = resource.getpagesize()
    pages, resident = map(int, Path("/proc/self/statm").read_text().split()[:2])
    resource.setrlimit(resource.RLIMIT_AS, (pages * page + BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS,) * 2)
    signal.alarm(5 * SECONDS)  # for one that waits, on a machine that may be busy
    end, line = "read", ""
    try:
        read(folder, *how)
    except (ValueError, FileNotFoundError) as error:
        end, line = "refused", str(error)
    except BaseException as error:
        end, line = type(error).__name__, str(error)[:1000]
    return {"end": end, "line": line, "kib": resident * page >> 10}


def main() -> None:
    folder, prefixes = Path(sys.argv[1]), tuple(sys.argv[2:])
    with contextlib.suppress(FileNotFoundError):
        read(folder, "dataset", "npz:none")  # imports, once for all children
    for number, (name, attack) in enumerate(all_attacks().items()):
        if not prefixes or name.startswith(prefixes):
            outcome = attacked(attack, folder / str(number))
            print(json.dumps({"attack": name} | outcome), flush=True)


if __name__ == "__main__":
    main()
