"""pFedAFM, pFedMoE and pFedES against NumPy: a client's round, what it keeps, and what is refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ht.core.federation import make_federation
from fedjax_ht.methods.pfedafm import pfedafm
from fedjax_ht.methods.pfedes import pfedes
from fedjax_ht.methods.pfedmoe import gate_input, pfedmoe
from fedjax_ht.models import SplitModel, text_model
from fedjax_ht.models.layers import Linear
from tests import tiny
from tests.reference import small_part as reference

RULE = reference.Sgd(rate=0.2, momentum=0.9, decay=0.05)
OPTIMIZER = optax.chain(
    optax.add_decayed_weights(RULE.decay), optax.sgd(RULE.rate, momentum=RULE.momentum)
)
TRAINING = dataclasses.replace(tiny.SHORT_TRAINING, optimizer=OPTIMIZER)
CLOSE = {"rtol": 1e-4, "atol": 1e-6}


def flat_base(params) -> dict:
    """A linear extractor as the reference names it."""
    base = params["base"]["fc"]
    return {f"base_{k}": np.asarray(base[k], np.float64) for k in ("kernel", "bias")}


def flat_gate(params) -> dict:
    first, second, norm = params["Linear_0"], params["Linear_1"], params["LayerNorm_0"]
    named = {"scale": norm["scale"], "shift": norm["bias"]}
    for name, layer in (("in", first), ("out", second)):
        named |= {f"{name}_kernel": layer["kernel"], f"{name}_bias": layer["bias"]}
    return {name: np.asarray(value, np.float64) for name, value in named.items()}


def flat_extractor(params) -> dict:
    """pFedES' extractor as the reference names it."""
    named = {}
    for name, layer in (("first", params["conv1"]), ("second", params["conv2"])):
        named |= {name: layer["kernel"], f"{name}_bias": layer["bias"]}
    return {name: np.asarray(value, np.float64) for name, value in named.items()}


def check_close(got: dict, want: dict) -> None:
    tiny.check_model({name: got[name] for name in want}, want, **CLOSE)


def first_state(method):
    """A client's first state, and a server's extractor that is another than the client's."""
    server = method.init_server(tiny.ONE_BUCKET, jax.random.key(1))
    return method.init_client(tiny.BUCKET, tiny.context(0, last_round=0)), tiny.shift(server, 1)


def test_pfedafm_trains_beside_the_received_extractor_and_then_it():
    method = pfedafm(TRAINING, alpha_rate=0.5)
    client, server = first_state(method)
    alpha = np.array([1.0, 0.02, 0.6])
    np.testing.assert_array_equal(client["alpha"], np.ones(3))  # g has no part yet
    client |= {"alpha": jnp.asarray(alpha, jnp.float32)}
    received, trained, uplink, metrics = tiny.play(method, client, server, data=tiny.SHORT_DATA)
    private, want_alpha, sent = reference.afm_client(
        tiny.flat_params(client["params"]), flat_base(server), alpha, tiny.SHORT_BATCHES, RULE, 0.5
    )
    assert (want_alpha == 0).any() and ((want_alpha > 0) & (want_alpha < 1)).any()
    check_close(tiny.flat_params(trained["params"]), private)
    np.testing.assert_allclose(trained["alpha"], want_alpha, **CLOSE)
    check_close(flat_base(uplink.params), sent)
    assert uplink.params.keys() == {"base"} and uplink.num_samples.value == 10
    np.testing.assert_allclose(metrics["alpha"], want_alpha.mean(), rtol=1e-4)
    # The client keeps, and is scored by, the extractor that it trained beside.
    tiny.check_equal(received["shared"]["params"], server)
    tiny.check_equal(trained["shared"], received["shared"])
    x, mask = tiny.SHORT_DATA.preprocess(tiny.SHORT_DATA.inputs), jnp.ones(5, bool)
    parts = {"own": private, "shared": flat_base(server), "alpha": {"alpha": want_alpha}}
    want = reference.afm_logits(parts, tiny.pixels(tiny.SHORT_DATA))
    got = method.predict(tiny.BUCKET, trained, None, x, mask)["head"]
    np.testing.assert_allclose(got, want, **CLOSE)


def test_pfedmoe_trains_all_parts_and_predicts_by_the_servers_extractor():
    method = pfedmoe(TRAINING, gate_width=3, gate_rate=2.0)
    client, server = first_state(method)
    _, trained, uplink, _ = tiny.play(method, client, server, data=tiny.SHORT_DATA)
    gate = flat_gate(client["gate"])
    assert gate["in_kernel"].shape == (4, 3)
    want = reference.moe_client(
        tiny.flat_params(client["params"]), flat_base(server), gate, tiny.SHORT_BATCHES, RULE, 2.0
    )
    check_close(tiny.flat_params(trained["params"]), want["own"])
    check_close(flat_gate(trained["gate"]), want["gate"])
    check_close(flat_base(uplink.params), want["shared"])
    assert uplink.params.keys() == {"base"} and uplink.num_samples.value == 10
    x, mask = tiny.SHORT_DATA.preprocess(tiny.SHORT_DATA.inputs), jnp.ones(5, bool)
    parts = want | {"shared": flat_base(server)}
    scores = reference.moe_logits(parts, tiny.pixels(tiny.SHORT_DATA))
    got = method.predict(tiny.BUCKET, trained, server, x, mask)["head"]
    np.testing.assert_allclose(got, scores, **CLOSE)


def test_pfedes_trains_the_model_and_then_the_extractor():
    method = pfedes(TRAINING, mu=0.3, extra_epochs=1)
    client, server = first_state(method)
    _, trained, uplink, _ = tiny.play(method, client, server, data=tiny.SHORT_DATA)
    batches = [(x.reshape(-1, 2, 2, 1), y) for x, y in tiny.SHORT_BATCHES]
    private, extractor = reference.es_client(
        tiny.flat_params(client["params"]), flat_extractor(server), batches, RULE, 0.3, 2
    )
    check_close(tiny.flat_params(trained["params"]), private)
    check_close(flat_extractor(uplink.params), extractor)
    models = {"a": SplitModel(tiny.Flat(3), Linear(4))}
    colour = make_federation(models, (4, 4, 3), 4, num_clients=1)
    colour = pfedes(TRAINING).init_server(colour, jax.random.key(0))
    assert sum(x.size for x in jax.tree.leaves(colour)) == 443


def test_training_the_extractor_leaves_the_batch_statistics_of_pfedes():
    federation = tiny.normed_federation()
    bucket, ctx = federation.buckets[0], tiny.context(0)

    def trained(extra_epochs: int):
        method = pfedes(TRAINING, extra_epochs=extra_epochs)
        server = method.init_server(federation, jax.random.key(1))
        client = method.init_client(bucket, ctx)
        return client, *tiny.play(method, client, server, bucket=bucket)[1:3]

    (first, short, sent), (_, long, sent_later) = trained(0), trained(2)
    tiny.check_equal(short, long)
    for old, new in zip(*map(jax.tree.leaves, (first["stats"], short["stats"])), strict=True):
        assert not np.array_equal(old, new)
    assert not np.array_equal(sent.params["conv1"]["kernel"], sent_later.params["conv1"]["kernel"])


@pytest.mark.parametrize("factory", [pfedafm, pfedmoe])
def test_widths_that_differ_are_named(factory):
    narrow, wide = (SplitModel(tiny.Flat(k), Linear(4)) for k in (3, 5))
    mixed = make_federation({"narrow": narrow, "wide": wide}, (2, 2, 1), 4, num_clients=2)
    line = "entry by entry, but the shared model has 3 and model 'wide' has 5; give all"
    with pytest.raises(ValueError, match=line) as error:
        factory(TRAINING).check(mixed)
    assert "\n" not in str(error.value)
    other = make_federation({"narrow": narrow}, (2, 2, 1), 4, num_clients=1, shared=wide)
    with pytest.raises(ValueError, match="the shared model has 5 and model 'narrow' has 3"):
        factory(TRAINING).check(other)
    factory(TRAINING).check(tiny.ONE_BUCKET)


def test_a_gate_sees_flat_floats_or_the_mean_embedding_of_tokens():
    x = {"a": jnp.arange(6.0).reshape(2, 3), "b": jnp.ones((2, 1, 2))}
    want = [[0, 1, 2, 1, 1], [3, 4, 5, 1, 1]]
    np.testing.assert_array_equal(gate_input({"base": {}}, x), want)
    table = np.arange(8.0).reshape(4, 2)
    params = {"base": {"words": {"embedding": jnp.asarray(table)}, "fc": {"kernel": jnp.ones(3)}}}
    tokens = jnp.array([[1, 3, 0], [0, 0, 0]])
    means = [(table[1] + table[3]) / 2, np.zeros(2)]
    np.testing.assert_array_equal(gate_input(params, tokens), means)
    several = {"base": params["base"] | {"places": {"embedding": jnp.ones((3, 2))}}}
    assert gate_input(several, tokens) is None
    assert gate_input(params, (tokens, jnp.array([2, 0]))) is None


def test_tokens_without_an_embedding_are_refused_in_one_line():
    tokens = jax.ShapeDtypeStruct((6,), jnp.int32)
    texts = {"text": text_model("fasttext", 4, 20, 3)}
    pfedmoe(TRAINING).check(make_federation(texts, tokens, 4, num_clients=1))
    flat = {"flat": SplitModel(tiny.Flat(3), Linear(4))}
    message = r"one embedding; model 'flat' takes int32 \(6,\)"
    with pytest.raises(ValueError, match=message) as error:
        pfedmoe(TRAINING).check(make_federation(flat, tokens, 4, num_clients=1))
    assert "\n" not in str(error.value)
