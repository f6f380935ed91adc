"""Clients with an auxiliary model, built by hand for the tests of FML, FedKD and FedAPEN."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.context import ClientInfo, Context, Received
from fedjax_ht.core.federation import make_federation
from fedjax_ht.models import SplitModel
from fedjax_ht.models.cnn import ConvFeatures, ConvLayer, cnn4
from fedjax_ht.models.layers import Linear, Norm
from tests import tiny

# two steps of three; the last sample is left out of training
LABELS = np.array([0, 2, 2, 0, 3, 0, 3])
LR = 0.1


class NormedFlat(nn.Module):
    """A linear layer and batch normalisation: an extractor with batch statistics."""

    width: int

    @nn.compact
    def __call__(self, x, train=False, mask=None):
        return Norm()(Linear(self.width)(x.reshape(x.shape[0], -1)), train, mask)


def normed_federation():
    """One client whose own and auxiliary model keep batch statistics."""
    return make_federation(
        {"normed": SplitModel(NormedFlat(3), Linear(4), stateful=True)}, (2, 2, 1), 4, num_clients=1
    )


def cifar100_federation():
    """Twenty clients, 100 classes, heads 512 wide; the smaller model is the papers' 4-layer CNN."""
    wide = SplitModel(ConvFeatures((ConvLayer(64), ConvLayer(128)), (512,)), Linear(100))
    return make_federation({"wide": wide, "cnn": cnn4(100)}, (32, 32, 3), 100, num_clients=20)


def context(
    round: int = 0, last_round: int = -1, client_id: int | None = 0, samples: int = len(LABELS)
) -> Context:
    """Returns the context of a client's call; without a client, of the server's."""
    info = client_id is not None and ClientInfo(*map(jnp.int32, (client_id, samples, last_round)))
    return Context(jax.random.key(5), jnp.int32(round), info or None)


def flat_pair(client, beside=None) -> dict:
    """A linear pair as the reference names it."""
    models = {
        "own": tiny.flat_params(client["params"]),
        "shared": tiny.flat_params(client["shared"]["params"]),
    }
    return (
        models
        if beside is None
        else models | {"beside": {k: np.asarray(v, np.float64) for k, v in beside.items()}}
    )


def batches(data, labels=LABELS) -> list:
    """The steps of `LABELS`' client: x [3, D], y [3]."""
    x = tiny.pixels(data)
    return [(x[:3], labels[:3]), (x[3:6], labels[3:6])]


def assert_models_close(got: dict, want: dict):
    for model, params in want.items():
        for name, value in params.items():
            np.testing.assert_allclose(
                got[model][name], value, rtol=1e-5, atol=1e-6, err_msg=f"{model} {name}"
            )


def shift(tree, seed: int, scale: float = 0.3):
    """The tree with noise added: another model of the same shape."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: x + (scale * rng.normal(size=x.shape)).astype(x.dtype), tree)


def receive_uplinks(
    uplinks: dict, order: list[list[int]], samples: dict[int, int] | None = None
) -> dict:
    """Stacks uplinks, client id -> uplink, as the server holds them after a round, ordered as
    `tiny.receive_prototypes` does; absent clients send NaN."""

    @jax.jit
    def stacked_by_bucket(uplinks: dict) -> list:
        lost = jax.tree.map(
            lambda x: jnp.full_like(x, jnp.nan if x.dtype == jnp.float32 else True), uplinks[0]
        )
        rows = [[uplinks.get(i, lost) for i in ids] for ids in order]
        return [jax.tree.map(lambda *xs: jnp.stack(xs), *of_bucket) for of_bucket in rows]

    received = {}
    for bucket, (ids, stacked) in enumerate(zip(order, stacked_by_bucket(uplinks))):
        counts = [(samples or {}).get(i, 10) for i in ids]
        received[f"linear{bucket}"] = Received(
            stacked, tiny.infos(ids, counts), jnp.asarray(np.array([i in uplinks for i in ids]))
        )
    return received
