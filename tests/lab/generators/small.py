"""A StyleGAN of two layers with random weights."""

import jax.numpy as jnp
import numpy as np

from fedjax_ht.lab.generators import stylegan3
from fedjax_ht.lab.generators.stylegan3 import Layer, Network

LAYER = Layer(4, 5, 3, 2, 2, 12, 12, False, (9, 8, 9, 8), 256.0, False)
TO_RGB = Layer(5, 3, 1, 1, 1, 1, 1, False, (0, 0, 0, 0), None, True)
SMALL = Network("styleganxl", 6, 8, 7, 3, 2, (6, 5), 4.0, 1.0, 0.25, (LAYER, TO_RGB))


def random_variables(network, seed=0):
    rng = np.random.default_rng(seed)
    shapes = stylegan3.expected_shapes(network)
    return {
        name: jnp.asarray(rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()
    }
