"""Similarity of images: PSNR, and SSIM (Wang et al., IEEE Trans. on Image Processing 2004)."""

import numpy as np

WINDOW, SIGMA, K1, K2 = 11, 1.5, 0.01, 0.03  # of the 2004 paper


def psnr(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Computes the peak signal-to-noise ratio, 10 log10(1 / mean square), in dB.

    Args:
      a, b: float [B, H, W, C] in [0, 1].

    Returns:
      float64 [B], inf where two images are equal.
    """
    error = np.mean((np.asarray(a, np.float64) - np.asarray(b, np.float64)) ** 2, axis=(1, 2, 3))
    with np.errstate(divide="ignore"):
        return -10 * np.log10(error)


def ssim(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Computes the mean structural similarity.

    It is the mean of Eq. 13 over channels and over all windows that lie within the image, with a
    Gaussian window of 11 pixels and standard deviation 1.5, population variances, K1 = 0.01 and
    K2 = 0.03.

    Args:
      a, b: float [B, H, W, C] in [0, 1].

    Returns:
      float64 [B], 1 where two images are equal.

    Raises:
      ValueError: an image is smaller than a window.
    """
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if min(a.shape[1:3]) < WINDOW:
        raise ValueError(
            f"images are {a.shape[1]}x{a.shape[2]}; SSIM needs at least {WINDOW}x{WINDOW} pixels"
        )
    rows, columns = _windows(a.shape[1]), _windows(a.shape[2])

    def mean(x: np.ndarray) -> np.ndarray:
        return np.einsum("ih,bhwc,jw->bijc", rows, x, columns, optimize=True)

    mean_a, mean_b = mean(a), mean(b)
    covariance = mean(a * b) - mean_a * mean_b
    variances = mean(a * a) - mean_a**2 + mean(b * b) - mean_b**2
    c1, c2 = K1**2, K2**2
    numerator = (2 * mean_a * mean_b + c1) * (2 * covariance + c2)
    similarity = numerator / ((mean_a**2 + mean_b**2 + c1) * (variances + c2))
    return similarity.mean((1, 2, 3))


def _windows(size: int) -> np.ndarray:
    """Returns the window at each place along an axis where it fits.

    Returns:
      float64 [size - WINDOW + 1, size], rows of sum 1.
    """
    distance = np.arange(size) - np.arange(size - WINDOW + 1)[:, None] - WINDOW // 2
    weights = np.exp(-(distance**2) / (2 * SIGMA**2)) * (np.abs(distance) <= WINDOW // 2)
    return weights / weights.sum(1, keepdims=True)
