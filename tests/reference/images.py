"""PSNR and SSIM pixel by pixel, and the area under a ROC curve pair by pair."""

import math

import numpy as np


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    """Computes the PSNR of two images [H, W, C] in [0, 1]."""
    total = sum((x - y) ** 2 for x, y in zip(a.ravel(), b.ravel()))
    return 10 * math.log10(1 / (total / a.size))


def ssim(a: np.ndarray, b: np.ndarray, window: int = 11, sigma: float = 1.5) -> float:
    """Computes the SSIM of two images [H, W, C] in [0, 1]: Eq. 13 of Wang et al. (2004) at every
    window, then the mean."""
    offsets = range(-(window // 2), window // 2 + 1)
    weights = np.array(
        [[math.exp(-(i * i + j * j) / (2 * sigma**2)) for j in offsets] for i in offsets]
    )
    weights /= weights.sum()
    c1, c2, scores = 0.01**2, 0.03**2, []
    for channel in range(a.shape[2]):
        for i in range(a.shape[0] - window + 1):
            for j in range(a.shape[1] - window + 1):
                x, y = (image[i : i + window, j : j + window, channel] for image in (a, b))
                mx, my = (weights * x).sum(), (weights * y).sum()
                vx, vy = (weights * (x - mx) ** 2).sum(), (weights * (y - my) ** 2).sum()
                cov = (weights * (x - mx) * (y - my)).sum()
                top, bottom = (
                    (2 * mx * my + c1) * (2 * cov + c2),
                    (mx**2 + my**2 + c1) * (vx + vy + c2),
                )
                scores.append(top / bottom)
    return sum(scores) / len(scores)


def auc(lower: np.ndarray, higher: np.ndarray) -> float:
    """The share of pairs in which the first is below the second; a tie is half a pair."""
    wins = sum((a < b) + 0.5 * (a == b) for a in lower for b in higher)
    return wins / (len(lower) * len(higher))
