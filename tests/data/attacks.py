"""Files that ask for too much, and what reading each of them comes to in a process of its own.

python -m tests.data.attacks FOLDER [NAME ...] makes them below FOLDER and prints a line of JSON for
each: how it ended, in how many seconds, with how much memory. Bombs are one compressed block of
  zeros, again and again.
"""

import contextlib
import functools
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

# that an attack may take, the latter above what the process has when it starts
SECONDS, BYTES = 20, 1 << 30
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
    return (
        b"\x1f\x8b\x08"
        + bytes(7)
        + deflated_zeros(size, start)
        + bytes(4)
        + struct.pack("<I", size % (1 << 32))
    )


def zip_bomb(
    name: str, size: int, start: bytes = b"", says: int | None = None, **others: bytes
) -> bytes:
    """A zip file, but for the sums; `says` is what it gives as the bomb's size, if that is
    another."""
    entries = {name: (deflated_zeros(size, start), size if says is None else says)}
    entries |= {
        other: (deflated_zeros(len(content), content), len(content))
        for other, content in others.items()
    }
    local, directory = b"", b""
    for name, (content, says) in entries.items():
        sizes = (zlib.crc32(others.get(name, b"")), len(content), says, len(name), 0)
        common = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 33, *sizes)
        directory += (
            b"PK\x01\x02"
            + struct.pack("<H", 20)
            + common
            + bytes(10)
            + struct.pack("<I", len(local))
        )
        directory += name.encode()
        local += b"PK\x03\x04" + common + name.encode() + content
    count = len(entries)
    return (
        local
        + directory
        + b"PK\x05\x06"
        + struct.pack("<4H2IH", 0, 0, count, count, len(directory), len(local), 0)
    )


def tar_header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def npy_header(shape: str, dtype: str = "|u1") -> bytes:
    text = (
        f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode()
        + b"\n"
    )
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def _bomb(file: str, dataset: str, content: bytes, **others: bytes) -> Callable[[Path], tuple]:
    def write(folder):
        for name, what in {file: content, **others}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(what)
        return "dataset", dataset

    return write


def bombs(size: int) -> dict[str, Callable[[Path], tuple]]:
    """Little files that decompress to `size` bytes."""
    idx = bytes((0, 0, 8, 3)) + struct.pack(">3I", size // 784, 28, 28)
    matrix = struct.pack(
        "<12I8s2I", 14, size, 6, 8, 9, 0, 5, 8, size - 72, 1, 1, 1, b"X", 2, size - 72
    )
    mat = b"MATLAB 5.0".ljust(124) + b"\x00\x01IM"
    squeezed = b"\x78\x9c" + deflated_zeros(size, matrix)
    shape = f"({size // 1024}, 32, 32)"
    labels = {"labels.npy": npy_header("(1,)") + b"\0"}
    npz = zip_bomb("images.npy", size, npy_header(shape), **labels)
    return {
        "idx.gz": _bomb("train-images-idx3-ubyte.gz", "mnist", gzip_bomb(size, idx)),
        "tar.gz": _bomb(
            "cifar-10-binary.tar.gz",
            "cifar10",
            gzip_bomb(size, tar_header("c/data_batch_1.bin", size - 512)),
        ),
        "tar.gz, another file in it": _bomb(
            "cifar-10-binary.tar.gz", "cifar10", gzip_bomb(size, tar_header("c/readme", size - 512))
        ),
        "tar.gz, a name in it": _bomb(
            "cifar-10-binary.tar.gz",
            "cifar10",
            gzip_bomb(size, tar_header("x", size - 512, tarfile.GNUTYPE_LONGNAME)),
        ),
        "tar.gz of nothing": _bomb(
            "cifar-10-binary.tar.gz", "cifar10", gzip_bomb(size, tar_header("c/meta", 0))
        ),
        "zip": _bomb(
            "tiny-imagenet-200.zip", "tiny_imagenet", zip_bomb("train/n1/images/a.JPEG", size)
        ),
        "zip that lies": _bomb(
            "tiny-imagenet-200.zip",
            "tiny_imagenet",
            zip_bomb("train/n1/images/a.JPEG", size, says=100),
        ),
        "sensors' zip": _bomb(
            "UCI HAR Dataset.zip",
            "har",
            zip_bomb("train/Inertial Signals/body_acc_x_train.txt", size),
        ),
        "recordings' zip": _bomb(
            "PAMAP2_Dataset.zip", "pamap2", zip_bomb("Protocol/subject101.dat", size)
        ),
        "npz": _bomb("x.npz", "npz:x.npz", npz),
        "npz, a long header": _bomb(
            "x.npz",
            "npz:x.npz",
            zip_bomb("images.npy", size, b"\x93NUMPY\x02\x00\xff\xff\xff\xff", **labels),
        ),
        "mat": _bomb(
            "train_32x32.mat", "svhn", mat + struct.pack("<2I", 15, len(squeezed)) + squeezed
        ),
        "client's npz": _bomb(
            "train/0.npz",
            "client_folders:.",
            zip_bomb("data.npy", size, npy_header("()", "|O")),
            **{"config.json": b'{"num_clients": 1, "num_classes": 2}'},
        ),
        "csv.gz": _bomb("x.csv.gz", "csv:x.csv.gz", gzip_bomb(size, b"a,y\n")),
        "weights": lambda folder: (
            "weights",
            _write(folder / "x.pth", zip_bomb("top/data.pkl", size)),
        ),
        "generator": lambda folder: (
            "generator",
            _write(folder / "x.npz", zip_bomb("metadata.npy", size)),
        ),
    }


def _write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def _npz(folder: Path, **arrays) -> tuple:
    np.savez(folder / "x.npz", **arrays)
    return "dataset", "npz:x.npz"


def _entry(content: bytes) -> Callable[[Path], tuple]:
    """An .npz whose images are this .npy file."""

    def write(folder):
        with zipfile.ZipFile(folder / "x.npz", "w") as archive:
            archive.writestr("images.npy", content)
            archive.writestr("labels.npy", npy_header("(1,)") + b"\0")
        return "dataset", "npz:x.npz"

    return write


def _config(text: str) -> Callable[[Path], tuple]:
    return _bomb("config.json", "client_folders:.", text.encode())


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


def _table(name: str, dataset: str, line: bytes, size: int) -> Callable[[Path], tuple]:
    """Lines, or one without an end, of so many bytes."""
    return lambda folder: _bomb(name, dataset, line * (size // len(line)))(folder)


def _csv(folder: Path, rows: str, columns: str = "a") -> tuple:
    (folder / "x.csv").write_text(f"{columns},y\n{rows}")
    return "dataset", "csv:x.csv"


def _leaf(content: Callable[[], bytes]) -> Callable[[Path], tuple]:
    def write(folder):
        (folder / "shakespeare/test").mkdir(parents=True)
        (folder / "shakespeare/test/a.json").write_text('{"users": [], "user_data": {}}')
        return _bomb("shakespeare/train/a.json", "shakespeare", content())(folder)

    return write


def _texts(content: Callable[[], bytes]) -> Callable[[Path], tuple]:
    return lambda folder: _bomb("x.csv", "text:x.csv", content())(folder)


CLAIMS = {
    "a text of one line": _table("Protocol/subject101.dat", "pamap2", b"1 ", 200 << 20),
    "a text of long lines": _table(
        "Protocol/subject101.dat", "pamap2", b"1 " * 54 + b"\n" + b"1 " * 10**7, 200 << 20
    ),
    "labels of 100 MB": _table("train/y_train.txt", "har", b"1\n", 100 << 20),
    "label of 10^9": lambda folder: _npz(
        folder, images=np.zeros((2, 2, 2), np.uint8), labels=[0, 10**9]
    ),
    "array of 10^12": _entry(npy_header("(1000000000000,)") + bytes(10)),
    "array of 10^40": _entry(npy_header(f"({'9' * 20}, {'9' * 20})") + bytes(10)),
    "header in brackets": _entry(npy_header("(" * 5000)),
    "header of signs": _entry(npy_header("-" * 9000 + "1")),
    "header half written": _entry(npy_header("'''")),
    "10^12 classes": _config('{"num_clients": 1, "num_classes": 1000000000000}'),
    "10^12 clients": _config('{"num_clients": 1000000000000, "num_classes": 2}'),
    "JSON in brackets": _config("[" * 10_000_000),
    "table of 20,000,000 rows": _bomb("x.csv", "csv:x.csv", b"a,y\n" + b"1,2\n" * 20_000_000),
    "table of 20,000,000 cells": lambda folder: _csv(
        folder, f"{'1,' * 99}2\n" * 200_000, ",".join(map(str, range(99)))
    ),
    "table of a million labels": lambda folder: _csv(
        folder, "".join(f"{i},{i}\n" for i in range(1_000_000))
    ),
    "table of one long cell": _bomb("x.csv", "csv:x.csv", b"a,y\n" + b"1" * 100_000_000 + b",2\n"),
    "table of a million columns": lambda folder: _csv(folder, ",".join(map(str, range(1_000_000)))),
    "LEAF in brackets": _leaf(lambda: b"[" * 10_000_000),
    "LEAF of 100 MB": _leaf(lambda: b"[" + b"[]," * 33_000_000 + b"0]"),
    "LEAF of one text": _leaf(lambda: b'{"users": ["' + rb"\ud83d\ude00" * 8_000_000 + b'"]}'),
    "texts of one word each": _texts(lambda: b"1,a\n" * 30_000_000),
    "words that differ": _texts(
        lambda: b"".join(
            b"1,%s\n" % b" ".join(b"%x" % j for j in range(i, i + 30))
            for i in range(0, 3_000_000, 30)
        )
    ),
    "as many classes as texts": _texts(lambda: b"".join(b"%d,a\n" % i for i in range(500_000))),
    "a CSV in quotes": _texts(lambda: b'1,"' + b"a," * 30_000_000),
    "JSON of 100 MB": _config("[" + "[]," * 33_000_000 + "0]"),
    "image of 20,000 x 20,000": _png,
    "a file of 1 TiB": _zeros,
    "sparse tar": _sparse,
    "links in a circle": _loop,
}


def _int(opcode: bytes, value: int, length: int) -> bytes:
    return opcode + value.to_bytes(length, "little")


def _named(content: bytes) -> bytes:
    """A dict in which `content` is the value of every key that a reader of ours looks for."""
    memo = content + b"q\xff" + b"0"
    names = ("label_names", "data", "labels", "x", "y", "G_ema")
    return memo + b"}(" + b"".join(pickle.dumps(name, 2)[2:-1] + b"h\xff" for name in names) + b"u"


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
    "integers, as many as may be": _named(b"](" + b"M\xff\x7f" * ((1 << 23) - 9) + b"e"),
    "names": b"cnumpy\ndtype\n0" * 1_000_000 + b"}",
    "a long number": _int(b"\x8b", 10_000_000, 4) + b"\x7f" * 10_000_000 + b"}",
    "numbers that collide": b"}("
    + b"".join(
        _int(b"\x8a", 10, 1) + (i * ((1 << 61) - 1)).to_bytes(10, "little") + b"N"
        for i in range(1, 50_000)
    )
    + b"u",
}


def _as_cifar(content: bytes, folder: Path) -> tuple:
    for name in (
        "data_batch_1",
        "data_batch_2",
        "data_batch_3",
        "data_batch_4",
        "data_batch_5",
        "test_batch",
    ):
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
    return "generator", _write(folder / "x.pkl", content)


def pickles() -> Iterator[tuple[str, Callable[[Path], tuple]]]:
    """Each pickle in every kind of file that is read as one."""
    for name, content in PICKLES.items():
        whole = b"\x80\x04" + content + b"."
        for kind, write in (
            ("CIFAR", _as_cifar), ("client", _as_client), ("weights", _as_weights), ("snapshot", _as_snapshot)
        ):  # fmt: skip
            yield f"{name}, {kind}", functools.partial(write, whole)


def pipes() -> dict[str, Callable[[Path], tuple]]:
    """A pipe in the place of a file, which nobody writes to."""

    def pipe(file: str, kind: str, argument: str) -> Callable[[Path], tuple]:
        def write(folder):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            os.mkfifo(folder / file)
            return kind, argument if kind == "dataset" else str(folder / argument)

        return write

    return {file: pipe(file, "dataset", name) for file, name in (
        ("train-images-idx3-ubyte.gz", "mnist"),
        ("cifar-10-python.tar.gz", "cifar10"),
        ("cifar-10-batches-py/data_batch_1", "cifar10"),
        ("tiny-imagenet-200.zip", "tiny_imagenet"),
        ("train_32x32.mat", "svhn"),
        ("UCI HAR Dataset/train/y_train.txt", "har"),
        ("Protocol/subject101.dat", "pamap2"),
        ("x.npz", "npz:x.npz"),
        ("x.csv", "csv:x.csv"),
        ("a/b/1.png", "domains:."),
        ("config.json", "client_folders:."),
        ("x.csv", "text:x.csv"),
        ("ag_news_test.csv", "ag_news_test"),
        ("a/1.png", "folder:."),
        ("tfds/dataset_info.json", "tfds:tfds"),
    )} | {file: pipe(file, kind, file) for file, kind in (
        ("x.pth", "weights"),
        ("x.safetensors", "weights"),
        ("x.pkl", "generator"),
        ("y.npz", "generator"),
    )}  # fmt: skip


def all_attacks() -> dict[str, Callable[[Path], tuple]]:
    """By "class: name": writes the files into a folder, and says how they are read."""
    groups = {"bomb": bombs(HUGE), "claim": CLAIMS, "pickle": dict(pickles()), "pipe": pipes()}
    return {
        f"{group}: {name}": make
        for group, members in groups.items()
        for name, make in members.items()
    }


def read(folder: Path, kind: str, argument: str) -> None:
    from fedjax_ht.data.files.torch_files import load_state_dict
    from fedjax_ht.data.sources import load_dataset
    from fedjax_ht.generators import open_generator

    if kind == "dataset":
        load_dataset(argument, folder)
    else:
        {"weights": load_state_dict, "generator": open_generator}[kind](argument)


def attacked(make: Callable[[Path], tuple], folder: Path) -> dict:
    """Reads in a child that has so much memory and time: {"end", "line", "seconds", "busy", "mib"};
    the latter two are the child's time on a processor and its most memory above what it starts
    with, which holds all these files."""
    folder.mkdir(parents=True)
    how, result = make(folder), folder / "result.json"
    start, child = time.monotonic(), os.fork()
    if not child:
        try:
            pages, resident = map(int, Path("/proc/self/statm").read_text().split()[:2])
            resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + BYTES,) * 2)
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
            kib = resident * resource.getpagesize() >> 10
            result.write_text(json.dumps({"end": end, "line": line, "kib": kib}))
        finally:
            os._exit(0)
    _, status, used = os.wait4(child, 0)
    killed = {"end": f"signal {status & 127}", "line": "", "kib": 0}
    said = json.loads(result.read_text()) if result.exists() else killed
    busy = used.ru_utime + used.ru_stime
    times = {"seconds": round(time.monotonic() - start, 2), "busy": round(busy, 2)}
    mib = (used.ru_maxrss - said.pop("kib")) >> 10
    return said | times | {"mib": mib}


def main() -> None:
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    with contextlib.suppress(FileNotFoundError):
        read(folder, "dataset", "npz:none")  # imports, once for all children
    for number, (name, make) in enumerate(all_attacks().items()):
        if not names or any(name.startswith(wanted) for wanted in names):
            print(json.dumps({"attack": name} | attacked(make, folder / str(number))), flush=True)


if __name__ == "__main__":
    main()
