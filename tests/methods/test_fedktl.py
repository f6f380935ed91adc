"""The clients of FedKTL: their training against the reference, every option, every mistake."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ht.core.federation import make_federation
from fedjax_ht.methods.fedktl import fedktl
from fedjax_ht.methods.shared.pair_server import Server
from fedjax_ht.methods.shared.pairs import draw, draw_in_passes, first_projection, simplex_etf
from fedjax_ht.models import mlp
from fedjax_ht.models.layers import Linear
from tests import tiny
from tests.generators_tiny import LATENT_DIM, tiny_generator
from tests.reference import fedktl as reference
from tests.tiny import BUCKET, DATA, FEDERATION, LABELS, C, K

LR = 0.003
GENERATOR = tiny_generator()
TRAINING = dataclasses.replace(tiny.TRAINING, optimizer=optax.sgd(LR))
AVAILABLE = np.array([True, False, True, True])
RNG = np.random.default_rng(2)
IMAGES = RNG.random((C, 2, 2, 1)).astype(np.float32)
VECTORS = RNG.normal(size=(C, LATENT_DIM)).astype(np.float32)
SMALL = {"server_epochs": 3, "server_batch_size": 3}


def method_of(**options):
    return fedktl(TRAINING, **({"generator": GENERATOR} | SMALL | options))


def server_of(available) -> Server:
    """Pairs as they are; of classes without one, what must not be read."""

    def spoilt(x):
        return jnp.where(available.reshape(-1, *[1] * (x.ndim - 1)), x, jnp.nan)

    return Server({}, spoilt(VECTORS), spoilt(IMAGES), available)


@functools.cache
def compiled_client(**options):
    """Client 0 before its training, and (which pairs there are) -> what its training returns."""
    method, ctx = method_of(**options), tiny.context(0)
    method.check(FEDERATION)
    client = jax.jit(lambda: method.init_client(BUCKET, ctx))()

    @jax.jit
    def update(client, available):
        downlink = method.broadcast(FEDERATION, BUCKET, server_of(available), ctx)
        return method.client_update(BUCKET, client, downlink, DATA, ctx)

    return client, lambda available: update(client, jnp.asarray(available))


def local_batches(available, size, released=False):
    """Returns the batches of two steps: samples, and the pairs that the client draws for them."""
    rule = DATA.preprocess
    images = (np.float64(IMAGES) - np.asarray(rule.mean)) / np.asarray(rule.std)
    loss_key = jax.random.split(tiny.context(0).key, 3)[2]
    for number in (0, 1):
        key = jax.random.split(jax.random.fold_in(loss_key, number), 3)[2]
        pairs = draw(jnp.asarray(available), size, key)
        if released:
            passes_key = jax.random.fold_in(tiny.context(0).key, 1)
            pairs = draw_in_passes(jnp.asarray(available), size, number, passes_key)
        index, mask = map(np.asarray, pairs)
        classes = index[mask]
        vectors = np.float64(VECTORS[classes])
        yield *tiny.BATCHES[number], images.reshape(C, -1)[classes], classes, vectors


def test_images_cross_the_wire_in_the_generators_range():
    """-1 to 1, which noise is added to; clients map them back, see the next test."""
    server = server_of(jnp.asarray(AVAILABLE))
    sent = method_of().broadcast(FEDERATION, BUCKET, server, tiny.context(0)).images
    np.testing.assert_allclose(sent.values[AVAILABLE], 2 * IMAGES[AVAILABLE] - 1, rtol=1e-6)
    assert sent.values[AVAILABLE].min() < -0.5


STEEP = {"mu": 2000.0}
# options; dimensions of the frame, None without one; pairs of a step; what the reference is told
CLIENTS = {
    "paper": ({}, C, 3, {}),
    "released": ({"variant": "released", **STEEP}, C, 3, STEEP),
    "clipped": (STEEP, C, 3, STEEP),
    "not clipped": ({"mu": 400.0, "clip_norm": 0.0}, C, 3, {"mu": 400.0}),
    "images": ({"transfer": "images"}, C, 3, {"mixed": 3 / 7}),  # three images to seven samples
    "head": ({"classifier": "head", "mu": 3.0}, None, 3, {"mu": 3.0}),
    "larger K": (
        {"dim": 6, "all_pairs": True, "scale": 1.0, "margin": 0.0},
        6,
        4,
        {"scale": 1.0, "margin": 0.0},
    ),
    "no regression": ({"mu": 0.0}, C, 3, {"mu": 0.0}),
}


def first_params(client) -> dict[str, np.ndarray]:
    """Returns the parameters of a client and of h' under the reference's names."""
    projection = first_projection(K, LATENT_DIM).items()
    return tiny.flat_params(client["params"]) | {
        f"projection_{n}": np.asarray(v, np.float64) for n, v in projection
    }


@pytest.mark.parametrize("case", CLIENTS)
def test_client_update_equals_the_reference(case):
    """Two steps of ArcFace and the regression; without pairs, or with mu 0, local training."""
    options, dim, size, recipe = CLIENTS[case]
    client, update = compiled_client(**options)
    released = options.get("variant") == "released"
    recipe = reference.Recipe(None if dim is None else np.float64(simplex_etf(C, dim)), **recipe)
    start = first_params(client)
    x = tiny.pixels(DATA)
    # a pass is then a step of three pairs, and one of the fourth
    everyone = [np.ones(C, bool)] * released
    for available in (AVAILABLE, np.zeros(C, bool), *everyone):
        batches = list(local_batches(available, size, released))
        lengths = [3, 1] if available.all() else [min(size, available.sum())] * 2
        assert [len(batch[3]) for batch in batches] == lengths
        trained, uplink, metrics = update(available)
        want, loss = reference.train_client(
            start, batches, LR, recipe, options.get("clip_norm", True)
        )
        tiny.check_model(trained["params"], want, rtol=1e-4, atol=1e-5)
        for part in tiny.flat_params(trained["params"]):
            assert np.abs(want[part] - start[part]).max() > 1e-4
        np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-4)
        rows = reference.features if dim is None else reference.logits
        np.testing.assert_array_equal(uplink.prototypes.mask, [True, False, True, True])
        for c, mean in reference.prototypes(want, x, LABELS, rows, released).items():
            np.testing.assert_allclose(uplink.prototypes.values[c], mean, rtol=1e-4, atol=1e-5)
        assert uplink.counts == ()


def test_pairs_are_drawn_without_replacement_and_all_in_turn():
    available = jnp.array([True, False, True, True, False])
    counts = np.zeros(5)
    for seed in range(60):
        index, mask = draw(available, 2, jax.random.key(seed))
        assert mask.all() and len(set(index.tolist())) == 2
        counts[index] += 1
    assert counts[[1, 4]].sum() == 0 and (counts[[0, 2, 3]] > 25).all()
    assert draw(available, 5, jax.random.key(0))[1].sum() == 3
    assert not draw(jnp.zeros(5, bool), 2, jax.random.key(0))[1].any()


@pytest.mark.parametrize(
    ("available", "size", "lengths"), [(5, 2, [2, 2, 1]), (4, 2, [2, 2]), (3, 5, [3]), (0, 2, [0])]
)
def test_the_released_form_goes_through_pairs_in_passes(available, size, lengths):
    """A pass takes every pair once, in an order of its own; its last step has what is left."""
    present, key = jnp.arange(5) < available, jax.random.key(1)
    orders = set()
    for number in range(20):
        seen = []
        for i, length in enumerate(lengths):
            index, mask = draw_in_passes(present, size, jnp.int32(number * len(lengths) + i), key)
            assert mask.sum() == length and mask.shape == (size,)
            seen += index[mask].tolist()
        assert sorted(seen) == list(range(available))
        orders.add(tuple(seen))
    assert len(orders) > 3 or available == 0


def test_prediction_is_by_the_largest_cosine():
    x, ctx = RNG.normal(size=(5, 2, 2, 1)).astype(np.float32), tiny.context(0)
    for options, rule in (({"dim": 6}, "etf"), ({"classifier": "head"}, "head")):
        method = method_of(**options)
        client = jax.jit(lambda method=method: method.init_client(BUCKET, ctx))()
        want = reference.logits(tiny.flat_params(client["params"]), x.reshape(5, -1))
        if rule == "etf":
            assert want.shape == (5, 6)
            want = np.cos(reference.angles(want, simplex_etf(C, 6)))
        scores = method.predict(BUCKET, client, None, x, jnp.ones(5, bool))
        assert method.rules == (rule,) == tuple(scores)
        np.testing.assert_allclose(scores[rule], want, rtol=1e-4, atol=1e-5)


class Whole(nn.Module):
    """Not a SplitModel: its head is its own affair."""

    def setup(self):
        self.base, self.head = tiny.Flat(K), Linear(C)

    def features(self, x, train, mask):
        return self.base(x)

    def classify(self, features):
        return self.head(features)

    def __call__(self, x):
        return self.head(self.base(x))


def test_a_federation_of_one_class_is_refused():
    alone = make_federation({"mlp": mlp(1, (4,))}, (2, 2, 1), 1, num_clients=2)
    with pytest.raises(ValueError, match="at least 2 classes; the federation has 1"):
        method_of().check(alone)
    method_of(classifier="head").check(alone)


def test_a_model_of_ones_own_keeps_its_head():
    federation = make_federation({"whole": Whole()}, (2, 2, 1), C, num_clients=2)
    method_of().check(federation)
    message = "dim is 9; models that are not a SplitModel keep their 4 outputs"
    with pytest.raises(ValueError, match=message):
        method_of(dim=9).check(federation)
