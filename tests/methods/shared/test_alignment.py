import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.losses.features import BANDWIDTHS
from fedjax_ht.methods.shared.pair_server import (
    Alignment,
    FeatureTransformer,
    align,
    choose_bandwidths,
    off_manifold,
)
from fedjax_ht.methods.shared.prototypes import Uploads
from fedjax_ht.methods.shared.units import Ball, into
from tests.alignment_steps import as_reference, assert_close, draws
from tests.federations import identical
from tests.fedktl_problem import SMALL as PROBLEM
from tests.fedktl_problem import ours, problem
from tests.generators_tiny import LATENT_DIM, tiny_generator
from tests.reference import fedktl as reference

C, K, M = 4, 3, 9
F = FeatureTransformer(LATENT_DIM)
GENERATOR = tiny_generator()
LABELS = np.array([0, 1, 1, 2, 3, 0, 1, 3, 2])
# seven; nobody uploads class 3, and a last batch holds one row
VALID = np.array([1, 1, 1, 1, 0, 1, 1, 0, 1], bool)
PROTOTYPES = np.random.default_rng(0).normal(size=(M, K)).astype(np.float32)
UPLOADS = Uploads(PROTOTYPES, LABELS, VALID)
OLD = np.random.default_rng(1).normal(size=(C, LATENT_DIM)).astype(np.float32)
SMALL = {"epochs": 3, "batch_size": 3, "bandwidths": BANDWIDTHS}
KEY = jax.random.key(7)

BALL = Ball(jnp.linspace(0.5, 1.0, LATENT_DIM), jnp.float32(2.2))  # some of F is outside


@functools.cache
def first():
    """F's parameters."""
    return jax.jit(lambda key: F.init(key, jnp.zeros((2, K)), jnp.ones(2, bool)))(
        jax.random.key(3)
    )["params"]


def transform(params, rows, mask):
    return F.apply({"params": params}, rows, mask)


def bounded(params, rows, mask):
    return into(BALL, transform(params, rows, mask))


@functools.cache
def compiled(in_ball=False, **options):
    """uploads -> what `align` returns from the first F on."""
    recipe, run_f = Alignment(**(SMALL | options)), bounded if in_ball else transform

    @jax.jit
    def run(variables, params, uploads, key):
        uploads = jax.tree.map(jnp.asarray, uploads)
        sample_w = functools.partial(GENERATOR.sample_w, variables)
        start = {"params": params, "centroids": jnp.asarray(OLD)}
        return align(run_f, sample_w, recipe, **start, uploads=uploads, key=key)

    return lambda uploads: run(GENERATOR.variables, first(), uploads, KEY)


def expect(options, valid=VALID):
    """Returns F and Qbar that the reference computes from the valid uploads."""
    f, x, y = as_reference(first()), np.float64(PROTOTYPES[valid]), LABELS[valid]
    ball = jax.tree.map(np.float64, tuple(BALL)) if options.get("in_ball") else None
    weights = {name: options[name] for name in ("mmd_weight", "mse_weight") if name in options}
    rate, released = options.get("learning_rate", 0.01), options.get("variant") == "released"
    widths = options.get("bandwidths", BANDWIDTHS)
    batches = draws(
        KEY, valid, 3, 3, functools.partial(GENERATOR.sample_w, GENERATOR.variables), released
    )
    if released:
        return reference.align_released(
            f, x, y, batches, np.float64(OLD), rate, widths, **weights, ball=ball
        )
    f = reference.align(f, x, y, batches, rate, widths, **weights, ball=ball)
    return f, reference.mean_latents(f, x, y, np.float64(OLD), ball)


NO_MSE = {"mse_weight": 0.0, "bandwidths": (2.0, 30.0)}
NO_MMD = {"mmd_weight": 0.0, "mse_weight": 5.0}
BALLS = [{"in_ball": True}, {"in_ball": True, "variant": "released"}]
CLIPPED = {"variant": "released", "mse_weight": 1e4, "learning_rate": 0.1}


@pytest.mark.parametrize(
    "options",
    [
        {},
        NO_MSE,
        NO_MMD,
        *BALLS,
        pytest.param(CLIPPED, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_training_equals_the_reference(options):
    """Nine steps of the compiled loop, three of them with a single row, against as many in plain
    Python.

    The released form leaves those three out.
    """
    (got, centroids, metrics), start = compiled(**options)(UPLOADS), as_reference(first())
    want, table = expect(options)
    # a shift of all latents costs nothing then, and Adam follows the rounding
    idle = "b2" if options is NO_MMD else ""
    tolerance = 1e-4 if options is CLIPPED else 1e-5  # such a weight makes much of the rounding
    assert_close(as_reference(got), want, idle, rtol=tolerance, atol=tolerance)
    if not idle:
        np.testing.assert_allclose(centroids, table, rtol=10 * tolerance, atol=10 * tolerance)
    np.testing.assert_array_equal(centroids[3], OLD[3])  # nobody has class 3
    for name in want.keys() - {idle}:
        assert np.abs(want[name] - start[name]).max() > 0.01  # all of it was trained
    ball = jax.tree.map(np.float64, tuple(BALL)) if options in BALLS else None
    free = reference.transform(want, np.float64(PROTOTYPES[VALID]))
    assert ball is None or (np.linalg.norm(free - ball[0], axis=1) > ball[1]).any()
    spread = reference.class_spread(reference.into(ball, free), LABELS[VALID])
    np.testing.assert_allclose(metrics["mse"], spread, rtol=1e-4)


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_rows_that_are_not_valid_change_nothing(variant):
    garbage = np.where(VALID[:, None], PROTOTYPES, 1e3).astype(np.float32)
    align_ = compiled(variant=variant)
    assert identical(align_(Uploads(garbage, np.where(VALID, LABELS, 0), VALID)), align_(UPLOADS))


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_a_single_prototype(variant):
    """Batch norm then has one row, of which the released form makes no step."""
    single = np.arange(M) == 5
    got = compiled(variant=variant)(UPLOADS._replace(valid=single))
    assert_close(
        as_reference(got[0]), expect({"variant": variant}, single)[0], rtol=1e-5, atol=1e-5
    )
    assert identical(got[0], first()) == (variant == "released")
    nobody, centroids, metrics = compiled(variant=variant)(
        UPLOADS._replace(valid=np.zeros(M, bool))
    )
    assert identical(nobody, first()) and identical(centroids, OLD)
    for tree in (got, metrics):
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(tree))


def test_bandwidths():
    sample_w = functools.partial(GENERATOR.sample_w, GENERATOR.variables)
    np.testing.assert_array_equal(
        choose_bandwidths(Alignment(bandwidths=BANDWIDTHS), None, KEY), [10, 15, 20, 50]
    )
    for size in (1, 7):  # of one latent there is no distance: two are drawn
        w = np.float64(sample_w(KEY, max(size, 2)))
        squares = [((a - b) ** 2).sum() for i, a in enumerate(w) for b in w[:i]]
        options = Alignment(batch_size=size)
        got = jax.jit(functools.partial(choose_bandwidths, options, sample_w))(KEY)
        np.testing.assert_allclose(
            got, np.array([0.25, 0.5, 1, 2]) * np.median(squares) / 2, rtol=1e-5
        )


def test_metrics_of_an_alignment():
    """Before and after, on the first uploads of a batch's number."""
    params, _, metrics = compiled()(UPLOADS)
    x, keys = np.float64(PROTOTYPES[VALID]), jax.random.split(KEY, 4)[2:]
    before, after = (np.float64(GENERATOR.sample_w(GENERATOR.variables, key, 3)) for key in keys)
    start = reference.transform(as_reference(first()), x)[:3]
    np.testing.assert_allclose(
        metrics["mmd_before"], reference.mmd(start, before, BANDWIDTHS), rtol=1e-4, atol=1e-5
    )
    got = reference.transform(as_reference(params), x)[:3]
    np.testing.assert_allclose(
        metrics["mmd"], reference.mmd(got, after, BANDWIDTHS), rtol=1e-4, atol=1e-5
    )
    across = ((got[:, None] - after) ** 2).sum(-1)
    for i, width in enumerate(BANDWIDTHS, 1):
        np.testing.assert_allclose(
            metrics[f"kernel_{i}"], np.exp(-across / 2 / width).mean(), rtol=1e-4
        )
    np.testing.assert_allclose(metrics["distance2_to_valid"], np.median(across), rtol=1e-4)
    within = ((after[:, None] - after) ** 2).sum(-1)[np.triu_indices(3, 1)]
    np.testing.assert_allclose(metrics["distance2_of_valid"], np.median(within), rtol=1e-4)


def test_latents_outside_the_valid_ones_are_counted():
    ball = Ball(jnp.ones(2), jnp.float32(2.0))
    latents = jnp.array([[1.0, 2.0], [1.0, 4.0], [9.0, 9.0], [-2.0, 1.0]])
    sent, valid = jnp.array([[1.0, 6.0], [9.0, 9.0]]), jnp.array([True, True, False, True])
    got = off_manifold(latents, valid, sent, jnp.array([True, False]), ball)
    np.testing.assert_allclose(got["off_manifold"], 2 / 3)
    np.testing.assert_allclose(got["reach"], 2.5)
    nobody = jnp.zeros(4, bool)
    assert off_manifold(latents, nobody, sent, nobody[:2], ball) == {"off_manifold": 0, "reach": 0}


# F and Qbar by HtFLlib's code (e959261, torch 2.13, float64) after 100 steps, see
# `benchmarks.beside_fedktl`.
AUTHORS = {
    "b2": [0.064417, 0.527221, 0.556321, 0.290792],
    "bias": [0.189592, 0.033096, -0.02509],
    "centroids": [
        [-0.49437, 0.838746, 0.835238, 0.746083],
        [0.064396, 0.391592, 0.92277, 1.342236],
        [1.801635, 1.315104, 0.35738, -1.208319],
    ],
    "scale": [0.796712, 1.036849, 0.741089],
    "w1": [
        [0.452072, -0.22363, -0.777567],
        [-0.292201, 0.584712, 0.208042],
        [0.032203, -0.005045, 0.006273],
    ],
    "w2": [
        [0.031395, 0.129374, 0.28945, 0.756371],
        [0.254806, 0.015998, 0.179312, 0.370009],
        [-0.292679, 0.244492, 0.090398, 0.213592],
    ],
}


def test_the_released_form_ends_where_the_authors_code_does():
    """From the same F, table, orders and latents; no parameter is further off than 1e-4."""
    got = ours(problem(**PROBLEM))
    assert got.keys() == AUTHORS.keys()
    for name, value in AUTHORS.items():
        np.testing.assert_allclose(got[name], value, rtol=0, atol=1e-4, err_msg=name)
