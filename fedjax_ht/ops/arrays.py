"""Types of arrays and numbers, for signatures that give shapes: `Float[Array, "B K"]`."""

from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    Array = jax.Array
else:  # jax also takes NumPy arrays, and runtime checks of calls must accept them
    Array = jax.Array | np.ndarray

Scalar = Float[Array, ""] | float | int
"""A number, or an array if it varies between runs of a compiled program."""
