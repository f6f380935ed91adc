"""The numbers of secure sums, and what masks are made of. Imports no JAX: a process a message does.

Flower's SecAgg+ draws masks by NumPy's generator, which folds a key to 32 bits first: few enough to
try them all. Here they are the key stream of AES under the whole key.
"""

import hashlib
import math
from collections.abc import Sequence
from types import FunctionType
from typing import Any

import numpy as np

FEWEST = 3
"""Clients in a sum: with one other, a client could take its own from it."""
STEPS = 1 << 22
"""Into how many steps the numbers from -range to range are divided."""
MODULUS = 1 << 32
MOST = MODULUS // STEPS - 1
"""Clients in a sum: of more it could be beyond the modulus."""
_GENERATOR = "pseudo_rand_gen"
NARROWEST = 1.0
"""The smallest range."""
WIDEST = 500.0
"""The largest range: the sum of `MOST` clients' counts is then known to within 1/4."""


def threshold(clients: int) -> int:
    """How many of a sum's clients must be left at its end; without so many, nobody's secrets can be
    put together."""
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
    # comes with Flower
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    if modulus != MODULUS:
        raise ValueError(f"masks below {modulus}, not {MODULUS}")
    encryptor = Cipher(
        algorithms.AES(hashlib.sha256(key).digest()), modes.CTR(bytes(16))
    ).encryptor()
    drawn = (encryptor.update(bytes(4 * math.prod(shape))) for shape in shapes)
    return [
        np.frombuffer(x, "<u4").astype(np.int64).reshape(shape) for x, shape in zip(drawn, shapes)
    ]


def with_stream(function: FunctionType, **others: Any) -> FunctionType:
    """A copy of one of Flower's functions that takes `stream` for its masks. Flower's own stays as
    it is.

    Args:
      function: of a module of Flower's SecAgg+.
      others: what else the copy takes for names of its module.

    Raises:
      RuntimeError: it draws no masks by the name that is known here; its masks would be Flower's.
        One line.
    """
    if not others and _GENERATOR not in function.__code__.co_names:
        raise RuntimeError(
            f"flwr's {function.__name__} does not call {_GENERATOR}: secure sums need another flwr"
        )
    names = {**function.__globals__, _GENERATOR: stream, **others}
    return FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
