"""Recipes and losses of data-free methods, with their factories' defaults, and a batch for them."""

import inspect
import sys
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.method import Method
from fedjax_ht.methods.data_free.bases import Opinions
from fedjax_ht.methods.data_free.distil import Objective, Synthetic
from fedjax_ht.methods.data_free.image_generator import Generated
from fedjax_ht.methods.data_free.method import settle
from fedjax_ht.methods.data_free.options import Distillation

CLIENTS, B, C = 3, 8, 5
RNG = np.random.default_rng(3)
LABELS = np.arange(B) % C
TAU = RNG.dirichlet(np.ones(CLIENTS), B).T
TEACHERS, STUDENT = 2 * RNG.normal(size=(CLIENTS, B, C)), 2 * RNG.normal(size=(B, C))
# so that the ensemble is mostly right, where the student is not
TEACHERS[:, np.arange(B), LABELS] += 2
IMAGES = RNG.normal(size=(B, 4, 4, 1))
MERGED = RNG.normal(size=(B, 6))
EMBEDDING = 3 * np.ones((B, 6))
TINY = {"iterations": 1, "generator_steps": 1, "student_steps": 1, "batch_size": 6, "noise_dim": 4}


def synthetic(teachers=TEACHERS, student=STUDENT, images=IMAGES) -> Synthetic:
    """A batch of images, and what teachers and student say of it."""
    made = Generated(*(jnp.asarray(x, jnp.float32) for x in (images, MERGED, EMBEDDING)))
    opinions = Opinions(jnp.asarray(teachers, jnp.float32), jnp.float32(TAU), {})
    student = jnp.asarray(student, jnp.float32)
    return Synthetic(made.merged, jnp.asarray(LABELS), made, opinions, student, None)


def losses_of(
    factory: Callable[..., Method], variant: str = "paper", **options
) -> tuple[Distillation, Objective]:
    """Returns the recipe and the losses that a factory makes of its options."""
    parameters = inspect.signature(factory).parameters.items()
    defaults = {name: p.default for name, p in parameters if p.kind is p.KEYWORD_ONLY}
    losses = sys.modules[inspect.unwrap(factory).__module__].losses
    return settle(losses, variant, defaults | options)
