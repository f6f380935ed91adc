"""Feature shift: makes domains from one set of images by changing pixels on the device.

A sample is an image and the index of its domain; in domain 0 a model sees the image unchanged. The
domains are also `Dataset.groups`, so that partition "natural" makes clients with one domain each.
"""

import dataclasses
import functools
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.ndimage import map_coordinates

from fedjax_ht.check.named_numbers import read_spec
from fedjax_ht.check.options import Within, checked
from fedjax_ht.core.inputs import Pixels
from fedjax_ht.core.numerics import standard_numerics
from fedjax_ht.data.dataset import Dataset


class Rotated(NamedTuple):
    """Rotates the images of (images, domain [N]) by the angle of their domain, then applies `rule`.

    Interpolation is linear, and black outside the image; quarter turns of squares are exact.

    Attributes:
      rule: the rule that normalises the images.
      turns: float32 [domains, 2], cosine and sine of the angles, counter-clockwise.
    """

    rule: Pixels
    turns: Any

    def __call__(self, inputs: tuple[jax.Array, jax.Array]) -> jax.Array:
        images, domain = inputs
        turned = jax.vmap(_turn)(self.rule.scaled(images), self.turns[domain.astype(jnp.int32)])
        return self.rule.normalise(turned)

    @property
    def black(self) -> jax.Array:
        return self.rule.black


class Corrupted(NamedTuple):
    """Corrupts the images of (images, domain [N]) by their domain, then applies `rule`.

    Domain i has the i-th of `CORRUPTIONS`. The noise's seed is computed from an image's pixels, so
    that it is always the same for an image.
    """

    rule: Pixels

    def __call__(self, inputs: tuple[jax.Array, jax.Array]) -> jax.Array:
        images, domain = inputs

        def change(image, i):
            return lax.switch(i, tuple(CORRUPTIONS.values()), image)

        changed = jax.vmap(change)(self.rule.scaled(images), domain.astype(jnp.int32))
        return self.rule.normalise(changed)

    @property
    def black(self) -> jax.Array:
        return self.rule.black


def _turn(image: jax.Array, turn: jax.Array) -> jax.Array:
    """Rotates an image [H, W, C] about its centre; `turn` is the cosine and sine."""
    height, width, _ = image.shape
    y, x = jnp.mgrid[:height, :width].astype(jnp.float32)
    y, x = y - (height - 1) / 2, x - (width - 1) / 2
    cos, sin = turn
    at = [cos * y + sin * x + (height - 1) / 2, cos * x - sin * y + (width - 1) / 2]

    def channel(plane):
        return map_coordinates(plane, at, order=1, mode="constant")

    return jax.vmap(channel, -1, -1)(image)


def _noise(image: jax.Array) -> jax.Array:
    values = jnp.round(255 * image).astype(jnp.uint32).ravel()
    seed = jnp.sum(
        values * (jnp.arange(1, values.size + 1, dtype=jnp.uint32) * jnp.uint32(2654435761))
    )
    return jnp.clip(image + 0.15 * jax.random.normal(jax.random.key(seed), image.shape), 0, 1)


def _blur(image: jax.Array) -> jax.Array:
    """Applies a binomial filter of five pixels per axis, about a Gaussian with sigma one pixel."""
    for axis in (0, 1):
        near = functools.partial(_shifted_pixels, image, axis)
        image = (near(-2) + 4 * near(-1) + 6 * image + 4 * near(1) + near(2)) / 16
    return image


def _shifted_pixels(image: jax.Array, axis: int, steps: int) -> jax.Array:
    """Returns the pixels `steps` further along an axis, with border pixels repeated."""
    n = image.shape[axis]
    return jnp.take(image, np.clip(np.arange(n) + steps, 0, n - 1), axis)


CORRUPTIONS = {
    "none": lambda image: image,
    "noise": _noise,
    "blur": _blur,
    "contrast": lambda image: image.mean() + 0.4 * (image - image.mean()),
    "bright": lambda image: jnp.clip(image + 0.3, 0, 1),
    "four levels": lambda image: jnp.round(3 * image) / 3,
}
"""Name -> function from and to an image, float32 [H, W, C] in [0, 1]; in the domains' order."""

_MOST = {"rotate": 100, "corrupt": len(CORRUPTIONS)}


def parse_shift(text: str) -> tuple[str, int]:
    """Returns ("rotate" or "corrupt", number of domains) of a string such as "rotate/4".

    Raises:
      ValueError: it is neither, or has too few or too many domains.
    """
    rule = (
        f"it must be rotate/DOMAINS, of 2 to {_MOST['rotate']}, or corrupt/DOMAINS, of 2 to "
        f"{_MOST['corrupt']}, such as rotate/4"
    )
    forms = {kind: (Annotated[int, Within(2, most)],) for kind, most in _MOST.items()}
    kind, (domains,) = read_spec("shift", text, forms, rule)
    return kind, int(domains)


@checked
@standard_numerics()
def shifted(dataset: Dataset, shift: str, seed: int = 0) -> Dataset:
    """Makes several domains from a set of images.

    Each sample gets a random domain, so that all domains have about equally many samples of a
    class.

    Args:
      dataset: a set of images.
      shift: "rotate/N": domain i is rotated by 360 i / N degrees, counter-clockwise. "corrupt/N":
        the first N of `CORRUPTIONS`.
      seed: the seed that draws each sample's domain.

    Returns:
      The set with inputs (images, int8 [N] domain) and the domains as groups.

    Raises:
      ValueError: the shift is unknown, the samples are not images, "rotate" would also have to
        rotate masks, or the set already has groups.
    """
    kind, domains = parse_shift(shift)
    if not isinstance(dataset.preprocess, Pixels):
        raise ValueError(f"shift is {shift!r}, but {dataset.name} has no images; leave it empty")
    if kind == "rotate" and len(dataset.task.target[0]) > 1:
        raise ValueError(f"shift is {shift!r}, but does not rotate the masks of {dataset.name}")
    if dataset.groups is not None:
        raise ValueError(
            f"shift is {shift!r}, but {dataset.name} has its own groups, which the domains "
            "would replace; leave it empty"
        )
    rng = np.random.default_rng(seed)
    # class by class, shuffled within each
    order = np.lexsort((rng.random(len(dataset.labels)), dataset.labels))
    domain = np.empty(len(order), np.int8)
    domain[order] = np.arange(len(order)) % domains
    angles = 2 * np.pi * np.arange(domains) / domains
    turns = np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)
    rule = Rotated(dataset.preprocess, turns) if kind == "rotate" else Corrupted(dataset.preprocess)
    return dataclasses.replace(
        dataset, inputs=(dataset.inputs, domain), preprocess=rule, groups=domain
    )
