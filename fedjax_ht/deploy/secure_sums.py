"""Secure sums: which uplinks the server gets only as a sum, and how it uses the sum.

An uplink is one vector: each plain array; for each `Masked` its values, 0 where they are not sent,
and its mask, 0 or 1. From a sum over k clients the server makes k uplinks in which nothing is left
of any single client. For a plain array, each has the k-th part. For a `Masked` entry that c clients
have sent, the first c of the k uplinks have the c-th part. A server that reads nothing but sums
(`Wire.server_reads`) computes the same from these as from the clients' own, up to rounding.

SecAgg+ adds integers: numbers from -range to range are quantised to `STEPS` steps, and masks are
integers modulo `MODULUS`.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

import jax
import numpy as np

from fedjax_ht.core.context import ClientInfo, Received
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.method import Method
from fedjax_ht.core.trees import PyTree
from fedjax_ht.core.wire import (
    from_leaves,
    is_masked,
    is_payload,
    leaves_of,
    over_rows,
    sent_rows,
    values_of,
)
from fedjax_ht.trust.vectors import comparable

MIN_CLIENTS = 3
"""Fewest clients of a sum: with two, each could subtract its own uplink and get the other's."""
STEPS = 1 << 22
MODULUS = 1 << 32
MAX_CLIENTS = MODULUS // STEPS - 1
"""Most clients of a sum: a larger one could exceed the modulus."""
MIN_RANGE = 1.0
MAX_RANGE = 500.0
"""Largest range: the sum of `MAX_CLIENTS` clients' masks is then exact to within 1/4."""
SHARE_BYTES = 1 << 12
"""Most bytes of keys and shares that a client sends or gets for each other client of a sum."""
_MASK_GENERATOR = "pseudo_rand_gen"
"""Name by which Flower's functions call their generator of masks."""


def sum_groups(
    method: Method, federation: Federation, forms: Mapping[str, PyTree]
) -> dict[str, tuple[int, ...]]:
    """Groups the clients whose uplinks are summed together: those with uplinks of one shape.

    Args:
      method: decides what the server reads.
      federation: the clients.
      forms: bucket name -> the form of its uplinks.

    Returns:
      {name of the group, from its buckets': ids of its clients}.

    Raises:
      ValueError: the server needs more than sums, or a group is too small or large. One line.
    """
    check_server_reads(method)
    leaves = [leaf for form in forms.values() for leaf in leaves_of(form)]
    if not leaves:
        raise ValueError(f"--secure_sums: clients of {method.name} send nothing to sum")
    if not all(map(is_payload, leaves)):
        raise ValueError(
            f"--secure_sums: clients of {method.name} reveal which rows or counts they have, by "
            "which the server weights each client; a sum cannot distinguish clients"
        )

    def stacked_form(leaf):
        return jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype)

    received, unknown = {}, np.zeros(1, np.int32)
    for name, form in forms.items():
        stacked = jax.tree.map(stacked_form, form)
        received[name] = Received(stacked, ClientInfo(unknown, unknown, unknown), np.ones(1, bool))
    members = {bucket.name: federation.members(bucket) for bucket in federation.buckets}
    groups = {}
    for buckets in comparable(received, nested=False):
        name = ", ".join(buckets)
        clients = sorted(int(i) for bucket in buckets for i in members[bucket])
        if not MIN_CLIENTS <= len(clients) <= MAX_CLIENTS:
            raise ValueError(
                f"--secure_sums: {len(clients)} clients have uplinks shaped like {name}'s; "
                f"a sum takes {MIN_CLIENTS} to {MAX_CLIENTS} clients"
            )
        groups[name] = tuple(clients)
    return groups


def check_server_reads(method: Method) -> None:
    """Rejects a method whose server reads single uplinks.

    Raises:
      ValueError: it does. One line.
    """
    if method.wire.server_reads != "sums":
        raise ValueError(
            f"--secure_sums: the server of {method.name} reads more than sums of uplinks"
        )


def uplink_vector(uplink: PyTree) -> np.ndarray:
    """Flattens a client's uplink into the vector that is summed, float32 [n]."""
    parts = []
    for leaf in leaves_of(uplink):
        values = np.asarray(values_of(leaf), np.float32)
        if is_masked(leaf):
            # rows that are not sent may be NaN, which would make the sum NaN
            values = np.where(np.asarray(sent_rows(leaf)), values, np.float32(0))
        parts.append(values.ravel())
        if is_masked(leaf):
            parts.append(np.asarray(leaf.mask, np.float32).ravel())
    return np.concatenate(parts)


def vector_length(form: PyTree) -> int:
    """Returns the length of a client's `uplink_vector`."""
    return sum(_sizes(form))


def split_sum(form: PyTree, total: np.ndarray, clients: Sequence[int]) -> dict[int, PyTree]:
    """Makes uplinks with the same sum as the clients' own, see the module's docstring.

    Args:
      form: form of one uplink, a pytree of `jax.ShapeDtypeStruct`.
      total: float64 [n], sum of the clients' `uplink_vector`s, masks to within 1/4.
      clients: ids of the clients in the sum.

    Returns:
      {client id: uplink of NumPy arrays}, ids ascending.

    Raises:
      ValueError: the total is not such a sum. One line.
    """
    num_clients, sizes = len(clients), _sizes(form)
    if total.shape != (sum(sizes),) or not np.isfinite(total).all():
        raise ValueError(
            f"it is not a sum of {num_clients} uplinks: expected {sum(sizes)} finite numbers, "
            f"found the shape {total.shape}"
        )
    parts = iter(np.split(total, np.cumsum(sizes)[:-1]))
    uplinks = {client: [] for client in sorted(clients)}
    for leaf in leaves_of(form):
        if not is_masked(leaf):
            share = (next(parts).reshape(leaf.shape) / num_clients).astype(leaf.dtype)
            for leaves in uplinks.values():
                leaves.append(share)
            continue
        values, mask = leaf.values, leaf.mask
        value_sum, mask_sum = next(parts).reshape(values.shape), next(parts).reshape(mask.shape)
        senders = _counts(mask_sum, num_clients)
        per_row = over_rows(senders, values)
        share = np.where(per_row > 0, value_sum / np.maximum(per_row, 1), 0).astype(values.dtype)
        for i, leaves in enumerate(uplinks.values()):
            # as many uplinks have the row as clients sent it, whichever these were
            leaves.append(leaf._replace(values=share, mask=senders > i))
    return {client: from_leaves(form, leaves) for client, leaves in uplinks.items()}


def _counts(mask_sum: np.ndarray, num_clients: int) -> np.ndarray:
    """Rounds sums of masks to the number of clients that sent each row."""
    counts = np.rint(mask_sum)
    inexact = (np.abs(mask_sum - counts) > 0.25).any()
    if inexact or (counts < 0).any() or (counts > num_clients).any():
        raise ValueError(
            f"it is not a sum of {num_clients} uplinks: its row counts are not 0 to {num_clients}"
        )
    return counts


def _sizes(form: PyTree) -> list[int]:
    """Returns the lengths of a vector's parts: a `Masked` has two, its values and its mask."""
    return [math.prod(array.shape) for array in jax.tree.leaves(form)]


def threshold(num_clients: int) -> int:
    """Returns how many clients must remain at the end of a sum to reconstruct secrets."""
    return max(MIN_CLIENTS, num_clients // 2 + 1)


def mask_stream(key: bytes, modulus: int, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Draws masks, int64 arrays uniform below `MODULUS`: AES's key stream under the whole key.

    Flower's own `pseudo_rand_gen` folds a key to 32 bits first, few enough to try them all.

    Args:
      key: a single-use key.
      modulus: must be `MODULUS`.
      shapes: shapes of the arrays.

    Raises:
      ValueError: another modulus.
    """
    # comes with Flower
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    if modulus != MODULUS:
        raise ValueError(f"masks below {modulus}, not {MODULUS}")
    # the counter may start at 0, since a key is used once
    cipher = Cipher(algorithms.AES(hashlib.sha256(key).digest()), modes.CTR(bytes(16)))
    encryptor = cipher.encryptor()
    masks = []
    for shape in shapes:
        drawn = encryptor.update(bytes(4 * math.prod(shape)))
        masks.append(np.frombuffer(drawn, "<u4").astype(np.int64).reshape(shape))
    return masks


def with_mask_stream(function: FunctionType, **replaced: Any) -> FunctionType:
    """Copies one of Flower's functions so that it draws masks by `mask_stream`.

    Flower's own function is unchanged, for other users of flwr in this process.

    Args:
      function: function of a module of Flower's SecAgg+.
      **replaced: values of further names of that module in the copy.

    Raises:
      RuntimeError: the function calls no generator of the known name, so that its masks would be
        Flower's. One line.
    """
    if not replaced and _MASK_GENERATOR not in function.__code__.co_names:
        raise RuntimeError(
            f"flwr's {function.__name__} does not call {_MASK_GENERATOR}: secure sums need another "
            "version of flwr"
        )
    names = {**function.__globals__, _MASK_GENERATOR: mask_stream, **replaced}
    return FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
