"""Keys of all random numbers, folded from (seed, purpose, round, client id).

They never depend on a position or a loop counter, so that a client draws the same numbers whoever
else takes part, and on whatever device it runs.
"""

import enum
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Int, Key

from fedjax_ht.core.trees import Array, HostNumber

GENERATOR = (
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_random_seed_offset",
    "jax_high_dynamic_range_gumbel",
)
"""Switches of jax that change what is drawn from a seed."""


class OtherGenerator(ValueError):
    """A run cannot go on: this process draws other random numbers from its seed. One line."""


def random_generator() -> dict[str, Any]:
    """Returns the switches `GENERATOR` of this process as JSON values, those that its jax has."""
    switches = {}
    for name in GENERATOR:
        if hasattr(jax.config, name):
            switches[name] = getattr(jax.config, name)
    return switches


def check_generator(noted: Mapping[str, Any], place: str) -> None:
    """Refuses to go on with a run under another random generator.

    Args:
      noted: the switches that `random_generator` returned when the run began; empty where no
        switches were noted.
      place: the run's folder or file, named in the message.

    Raises:
      OtherGenerator: a switch stands otherwise now.
    """
    for name, value in random_generator().items():
        if noted.get(name, value) != value:
            before = noted[name]
            variable = int(before) if isinstance(before, bool) else before
            raise OtherGenerator(
                f"{place} holds a run whose random numbers are drawn with {name} {before!r}, and "
                f"this process has {value!r}: clients would draw others from here on; set "
                f"{name.upper()}={variable}, or choose another --workdir"
            )


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
    NEW_CLIENTS = 16


def round_key(
    root: Key[Array, ""], purpose: Purpose, round: Int[HostNumber, ""] | int
) -> Key[Array, ""]:
    """Returns the server's key of a round; `root` is jax.random.key(seed)."""
    return jax.random.fold_in(jax.random.fold_in(root, purpose), round)


def client_key(
    root: Key[Array, ""],
    purpose: Purpose,
    round: Int[HostNumber, ""] | int,
    client_id: Int[HostNumber, ""] | int,
) -> Key[Array, ""]:
    """Returns a client's key of a round; arguments as for `round_key`."""
    return jax.random.fold_in(round_key(root, purpose, round), client_id)


def privacy_key(key: Key[Array, ""], secret: Sequence[int] = ()) -> Key[Array, ""]:
    """Returns the key of noise that hides private data.

    Args:
      key: the key of the round, or of a client in it.
      secret: 32-bit words that cannot be derived from the seed; without them whoever knows the seed
        knows the noise.
    """
    key = jax.random.fold_in(key, Purpose.PRIVACY)
    for word in secret:
        key = jax.random.fold_in(key, word)
    return key


def host_generator(seed: int, purpose: Purpose, round: int) -> np.random.Generator:
    """Returns NumPy's generator of choices made on the host, such as the participants."""
    return np.random.default_rng([seed, int(purpose), round])
