"""Augmentations keep shape, depend on their key, and move pixels only as they say."""

import colorsys
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.data.augment import (
    colour_jitter,
    compose,
    flip,
    padded_crop,
    random_erasing,
    random_grayscale,
    resized_crop,
    turn_hue,
)

IMAGES = jax.random.uniform(jax.random.key(0), (32, 12, 12, 3), minval=0.5, maxval=1.0)
KEY = jax.random.key(1)


def test_flip_mirrors_about_half_of_the_images():
    out = np.asarray(flip(KEY, IMAGES))
    same = (out == IMAGES).all((1, 2, 3))
    mirrored = (out == IMAGES[:, :, ::-1]).all((1, 2, 3))
    assert (same ^ mirrored).all() and 4 < mirrored.sum() < 28


BLACK = jnp.array([-2.4, -2.1, 0.3])  # of normalised pixels


def test_padded_crop_shifts_by_at_most_the_padding_and_pads_black():
    out = np.asarray(padded_crop(KEY, IMAGES, BLACK, pad=2))
    around = ((0, 0), (2, 2), (2, 2))
    padded = [np.pad(IMAGES[..., c], around, constant_values=BLACK[c]) for c in range(3)]
    padded = np.stack(padded, -1)
    shifts = []
    for image, source in zip(out, padded):
        for i, j in itertools.product(range(5), range(5)):
            if (source[i : i + 12, j : j + 12] == image).all():
                shifts.append((i, j))
    assert len(shifts) == len(out)  # each at one place
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


def test_resized_crop_stretches_a_rectangle_of_the_asked_share():
    """The corners of the result, on an image of coordinates, say what was cut out."""
    n, batch = 12, 200
    places = np.meshgrid(np.arange(n), np.arange(n), indexing="ij")
    coordinates = np.stack(places, -1).astype(np.float32)
    out = np.asarray(resized_crop(KEY, jnp.broadcast_to(coordinates, (batch, n, n, 2))))
    first, last = out[:, 0, 0], out[:, -1, -1]
    sizes = last - first + 1
    np.testing.assert_allclose(sizes, np.round(sizes), atol=1e-4)
    for axis in (0, 1):
        at = (np.arange(n) + 0.5) * sizes[:, axis, None] / n - 0.5
        want = first[:, axis, None] + np.clip(at, 0, sizes[:, axis, None] - 1)
        got = out[:, :, 0, 0] if axis == 0 else out[:, 0, :, 1]
        np.testing.assert_allclose(got, want, atol=1e-4)
    share = sizes.prod(1) / n**2
    assert 0.15 < share.min() < 0.3 and 0.8 < share.max() <= 1 and abs(share.mean() - 0.6) < 0.06
    assert len(np.unique(first, axis=0)) > 20


NOTHING = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0, "probability": 1.0}
GREY = np.array([0.299, 0.587, 0.114])
DARK = np.asarray(IMAGES) / 2 + 0.1  # pixels between 0.35 and 0.6: nothing is clipped


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
def test_colour_jitter_scales_around_black_the_mean_grey_or_each_pixel_s_grey(name):
    """All pixels of an image move away from the centre by one factor."""
    luminance = (DARK @ GREY)[..., None]
    centre = {
        "brightness": 0.0,
        "contrast": luminance.mean((1, 2, 3), keepdims=True),
        "saturation": luminance,
    }[name]
    out = np.asarray(colour_jitter(KEY, jnp.asarray(DARK), **(NOTHING | {name: 0.4})))
    factor = np.median(((out - centre) / (DARK - centre)).reshape(len(DARK), -1), axis=1)
    moved = centre + factor[:, None, None, None] * (DARK - centre)
    np.testing.assert_allclose(out, moved, atol=1e-5)
    assert 0.6 - 1e-4 <= factor.min() < 0.75 and 1.25 < factor.max() <= 1.4 + 1e-4


def test_turn_hue_equals_the_standard_library():
    rng = np.random.default_rng(0)
    pixels = np.concatenate(
        [rng.uniform(size=(60, 3)), np.eye(3), 1 - np.eye(3), [[0, 0, 0], [1, 1, 1], [0.3] * 3]]
    )
    turns = rng.uniform(-1, 1, len(pixels))
    for pixel, turn, got in zip(pixels, turns, turn_hue(jnp.float32(pixels), jnp.float32(turns))):
        h, s, v = colorsys.rgb_to_hsv(*pixel)
        np.testing.assert_allclose(got, colorsys.hsv_to_rgb((h + turn) % 1, s, v), atol=1e-5)


def test_random_grayscale_greys_a_share_of_the_images():
    out = np.asarray(random_grayscale(KEY, IMAGES))
    grey = (out == out[..., :1]).all((1, 2, 3))
    assert 0 < grey.sum() < 16
    np.testing.assert_array_equal(out[~grey], IMAGES[~grey])
    np.testing.assert_allclose(out[grey][..., 0], np.asarray(IMAGES)[grey] @ GREY, atol=1e-5)


def test_compose_is_a_pure_function_of_the_key_and_vmaps():
    augment = functools.partial(
        compose(("flip", "padded_crop", "random_erasing", "resized_crop")), black=BLACK
    )
    assert (augment(KEY, IMAGES) == augment(KEY, IMAGES)).all()
    assert (augment(KEY, IMAGES) != augment(jax.random.key(2), IMAGES)).any()
    keys = jax.random.split(KEY, 2)
    both = jax.vmap(augment)(keys, jnp.stack([IMAGES, IMAGES]))
    assert jnp.allclose(both[1], augment(keys[1], IMAGES))
    assert compose(()) is None
    with pytest.raises(ValueError, match="unknown augmentation 'blur'"):
        compose(("blur",))


def test_crops_of_a_config_pad_what_is_black_after_normalisation():
    """The result is that of the released order: pixels are cropped, and normalised afterwards."""
    mean, std = jnp.array([0.5, 0.4, 0.3]), jnp.array([0.2, 0.25, 0.3])
    got = compose(("padded_crop",))(KEY, (IMAGES - mean) / std, -mean / std)
    want = (padded_crop(jax.random.fold_in(KEY, 0), IMAGES) - mean) / std
    np.testing.assert_allclose(got, want, atol=1e-6)
    assert (np.asarray(want) == np.asarray(-mean / std)).all(-1).any()


def test_fedssa_s_crop_pads_the_mean_colour():
    """The crop is applied to normalised images."""
    x = IMAGES - 0.6
    got = compose(("mean_padded_crop",))(KEY, x, BLACK)
    np.testing.assert_array_equal(got, padded_crop(jax.random.fold_in(KEY, 0), x))
    border = (np.asarray(got) == 0).all(-1)
    assert border.any() and not border[:, 4:8, 4:8].any()
