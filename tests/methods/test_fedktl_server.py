"""The server of FedKTL: its step against the reference, what it keeps and what it publishes."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ht.core.federation import make_federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.wire import wire_elements
from fedjax_ht.methods.fedktl import fedktl
from fedjax_ht.methods.shared.pair_server import fit, latents_of
from fedjax_ht.methods.shared.units import in_units
from fedjax_ht.models import mlp
from tests import tiny, wire_table
from tests.alignment_steps import as_reference, assert_close, draws, valid_rows
from tests.generators_tiny import LATENT_DIM, SIDE, tiny_generator
from tests.reference import fedktl as reference
from tests.tiny import FEDERATION, C

GENERATOR = tiny_generator()
RAW, UNITS = in_units(GENERATOR, "raw"), in_units(GENERATOR, "spread")
WIDTHS = (2.0, 30.0)
SMALL = {"generator": GENERATOR, "server_epochs": 3, "server_batch_size": 3}


def method_of(**options):
    return fedktl(LocalTraining(optax.sgd(0.01)), **(SMALL | options))


UPLOADS = tiny.prototypes_of({0: [0, 2], 1: [1, 2], 2: [0, 2]}, C, seed=4)  # nobody has class 3


def receive(uploads):
    return tiny.receive_prototypes(uploads, width=C)


def server_step(method):
    """The server before its first round, and (server, received, seed) -> (server, metrics)."""
    start = jax.jit(lambda: method.init_server(FEDERATION, jax.random.key(1)))()

    def step(server, received, key, frozen):
        ctx = tiny.context()._replace(key=key, pretrained=frozen)
        return method.server_update(FEDERATION, server, received, ctx)

    step = step if method.needs.pretrained.host else jax.jit(step)
    return start, lambda server, received, seed=2: step(
        server, received, jax.random.key(seed), method.needs.pretrained.variables
    )


@functools.cache
def compiled_server(**options):
    return server_step(method_of(**options))


ROWS = [(i, c) for i in range(3) for c in sorted(UPLOADS[i])]
X, LABELS = np.float64([UPLOADS[i][c] for i, c in ROWS]), np.array([c for _, c in ROWS])
VALID = valid_rows(UPLOADS, tiny.OTHER_ORDER)


def batches_of(generator, released=False):
    align_key = jax.random.split(jax.random.key(2))[1]
    sample_w = functools.partial(generator.sample_w, generator.variables)
    return draws(align_key, VALID, 3, 3, sample_w, released)


@pytest.mark.parametrize("latents", ["raw", "spread"])
def test_server_update_equals_the_reference(latents):
    start, serve = compiled_server(latents=latents, bandwidths=WIDTHS)
    server, metrics = serve(start, receive(UPLOADS))
    generator = {"raw": RAW, "spread": UNITS}[latents]
    ball = jax.tree.map(np.float64, tuple(generator.variables.ball))
    f, old = as_reference(start.transformer), np.float64(start.centroids)
    want = reference.align(f, X, LABELS, batches_of(generator), 0.01, WIDTHS, ball=ball)
    assert_close(as_reference(server.transformer), want, rtol=1e-5, atol=1e-5)
    means = reference.mean_latents(want, X, LABELS, old, ball)
    np.testing.assert_allclose(server.centroids, means, rtol=1e-4, atol=2e-5)
    np.testing.assert_array_equal(server.centroids[3], start.centroids[3])
    np.testing.assert_array_equal(server.available, [True, True, True, False])
    w = server.centroids[:3] * generator.variables.unit  # a generator sees its own scale
    images = fit(GENERATOR.synthesize(GENERATOR.variables, w), (2, 2, 1))
    np.testing.assert_allclose(server.images[:3], images, atol=1e-6)
    assert (server.images[3] == 0).all()  # the image of a random latent is shown to nobody
    assert all(np.isfinite(value) for value in metrics.values())
    reach = np.linalg.norm(means[:3] - ball[0], axis=1).max() / ball[1]
    np.testing.assert_allclose(metrics["reach"], reach, rtol=1e-4)


def test_the_released_server_is_the_authors():
    """Raw latents, no ball, their kernels, the trained table as Qbar, images without antialiasing,
    and a pair of a class that nobody has uploaded; in the next round the table goes on."""
    before, serve = compiled_server(variant="released")
    for _ in range(2):
        server, metrics = serve(before, receive(UPLOADS))
        f, old = as_reference(before.transformer), np.float64(before.centroids)
        want, table = reference.align_released(f, X, LABELS, batches_of(RAW, True), old, 0.01)
        assert_close(as_reference(server.transformer), want, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(server.centroids, table, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(server.centroids[3], before.centroids[3])
        assert server.available.all()
        images = fit(GENERATOR.synthesize(GENERATOR.variables, server.centroids), (2, 2, 1), False)
        np.testing.assert_allclose(server.images, images, atol=1e-6)
        assert all(np.isfinite(value) for value in metrics.values())
        before = server


def test_options_that_are_given_stay_in_either_form():
    start, serve = compiled_server(variant="released", bounded=True, bandwidths=WIDTHS)
    ball = jax.tree.map(np.float64, tuple(RAW.variables.ball))
    f, old = as_reference(start.transformer), np.float64(start.centroids)
    batches = batches_of(RAW, True)
    want, _ = reference.align_released(f, X, LABELS, batches, old, 0.01, WIDTHS, ball=ball)
    server, _ = serve(start, receive(UPLOADS))
    assert_close(as_reference(server.transformer), want, rtol=1e-5, atol=1e-5)


@functools.cache
def far_server(bounded: bool):
    """One client whose F was led astray: its last layer's outputs are far from any valid latent."""
    start, serve = compiled_server(bounded=bounded)
    last = start.transformer["fc2"] | {"bias": jnp.full(LATENT_DIM, -400.0)}
    astray = start._replace(transformer=start.transformer | {"fc2": last})
    return serve(astray, receive({0: UPLOADS[0]}))


def test_sent_vectors_stay_among_the_valid_latents():
    """They stay in the ball about the mean; without it nothing pulls F back."""
    centre, radius = RAW.variables.ball
    w = RAW.sample_w(RAW.variables, jax.random.key(0), 1000)
    assert np.linalg.norm(w - centre, axis=1).max() == pytest.approx(float(radius), rel=1e-5)
    for bounded in (True, False):
        server, metrics = far_server(bounded)
        assert metrics["off_manifold"] == 1
        distance = np.linalg.norm(server.centroids - centre, axis=1)[[0, 2]].max() / radius
        np.testing.assert_allclose(metrics["reach"], distance, rtol=1e-4)
        numbers = {name: float(value) for name, value in metrics.items()}
        line = method_of(bounded=bounded).view.warn(numbers)
        if bounded:
            assert distance <= 1.0001 and "more than 90% of F's latents" in line
        else:
            assert distance > 100 and "more than 100 times as far" in line and "\n" not in line


@pytest.mark.parametrize("source", ["valid", "noise"])
def test_fixed_pairs_are_drawn_once(source):
    """Valid latents with their images, or noise for both; nothing is uploaded."""
    start, serve = compiled_server(source=source)
    nothing = {name: received._replace(uplink=()) for name, received in receive(UPLOADS).items()}
    assert start.transformer == {} and not start.available.any()
    first, metrics = serve(start, nothing, 2)
    again, _ = serve(first, nothing, 3)
    tiny.check_equal(first, again)
    assert first.available.all() and metrics == {}
    other, _ = serve(start, nothing, 3)
    assert np.abs(other.centroids - first.centroids).max() > 1e-2
    images = fit(GENERATOR.synthesize(GENERATOR.variables, first.centroids), (2, 2, 1))
    if source == "valid":
        key = jax.random.split(jax.random.key(2))[0]
        w = RAW.sample_w(RAW.variables, key, C)
        np.testing.assert_allclose(first.centroids, w, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(first.images, images, atol=1e-6)
    else:
        assert np.abs(first.images - images).max() > 0.05
        assert 0 <= first.images.min() <= first.images.max() < 1


def test_noise_has_the_spread_of_valid_latents():
    key, n = jax.random.key(0), 4000
    got = latents_of("noise", UNITS, UNITS.variables, key, n)
    w = UNITS.sample_w(UNITS.variables, key, n)
    np.testing.assert_allclose(got.mean(0), w.mean(0), atol=0.1)
    np.testing.assert_allclose(got.std(0), w.std(0), rtol=0.1)


def test_a_class_that_nobody_sends_keeps_its_pair():
    start, serve = compiled_server()
    first, _ = serve(start, receive(UPLOADS))
    second, _ = serve(first, receive({0: UPLOADS[0], 3: {3: UPLOADS[1][1]}}))
    np.testing.assert_array_equal(second.available, [True] * C)
    for part in ("centroids", "images"):
        np.testing.assert_array_equal(getattr(second, part)[1], getattr(first, part)[1])
        for c in (0, 2, 3):
            assert np.abs(getattr(second, part)[c] - getattr(first, part)[c]).max() > 1e-3


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_clients_without_samples_change_nothing(variant):
    """Before any upload the released server has no pair, either."""
    start, serve = compiled_server(variant=variant)
    server, metrics = serve(start, receive({0: {}, 1: {}}))
    tiny.check_equal(server, start)
    assert not server.available.any() and all(np.isfinite(x) for x in metrics.values())


def test_a_generator_on_the_host():
    def synthesize(variables, w):
        assert type(w) is type(variables["image"]) is np.ndarray
        return 1 / (1 + np.exp(-w @ variables["image"])).reshape(-1, SIDE, SIDE, 3)

    on_host = GENERATOR._replace(synthesize=synthesize, host=True)
    hosts = [method_of(generator=each).needs.pretrained.host for each in (on_host, GENERATOR)]
    assert hosts == [True, False]
    start, compiled = compiled_server()
    _, serve = server_step(method_of(generator=on_host, antialias=False))
    (got, metrics), (want, expected) = (step(start, receive(UPLOADS)) for step in (serve, compiled))

    def close(a, b):
        return np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)

    jax.tree.map(close, (got._replace(images=()), metrics), (want._replace(images=()), expected))
    images = synthesize(jax.device_get(GENERATOR.variables), np.asarray(want.centroids))
    close(got.images[:3], fit(images, (2, 2, 1), False)[:3])
    # these were shrunk with antialiasing
    assert np.abs(got.images[:3] - want.images[:3]).max() > 1e-3


def test_the_weights_are_an_argument_of_the_server_step_and_no_part_of_its_state():
    start, _ = compiled_server()
    weights = f"tensor<{LATENT_DIM}x{SIDE * SIDE * 3}xf32>"

    def as_constant(generator) -> bool:
        """Returns True where the image matrix is a constant in the program of a server's step."""
        method = method_of(generator=generator)

        def step(frozen):
            ctx = tiny.context()._replace(pretrained=frozen)
            return method.server_update(FEDERATION, start, receive(UPLOADS), ctx)

        program = jax.jit(step).lower(method.needs.pretrained.variables).as_text()
        assert weights in program
        return re.search(rf"stablehlo.constant.*{weights}", program) is not None

    assert not as_constant(GENERATOR)

    def closure(_, w):
        return GENERATOR.synthesize(GENERATOR.variables, w)

    # what was absent is found where it is
    assert as_constant(GENERATOR._replace(synthesize=closure))
    assert method_of().needs.pretrained.variables.variables is GENERATOR.variables
    assert all(leaf.size != LATENT_DIM * SIDE * SIDE * 3 for leaf in jax.tree.leaves(start))


def test_a_conditional_generator_s_own_classes():
    """No F: the same random classes in every round, other latents of them."""
    start, serve = compiled_server(source="labels")
    nothing = {name: received._replace(uplink=()) for name, received in receive(UPLOADS).items()}
    assert start.transformer == {} and not start.available.any()
    classes = jax.random.permutation(jax.random.key(0), 7)[:C]
    for seed in (2, 3):
        server, metrics = serve(start, nothing, seed)
        assert server.available.all() and metrics == {}
        key = jax.random.split(jax.random.key(seed))[0]
        want = GENERATOR.conditional(GENERATOR.variables, key, classes)
        np.testing.assert_allclose(server.centroids, want, rtol=1e-5, atol=1e-6)


def table_method(**options):
    """With latents of 512 numbers, and black images."""
    generator = GENERATOR._replace(
        latent_dim=512,
        sample_w=lambda _, key, n: jax.random.normal(key, (n, 512)),
        synthesize=lambda _, w: jnp.zeros((len(w), 2, 2, 3)),
    )
    return fedktl(wire_table.TRAINING, generator=generator, **options)


def test_pairs_of_the_papers_table():
    """FedKTL's Table 5: 100 classes of 32x32x3 images and latents of 512, to 20 clients: 7.17M."""
    federation = make_federation({"mlp": mlp(100, (4,))}, (32, 32, 3), 100, num_clients=20)
    for options, numbers in [({}, 7_168_000), ({"transfer": "images"}, 6_144_000)]:
        method = table_method(**options)
        server = method.init_server(federation, jax.random.key(0))
        for available, sent in ((0, 0), (100, numbers), (37, numbers * 37 // 100)):
            server = server._replace(available=jnp.arange(100) < available)
            cost = wire_elements(method.broadcast(federation, federation.buckets[0], server, None))
            assert 20 * int(cost.payload_elements) == sent


@pytest.mark.slow
def test_prototypes_of_the_papers_table():
    """100 numbers for each class of a client, where the others' prototypes have 512: 0.09M."""
    first, second = wire_table.reports(table_method(server_epochs=1))
    s = wire_table.sum_of_classes()
    assert first.uplink.payload_elements == second.uplink.payload_elements == 100 * s
    assert first.uplink.metadata_elements == s  # the classes
    assert first.downlink.payload_elements == 0
    assert second.downlink.payload_elements == 20 * 100 * (2 * 2 * 1 + 512)
