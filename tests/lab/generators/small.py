"""A StyleGAN of two layers with random weights, and the check of an error."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.lab.generators import stylegan3
from fedjax_ht.lab.generators.stylegan3 import Layer, Network

LAYER = Layer(4, 5, 3, 2, 2, 12, 12, False, (9, 8, 9, 8), 256.0, False)
TO_RGB = Layer(5, 3, 1, 1, 1, 1, 1, False, (0, 0, 0, 0), None, True)
SMALL = Network("styleganxl", 6, 8, 7, 3, 2, (6, 5), 4.0, 1.0, 0.25, (LAYER, TO_RGB))


def random_variables(network):
    rng, made = np.random.default_rng(0), {}
    for name, shape in stylegan3.expected_shapes(network).items():
        made[name] = jnp.asarray(rng.normal(size=shape), jnp.float32)
    return made


def refused(message, function, *arguments):
    """The function refuses these arguments in one line that matches the message."""
    with pytest.raises(ValueError, match=message) as error:
        function(*arguments)
    assert "\n" not in str(error.value)
