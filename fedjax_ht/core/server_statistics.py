"""Checks that a server whose own model has batch norms keeps their running statistics."""

import functools

import jax

from fedjax_ht.core.bucket import Bucket, init_variables
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.method import Method, no_stats


def keeps_statistics(bucket: Bucket) -> bool:
    """Returns whether a model keeps running statistics of its norms."""
    model = jax.eval_shape(functools.partial(init_variables, bucket), jax.random.key(0))
    return bool(jax.tree.leaves(model["stats"]))


def require_server_statistics(method: Method, federation: Federation) -> None:
    """Checks that a server has the running statistics that its own model is scored by.

    Raises:
      ValueError: the model's norms keep running statistics, and the method averages none. One line.
    """
    if method.global_params is None or method.global_stats is not no_stats:
        return
    bucket = method.global_bucket(federation)
    if bucket is not None and keeps_statistics(bucket):
        raise ValueError(
            f"norm is 'batch', but {method.name} keeps no running statistics of the server's "
            "model; take static_batch or another"
        )
