"""Servers that train on uploads as references see them: the library's draws, F of FedKTL."""

import itertools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.batches import shuffled
from fedjax_ht.core.server_training import compact
from fedjax_ht.methods.shared.pair_server import SampleW
from tests.tiny import C


def as_reference(params) -> dict[str, np.ndarray]:
    """F in float64."""
    named = {
        "w1": params["fc1"],
        "scale": params["norm"]["scale"],
        "bias": params["norm"]["bias"],
        "w2": params["fc2"]["kernel"],
        "b2": params["fc2"]["bias"],
    }
    return jax.tree.map(lambda x: np.asarray(x, np.float64), named)


def valid_rows(uploads, order: list[list[int]]) -> np.ndarray:
    """Which rows of a server's batch are uploads, client id -> {class: row}: by id, then class."""
    ids = sorted(itertools.chain(*order))
    return np.array([c in uploads.get(i, {}) for i in ids for c in range(C)])


def epoch_orders(key, valid: np.ndarray, epochs: int) -> Iterator[np.ndarray]:
    """Yields the order of rows in each epoch, counted among the valid ones."""
    for epoch in range(epochs):
        order = shuffled(jax.random.fold_in(key, epoch), compact(jnp.asarray(valid)))
        yield np.searchsorted(np.flatnonzero(valid), order[: valid.sum()])


def draws(
    key, valid: np.ndarray, epochs: int, size: int, sample_w: SampleW, drop_single: bool = False
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the draws of each step that `align` takes with this key: the rows of its batch,
    counted among the valid ones, and as many valid latents.

    With `drop_single` batches of a single row are left out, as in the released form.
    """
    shuffle_key, loss_key = jax.random.split(jax.random.split(key, 4)[0])
    number = 0
    for order in epoch_orders(shuffle_key, valid, epochs):
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            if drop_single and len(rows) == 1:
                continue
            yield (
                rows,
                np.float64(sample_w(jax.random.fold_in(loss_key, number), size)[: len(rows)]),
            )
            number += 1


def assert_close(got: dict, want: dict, but: str = "", **tolerance):
    """Every array of F, `but` one."""
    for name in want.keys() - {but}:
        np.testing.assert_allclose(got[name], want[name], **tolerance, err_msg=name)
