"""Keys of all random numbers, folded from (seed, purpose, round, client id).

They never depend on a position or a loop counter. A client thus draws the same numbers regardless
of the other participants and of its device.
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
"""Switches of jax that change the numbers drawn from a seed."""


class OtherGenerator(ValueError):
    """A run cannot resume: this process draws other random numbers from its seed. One line."""


def random_generator() -> dict[str, Any]:
    """Returns this process's `GENERATOR` switches as JSON values, if its jax has them."""
    switches = {}
    for name in GENERATOR:
        if hasattr(jax.config, name):
            switches[name] = getattr(jax.config, name)
    return switches


def check_generator(noted: Mapping[str, Any], place: str) -> None:
    """Checks that a run resumes with the same random generator.

    Args:
      noted: the switches that `random_generator` returned when the run started; empty if none were
        recorded.
      place: the run's folder or file, named in the message.

    Raises:
      OtherGenerator: a switch has changed.
    """
    for name, value in random_generator().items():
        if noted.get(name, value) != value:
            before = noted[name]
            variable = int(before) if isinstance(before, bool) else before
            raise OtherGenerator(
                f"{place} holds a run that draws random numbers with {name} {before!r}, but "
                f"this process has {value!r}: clients would draw different ones; set "
                f"{name.upper()}={variable}, or choose another --workdir"
            )


class Purpose(enum.IntEnum):
    """Separate random streams, so that adding a draw in one place does not affect others."""

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
      secret: 32-bit words that cannot be derived from the seed; without them, anyone who knows the
        seed knows the noise.
    """
    key = jax.random.fold_in(key, Purpose.PRIVACY)
    for word in secret:
        key = jax.random.fold_in(key, word)
    return key


def host_generator(seed: int, purpose: Purpose, round: int) -> np.random.Generator:
    """Returns the NumPy generator for choices made on the host, such as the participants."""
    return np.random.default_rng([seed, int(purpose), round])
