"""Fits a generator's images to a federation's: size and colour."""

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_ht.core.trees import HostArray
from fedjax_ht.models.generator import Generator

LUMINANCE = (0.299, 0.587, 0.114)  # ITU-R BT.601
BATCH = 10  # images synthesised at once


def fit(images: HostArray, shape: tuple[int, ...], antialias: bool = True) -> jax.Array:
    """Scales images to a shape bilinearly and cuts out their centre.

    The shorter side is scaled to the target's; a grey target gets the luminance.

    Args:
      images: images of a generator, float [n, h, w, 3] in [0, 1].
      shape: the shape (H, W, C) to scale to, with C 1 or 3.
      antialias: False takes single pixels when shrinking, as torchvision 0.15, which the authors of
        FedKTL use, did.
    """
    height, width, channels = shape
    n, h, w, _ = images.shape
    scale = max(height / h, width / w)
    size = (max(round(h * scale), height), max(round(w * scale), width))
    if size != (h, w):
        images = jax.image.resize(images, (n, *size, 3), "bilinear", antialias=antialias)
    top, left = (size[0] - height) // 2, (size[1] - width) // 2
    images = images[:, top : top + height, left : left + width]
    if channels == 1:
        images = images @ jnp.array(LUMINANCE, images.dtype)[:, None]
    return jnp.clip(images, 0, 1).astype(jnp.float32)


def synthesise(
    generator: Generator,
    variables,
    latents: jax.Array,
    shape: tuple[int, ...],
    antialias: bool,
) -> jax.Array:
    """Makes images of latents, fitted to a federation's shape.

    Args:
      generator: the protocol's functions.
      variables: variables of the generator.
      latents: float [n, H].
      shape, antialias: the images' shape and how they are shrunk to it, as for `fit`.

    Returns:
      float32 [n, *shape] in [0, 1].
    """
    if generator.host:
        images = generator.synthesize(*jax.device_get((variables, latents)))
        return fit(jnp.asarray(images), shape, antialias)

    def synthesise_one(latent):
        return fit(generator.synthesize(variables, latent[None]), shape, antialias)[0]

    # In batches, so that memory does not grow with n.
    return lax.map(synthesise_one, latents, batch_size=BATCH)
