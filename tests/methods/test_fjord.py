"""FjORD against NumPy: a client's steps on drawn widths, the server's means, statistics by width."""

import dataclasses
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from fedjax_ht.core.contract import require_server_statistics
from fedjax_ht.core.federation import make_federation, make_sliced_federation
from fedjax_ht.core.wire import Metadata
from fedjax_ht.methods import fjord as module
from fedjax_ht.methods.fedspu import fedspu
from fedjax_ht.methods.fjord import Message, Server, drawn, fjord
from fedjax_ht.methods.heterofl import heterofl
from fedjax_ht.models import mlp
from fedjax_ht.models.sliced import sliced_model
from tests import tiny
from tests.federations import Normed, SlicedDense
from tests.reference import fjord as reference
from tests.standard import served
from tests.tiny import LR
from tests.tiny import SHORT_BATCHES as BATCHES
from tests.tiny import SHORT_DATA as DATA
from tests.tiny import SHORT_TRAINING as TRAINING

C, SHAPE, RATES = 4, (2, 2, 1), (1.0, 0.5, 0.25)


def dense(rate):
    return sliced_model(SlicedDense((3, 6), rate), C)


FEDERATION = make_sliced_federation(dense, RATES, SHAPE, C)
W = FEDERATION.global_model.module.init(jax.random.key(3), jnp.zeros((1, *SHAPE)))["params"]


NAMES = {"base/fc1/kernel": "k1", "base/fc1/bias": "b1", "base/fc2/kernel": "k2"}
NAMES |= {"base/fc2/bias": "b2", "head/kernel": "hk", "head/bias": "hb"}


def flat(params) -> reference.Model:
    """A model's parameters as the reference names them."""
    named = flatten_dict(params, sep="/")
    return {name: np.asarray(named[path], np.float64) for path, name in NAMES.items()}


def check(params, expected, rate: float = 1.0) -> None:
    for name, value in flat(params).items():
        part = expected[name][reference.index(name, expected[name].shape, rate)]
        np.testing.assert_allclose(value, part, rtol=1e-4, atol=1e-6, err_msg=name)


def server_of(method) -> Server:
    return method.init_server(FEDERATION, jax.random.key(0))._replace(params=W)


@pytest.mark.parametrize(
    ("kd", "bucket", "which"),
    [(True, 0, 1), (True, 0, 2), (True, 1, 0), (False, 0, 1), (False, 2, 0)],
    ids=["half", "quarter", "own", "half alone", "least"],
)
def test_a_client_trains_the_width_that_it_draws(kd, bucket, which):
    method, bucket = fjord(TRAINING, kd=kd), FEDERATION.buckets[bucket]
    widths = [rate for rate in RATES if rate <= bucket.width]
    ctx = tiny.context(0)
    sent = method.broadcast(FEDERATION, bucket, server_of(method), ctx)
    assert sorted(sent.stats) == sorted(map(str, widths))
    nothing = {"params": (), "stats": {}}
    with mock.patch.object(module, "drawn", lambda key, number: jnp.int32(which)):
        _, trained, uplink, _ = tiny.play(method, nothing, sent, data=DATA, ctx=ctx, bucket=bucket)
    expected = reference.client(flat(W), BATCHES, LR, bucket.width, [widths[which]] * 2, kd)
    check(uplink.params, expected, bucket.width)
    tiny.check_equal(trained["params"], uplink.params)


def test_widths_are_drawn_alike():
    keys = jax.random.split(jax.random.key(0), 3000)
    counts = np.bincount(jax.vmap(lambda key: drawn(key, 3))(keys), minlength=3)
    np.testing.assert_allclose(counts / 3000, 1 / 3, atol=0.04)


@pytest.mark.parametrize("lost", [False, True])
def test_an_entry_is_averaged_by_samples_over_its_holders(lost):
    """The narrowest client is lost in the second case; each is beside a row of padding."""
    method, clients, uplinks = fjord(TRAINING), [], {}
    samples = (8, 12, 4)
    for i, (bucket, count) in enumerate(zip(FEDERATION.buckets, samples)):
        whole = FEDERATION.global_model.module.init(jax.random.key(i), jnp.zeros((1, *SHAPE)))
        server = Server(whole["params"], server_of(method).stats)
        sent = method.broadcast(FEDERATION, bucket, server, tiny.context(i))
        uplinks[i] = Message(sent.params, sent.stats, Metadata(np.int32(count)))
        if not (lost and i == 2):
            clients.append((bucket.width, count, flat(whole["params"])))
    order = {bucket.name: [i, 7] for i, bucket in enumerate(FEDERATION.buckets)}
    received = tiny.receive(uplinks, order, enumerate(samples), range(2 if lost else 3))
    new, _ = served(method, FEDERATION, server_of(method), received, tiny.context())
    check(new.params, reference.server(flat(W), clients))


def normed(rate):
    return sliced_model(Normed(rate, norm="batch"), C)


def test_norms_keep_statistics_for_each_width():
    federation, method = make_sliced_federation(normed, (1.0, 0.5), SHAPE, C), fjord(TRAINING)
    server = method.init_server(federation, jax.random.key(0))
    widths = {name: stats["base"]["norm"]["mean"].shape for name, stats in server.stats.items()}
    assert widths == {"1.0": (4,), "0.5": (2,)}
    uplinks = {}
    with mock.patch.object(module, "drawn", lambda key, number: jnp.int32(number - 1)):
        for i, bucket in enumerate(federation.buckets):
            ctx = tiny.context(i)
            sent = method.broadcast(federation, bucket, server, ctx)
            first = method.init_client(bucket, ctx)
            _, client, uplinks[i], _ = tiny.play(
                method, first, sent, data=DATA, ctx=ctx, bucket=bucket
            )
            tiny.check_equal(client["stats"], uplinks[i].stats[str(bucket.width)])
    received = tiny.receive(uplinks, tiny.members(federation))
    new, _ = served(method, federation, server, received, tiny.context())

    def mean(stats):
        return np.asarray(stats["base"]["norm"]["mean"])

    # nobody has drawn the whole width; the half is in both clients' statistics
    np.testing.assert_array_equal(mean(new.stats["1.0"]), 0)
    both = [mean(uplink.stats["0.5"]) for uplink in uplinks.values()]
    np.testing.assert_allclose(mean(new.stats["0.5"]), np.mean(both, axis=0), rtol=1e-5)
    assert np.abs(both).min() > 0
    assert method.global_model.stats(new) is new.stats["1.0"]
    # other methods of slices would score the whole model by statistics that they do not average
    require_server_statistics(method, federation)
    with pytest.raises(ValueError, match=r"^norm is 'batch', but heterofl keeps no running .*$"):
        require_server_statistics(heterofl(TRAINING), federation)


def test_federations_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"^fjord trains slices of one network; .*$"):
        fjord(TRAINING).check(make_federation({"mlp": mlp(C, (3,))}, SHAPE, C, num_clients=2))
    message = r"^fjord's widths are 1.0, 0.25, but a client has the rate 0.5; .*$"
    with pytest.raises(ValueError, match=message):
        fjord(TRAINING, widths=(0.25, 1.0)).check(FEDERATION)
    fjord(TRAINING, widths=(0.25, 0.5, 0.75, 1.0)).check(FEDERATION)
    whole = FEDERATION.global_model
    halves = make_sliced_federation(normed, (0.5, 0.5), SHAPE, C)
    with pytest.raises(ValueError, match=r"^fjord scores the whole network, whose batch stat.*$"):
        fjord(TRAINING).check(halves)
    with pytest.raises(ValueError, match=r"^fjord scores the whole network, whose batch stat.*$"):
        fjord(TRAINING, widths=(1.0, 0.5)).check(halves)  # a width that no client can draw
    linear = dataclasses.replace(whole, module=whole.module.clone(base=tiny.Flat(3)))
    with pytest.raises(ValueError, match=r"^fjord makes .* has no field 'rate'; .*$"):
        fjord(TRAINING).check(dataclasses.replace(FEDERATION, global_model=linear))
    with pytest.raises(ValueError, match=r"^fedspu makes .* has no field 'rate'; .*$"):
        fedspu(TRAINING).check(dataclasses.replace(FEDERATION, global_model=linear))
