"""Uplinks of which the server sees the sum alone: who is summed with whom, as what, and what the
server makes of it.

An uplink is one vector: each plain array; of each `Masked` its values, 0 where they are not sent,
and its mask, 0 or 1. Of k clients' sum the server makes k uplinks in which nothing is left of any
single one: a plain array is the k-th part; of a `Masked`, where c clients have sent an entry, the
first c of the k have the c-th part. A server that reads nothing but sums (`Wire.server_reads`)
makes of these what it makes of the clients' own, but for rounding.
"""

from collections.abc import Mapping, Sequence

import jax
import numpy as np

from fedjax_ht.core.federation import Federation
from fedjax_ht.core.method import Method, PyTree, Received
from fedjax_ht.core.wire import (
    Masked,
    from_leaves,
    is_masked,
    is_payload,
    leaves_of,
    over_rows,
    sent_rows,
    values_of,
)
from fedjax_ht.deploy.envelope import HEADER
from fedjax_ht.deploy.masks import FEWEST, MOST
from fedjax_ht.trust.vectors import comparable


def summed_clients(
    method: Method, federation: Federation, forms: Mapping[str, PyTree]
) -> dict[str, tuple[int, ...]]:
    """Whose uplinks are summed together: those of one shape. A name -> ids.

    Args:
      method, federation: who sends.
      forms: bucket name -> the form of its uplinks.

    Raises:
      ValueError: uplinks are not such that their sum is all that is needed, or too few are alike.
        One line.
    """
    check_reads(method)
    leaves = [leaf for form in forms.values() for leaf in leaves_of(form)]
    if not leaves:
        raise ValueError(
            f"--secure_sums: clients of {method.name} send nothing that could be summed"
        )
    if not all(map(is_payload, leaves)):
        raise ValueError(
            f"--secure_sums: clients of {method.name} say which rows or counts they have, by "
            "which the server weighs "
            "each of them; a sum does not tell these apart"
        )

    def one(x):
        return jax.ShapeDtypeStruct((1, *x.shape), x.dtype)

    rows = {
        name: Received(jax.tree.map(one, form), None, np.ones(1, bool))
        for name, form in forms.items()
    }
    members = {b.name: federation.members(b) for b in federation.buckets}
    groups = {
        ", ".join(part): tuple(sorted(int(i) for name in part for i in members[name]))
        for part in comparable(rows, nested=False)
    }
    for name, clients in groups.items():
        if not FEWEST <= len(clients) <= MOST:
            raise ValueError(
                f"--secure_sums: {len(clients)} clients have uplinks of the shape of {name}; a "
                f"sum is of {FEWEST} to "
                f"{MOST}"
            )
    return groups


def check_reads(method: Method) -> None:
    """Refuses a method whose server reads single uplinks.

    Raises:
      ValueError: it does. One line.
    """
    if method.wire.server_reads != "sums":
        raise ValueError(
            f"--secure_sums: the server of {method.name} reads more than sums of uplinks"
        )


def as_vector(uplink: PyTree) -> np.ndarray:
    """A client's uplink for a sum, float32 [n]."""
    parts = []
    for leaf in leaves_of(uplink):
        values = np.asarray(values_of(leaf), np.float32)
        if is_masked(leaf):
            # Rows that are not sent may be NaN, which no sum would lose again.
            values = np.where(np.asarray(sent_rows(leaf)), values, np.float32(0))
        parts.append(values.ravel())
        if is_masked(leaf):
            parts.append(np.asarray(leaf.mask, np.float32).ravel())
    return np.concatenate(parts)


def vector_bytes(form: PyTree) -> int:
    """Bytes of a client's masked vector, 8 for each of its numbers, with its header."""
    return 8 * _vector_size(form) + HEADER


def _vector_size(form: PyTree) -> int:
    """Returns the length of `as_vector` of an uplink of this form."""
    return sum(x.size for x in jax.tree.leaves(form))


def uplinks_of(form: PyTree, total: np.ndarray, clients: Sequence[int]) -> dict[int, PyTree]:
    """Uplinks that have the sum of the clients' own, see above, as NumPy.

    Args:
      form: of one uplink.
      total: float64 [n], the sum of `as_vector` of the clients' uplinks, its counts to within 1/4.
      clients: whose they are.

    Raises:
      ValueError: it is no such sum. One line.
    """
    clients, k = sorted(clients), len(clients)
    out, start, size = {client: [] for client in clients}, 0, _vector_size(form)
    if total.shape != (size,) or not np.isfinite(total).all():
        raise ValueError(
            f"it is no sum of {k} uplinks: {total.shape} numbers, and {size} must be there, finite"
        )
    for leaf in leaves_of(form):
        values = values_of(leaf)
        found, start = total[start : start + values.size].reshape(values.shape), start + values.size
        if not is_masked(leaf):
            share = (found / k).astype(leaf.dtype)
            for own in out.values():
                own.append(share)
            continue
        said, start = (
            total[start : start + leaf.mask.size].reshape(leaf.mask.shape),
            start + leaf.mask.size,
        )
        count = np.rint(said)
        if (np.abs(said - count) > 0.25).any() or (count < 0).any() or (count > k).any():
            raise ValueError(f"it is no sum of {k} uplinks: its counts are none from 0 to {k}")
        rows = over_rows(count, values)
        share = np.where(rows > 0, found / np.maximum(rows, 1), 0).astype(values.dtype)
        for i, own in enumerate(out.values()):
            own.append(Masked(share, count > i))
    return {client: from_leaves(form, own) for client, own in out.items()}
