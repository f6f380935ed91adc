"""Linear models on 2x2 grey images, their clients and messages, made by hand and compared with NumPy.

The standard federation of simulations is in `federations`.
"""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_ht.core.context import ClientInfo, Context, Received
from fedjax_ht.core.federation import Federation, make_federation
from fedjax_ht.core.inputs import Pixels
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.samples import Data, Split
from fedjax_ht.core.wire import Masked, Metadata
from fedjax_ht.methods.shared.prototypes import Uplink
from fedjax_ht.models import SplitModel
from fedjax_ht.models.layers import Linear, Norm

C, K, LR = 4, 3, 0.1  # classes, features, learning rate


class Flat(nn.Module):
    """A linear layer on the flattened image: the simplest extractor."""

    width: int

    @nn.compact
    def __call__(self, x):
        return Linear(self.width, name="fc")(x.reshape(x.shape[0], -1))


class NormedFlat(nn.Module):
    """A linear layer and batch normalisation: an extractor with batch statistics."""

    width: int

    @nn.compact
    def __call__(self, x, train=False, mask=None):
        return Norm()(Linear(self.width)(x.reshape(x.shape[0], -1)), train, mask)


def linear_federation(
    num_classes: int = C, width: int = K, clients: int = 4, buckets: int = 2
) -> Federation:
    """Linear models on 2x2 grey images, client i in bucket i mod `buckets`."""
    modules = {f"linear{i}": SplitModel(Flat(width), Linear(num_classes)) for i in range(buckets)}
    return make_federation(modules, (2, 2, 1), num_classes, num_clients=clients)


def normed_federation() -> Federation:
    """One client whose own and auxiliary model keep batch statistics."""
    model = SplitModel(NormedFlat(K), Linear(C), stateful=True)
    return make_federation({"normed": model}, (2, 2, 1), C, num_clients=1)


FEDERATION = linear_federation()
ONE_BUCKET = linear_federation(buckets=1)
BUCKET = ONE_BUCKET.buckets[0]


def model(seed: int) -> dict:
    """Random parameters of the linear model."""
    return BUCKET.module.init(jax.random.key(seed), np.zeros((1, 2, 2, 1)))["params"]


def shift(tree, seed: int, scale: float = 0.3):
    """The tree with noise added: another model of the same shape."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: x + (scale * rng.normal(size=x.shape)).astype(x.dtype), tree)


def flat_params(params) -> dict[str, np.ndarray]:
    """A linear model's parameters as the references name them."""
    base, head = params["base"]["fc"], params["head"]
    named = {
        "base_kernel": base["kernel"],
        "base_bias": base["bias"],
        "head_kernel": head["kernel"],
        "head_bias": head["bias"],
    }
    return {name: np.asarray(value, np.float64) for name, value in named.items()}


def flat_pair(client, beside=None) -> dict[str, dict]:
    """The two models of a client, and what trains beside, by the references' names."""
    shared = client["shared"]["params"]
    models = {"own": flat_params(client["params"]), "shared": flat_params(shared)}
    if beside is None:
        return models
    return models | {"beside": {k: np.asarray(v, np.float64) for k, v in beside.items()}}


def check_model(got, want: dict, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Asserts that a model has the reference's parameters."""
    for name, value in (flat_params(got) if "base" in got else got).items():
        np.testing.assert_allclose(value, want[name], rtol=rtol, atol=atol, err_msg=name)


def check_models(got: dict[str, dict], want: dict[str, dict]) -> None:
    """Asserts that several models have the reference's parameters."""
    for name, params in want.items():
        check_model({part: got[name][part] for part in params}, params)


def check_equal(a, b) -> None:
    """Asserts that two pytrees are equal bit by bit."""
    jax.tree.map(np.testing.assert_array_equal, a, b)


def client_data(
    labels, indices=None, shape=(2, 2, 1), mean=0.4, std=0.3, seed=0, padding: int = 0
) -> Data:
    """Random images with these labels; the client trains on `indices`, by default all."""
    labels = np.asarray(labels, np.int32)
    images = np.random.default_rng(seed).integers(0, 256, (len(labels), *shape), np.uint8)
    indices = np.arange(len(labels)) if indices is None else np.asarray(indices)
    split = Split(jnp.asarray(np.pad(indices, (0, padding)), jnp.int32), jnp.int32(len(indices)))
    channels = np.full(shape[-1], 1, np.float32)
    rule = Pixels(channels * mean, channels * std)
    return Data(jnp.asarray(images), jnp.asarray(labels), rule, {"train": split})


def pixels(data: Data) -> np.ndarray:
    """All images normalised and flattened, float64 [N, D]."""
    x = (np.asarray(data.inputs, np.float64) / 255 - np.asarray(data.preprocess.mean)) / np.asarray(
        data.preprocess.std
    )
    return x.reshape(len(x), -1)


def batches(data: Data) -> list[tuple[np.ndarray, np.ndarray]]:
    """The first two batches of three samples, or of what there is: x [3, D], y [3]."""
    x, y = pixels(data), np.asarray(data.labels)
    return [(x[:3], y[:3]), (x[3:6], y[3:6])]


# two steps of three samples; the seventh is left out of training
TRAINING = LocalTraining(optax.sgd(LR), batch_size=3, shuffle=False)
LABELS = np.array([0, 2, 2, 0, 3, 0, 3])
DATA = client_data(LABELS, padding=2)
BATCHES = batches(DATA)
# the same with five samples, and a second step of two
SHORT_TRAINING = dataclasses.replace(TRAINING, drop_remainder=False)
SHORT_DATA = client_data(LABELS[:5], padding=2)
SHORT_BATCHES = batches(SHORT_DATA)


def context(
    client_id: int | None = None,
    seed: int = 0,
    *,
    round: int = 0,
    last_round: int = -1,
    samples: int = 10,
) -> Context:
    """Returns the context of a client's call; without a client, of the server's."""
    numbers = (client_id, samples, last_round)
    info = None if client_id is None else ClientInfo(*map(jnp.int32, numbers))
    return Context(jax.random.key(seed), jnp.int32(round), info)


def infos(ids, num_samples) -> ClientInfo:
    """ClientInfo with a leading axis."""
    ids = np.asarray(ids, np.int32)
    counts = np.broadcast_to(np.asarray(num_samples, np.int32), ids.shape)
    return ClientInfo(*map(jnp.asarray, (ids, counts, np.full_like(ids, -1))))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _played(method, bucket, client, downlink, data, ctx):
    received = method.receive(bucket, client, downlink, data, ctx)
    return received, *method.client_update(bucket, received, downlink, data, ctx)


def play(method, client, downlink, *, data=DATA, ctx=None, bucket=BUCKET):
    """Receives and trains, as client 0; returns received and trained state, uplink and metrics."""
    ctx = context(0, last_round=0) if ctx is None else ctx
    return _played(method, bucket, client, downlink, data, ctx)


# A round of four clients in two buckets or in one: client 3 is lost, ids from 4 on are padding.
ORDER = [[0, 2], [1, 3]]
OTHER_ORDER = [[4, 2, 5, 0], [3, 1, 4]]
IN_ONE_BUCKET = [[4, 2, 0, 3, 1, 4]]


def unread(x) -> np.ndarray:
    """An array like another, of what a server must not read."""
    x = np.asarray(x)
    return np.full_like(x, np.nan if np.issubdtype(x.dtype, np.floating) else 999)


def receive(uplinks: dict, order=OTHER_ORDER, samples=(), arrived=None) -> dict[str, Received]:
    """Stacks uplinks, client id -> uplink, as the server holds them after a round.

    Args:
      uplinks: of clients.
      order: bucket name -> its rows' client ids, in running order; or the ids alone, per bucket of
        `linear_federation`.
      samples: client id -> its number of training samples; by default 10.
      arrived: clients that did, by default all with an uplink; the others' rows must not be read.
    """
    arrived, samples = set(uplinks if arrived is None else arrived), dict(samples)
    named = order if isinstance(order, dict) else {f"linear{i}": x for i, x in enumerate(order)}
    received = {}
    for name, ids in named.items():
        form = next((i for i in ids if i in uplinks), next(iter(uplinks)))
        lost = jax.tree.map(unread, uplinks[form])
        rows = [uplinks[i] if i in arrived else lost for i in ids]
        stacked = jax.tree.map(lambda *xs: jnp.asarray(np.stack(xs)), *rows)
        info = infos(ids, [samples.get(i, 10) for i in ids])
        here = jnp.asarray(np.array([i in arrived for i in ids]))
        received[name] = Received(stacked, info, here)
    return received


def members(federation: Federation) -> dict[str, list[int]]:
    """Bucket name -> the ids of its clients, for `receive`."""
    return {bucket.name: list(federation.members(bucket)) for bucket in federation.buckets}


ClassRows = dict[int, dict[int, np.ndarray]]  # client id -> class -> prototype (or count)


def by_class(rows: dict[int, np.ndarray], num_classes: int, shape: tuple[int, ...]) -> Masked:
    """Rows of classes under a mask; NaN where there is none."""
    values = np.full((num_classes, *shape), np.nan, np.float32)
    for c, value in rows.items():
        values[c] = value
    return Masked(values, np.isin(np.arange(num_classes), list(rows)))


def receive_prototypes(
    uploads: ClassRows,
    order=OTHER_ORDER,
    num_classes: int = C,
    width: int = K,
    counts: ClassRows | None = None,
) -> dict[str, Received]:
    """`receive` of prototypes, and of the samples behind each where they are sent."""

    def uplink(i: int) -> Uplink:
        rows = by_class(uploads[i], num_classes, (width,))
        if counts is None:
            return Uplink(rows, ())
        return Uplink(rows, Metadata(by_class(counts.get(i, {}), num_classes, ())))

    return receive({i: uplink(i) for i in uploads}, order)


def prototypes_of(classes: dict[int, list[int]], width: int = K, seed: int = 0) -> ClassRows:
    """Random prototypes of each client's classes."""
    rng = np.random.default_rng(seed)
    return {
        i: {c: rng.normal(size=width).astype(np.float32) for c in labels}
        for i, labels in classes.items()
    }
