"""One client's samples, as a method's functions see them."""

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Int, Shaped

from fedjax_ht.core.trees import HostArray, HostNumber, PyTree

PUBLIC = "public"
"""The split of `Data.splits` that the server and all clients have, of methods that read it."""


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
      labels: int32 [N]; of tasks other than classification the targets [N, ...], see `core.task`.
      preprocess: (inputs of a batch) -> the model's input, see `core.inputs`.
      splits: {"train" | "val" | "test" | ...: Split}; with a public set also `PUBLIC`, the same for
        all clients.
      round: int32 scalar, the round, for training in stored order (see `LocalTraining.steps`) in
        client_update; None elsewhere.
      trainer: a `jax.tree_util.Partial` that replaces `local_training.train`, with the same
        arguments (see `trust.privacy.dp_train`); None for none.
    """

    inputs: PyTree
    labels: Shaped[HostArray, " N *target"]
    preprocess: PyTree
    splits: dict[str, Split]
    round: Int[HostNumber, ""] | None = None
    trainer: Callable | None = None
