import itertools
import sys

import numpy as np
import pytest

from fedjax_ht.trust import epsilon as rules
from fedjax_ht.trust.epsilon import ORDERS, fixed_epsilon, gaussian_epsilon, poisson_epsilon
from tests.reference import privacy as reference

dp = pytest.importorskip("dp_accounting")
DELTA = 1e-5


@pytest.mark.parametrize("noise, times", [(0.5, 1), (1.0, 1), (1.0, 10), (4.0, 100), (30.0, 7)])
def test_sums_with_noise_are_accounted_for_exactly(noise, times):
    epsilon = gaussian_epsilon(noise, times, DELTA)

    def exact(e):
        return reference.gaussian_delta(e, noise / np.sqrt(times))

    assert exact(epsilon * 1.0001) <= DELTA <= exact(epsilon * 0.9999)
    # Composed by Renyi divergences it is no less.
    event = dp.SelfComposedDpEvent(dp.GaussianDpEvent(noise), times)
    assert epsilon <= dp.rdp.RdpAccountant().compose(event).get_epsilon(DELTA)


def test_a_value_of_the_literature():
    """Noise 1 has less than the classic bound sqrt(2 log(1.25 / delta)), which is 4.84."""
    assert gaussian_epsilon(1.0, 1, 1e-5) == pytest.approx(4.3772, abs=1e-4)
    # Abadi et al. (CCS 2016), section 5: q = 0.01, noise 4, 10,000 steps: (1.26, 1e-5) by the
    # moments accountant.
    assert 0.9 < poisson_epsilon(4.0, 600, 60_000, 10_000, 1e-5) < 1.27


@pytest.mark.parametrize(
    "noise, size, total, times", [(1.0, 10, 100, 50), (0.7, 4, 9, 3), (5.0, 10, 1000, 200)]
)
def test_poisson_batches_are_those_of_the_reference(noise, size, total, times):
    orders, chance = range(2, 16), size / total
    divergences = [times * reference.poisson_divergence(a, noise, chance) for a in orders]
    expected = reference.from_divergences(orders, divergences, DELTA)
    epsilon = poisson_epsilon(noise, size, total, times, DELTA)
    assert epsilon <= expected * (1 + 1e-9)
    event = dp.PoissonSampledDpEvent(chance, dp.GaussianDpEvent(noise))
    accountant = dp.rdp.RdpAccountant(ORDERS, dp.NeighboringRelation.REPLACE_SPECIAL)
    library = accountant.compose(event, times).get_epsilon(DELTA)
    assert epsilon == pytest.approx(min(library, gaussian_epsilon(noise, times, DELTA)))


@pytest.mark.parametrize("noise, size, total, times", [(4.0, 10, 100, 50), (8.0, 1, 20, 10)])
def test_batches_of_fixed_size_have_half_the_noise(noise, size, total, times):
    event = dp.SampledWithoutReplacementDpEvent(total, size, dp.GaussianDpEvent(noise / 2))
    accountant = dp.rdp.RdpAccountant(ORDERS, dp.NeighboringRelation.REPLACE_ONE)
    library = accountant.compose(event, times).get_epsilon(DELTA)
    assert fixed_epsilon(noise, size, total, times, DELTA) == pytest.approx(library)


def test_clients_drawn_in_every_round_are_hidden_by_noise_alone():
    everyone = gaussian_epsilon(2.0, 5, DELTA)
    assert poisson_epsilon(2.0, 8, 8, 5, DELTA) == fixed_epsilon(2.0, 8, 8, 5, DELTA) == everyone
    assert poisson_epsilon(2.0, 1, 8, 5, DELTA) < everyone > fixed_epsilon(2.0, 1, 8, 5, DELTA)
    # the bound by half the noise is looser there
    assert fixed_epsilon(2.0, 7, 8, 5, DELTA) == everyone


@pytest.mark.parametrize("rule", [poisson_epsilon, fixed_epsilon])
def test_epsilon_grows_with_the_uploads(rule):
    epsilons = [rule(1.5, 3, 20, times, DELTA) for times in (0, 1, 2, 10, 100)]
    assert epsilons[0] == 0 and all(a < b for a, b in itertools.pairwise(epsilons))
    assert rule(0.0, 3, 20, 1, DELTA) == np.inf and rule(0.0, 3, 20, 0, DELTA) == 0
    assert rule(1e-3, 3, 20, 1, DELTA) > 1e3


def test_without_the_package_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    message = r"^privacy needs dp-accounting; run pip install 'fedjax_ht\[privacy\]'$"
    with pytest.raises(ImportError, match=message):
        rules.accounting()
