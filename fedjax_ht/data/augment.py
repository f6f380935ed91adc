"""Training augmentation on the device, for one client's batch; vmapped with the client."""

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_ht.core.local_training import Augment


def flip(key: jax.Array, x: jax.Array) -> jax.Array:
    """Mirrors each image left to right with probability 1/2. [B, H, W, C] -> the same."""
    mirrored = jax.random.bernoulli(key, 0.5, (x.shape[0], 1, 1, 1))
    return jnp.where(mirrored, x[:, :, ::-1], x)


def padded_crop(key: jax.Array, x: jax.Array, pad: int = 4) -> jax.Array:
    """Pads each side with zeros (of normalised pixels) and crops back to size at a random place."""
    padded = jnp.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    corners = jax.random.randint(key, (x.shape[0], 2), 0, 2 * pad + 1)
    crop = lambda image, at: lax.dynamic_slice(image, (at[0], at[1], 0), x.shape[1:])  # noqa: E731
    return jax.vmap(crop)(padded, corners)


def random_erasing(
    key: jax.Array,
    x: jax.Array,
    probability: float = 0.5,
    scale: tuple[float, float] = (0.04, 0.2),
    ratio: tuple[float, float] = (0.5, 2.0),
) -> jax.Array:
    """Sets a random rectangle to zero: share of the image from `scale`, height over width log-uniform in `ratio`."""
    batch, height, width, _ = x.shape
    keys = jax.random.split(key, 5)
    area = jax.random.uniform(keys[0], (batch,), minval=scale[0], maxval=scale[1]) * height * width
    aspect = jnp.exp(jax.random.uniform(keys[1], (batch,), minval=jnp.log(ratio[0]), maxval=jnp.log(ratio[1])))
    h = jnp.clip(jnp.round(jnp.sqrt(area * aspect)), 1, height)
    w = jnp.clip(jnp.round(jnp.sqrt(area / aspect)), 1, width)
    top = jnp.floor(jax.random.uniform(keys[2], (batch,)) * (height - h + 1))
    left = jnp.floor(jax.random.uniform(keys[3], (batch,)) * (width - w + 1))
    inside = lambda at, size, n: (jnp.arange(n) >= at[:, None]) & (jnp.arange(n) < (at + size)[:, None])  # noqa: E731
    box = inside(top, h, height)[:, :, None] & inside(left, w, width)[:, None, :]
    box &= jax.random.bernoulli(keys[4], probability, (batch, 1, 1))
    return jnp.where(box[..., None], 0, x)


AUGMENTATIONS: dict[str, Augment] = {"flip": flip, "padded_crop": padded_crop, "random_erasing": random_erasing}


def compose(names: tuple[str, ...]) -> Augment | None:
    """The named augmentations in order, or None for none.

    Raises:
      ValueError: a name is unknown.
    """
    for name in names:
        if name not in AUGMENTATIONS:
            raise ValueError(f"unknown augmentation {name!r}; there are {', '.join(AUGMENTATIONS)}")
    if not names:
        return None

    def augment(key: jax.Array, x: jax.Array) -> jax.Array:
        for i, name in enumerate(names):
            x = AUGMENTATIONS[name](jax.random.fold_in(key, i), x)
        return x

    return augment
