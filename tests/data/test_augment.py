"""Augmentations keep shape, depend on their key, and move pixels only as they say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.data.augment import compose, flip, padded_crop, random_erasing

IMAGES = jax.random.uniform(jax.random.key(0), (32, 12, 12, 3), minval=0.5, maxval=1.0)
KEY = jax.random.key(1)


def test_flip_mirrors_about_half_of_the_images():
    out = np.asarray(flip(KEY, IMAGES))
    same = (out == IMAGES).all((1, 2, 3))
    mirrored = (out == IMAGES[:, :, ::-1]).all((1, 2, 3))
    assert (same ^ mirrored).all() and 4 < mirrored.sum() < 28


def test_padded_crop_shifts_by_at_most_the_padding():
    out = np.asarray(padded_crop(KEY, IMAGES, pad=2))
    padded = np.pad(IMAGES, ((0, 0), (2, 2), (2, 2), (0, 0)))
    shifts = []
    for image, source in zip(out, padded):
        found = [(i, j) for i in range(5) for j in range(5) if (source[i : i + 12, j : j + 12] == image).all()]
        assert len(found) == 1
        shifts += found
    assert len(set(shifts)) > 5


def test_random_erasing_blanks_one_rectangle_of_the_asked_share():
    out = np.asarray(random_erasing(KEY, IMAGES, probability=1.0))
    for image, source in zip(out, np.asarray(IMAGES)):
        blank = (image == 0).all(-1)
        rows, columns = np.flatnonzero(blank.any(1)), np.flatnonzero(blank.any(0))
        assert blank[np.ix_(rows, columns)].all() and blank.sum() == len(rows) * len(columns)
        assert 0.01 < blank.mean() < 0.3
        assert (image[~blank] == source[~blank]).all()
    untouched = random_erasing(KEY, IMAGES, probability=0.0)
    assert (untouched == IMAGES).all()


def test_compose_is_a_pure_function_of_the_key_and_vmaps():
    augment = compose(("flip", "padded_crop", "random_erasing"))
    assert (augment(KEY, IMAGES) == augment(KEY, IMAGES)).all()
    assert (augment(KEY, IMAGES) != augment(jax.random.key(2), IMAGES)).any()
    keys = jax.random.split(KEY, 2)
    both = jax.vmap(augment)(keys, jnp.stack([IMAGES, IMAGES]))
    assert jnp.allclose(both[1], augment(keys[1], IMAGES))
    assert compose(()) is None
    with pytest.raises(ValueError, match="unknown augmentation 'blur'"):
        compose(("blur",))
