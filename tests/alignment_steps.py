"""FedKTL's server as the reference sees it: F's parameters by the reference's names, and the library's own draws."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.local_training import shuffled
from fedjax_ht.core.server_training import compact
from fedjax_ht.methods.alignment import SampleW
from tests.reference.fedktl import Transformer


def as_reference(params, stats) -> Transformer:
    """F in float64."""
    named = {
        "w1": params["fc1"],
        "scale": params["norm"]["scale"],
        "bias": params["norm"]["bias"],
        "w2": params["fc2"]["kernel"],
        "b2": params["fc2"]["bias"],
    }
    named, stats = jax.tree.map(lambda x: np.asarray(x, np.float64), (named, stats["norm"]))
    return Transformer(named, stats["mean"], stats["var"])


def draws(key, valid: np.ndarray, epochs: int, size: int, sample_w: SampleW) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each step of `align` with this key: rows, counted among the valid ones, and as many valid latents."""
    shuffle_key, loss_key = jax.random.split(jax.random.split(key, 4)[0])
    number = 0
    for epoch in range(epochs):
        order = shuffled(jax.random.fold_in(shuffle_key, epoch), compact(jnp.asarray(valid)))[: valid.sum()]
        order = np.searchsorted(np.flatnonzero(valid), order)
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            yield rows, np.float64(sample_w(jax.random.fold_in(loss_key, number), size)[: len(rows)])
            number += 1


def assert_close(got: Transformer, want: Transformer, but: str = "", **tolerance):
    """Every array of F, `but` one."""
    for name in want.params.keys() - {but}:
        np.testing.assert_allclose(got.params[name], want.params[name], **tolerance, err_msg=name)
    np.testing.assert_allclose(got.mean, want.mean, **tolerance)
    np.testing.assert_allclose(got.var, want.var, **tolerance)
