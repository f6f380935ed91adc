"""Tiny models, clients and messages that tests build by hand."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.context import ClientInfo, Context, Received
from fedjax_ht.core.federation import Federation, make_federation
from fedjax_ht.core.inputs import Pixels
from fedjax_ht.core.samples import Data, Split
from fedjax_ht.core.wire import Masked, Metadata
from fedjax_ht.methods.shared.prototypes import Uplink
from fedjax_ht.models import SplitModel
from fedjax_ht.models.layers import Linear


class Flat(nn.Module):
    """A linear layer on the flattened image: the simplest extractor."""

    width: int

    @nn.compact
    def __call__(self, x):
        return Linear(self.width, name="fc")(x.reshape(x.shape[0], -1))


def linear_federation(
    num_classes: int = 4, width: int = 3, clients: int = 4, buckets: int = 2
) -> Federation:
    """Linear models on 2x2 grey images, client i in bucket i mod `buckets`."""
    modules = {f"linear{i}": SplitModel(Flat(width), Linear(num_classes)) for i in range(buckets)}
    return make_federation(modules, (2, 2, 1), num_classes, num_clients=clients)


def flat_params(params) -> dict[str, np.ndarray]:
    """A linear model's parameters as the reference names them."""
    base, head = params["base"]["fc"], params["head"]
    named = {
        "base_kernel": base["kernel"],
        "base_bias": base["bias"],
        "head_kernel": head["kernel"],
        "head_bias": head["bias"],
    }
    return {name: np.asarray(value, np.float64) for name, value in named.items()}


def client_data(
    labels, indices=None, shape=(2, 2, 1), mean=0.4, std=0.3, seed=0, padding: int = 0
) -> Data:
    """Random images with the given labels; the client trains on `indices` (all by default), padded
    by `padding`."""
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


def context(client_id: int | None = None, seed: int = 0) -> Context:
    """Returns the context of a client's call; without a client, of the server's."""
    info = None if client_id is None else infos([client_id], 10)
    return Context(jax.random.key(seed), jnp.int32(0), info and jax.tree.map(lambda x: x[0], info))


def infos(ids, num_samples) -> ClientInfo:
    """ClientInfo with a leading axis."""
    ids = np.asarray(ids, np.int32)
    counts = np.broadcast_to(np.asarray(num_samples, np.int32), ids.shape)
    return ClientInfo(*map(jnp.asarray, (ids, counts, np.full_like(ids, -1))))


ClassRows = dict[int, dict[int, np.ndarray]]  # client id -> class -> prototype (or count)


def receive_prototypes(
    uploads: ClassRows,
    order: list[list[int]],
    num_classes: int,
    width: int,
    counts: ClassRows | None = None,
) -> dict[str, Received]:
    """Stacks the prototypes that the server holds after a round.

    Args:
      uploads: of the clients that arrived.
      order: per bucket of `linear_federation` its rows' client ids, in running order; an id without
        uploads did not arrive. Whatever must not be read is NaN, under a mask that claims every
        class.
      num_classes, width: of the prototypes.
      counts: the samples behind each prototype, where they are sent.
    """

    def stack(rows: ClassRows, ids: list[int], shape: tuple[int, ...]) -> Masked:
        values = np.full((len(ids), num_classes, *shape), np.nan, np.float32)
        mask = np.array(
            [[i not in uploads or c in uploads[i] for c in range(num_classes)] for i in ids]
        )
        for row, i in enumerate(ids):
            for c, value in rows.get(i, {}).items():
                values[row, c] = value
        return Masked(jnp.asarray(values), jnp.asarray(mask))

    received = {}
    for bucket, ids in enumerate(order):
        uplink = Uplink(
            stack(uploads, ids, (width,)),
            () if counts is None else Metadata(stack(counts, ids, ())),
        )
        arrived = jnp.array([i in uploads for i in ids])
        received[f"linear{bucket}"] = Received(uplink, infos(ids, 10), arrived)
    return received


# A round of four clients in two buckets, told in two ways: client 3 is lost, ids from 4 on are
# padding.
ORDER = [[0, 2], [1, 3]]
OTHER_ORDER = [[4, 2, 5, 0], [3, 1, 4]]


def prototypes_of(classes: dict[int, list[int]], width: int, seed: int = 0) -> ClassRows:
    """Random prototypes of each client's classes."""
    rng = np.random.default_rng(seed)
    return {
        i: {c: rng.normal(size=width).astype(np.float32) for c in labels}
        for i, labels in classes.items()
    }
