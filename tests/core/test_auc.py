import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.prediction_counts import macro_auc
from tests.reference import auc as reference

SAMPLES, CLASSES = 12, 4
RNG = np.random.default_rng(0)
area = jax.jit(jax.vmap(macro_auc))


def drawn(kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, labels and numbers of samples of clients with 0 to `SAMPLES` samples; what is behind
    these would be noticed."""
    counts = np.arange(SAMPLES + 1)
    scores = RNG.normal(size=(len(counts), SAMPLES, CLASSES)).astype(np.float32)
    labels = RNG.integers(0, CLASSES - 1, (len(counts), SAMPLES))  # none is of the last class
    if kind == "ties":
        scores = np.round(scores)
    elif kind == "distances":
        scores = -np.abs(scores)
    elif kind == "no_prediction":
        scores[..., 1], scores[:, 2], scores[:, 3, 0] = -np.inf, -np.inf, np.inf
    elif kind == "one_class":
        labels[:] = 2
    return scores, labels, counts


@pytest.mark.parametrize("kind", ["plain", "ties", "distances", "no_prediction", "one_class"])
def test_it_counts_pairs(kind):
    scores, labels, counts = drawn(kind)
    mask = np.arange(SAMPLES) < counts[:, None]
    padded = np.where(mask[..., None], scores, np.float32(1e9))
    areas = area(jnp.array(padded), jnp.array(labels), jnp.array(mask))
    want = []
    for of_client, of_labels, count in zip(scores, labels, counts):
        want.append(reference.macro(of_client[:count], of_labels[:count]))
    np.testing.assert_allclose(areas, want, rtol=1e-6)
    assert np.isnan(want).all() == (kind == "one_class")


def test_scores_that_are_no_number_are_no_prediction():
    scores, labels, _ = drawn("plain")
    mask, without = np.ones((1, SAMPLES), bool), scores[-1:].copy()
    without[0, 2, 1] = np.nan
    low = np.where(np.isnan(without), -np.inf, without)
    both = [area(jnp.array(x), jnp.array(labels[-1:]), jnp.array(mask)) for x in (without, low)]
    np.testing.assert_array_equal(*both)
    assert np.isfinite(both[0]).all()
