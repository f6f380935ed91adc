"""Settings to try where a split cannot be made, nearest first."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fedjax_ht.data.dataset import Dataset

ALPHAS = (0.1, 0.2, 0.5, 1.0, 10.0)
FEW = (2, 3, 4)  # samples of which some train and some test


def remedies(
    dataset: Dataset, num_clients: int, values: Mapping[str, Any], drawn: int = 0
) -> Iterator[dict[str, Any]]:
    """Yields changes of a partition's options, and of num_clients, that may make it possible.

    Args:
      dataset: the dataset to split.
      num_clients: number of clients of the split that is not possible.
      values: all options of the partition.
      drawn: the minimum that a draw reached, see `NoDraw.largest`; 0 where nothing is drawn.
    """
    yield from _sets(dataset, values)
    if "train_share" in values:
        yield from _shares(values)
    if drawn:
        yield {"min_samples": drawn}
    if "alpha" in values:
        yield from _draws(values)
    if dataset.groups is not None and "tested" in values:
        yield from _persons(dataset.groups, num_clients, values["min_samples"])
        yield {"tested": "new_groups"}
    for name in ("test_shots", "shots", "classes_per_client"):
        if isinstance(values.get(name), int):
            yield from ({name: fewer} for fewer in _halved(values[name]))
    yield from ({"num_clients": fewer} for fewer in _halved(num_clients))


def _sets(dataset: Dataset, values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields other ways to make the sets for training and testing."""
    if values.get("sets") == "official":
        yield {"sets": "merged"}
    if values.get("stratified"):
        yield {"stratified": False}
    if "val_size" in values:
        yield {"val_size": len(dataset.official.get("train", ())) // 10}


def _shares(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields shares that leave samples for testing."""
    train, val = values["train_share"], values["val_share"]
    if train is not None and train + val >= 1:
        if val and train < 1:
            yield {"val_share": (1 - train) / 2}
        yield {"train_share": 0.75}
        yield {"train_share": 0.5, "val_share": 0.25}
    elif train is not None and train < 0.5:
        yield {"train_share": 0.5}


def _draws(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a few samples as the minimum, and larger alphas, with this minimum and with 2."""
    least = values["min_samples"]
    for few in FEW:
        if least is not None and few > least:
            yield {"min_samples": few}
    for alpha in ALPHAS:
        if alpha > values["alpha"]:
            yield {"alpha": alpha}
            yield {"alpha": alpha, "min_samples": FEW[0]}


def _persons(groups: np.ndarray, num_clients: int, least: int) -> Iterator[dict[str, Any]]:
    """Yields larger minima of a person's samples, with as many clients as there are then."""
    sizes = np.unique(groups, return_counts=True)[1]
    for more in FEW:
        left = int((sizes >= more).sum())
        if more > least and left >= num_clients:
            yield {"min_samples": more}
        elif more > least and left:
            yield {"min_samples": more, "num_clients": left}


def _halved(number: int) -> list[int]:
    """Returns half of a number, a quarter and so on, down to 1."""
    halves = []
    while number > 1:
        number //= 2
        halves.append(number)
    return halves
