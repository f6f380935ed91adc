"""Little files that decompress to gigabytes: one compressed block of zeros, again and again."""

import functools
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

Attack = Callable[[Path], tuple[str, str]]
"""Writes files into a folder; returns how they are read, see `attacks.read`."""

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
    name: str, size: int, start: bytes = b"", says: int | None = None, **plain: bytes
) -> bytes:
    """A zip file, but for the sums.

    `says` is what it gives as the bomb's size, if that is another.
    """
    entries = {name: (deflated_zeros(size, start), size if says is None else says)}
    entries |= {
        other: (deflated_zeros(len(content), content), len(content))
        for other, content in plain.items()
    }
    local, directory = b"", b""
    for name, (content, says) in entries.items():
        sizes = (zlib.crc32(plain.get(name, b"")), len(content), says, len(name), 0)
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


def bombs(size: int) -> dict[str, Attack]:
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
        "idx.gz": dataset_file("train-images-idx3-ubyte.gz", "mnist", gzip_bomb(size, idx)),
        "tar.gz": dataset_file(
            "cifar-10-binary.tar.gz",
            "cifar10",
            gzip_bomb(size, tar_header("c/data_batch_1.bin", size - 512)),
        ),
        "tar.gz, another file in it": dataset_file(
            "cifar-10-binary.tar.gz", "cifar10", gzip_bomb(size, tar_header("c/readme", size - 512))
        ),
        "tar.gz, a name in it": dataset_file(
            "cifar-10-binary.tar.gz",
            "cifar10",
            gzip_bomb(size, tar_header("x", size - 512, tarfile.GNUTYPE_LONGNAME)),
        ),
        "tar.gz of nothing": dataset_file(
            "cifar-10-binary.tar.gz", "cifar10", gzip_bomb(size, tar_header("c/meta", 0))
        ),
        "zip": dataset_file(
            "tiny-imagenet-200.zip", "tiny_imagenet", zip_bomb("train/n1/images/a.JPEG", size)
        ),
        "zip that lies": dataset_file(
            "tiny-imagenet-200.zip",
            "tiny_imagenet",
            zip_bomb("train/n1/images/a.JPEG", size, says=100),
        ),
        "sensors' zip": dataset_file(
            "UCI HAR Dataset.zip",
            "har",
            zip_bomb("train/Inertial Signals/body_acc_x_train.txt", size),
        ),
        "recordings' zip": dataset_file(
            "PAMAP2_Dataset.zip", "pamap2", zip_bomb("Protocol/subject101.dat", size)
        ),
        "npz": dataset_file("x.npz", "npz:x.npz", npz),
        "npz, a long header": dataset_file(
            "x.npz",
            "npz:x.npz",
            zip_bomb("images.npy", size, b"\x93NUMPY\x02\x00\xff\xff\xff\xff", **labels),
        ),
        "mat": dataset_file(
            "train_32x32.mat", "svhn", mat + struct.pack("<2I", 15, len(squeezed)) + squeezed
        ),
        "client's npz": dataset_file(
            "train/0.npz",
            "client_folders:.",
            zip_bomb("data.npy", size, npy_header("()", "|O")),
            **{"config.json": b'{"num_clients": 1, "num_classes": 2}'},
        ),
        "csv.gz": dataset_file("x.csv.gz", "csv:x.csv.gz", gzip_bomb(size, b"a,y\n")),
        "weights": file_of_kind("weights", "x.pth", zip_bomb("top/data.pkl", size)),
        "generator": file_of_kind("generator", "x.npz", zip_bomb("metadata.npy", size)),
    }


def dataset_file(file: str, dataset: str, content: bytes, **siblings: bytes) -> Attack:
    """Returns an attack by files of a data set; `siblings` are more of them."""

    def write(folder):
        for name, body in {file: content, **siblings}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(body)
        return "dataset", dataset

    return write


def file_of_kind(kind: str, file: str, content: bytes) -> Attack:
    """Returns an attack by a file of weights or of a generator."""

    def write(folder):
        (folder / file).write_bytes(content)
        return kind, str(folder / file)

    return write
