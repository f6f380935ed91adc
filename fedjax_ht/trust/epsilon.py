"""Epsilon of a run's noisy sums, by Google's accountant (dp-accounting, the extra `privacy`).

Two federations are neighbours if one lacks a client's data (or a sample), which still counts with
an update (or gradient) of zero ("zero-out", Kairouz et al., ICML 2021). This changes a sum by at
most `clip`. Replacing a client's data changes it by twice that: without sampling, its epsilon is
that of half the noise.

All functions take the noise multiplier (the standard deviation in units of `clip`), the number of
sums, each of which may depend on the previous ones, and delta. Without noise epsilon is inf.
"""

import functools
from types import ModuleType

import numpy as np

from fedjax_ht.check.packages import needing

ORDERS = (*range(2, 65), 96, 128, 256, 512)  # of Renyi divergences


def accounting() -> ModuleType:
    """Imports dp-accounting.

    Raises:
      ImportError: it is not installed. One line.
    """
    with needing("privacy"):
        import dp_accounting
    return dp_accounting


def gaussian_epsilon(noise: float, times: int, delta: float) -> float:
    """Computes epsilon of `times` noisy sums over everybody.

    It is exact (Balle and Wang, ICML 2018), since together they are equivalent to one sum with
    noise / sqrt(times) (Dong et al., 2022).
    """
    if times == 0:
        return 0.0
    return float(accounting().get_epsilon_gaussian(noise / np.sqrt(times), delta))


def poisson_epsilon(noise: float, size: int, total: int, times: int, delta: float) -> float:
    """Computes epsilon of `times` noisy sums over batches drawn by Poisson sampling.

    Args:
      noise, times, delta: noise multiplier, number of sums and delta, see the module's docstring.
      size, total: mean batch size and number of samples; a batch has each sample with probability
        size / total.
    """
    return _amplified(_poisson, noise, size, total, times, delta)


def fixed_epsilon(noise: float, size: int, total: int, times: int, delta: float) -> float:
    """Computes epsilon of `times` noisy sums over `size` of `total`, drawn without replacement.

    A client that is not drawn is replaced by another, so the accounting is that of a replacement,
    with half the noise (Wang et al., AISTATS 2019). Arguments as for `poisson_epsilon`.
    """
    return _amplified(_fixed, noise, size, total, times, delta)


def _amplified(divergences, noise: float, size: int, total: int, times: int, delta: float) -> float:
    """Converts the Renyi divergences of one sum to epsilon of `times` sums, if they are better."""
    exact = gaussian_epsilon(noise, times, delta)
    if size >= total or not noise or not times:
        return exact
    # Renyi divergences add up, even if sums depend on each other.
    rdp = times * np.array(divergences(noise, size, total))
    return min(exact, float(accounting().rdp.compute_epsilon(ORDERS, rdp, delta)[0]))


@functools.lru_cache(4096)
def _poisson(noise: float, size: int, total: int) -> tuple[float, ...]:
    """Computes the Renyi divergences of one sum at `ORDERS`."""
    dp = accounting()
    event = dp.PoissonSampledDpEvent(size / total, dp.GaussianDpEvent(noise))
    return _divergences(event, dp.NeighboringRelation.REPLACE_SPECIAL)


@functools.lru_cache(64)
def _fixed(noise: float, size: int, total: int) -> tuple[float, ...]:
    dp = accounting()
    event = dp.SampledWithoutReplacementDpEvent(total, size, dp.GaussianDpEvent(noise / 2))
    return _divergences(event, dp.NeighboringRelation.REPLACE_ONE)


def _divergences(event, relation) -> tuple[float, ...]:
    return tuple(accounting().rdp.RdpAccountant(ORDERS, relation).compose(event).rdp.tolist())
