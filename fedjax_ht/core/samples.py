"""One client's samples, as seen by a method's functions."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Int, Shaped

from fedjax_ht.core.trees import HostArray, HostNumber, PyTree, take

PUBLIC = "public"
"""The split of `Data.splits` that server and all clients share, for methods that read it."""


class Split(NamedTuple):
    """One client's share of a data set.

    Attributes:
      indices: int32 [max], into `Data.inputs`; the first `count` are real, the others padding.
      count: int32 scalar.
    """

    indices: Int[HostArray, "*clients samples"]
    # hides tuple.count
    count: Int[HostNumber, "*clients"]  # pyright: ignore[reportIncompatibleMethodOverride]


class Data(NamedTuple):
    """One client's view of the data; inputs and labels are stored once for all clients.

    Attributes:
      inputs: an array with a leading sample axis [N], such as images uint8 [N, H, W, C], or a
        pytree of such arrays.
      labels: int32 [N]; for tasks other than classification, targets [N, ...], see `core.task`.
      preprocess: (inputs of a batch) -> the model's input, see `core.inputs`.
      splits: {"train" | "val" | "test" | ...: Split}; with a public set also `PUBLIC`, the same for
        all clients.
      round: int32 scalar, the round, in client_update, for training in stored order (see
        `LocalTraining.steps`); None elsewhere.
      trainer: a `jax.tree_util.Partial` that replaces `local_training.train`, with the same
        arguments (see `trust.privacy.dp_train`), or None.
    """

    inputs: PyTree
    labels: Shaped[HostArray, " N *target"]
    preprocess: PyTree
    splits: dict[str, Split]
    round: Int[HostNumber, ""] | None = None
    trainer: Callable | None = None


def of_member(data: Data, member: Any) -> Data:
    """Returns a bucket's stacked data as one of its clients sees it; `member` is its row there."""
    splits = {}
    for name, split in data.splits.items():
        # the public set is shared, not stacked by client
        splits[name] = split if name == PUBLIC else take(split, member)
    return data._replace(splits=splits)
