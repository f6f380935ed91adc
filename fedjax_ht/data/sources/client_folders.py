"""Client folders of PFLlib and HtFLlib: the split that other federated libraries have already made."""

import io
import json
from pathlib import Path

import numpy as np

from fedjax_ht.data import limits
from fedjax_ht.data.bounded import opened_zip, read_whole
from fedjax_ht.data.dataset import ClientIndices, Dataset
from fedjax_ht.data.safe_pickle import load_npy
from fedjax_ht.data.sources.archive import Origin, reading, user_path
from fedjax_ht.data.sources.images import resize
from fedjax_ht.data.sources.labels import warn_of_empty_class_0

_ORIGIN = Origin(
    "config.json, train/ID.npz and test/ID.npz, each of float x [n, C, H, W] in [-1, 1] and integer y [n]",
    "make them with a generate_*.py script of PFLlib or HtFLlib",
)


def read_client_folders(path: str, data_dir: Path | None, image_size: int | None) -> Dataset:
    """PATH/train/ID.npz and PATH/test/ID.npz, where PATH is relative to `data_dir` if that is given.

    The images are those of client 0 (train, then test), of client 1 and so on; `clients` says which, without
    validation sets. Nothing in the pickled files is run.
    """
    root = user_path(path, data_dir)
    with reading(root / "config.json", _ORIGIN):
        config = json.loads(read_whole(root / "config.json", limits.TEXT_BYTES))
        if not isinstance(config, dict):
            raise ValueError("not a JSON object")
        num_clients, num_classes = (_count(config, key) for key in ("num_clients", "num_classes"))
        class_names = limits.numbered_classes(num_classes)
    images, labels, clients, start = [], [], [], 0
    for client in range(num_clients):
        indices = []
        for split in ("train", "test"):
            x, y = _read_client(root / split / f"{client}.npz")
            images.append(x)
            labels.append(y)
            indices.append(np.arange(start, start + len(y)))
            start += len(y)
        clients.append(ClientIndices(indices[0], np.arange(0), indices[1]))
    with reading(root, _ORIGIN):
        if not any(len(client.test) for client in clients):
            raise ValueError("no client has a test sample, so that no model could be scored")
        stacked, labels = resize(np.concatenate(images), image_size), np.concatenate(labels)
        warn_of_empty_class_0(root, labels)
        return Dataset(f"client_folders:{path}", stacked, labels, class_names, clients=tuple(clients))


def _count(config: dict, key: str) -> int:
    value = config.get(key)
    if type(value) is not int or value < 1:
        raise ValueError(f"{key} is {limits.short(value)}, not a positive integer")
    return value


def _read_client(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """uint8 [n, H, W, C] and integers [n]: x scaled from [-1, 1] to [0, 255] and rounded."""
    with reading(path, _ORIGIN):
        with opened_zip(path) as archive:
            data = load_npy(io.BytesIO(archive.read("data.npy")))
        match data:
            case {"x": np.ndarray() as x, "y": np.ndarray() as y} if (
                x.dtype.kind == "f" and x.ndim == 4 and y.dtype.kind in "iu" and y.shape == x.shape[:1]
            ):
                if x.size and not -1 <= x.min() <= x.max() <= 1:
                    raise ValueError(f"x runs from {x.min()} to {x.max()}, not within -1 to 1")
                return np.round((x * 0.5 + 0.5) * 255).astype(np.uint8).transpose(0, 2, 3, 1), y
        raise ValueError("data is not a dict of float x [n, C, H, W] and integer y [n]")
