import jax
import numpy as np

from fedjax_ht.losses import kl_divergence
from tests.reference import mutual

RNG = np.random.default_rng(0)
TEACHER, LOGITS = (3 * RNG.normal(size=(6, 4)).astype(np.float32) for _ in range(2))
MASK = np.array([True, True, False, True, False, True])
by_logits = jax.jit(jax.value_and_grad(kl_divergence, argnums=1))


def test_kl_divergence_equals_the_reference():
    teacher, logits = (np.where(MASK[:, None], x, np.nan) for x in (TEACHER, LOGITS))
    got, _ = by_logits(teacher, logits, MASK)
    np.testing.assert_allclose(got, mutual.kl_divergence(TEACHER[MASK], LOGITS[MASK]), rtol=1e-5)
    other_way, _ = by_logits(logits, teacher, MASK)
    assert abs(float(got - other_way)) > 0.1


def test_a_model_that_agrees_loses_nothing_and_an_empty_batch_neither():
    value, _ = by_logits(TEACHER, TEACHER + 5, np.ones(6, bool))
    np.testing.assert_allclose(value, 0, atol=1e-6)
    value, gradient = by_logits(TEACHER, LOGITS, np.zeros(6, bool))
    assert value == 0 and not np.any(gradient)
