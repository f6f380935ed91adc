"""Means by which `checking` tests what a method only promises."""

import contextlib
import random
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.trees import PyTree
from fedjax_ht.core.wire import Metadata


@contextlib.contextmanager
def no_host_draws(name: str) -> Iterator[None]:
    """Refuses a method that draws by np.random or random.

    Raises:
      ValueError: the state of one of the two has changed meanwhile. One line.
    """
    before = _generators()
    yield
    if _generators() != before:
        raise ValueError(
            f"{name!r} draws by np.random or random: its functions are traced once, so that every "
            "round and client would see the same numbers; draw by jax.random from ctx.key"
        )


def _generators() -> tuple:
    kind, keys, *rest = np.random.get_state()
    return random.getstate(), kind, np.asarray(keys).tobytes(), *rest


def twins(rows: dict[str, list[tuple]], change: float) -> dict[str, list[tuple]]:
    """Returns each bucket's rows with two uploads of one sum in place of the first two: the first
    one, more and less by this share of itself.

    Args:
      rows: bucket name -> (uplink, info) of its clients, two or more.
      change: share of each number by which the two differ from their mean, up in some entries of
        the first, down in others.
    """
    changed = {}
    for name, pairs in rows.items():
        (uplink, info), (_, second) = pairs[:2]
        twin = second._replace(num_samples=info.num_samples)
        first = _moved(uplink, change), info
        changed[name] = [first, (_moved(uplink, -change), twin), *pairs[2:]]
    return changed


def _moved(uplink: PyTree, share: float) -> PyTree:
    """Multiplies the numbers of an uplink by 1 + share and 1 - share in turn; metadata stay."""

    def moved(leaf):
        if isinstance(leaf, Metadata) or not jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating):
            return leaf
        signs = jnp.where(jnp.arange(leaf.size).reshape(leaf.shape) % 2 == 0, 1, -1)
        return leaf * (1 + share * signs)

    return jax.tree.map(moved, uplink, is_leaf=lambda x: isinstance(x, Metadata))
