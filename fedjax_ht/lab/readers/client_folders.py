"""Reads the client folders of PFLlib and HtFLlib, split by those libraries."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_ht.check.names import listed, short
from fedjax_ht.core.inputs import CHANNELS, looks_like_image
from fedjax_ht.data.conversion import as_array, as_labels
from fedjax_ht.data.indices import ClientIndices
from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers.image_arrays import to_bytes, to_nhwc
from fedjax_ht.lab.readers.source import Raw, ReadOptions, Source, as_stored
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.bounded import Origin, opened_zip, read_json, reading
from fedjax_ht.lab.safe.safe_pickle import load_npy

_ORIGIN = Origin(
    "config.json, train/ID.npz and test/ID.npz, each of integer y [n] and x: images [n, C, H, W] "
    "of bool, bytes or floats in [-1, 1], other floats, integers [n, L], or n pairs of a list of "
    "tokens and its length",
    "make them with a generate_*.py script of PFLlib or HtFLlib",
)


class _Part(NamedTuple):
    """A client's training or test samples, with their kind and labels."""

    kind: str
    inputs: np.ndarray
    labels: np.ndarray


def read_client_folders(root: Path, options: ReadOptions) -> Raw:
    """Reads train/ID.npz and test/ID.npz from a folder.

    Samples are ordered by client: train, then test of client 0, of client 1 and so on. `clients`
    holds that split, without validation sets. The pickled files cannot run code. x and y are
    arrays, or lists of them. x determines the kind of samples:

        float [n, C, H, W], C 1 or 3, with the          images in [-1, 1], kept as bytes
        proportions of an image                         [n, H, W, C]
        bool or uint8 [n, C, H, W], [n, H, W, C] or     images; True becomes 255
        [n, H, W]
        float [n, C, H, W], any other                   windows of any range: float32
                                                        [n, W, H, C], or [n, W, C] of H 1
        float of another rank                           rows of a table, as float32
        integer [n, L]                                  tokens
        n pairs of a list of L tokens and its length    tokens; only 0 (padding) beyond the length

    Windows are time last in PFLlib and time first here. Its generate_HAR.py turns windows [n, 128,
    9] into [n, 9, 1, 128] by reshape, not by transpose, so each channel of its files mixes times
    and signals. They are read unchanged, as its own models see them.
    `inputs.transpose(0, 2, 1).reshape(-1, 128, 9)` restores the windows, [n, time, signal]. No file
    records which of the two was done.

    Without a config.json, which generate_Shakespeare.py does not write, each file of train/ is a
    client. The number of classes comes from config.json, or else from the largest label. If
    config.json counts only the labels present (generate_iWildCam.py) and they have gaps, they are
    renumbered, and the old labels become the class names.
    """
    num_clients, num_classes = _sizes(root)
    parts, clients, start = [], [], 0
    for client in range(num_clients):
        indices = []
        for split in ("train", "test"):
            part = _read_part(root / split / f"{client}.npz")
            parts.append(part)
            indices.append(np.arange(start, start + len(part.labels)))
            start += len(part.labels)
        clients.append(ClientIndices(train=indices[0], val=np.arange(0), test=indices[1]))
    if not any(len(client.test) for client in clients):
        raise ValueError("no client has a test sample, so no model can be scored")
    inputs, labels = _joined([part for part in parts if len(part.labels)])
    labels, class_names, converted = _classes(labels, num_classes)
    return Raw(
        inputs,
        labels,
        class_names,
        clients=tuple(clients),
        reading=Reading(converted=converted, warnings=converted),
    )


def _classes(
    labels: np.ndarray, num_classes: int | None
) -> tuple[np.ndarray, tuple[str, ...], tuple[str, ...]]:
    """Returns labels, class names, and a phrase if labels with gaps were renumbered."""
    values = np.unique(labels)
    if num_classes is None or values[-1] < num_classes or len(values) > num_classes:
        return labels, limits.numbered_classes(num_classes or int(values[-1]) + 1), ()
    names = tuple(map(str, values.tolist()))
    phrase = f"labels {listed(names)} numbered 0 to {len(names) - 1}"
    return np.searchsorted(values, labels), names, (phrase,)


def _joined(parts: Sequence[_Part]) -> tuple[np.ndarray, np.ndarray]:
    """Concatenates the samples and the labels of all parts."""
    kinds = sorted({part.kind for part in parts})
    if len(kinds) > 1:
        raise ValueError(f"some clients have {kinds[0]} and others {kinds[1]}")
    inputs = np.concatenate([part.inputs for part in parts])
    return inputs, np.concatenate([part.labels for part in parts])


def _sizes(root: Path) -> tuple[int, int | None]:
    """Returns the numbers of clients and classes; the latter None if only the labels tell."""
    with reading(root / "config.json", _ORIGIN):
        if not (root / "config.json").exists() and (root / "train/0.npz").exists():
            return len(list((root / "train").glob("*.npz"))), None
        config = read_json(root / "config.json", dict)
        num_clients, num_classes = _count(config, "num_clients"), None
        if "num_classes" in config:  # PFLlib's first versions wrote none
            num_classes = _count(config, "num_classes")
            limits.numbered_classes(num_classes)
        return num_clients, num_classes


def _count(config: dict, key: str) -> int:
    value = config.get(key)
    if type(value) is not int or value < 1:
        raise ValueError(f"{key} is {short(value)}, not a positive integer")
    return value


def _read_part(path: Path) -> _Part:
    with reading(path, _ORIGIN):
        with opened_zip(path) as archive:
            data = load_npy(io.BytesIO(archive.read("data.npy")))
        entries = data if isinstance(data, dict) else {}
        x, y = entries.get("x"), _labels(entries.get("y"))
        if isinstance(x, np.ndarray | list) and y is not None and y.shape == (len(x),):
            return _Part(*client_inputs(x), y)
        raise ValueError("data is not a dict of x, n samples, and integer y [n]")


def _labels(y: object) -> np.ndarray | None:
    """Converts an array or list of numbers to integers [n]; returns None for anything else."""
    # check types before NumPy: one string would widen every entry
    if isinstance(y, list) and all(isinstance(label, int | float | np.number) for label in y):
        y = np.array(y)
    if not isinstance(y, np.ndarray) or y.dtype.kind not in "iubf":
        return None
    return as_labels("y", y)


def client_inputs(x: np.ndarray | list) -> tuple[str, np.ndarray]:
    """Returns the kind of a client's samples, and them as stored; see `read_client_folders`.

    Raises:
      ValueError: x is of no supported kind.
    """
    if isinstance(x, np.ndarray) and x.dtype.hasobject:
        x = x.tolist()
    if isinstance(x, list):
        if not x or _is_pair(x[0]):
            return "texts", _texts(x)
        x = _stacked(x)
    if x.dtype.kind == "f":
        return _images_or_windows(x) if x.ndim == 4 else ("rows", as_stored("x", x))
    if (x.dtype.kind == "b" or x.dtype == np.uint8) and x.ndim in (3, 4):
        return "images", np.ascontiguousarray(to_bytes(to_nhwc(x))[0])
    if x.dtype.kind not in "iu" or x.ndim != 2:
        raise ValueError(f"x is {x.dtype} {x.shape}, neither floats nor integers [n, L]")
    if x.size and x.min() < 0:
        raise ValueError(f"x has the token {x.min()}; tokens are 0 or more")
    return "texts", as_stored("x", x).astype(np.int32, copy=False)


def _images_or_windows(x: np.ndarray) -> tuple[str, np.ndarray]:
    """Returns the kind of floats [n, C, H, W], and the samples as stored."""
    if x.shape[1] in CHANNELS and looks_like_image(x.shape[2:]):
        if x.size and not -1 <= x.min() <= x.max() <= 1:
            raise ValueError(f"x ranges from {x.min()} to {x.max()}, not within -1 to 1")
        pixels = np.round((x * 0.5 + 0.5) * 255).astype(np.uint8)
        return "images", pixels.transpose(0, 2, 3, 1)
    windows = as_stored("x", x).transpose(0, 3, 2, 1)  # time first
    if windows.shape[2] == 1:
        windows = windows[:, :, 0]
    return "windows", np.ascontiguousarray(windows)


def _is_pair(sample: Any) -> bool:
    """Returns whether a sample is a list of tokens and its length."""
    is_two = isinstance(sample, list | tuple) and len(sample) == 2
    return is_two and isinstance(sample[0], list | tuple) and isinstance(sample[1], int)


def _stacked(samples: list) -> np.ndarray:
    """Stacks arrays of one shape.

    Raises:
      ValueError: they are not arrays of one shape.
    """
    if not all(isinstance(sample, np.ndarray) for sample in samples):
        raise ValueError(
            "x contains something other than pairs of a list of integers and its length, or arrays "
            "of one shape"
        )
    return as_array("x", samples)


def _texts(pairs: list) -> np.ndarray:
    """Returns int32 [n, L] from n pairs of a list of L tokens and its length without padding."""
    # Check types before NumPy: strings would widen every number to the longest one's size.
    if not all(_is_pair(pair) and set(map(type, pair[0])) <= {int} for pair in pairs):
        raise ValueError(
            "x contains something other than pairs of a list of integers and its length"
        )
    if len(sizes := {len(tokens) for tokens, _ in pairs}) > 1:
        raise ValueError(
            f"x has texts of {min(sizes)} to {max(sizes)} tokens, including padding; all must have "
            "the same length"
        )
    if not pairs:
        return np.zeros((0, 0), np.int32)
    tokens, lengths = (np.array(values, np.int64) for values in zip(*pairs))
    behind = np.arange(tokens.shape[1]) >= lengths[:, None]
    fits = 0 <= lengths.min() <= lengths.max() <= tokens.shape[1]
    if not fits or tokens.min(initial=0) < 0 or tokens[behind].any():
        raise ValueError(
            "x has tokens below 0, or a length that differs from its text's: only padding, 0, may "
            "follow"
        )
    return as_stored("x", tokens)


CLIENT_FOLDERS = Source(
    name="client_folders:PATH",
    about="PFLlib's and HtFLlib's generate_*.py scripts generate these folders; they have no "
    "download address",
    read=read_client_folders,
    origins=(_ORIGIN,),
)
