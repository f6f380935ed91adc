"""The numbers of secure sums, and what masks are made of. Imports no JAX: a process a message does.

Flower's SecAgg+ draws masks by NumPy's generator, which folds a key to 32 bits first: few enough to try them all.
Here they are the key stream of AES under the whole key.
"""

import contextlib
import hashlib
import math
from collections.abc import Iterator, Sequence
from types import ModuleType

import numpy as np

FEWEST = 3
"""Clients in a sum: with one other, a client could take its own from it."""
STEPS = 1 << 22
"""Into how many steps the numbers from -range to range are divided."""
MODULUS = 1 << 32
MOST = MODULUS // STEPS - 1
"""Clients in a sum: of more it could be beyond the modulus."""
WIDEST = 500.0
"""The largest range: the sum of `MOST` clients' counts is then known to within 1/4."""


def threshold(clients: int) -> int:
    """How many of a sum's clients must be left at its end; without so many, nobody's secrets can be put together."""
    return max(FEWEST, clients // 2 + 1)


def stream(key: bytes, modulus: int, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Masks for arrays of these shapes, int64, each number below `MODULUS` as likely as any other.

    Args:
      key: of one use.
      modulus: must be `MODULUS`.
      shapes: of the arrays.

    Raises:
      ValueError: another modulus.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # comes with Flower

    if modulus != MODULUS:
        raise ValueError(f"masks below {modulus}, not {MODULUS}")
    encryptor = Cipher(algorithms.AES(hashlib.sha256(key).digest()), modes.CTR(bytes(16))).encryptor()
    drawn = (encryptor.update(bytes(4 * math.prod(shape))) for shape in shapes)
    return [np.frombuffer(x, "<u4").astype(np.int64).reshape(shape) for x, shape in zip(drawn, shapes)]


@contextlib.contextmanager
def own_stream(module: ModuleType) -> Iterator[None]:
    """Within it a module of Flower's SecAgg+ takes `stream` for its masks."""
    theirs = module.pseudo_rand_gen
    module.pseudo_rand_gen = stream
    try:
        yield
    finally:
        module.pseudo_rand_gen = theirs
