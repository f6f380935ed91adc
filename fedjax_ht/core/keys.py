"""Every random number is folded from (seed, purpose, round, client id): never from a position or a
loop counter."""

import enum
from collections.abc import Sequence

import jax
import numpy as np


class Purpose(enum.IntEnum):
    """Separate streams, so that adding a draw in one place shifts no other."""

    INIT_SERVER = 0
    INIT_CLIENT = 1
    BROADCAST = 2
    RECEIVE = 3
    TRAIN = 4
    SERVER = 5
    UPLINK = 6
    DOWNLINK = 7
    PARTICIPATION = 8
    DROPOUT = 9
    EVALUATION = 10
    SHARED = 11
    ATTACK = 12
    PRIVACY = 13
    DEVICES = 14
    AVAILABILITY = 15


def round_key(root: jax.Array, purpose: Purpose, round: jax.Array) -> jax.Array:
    """The server's key of a round; `root` is jax.random.key(seed)."""
    return jax.random.fold_in(jax.random.fold_in(root, purpose), round)


def client_key(
    root: jax.Array, purpose: Purpose, round: jax.Array, client_id: jax.Array
) -> jax.Array:
    """A client's key of a round."""
    return jax.random.fold_in(round_key(root, purpose, round), client_id)


def privacy_key(key: jax.Array, secret: Sequence[int] = ()) -> jax.Array:
    """The stream of a key that hides what is private; `secret` are 32-bit words that the seed does
    not tell."""
    key = jax.random.fold_in(key, Purpose.PRIVACY)
    for word in secret:
        key = jax.random.fold_in(key, word)
    return key


def host_generator(seed: int, purpose: Purpose, round: int) -> np.random.Generator:
    """For choices made on the host, such as who takes part."""
    return np.random.default_rng([seed, int(purpose), round])
