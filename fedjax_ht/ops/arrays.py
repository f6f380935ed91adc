"""Types of arrays and numbers, for signatures that give shapes: `Float[Array, "B K"]`."""

from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    Array = jax.Array
else:  # jax takes NumPy's arrays as well, and whoever checks a call lets them pass
    Array = jax.Array | np.ndarray

Scalar = Float[Array, ""] | float | int
"""A number; one that varies between the runs of a program is an array."""
