"""FLOPs against arithmetic by hand and against XLA's own count of one step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from fedjax_ht.core.batches import forward_batch
from fedjax_ht.core.context import ClientInfo, Context
from fedjax_ht.core.federation import make_federation
from fedjax_ht.core.inputs import Pixels
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.samples import Data, Split
from fedjax_ht.methods import METHODS
from fedjax_ht.metrics.flops import bucket_flops, program_flops
from fedjax_ht.models import model_group
from fedjax_ht.ops import patches
from fedjax_ht.ops.conv import conv2d
from tests.federations import FEATURE_DIM, NUM_CLASSES, SHAPE, federation_data, mixed_federation
from tests.standard import simulation_of

SQUARE = jnp.ones((4, 4))
PRODUCT = 2 * 4**3
PIXELS = SHAPE[0] * SHAPE[1]
# of "narrow": there is no input gradient
STEP = 4 * 2 * (2 * PIXELS * FEATURE_DIM + 3 * FEATURE_DIM * NUM_CLASSES)


def counted(fn, *known):
    """FLOPs of fn(*integers)."""
    return program_flops(jax.make_jaxpr(fn)(*[jnp.int32(0)] * len(known)), known)


def repeat(first, past):
    return lax.fori_loop(first, past, lambda i, x: x @ SQUARE, SQUARE)


def test_a_loop_counts_as_often_as_it_runs():
    assert counted(lambda n: repeat(2, n // 3), 29) == 7 * PRODUCT
    assert counted(lambda n: repeat(n, 5), 5) == counted(lambda n: repeat(n, 5), 8) == 0
    np.testing.assert_array_equal(
        counted(lambda n: repeat(0, n), np.array([3, 0, 7])), [3 * PRODUCT, 0, 7 * PRODUCT]
    )


def test_a_loop_whose_length_depends_on_the_loop_around_it():
    def triangle(n):
        return lax.fori_loop(0, n, lambda i, x: x + repeat(i, jnp.minimum(n, i + 3)), SQUARE)

    np.testing.assert_array_equal(
        counted(triangle, np.array([5, 1])) / PRODUCT, [3 + 3 + 3 + 2 + 1, 1]
    )


def test_scans_branches_and_calls():
    def scanned(n):
        def body(x, _):
            return (jax.jit(repeat)(0, n) + x, None)

        return lax.scan(body, SQUARE, length=3)[0]

    assert counted(scanned, 2) == 3 * 2 * PRODUCT

    def branches(n):
        return lax.cond(n > 0, lambda: SQUARE @ SQUARE @ SQUARE, lambda: SQUARE)

    assert counted(branches, 0) == 2 * PRODUCT  # the costliest
    assert counted(lambda n: jax.vmap(lambda a: a @ SQUARE)(jnp.ones((5, 4, 4))), 0) == 5 * PRODUCT


@pytest.mark.parametrize(
    "body",
    [
        lambda c: (c[0] * 2 + 1, c[1], c[2] @ SQUARE),  # counts by other steps
        lambda c: (c[0] + 1, c[1] - 1, c[2] @ SQUARE),  # moves its end
    ],
)
def test_a_loop_of_unknown_length_counts_once(body):
    found = counted(lambda n: lax.while_loop(lambda c: c[0] < c[1], body, (0, n, SQUARE)), 9)
    assert found == PRODUCT
    unknown = jax.make_jaxpr(lambda n: repeat(0, n))(jnp.int32(9))
    assert program_flops(unknown) == PRODUCT


@pytest.mark.parametrize("a, b", [(7, 2), (-7, 2), (7, -2), (0, 3)])
def test_integer_arithmetic_is_the_program_s(a, b):
    def mixed(a, b):
        rounded = a // b + a % b + lax.div(a, b) + lax.rem(a, b) + jnp.sign(a) - (-b)
        chosen = jnp.where((a > b) | ~(a == 0) & (a >= b), jnp.maximum(a, 4), jnp.minimum(b, 9))
        return rounded + chosen + (a <= b) + (a != b) + jnp.where(a.astype(bool) ^ True, 2, 5) + 50

    expected = int(mixed(jnp.int32(a), jnp.int32(b)))
    assert counted(lambda a, b: repeat(0, mixed(a, b)), a, b) == expected * PRODUCT > 0


@pytest.mark.parametrize("stride, padding, groups", [(1, 0, 1), (2, 1, 1), (1, 3, 1), (2, 1, 6)])
def test_a_convolution_and_its_gradients_as_xla_counts_them(stride, padding, groups):
    def loss(x, kernel):
        return (conv2d(x, kernel, stride, padding, groups, lowering="native") ** 2).sum()

    x, kernel = jnp.ones((2, 9, 9, 6)), jnp.ones((3, 3, 6 // groups, 6))
    step = jax.grad(loss, argnums=(0, 1))
    xla = jax.jit(step).lower(x, kernel).cost_analysis()["flops"]
    assert program_flops(jax.make_jaxpr(step)(x, kernel)) == pytest.approx(xla, rel=0.03)


@pytest.mark.parametrize("stride, columns, large", [(1, 5, 6 << 20), (2, 2, 6 << 20), (1, 5, 0)])
def test_a_convolution_costs_the_same_in_whichever_form_it_runs(
    monkeypatch, stride, columns, large
):
    """Also where a batch is cut into blocks, whose patches stay in the cache."""
    monkeypatch.setattr(patches, "LARGE", large)
    monkeypatch.setattr(patches, "CACHED", large)

    def traced():
        step = jax.grad(lambda x, kernel: (conv2d(x, kernel, stride) ** 2).sum(), argnums=(0, 1))
        return jax.make_jaxpr(step)(jnp.ones((2, 12, 18, 3)), jnp.ones((5, 4, 3, 2)))

    monkeypatch.setattr(patches, "columns_at_once", lambda *sizes: 1)
    plain = traced()
    monkeypatch.setattr(patches, "columns_at_once", lambda *sizes: columns)
    widened = traced()
    out_pixels = 8 * 15 if stride == 1 else 4 * 8
    # forward, and each of two gradients
    assert program_flops(plain) == 3 * 2 * (2 * out_pixels * 2 * 5 * 4 * 3)
    assert program_flops(widened) == program_flops(plain) and str(widened) != str(plain)


@pytest.mark.parametrize("name, group", [("local", "cnn5"), ("fedproto", "cnn5"), ("fml", "mlp2")])
def test_a_step_costs_what_xla_says(name, group):
    """XLA takes a loop's body once and counts elementwise work; so here, of unknown length."""
    shape, samples = (28, 28, 1), 48
    federation = make_federation(model_group(group, 10, shape), shape, 10, num_clients=2)
    method = METHODS[name](LocalTraining(optax.sgd(0.1), batch_size=16))
    bucket, pixel = federation.buckets[0], jnp.ones(1)

    def work(client, server, split, key):
        images, labels = jnp.zeros((samples, *shape), jnp.uint8), jnp.zeros(samples, jnp.int32)
        data = Data(images, labels, Pixels(pixel, pixel), {"train": split})
        ctx = Context(key, jnp.int32(0), ClientInfo(jnp.int32(0), split.count, jnp.int32(-1)))
        downlink = method.broadcast(federation, bucket, server, ctx)
        client = method.receive(bucket, client, downlink, data, ctx)
        return method.client_update(bucket, client, downlink, data, ctx)

    def start(key):
        client = method.init_client(bucket, Context(key, jnp.int32(0), None))
        return client, method.init_server(federation, key)

    client, server = jax.eval_shape(start, jax.random.key(0))
    arguments = (client, server, Split(jnp.arange(samples), jnp.int32(samples)), jax.random.key(0))
    xla = jax.jit(work).lower(*arguments).cost_analysis()["flops"]
    assert 0.92 * xla < program_flops(jax.make_jaxpr(work)(*arguments)) < xla


def test_clients_of_a_federation():
    """ "narrow" by hand: batches of four, one step below a batch, none without samples."""
    flops = simulation_of("local").client_flops()
    federation = mixed_federation()
    # of 11, 9, 3, 0 and 16 samples
    narrow = np.array([2, 2, 3 / 4, 0, np.nan, 4, np.nan, np.nan]) * STEP
    members = list(federation.members(federation.buckets[0]))
    np.testing.assert_array_equal(flops[members], narrow[members])
    assert (flops[[4, 6]] == 2 / 1 * flops[7]).all()


def test_epochs_steps_batches_and_the_collection_of_prototypes():
    federation = mixed_federation()
    bucket, data = federation.buckets[0], federation_data(federation).buckets["narrow"]

    def flops(name, batch_size=4, **recipe):
        method = METHODS[name](LocalTraining(optax.sgd(0.1), batch_size=batch_size, **recipe))
        return bucket_flops(method, federation, bucket, data)

    of_sample = STEP / 4
    # A batch larger than a client costs the client's samples.
    large = flops("local", batch_size=4096)
    np.testing.assert_allclose(large / of_sample, [11, 9, 3, 0, 16], rtol=1e-12)
    np.testing.assert_allclose(
        flops("local", epochs=3, drop_remainder=False) / of_sample, [33, 27, 9, 0, 48], rtol=1e-12
    )
    np.testing.assert_allclose(flops("local", steps=5) / of_sample, [20, 20, 15, 0, 20], rtol=1e-12)
    # One batch in evaluation mode, its features summed by class; and in every step the class means
    # of the batch, there and back.
    collection = 2 * forward_batch() * (PIXELS * FEATURE_DIM + NUM_CLASSES * FEATURE_DIM)
    extra = flops("fedproto", steps=5) - flops("local", steps=5)
    means = 5 * 2 * (2 * 4 * NUM_CLASSES * FEATURE_DIM)
    whole = collection + means
    np.testing.assert_allclose(extra, [whole, whole, collection + 3 / 4 * means, 0, whole])
