"""FedBN: norms are found by their kind and stay with the client; its mean is FedPer's (test_fedavg)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_ht.core.bucket import init_variables
from fedjax_ht.core.federation import make_federation
from fedjax_ht.methods.fedbn import fedbn
from fedjax_ht.methods.shared.norms import norm_paths, without
from fedjax_ht.models import SplitModel, model_group
from fedjax_ht.models.layers import Linear, Norm
from tests import tiny
from tests.tiny import SHORT_TRAINING as TRAINING
from tests.tiny import check_equal


class Centred(nn.Module):
    """A norm of one's own, under a name that says nothing."""

    @nn.compact
    def __call__(self, x, train=False, mask=None):
        mean = self.variable("batch_stats", "mean", jnp.zeros, x.shape[-1:])
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        return (x - mean.value) * scale


class Shortcut(nn.Module):
    """A block whose norms have other names, and whose linear layer is called "bn"."""

    @nn.compact
    def __call__(self, x, train=False, mask=None):
        x = Linear(3, name="bn")(x)
        x = Norm("batch", name="layer1")(x, train, mask)
        return Centred(name="downsample_1")(x, train, mask)


class Base(nn.Module):
    @nn.compact
    def __call__(self, x, train=False, mask=None):
        x = Shortcut(name="block")(x.reshape(len(x), -1), train, mask)
        return nn.LayerNorm(name="last")(x)


def normed_federation():
    model = SplitModel(Base(), Linear(4), stateful=True)
    return make_federation({"normed": model}, (2, 2, 1), 4, num_clients=3)


FEDERATION = normed_federation()
BUCKET = FEDERATION.buckets[0]
NORMS = [("base", "block", "layer1"), ("base", "block", "downsample_1"), ("base", "last")]


def test_norms_are_found_by_their_kind():
    assert sorted(norm_paths(BUCKET)) == sorted(NORMS)


def test_a_residual_network_has_norms_on_its_shortcuts():
    (module,) = model_group("resnet10", 10, (32, 32, 3), 16).values()
    federation = make_federation({"a": module}, (32, 32, 3), 10, num_clients=1)
    model = jax.eval_shape(lambda: init_variables(federation.buckets[0], jax.random.key(0)))
    shared = without(model["params"], norm_paths(federation.buckets[0]))
    leaves = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(shared)]
    assert leaves and not any("scale" in leaf for leaf in leaves)
    means = [p for p, _ in jax.tree.leaves_with_path(model["stats"]) if p[-1].key == "mean"]
    assert len(norm_paths(federation.buckets[0])) == len(means)


def test_a_client_keeps_its_norms_and_sends_the_rest():
    method, data = fedbn(TRAINING), tiny.client_data([0, 2, 2, 0, 3])
    server = method.init_server(FEDERATION, jax.random.key(1))
    client = method.init_client(BUCKET, tiny.context(0))
    client = jax.tree.map(lambda x: x + 0.5, client)
    downlink = method.broadcast(FEDERATION, BUCKET, server, tiny.context(0, last_round=0))
    received = method.receive(BUCKET, client, downlink, data, tiny.context(0, last_round=0))
    for name, params in (("received", received["params"]), ("sent", downlink)):
        assert ("scale" in str(params)) == (name == "received")
    check_equal(received["params"]["base"]["last"], client["params"]["base"]["last"])
    check_equal(received["params"]["base"]["block"]["bn"], server[0]["base"]["block"]["bn"])
    check_equal(received["params"]["head"], server[0]["head"])
    check_equal(received["stats"], client["stats"])
    *_, uplink, _ = tiny.play(method, client, downlink, data=data, bucket=BUCKET)
    assert jax.tree.structure(uplink.params) == jax.tree.structure(downlink)
