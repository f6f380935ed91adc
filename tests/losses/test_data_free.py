"""Losses of generators and students that have no data: DFRD, DENSE, FedFTG."""

import functools

import jax
import numpy as np
import pytest

from fedjax_ht.losses import (
    disagreement,
    embedding_excess,
    image_diversity,
    kl_divergence,
    moment_distance,
    transferability,
    weighted_cross_entropy,
    weighted_kl,
)
from fedjax_ht.losses.distillation import selected
from tests.reference import dfrd as reference
from tests.reference.gradients import numerical_gradient

B, C, N, PAD = 8, 4, 3, 2
RNG = np.random.default_rng(0)
TEACHER, STUDENT = (RNG.normal(size=(B, C)).astype(np.float32) * 2 for _ in range(2))
LABELS = np.array([0, 1, 2, 3, 0, 1, 2, 3])
# Both right, only the teacher, only the student, both wrong alike, both wrong differently; the rest
# by chance.
for row, (teacher_class, student_class) in enumerate([(0, 0), (1, 3), (0, 2), (1, 1), (1, 2)]):
    TEACHER[row, teacher_class], STUDENT[row, student_class] = 5, 5
CLIENTS = RNG.normal(size=(N, B, C)).astype(np.float32)
WEIGHTS = RNG.dirichlet(np.ones(N), B).T.astype(np.float32)
IMAGES = RNG.normal(size=(B, 3, 2, 2)).astype(np.float32) * 0.7
NOISE = RNG.normal(size=(B, 5)).astype(np.float32)
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
RELEASED = {"order": "student_teacher", "student_path": False, "normaliser": "selected"}
MASK = np.arange(B + PAD) < B


def padded(x: np.ndarray, axis: int = 0) -> np.ndarray:
    """With samples that must not count."""
    width = [(0, PAD if a == axis else 0) for a in range(x.ndim)]
    return np.pad(x, width, constant_values=3)


@functools.cache
def compiled(loss, argument=0, **options):
    """Value and gradient by an argument."""
    return jax.jit(jax.value_and_grad(functools.partial(loss, **options), argument))


def agrees(got, slow, x, pad_axis: int = 0):
    """Value and gradient are those of the reference, and padding has none."""
    value, gradient = got
    np.testing.assert_allclose(value, slow(np.float64(x)), **CLOSE)
    real, rest = np.split(np.asarray(gradient), [B], pad_axis)
    np.testing.assert_allclose(real, numerical_gradient(slow, x), rtol=1e-3, atol=2e-6)
    assert (rest == 0).all() and np.abs(real).max() > 1e-5


@pytest.mark.parametrize("selection", ["diamond", "triangle", "nabla", "xor"])
def test_transferability_equals_the_reference(selection):
    """The value and the teacher's gradient agree; the student is constant."""
    want = reference.selected(TEACHER, STUDENT, LABELS, selection)
    chosen = jax.jit(selected, static_argnums=3)(TEACHER, STUDENT, LABELS, selection)
    assert np.flatnonzero(chosen).tolist() == want
    assert {"diamond": 0 < len(want) < B, "triangle": len(want) == B}.get(
        selection, 4 in want or selection == "xor"
    )
    args = padded(TEACHER), padded(STUDENT), padded(LABELS), MASK
    loss = functools.partial(transferability, selection=selection, temperature=3.0, **RELEASED)
    value, (by_teacher, by_student) = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(*args)
    agrees(
        (value, by_teacher),
        lambda t: reference.transferability(t, np.float64(STUDENT), LABELS, selection, 3.0),
        TEACHER,
    )
    assert (by_student == 0).all()


@pytest.mark.parametrize("selection", ["diamond", "nabla"])
def test_transferability_as_printed(selection):
    """Eq. 3: KL(ensemble || global), a mean over the batch, by the teacher and by the student."""
    args = padded(TEACHER), padded(STUDENT), padded(LABELS), MASK
    got = compiled(transferability, selection=selection)(*args)
    agrees(got, lambda t: reference.l_tran(t, np.float64(STUDENT), LABELS, selection), TEACHER)
    got = compiled(transferability, 1, selection=selection)(*args)
    agrees(got, lambda s: reference.l_tran(np.float64(TEACHER), s, LABELS, selection), STUDENT)


@pytest.mark.parametrize("order", ["teacher_student", "student_teacher"])
@pytest.mark.parametrize("normaliser", ["batch", "selected"])
def test_each_choice_of_transferability_alone(order, normaliser):
    """The student's gradient agrees, for both orders of the arguments and at a temperature."""
    loss = functools.partial(transferability, temperature=3.0, order=order, normaliser=normaliser)
    args = padded(TEACHER), padded(LABELS), MASK

    @jax.jit
    def both(s, t, y, mask):
        got = jax.value_and_grad(lambda s: loss(t, s, y, mask))(s)
        return got, jax.grad(lambda s: loss(t, s, y, mask, student_path=False))(s)

    got, still = both(padded(STUDENT), *args)

    def slow(s):
        return reference.transferability(
            np.float64(TEACHER), s, LABELS, "diamond", 3.0, order, normaliser
        )

    agrees(got, slow, STUDENT)
    assert (still == 0).all()


def test_an_empty_set_of_samples_costs_nothing():
    same = compiled(transferability, selection="diamond", temperature=1.0)
    value, gradient = same(STUDENT, STUDENT, LABELS, MASK[:B])
    assert value == 0 and (gradient == 0).all()
    value, gradient = compiled(disagreement)(STUDENT, STUDENT, MASK[:B])
    assert value == 0 and (gradient == 0).all()


def test_disagreement_equals_the_reference():
    """Gradients by the teacher and by the student agree."""
    args = padded(TEACHER), padded(STUDENT), MASK
    got = compiled(disagreement)(*args)
    agrees(got, lambda t: reference.disagreement(t, np.float64(STUDENT)), TEACHER)
    got = compiled(disagreement, 1)(*args)
    agrees(got, lambda s: reference.disagreement(np.float64(TEACHER), s), STUDENT)


def test_kl_equals_the_reference():
    """What is masked out is not read, and an empty batch costs nothing."""

    def slow(s):
        return np.mean([reference.kl(t, row) for t, row in zip(np.float64(TEACHER), s)])

    loss, args = compiled(kl_divergence, 1), (padded(TEACHER), padded(STUDENT))
    agrees(loss(*args, MASK), slow, STUDENT)
    unknown = [np.where(MASK[:, None], x, np.nan) for x in args]
    assert loss(*unknown, MASK)[0] == loss(*args, MASK)[0]
    value, gradient = loss(*args, np.zeros_like(MASK))
    assert value == 0 and (gradient == 0).all()


@pytest.mark.parametrize("form", ["squares", "norms"])
def test_diversity_equals_the_reference(form):
    args = padded(IMAGES), padded(NOISE), MASK
    got = compiled(image_diversity, form=form)(*args)
    agrees(got, lambda images: reference.diversity(images, np.float64(NOISE), form), IMAGES)
    got = compiled(image_diversity, 1, form=form)(*args)
    agrees(got, lambda h: reference.diversity(np.float64(IMAGES), h, form), NOISE)


def test_printed_norms_are_those_of_norms_that_are_not_shrunk():
    """Eq. 4 of small images, scaled so that sqrt(n) is taken back."""
    scaled = (
        IMAGES * np.sqrt(IMAGES[0].size, dtype=np.float32),
        NOISE * np.sqrt(NOISE[0].size, dtype=np.float32),
    )
    got = compiled(image_diversity, form="norms")(*scaled, MASK[:B])[0]
    np.testing.assert_allclose(
        got, reference.l_div(np.float64(IMAGES), np.float64(NOISE)), rtol=1e-4
    )


@pytest.mark.parametrize("form", ["squares", "norms"])
def test_diversity_is_safe(form):
    """Finite where all points coincide, and where the printed exponent is beyond float32."""
    loss = compiled(image_diversity, form=form)
    value, gradient = loss(np.full_like(IMAGES, 0.3), NOISE, MASK[:B])
    assert value > 0.99 and np.isfinite(gradient).all()
    value, gradient = loss(IMAGES, np.full_like(NOISE, 0.3), MASK[:B])
    assert value > 0.99 and np.isfinite(gradient).all()
    rng = np.random.default_rng(2)
    large = rng.normal(size=(64, 32, 32, 3)).astype(np.float32) * 0.6
    noise = rng.normal(size=(64, 100)).astype(np.float32)
    value, gradient = loss(large, noise, np.ones(64, bool))
    assert 0.1 < value < 0.9 and np.abs(gradient).max() > 1e-8


def test_embedding_excess_equals_the_reference():
    embedding = NOISE * np.linspace(0.2, 2, B, dtype=np.float32)[:, None]

    def slow(e):
        return reference.embedding_excess(e, 0.9)

    got = compiled(embedding_excess, bound=0.9)(padded(embedding), MASK)
    agrees(got, slow, embedding)
    assert (np.asarray(got[1])[0] == 0).all()  # short ones are let be
    value, gradient = compiled(embedding_excess, bound=1.0)(np.zeros((B, 5), np.float32), MASK[:B])
    assert value == 0 and (gradient == 0).all()


def test_moment_distance_equals_the_reference():
    moments, target = RNG.normal(size=(2, N, 2, 5)).astype(np.float32)
    want = [
        reference.moment_distance(m, t) for m, t in zip(np.float64(moments), np.float64(target))
    ]
    np.testing.assert_allclose(jax.jit(moment_distance)(moments, target), want, rtol=1e-5)
    gradient = jax.jit(jax.grad(lambda m: moment_distance(m, target).sum()))(target)
    assert np.isfinite(gradient).all()


def test_weighted_losses_equal_the_reference():
    clients, weights = padded(CLIENTS, 1), padded(WEIGHTS, 1)
    got = compiled(weighted_cross_entropy)(clients, padded(LABELS), weights, MASK)
    agrees(
        got, lambda x: reference.weighted_cross_entropy(x, LABELS, np.float64(WEIGHTS)), CLIENTS, 1
    )

    def one_for_all(x):
        return np.broadcast_to(np.float64(x), CLIENTS.shape)

    loss = compiled(weighted_kl, 1)
    agrees(
        loss(padded(STUDENT), clients, weights, MASK),
        lambda x: reference.weighted_kl(one_for_all(STUDENT), x, np.float64(WEIGHTS)),
        CLIENTS,
        1,
    )
    agrees(
        loss(clients, padded(STUDENT), weights, MASK),
        lambda s: reference.weighted_kl(np.float64(CLIENTS), one_for_all(s), np.float64(WEIGHTS)),
        STUDENT,
    )
