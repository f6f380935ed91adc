"""FedKTL's server as the reference sees it: F's parameters by the reference's names, and the
library's own draws."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.batches import shuffled
from fedjax_ht.core.server_training import compact
from fedjax_ht.methods.shared.pair_server import SampleW


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


def draws(
    key, valid: np.ndarray, epochs: int, size: int, sample_w: SampleW, drop_single: bool = False
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the draws of each step that `align` takes with this key: the rows of its batch,
    counted among the valid ones, and as many valid latents.

    With `drop_single` batches of a single row are left out, as in the released form.
    """
    shuffle_key, loss_key = jax.random.split(jax.random.split(key, 4)[0])
    number = 0
    for epoch in range(epochs):
        order = shuffled(jax.random.fold_in(shuffle_key, epoch), compact(jnp.asarray(valid)))[
            : valid.sum()
        ]
        order = np.searchsorted(np.flatnonzero(valid), order)
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
