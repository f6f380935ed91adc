"""PSNR and SSIM against pixel-by-pixel forms."""

import numpy as np
import pytest

from experiments.leaks import images
from tests.reference import images as reference


@pytest.fixture(scope="module")
def pairs():
    rng = np.random.default_rng(0)
    a = rng.random((3, 14, 12, 2))
    return a, np.clip(
        a + rng.normal(scale=(0.02, 0.2, 1.0), size=(14, 12, 2, 3)).transpose(3, 0, 1, 2), 0, 1
    )


def test_psnr(pairs):
    np.testing.assert_allclose(
        images.psnr(*pairs), [reference.psnr(a, b) for a, b in zip(*pairs)], rtol=1e-12
    )


def test_ssim(pairs):
    scores = images.ssim(*pairs)
    np.testing.assert_allclose(scores, [reference.ssim(a, b) for a, b in zip(*pairs)], rtol=1e-9)
    assert scores[0] > 0.9 > scores[1] > scores[2]


def test_small_images_are_refused():
    with pytest.raises(ValueError, match="images are 10x28; SSIM needs at least 11x11 pixels"):
        images.ssim(np.zeros((1, 10, 28, 1)), np.zeros((1, 10, 28, 1)))
