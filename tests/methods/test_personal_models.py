"""What the rounds of test_whole_rounds do not show of methods with personal models, and MOON."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ht.methods.apfl import apfl
from fedjax_ht.methods.fedala import fedala, run_of_samples
from fedjax_ht.methods.fedamp import fedamp
from fedjax_ht.methods.fedavg import fedavg
from fedjax_ht.methods.fedbabu import fedbabu
from fedjax_ht.methods.fedcp import fedcp, init_policy, shares_of
from fedjax_ht.methods.fedrod import fedrod, log_shares
from fedjax_ht.methods.moon import model_contrast, moon
from fedjax_ht.methods.perfedavg import perfedavg
from fedjax_ht.methods.pfedme import pfedme
from tests import tiny
from tests.federations import identical, mixed_federation
from tests.reference import linear_client
from tests.reference import one_architecture as reference
from tests.tiny import BUCKET, LR, ONE_BUCKET, K, check_equal, check_model, model
from tests.tiny import SHORT_BATCHES as BATCHES
from tests.tiny import SHORT_TRAINING as TRAINING

play = functools.partial(tiny.play, data=tiny.SHORT_DATA)

V, W, OTHER = (model(seed) for seed in range(3))
V_FLAT, W_FLAT, OTHER_FLAT = map(tiny.flat_params, (V, W, OTHER))
X, MASK = jnp.ones((2, 2, 2, 1)) * jnp.arange(1, 3)[:, None, None, None], jnp.ones(2, bool)


def logits(params) -> np.ndarray:
    """A model's logits for X, by the reference."""
    return linear_client.logits(params, np.asarray(X).reshape(2, -1))


def both(share: float):
    """A client of APFL with V as its personal model, and another copy of the server's."""
    shared = {"params": OTHER, "stats": {}}
    return {"params": V, "stats": {}, "shared": shared, "share": jnp.float32(share)}


@pytest.mark.parametrize("share, every", [(1.0, "step"), (0.3, "round"), (1.0, "round")])
def test_apfl_learns_model_and_share_by_the_mixture(share, every):
    """A share that would leave [0, 1] stays at its end."""
    _, trained, uplink, metrics = play(apfl(TRAINING, alpha_every=every), both(share), W)
    v, w, after = reference.apfl(V_FLAT, W_FLAT, share, BATCHES, LR, every)
    check_model(trained["params"], v)
    check_model(uplink.params, w)
    np.testing.assert_allclose([trained["share"], metrics["share"]], after, rtol=1e-5)
    assert 0 <= after <= 1


def test_apfls_share_may_be_kept():
    _, trained, _, _ = play(apfl(TRAINING, alpha_every="never"), both(0.3), W)
    assert trained["share"] == np.float32(0.3)


def test_apfl_predicts_by_the_mixture_with_the_newest_model():
    method, ctx = apfl(TRAINING), tiny.context(0, last_round=0)
    received = method.receive(BUCKET, both(0.3), W, None, ctx)
    scores = method.predict(BUCKET, received, W, X, MASK)["head"]
    want = logits(reference.mixed(V_FLAT, W_FLAT, 0.3))
    np.testing.assert_allclose(scores, want, rtol=1e-4)


HEAD_SHARES = jax.tree.map(lambda x: jnp.full_like(x, 0.6), V["head"])  # of FedALA
FLAT_SHARES = {k: np.full_like(v, 0.6) for k, v in V_FLAT.items() if k.startswith("head")}


def mixing(learned: bool):
    """A client of FedALA, whose head is mixed by weights."""
    return {"params": V, "stats": {}, "weights": HEAD_SHARES, "learned": jnp.asarray(learned)}


@pytest.mark.parametrize("learned, passes", [(True, 1), (False, 3)])
def test_fedala_mixes_the_head_by_weights_that_are_learned_on_receipt(learned, passes):
    method = fedala(TRAINING, share=1.0, weight_lr=2.0, first_passes=3)
    received, trained, uplink, _ = play(method, mixing(learned), W)
    weights = reference.fedala_weights(V_FLAT, W_FLAT, FLAT_SHARES, BATCHES * passes, 2.0)
    assert any(np.any((a > 0) & (a < 1) & (a != 0.6)) for a in weights.values())
    mixed = reference.head_mixture(V_FLAT, W_FLAT, weights)
    check_model(received["params"], mixed)
    assert bool(received["learned"])
    check_model(trained["params"], reference.fedprox(mixed, BATCHES, LR, 0.0))
    check_equal(uplink.params, trained["params"])
    check_equal(trained["weights"], received["weights"])


def test_fedala_takes_the_first_model_as_it_is():
    received, _, _, _ = play(fedala(TRAINING), mixing(learned=False), W, ctx=tiny.context(0))
    check_equal(received["params"], W)
    check_equal(received["weights"], HEAD_SHARES)
    assert not received["learned"]


@pytest.mark.parametrize("count", [0, 1, 4, 7])
def test_a_run_of_fedalas_samples_is_a_share_in_stored_order(count):
    data = tiny.client_data(np.zeros(9, int), np.arange(2, 2 + count), padding=2)
    starts = set()
    for seed in range(20):
        indices, kept = run_of_samples(data, 0.8, jax.random.key(seed)).splits["train"]
        assert kept == int(0.8 * count)
        run = np.asarray(indices)[: int(kept)]
        assert (np.diff(run) == 1).all() and set(run) <= set(range(2, 2 + count))
        starts |= set(run[:1].tolist())
    assert len(starts) == (min(count, count - int(0.8 * count) + 1) if int(0.8 * count) else 0)


def test_moon_pulls_features_to_the_received_model_and_away_from_the_last():
    client = {"params": V, "stats": {}, "last": {"params": OTHER, "stats": {}}}
    method = moon(TRAINING, mu=2.0, tau=0.4)
    received, trained, uplink, _ = play(method, client, W)
    check_equal(received["last"], client["last"])
    want = reference.moon(W_FLAT, OTHER_FLAT, BATCHES, LR, 2.0, 0.4)
    check_model(trained["params"], want)
    check_equal(uplink.params, trained["params"])
    check_equal(trained["last"]["params"], trained["params"])
    # in the first round the last model is the received one
    received, trained, _, _ = play(method, client, W, ctx=tiny.context(0))
    check_equal(received["last"]["params"], W)
    check_model(trained["params"], reference.moon(W_FLAT, W_FLAT, BATCHES, LR, 2.0, 0.4))


def test_moons_features_without_a_direction_have_no_contrast_and_a_slope():
    zero, ones = jnp.zeros((1, 3)), jnp.ones((1, 3))
    np.testing.assert_allclose(model_contrast(zero, ones, -ones, 0.5), np.log(2), rtol=1e-6)
    slope = jax.grad(lambda z: model_contrast(z, ones, -ones, 1e-3).sum())(zero)
    assert np.isfinite(slope).all()
    assert np.isfinite(model_contrast(ones, -ones, ones, 1e-3)).all()
    for length in (1e-5, 1.0, 1e10):  # only the direction counts
        rows = [length * x for x in (ones, jnp.float32([[1, 0, 1]]), jnp.float32([[0, 0, 1]]))]
        contrast = np.log1p(np.exp(2 / np.sqrt(3) - 2 * 2 / np.sqrt(6)))
        np.testing.assert_allclose(model_contrast(*rows, 0.5), contrast, rtol=1e-5)


def test_pfedme_refuses_a_pull_that_overshoots_ever_more():
    with pytest.raises(ValueError, match=r"^lam \* personal_lr is .*below 2.*lower personal_lr"):
        pfedme(TRAINING, lam=20.0, personal_lr=0.1)
    pfedme(TRAINING, lam=20.0, personal_lr=0.095)


def test_pfedme_predicts_by_the_personal_model_and_by_the_global_one():
    client = {"params": OTHER, "stats": {}}
    scores = pfedme(TRAINING).predict(BUCKET, client, W, X, MASK)
    np.testing.assert_allclose(scores["personal"], logits(OTHER_FLAT), rtol=1e-5)
    np.testing.assert_allclose(scores["global"], logits(W_FLAT), rtol=1e-5)


def test_fedrod_predicts_by_both_heads_and_by_the_generic_one():
    method, client = fedrod(TRAINING), {"params": W, "stats": {}, "own": OTHER["head"]}
    assert method.rules == ("personal", "generic")
    scores = method.predict(BUCKET, client, W, X, MASK)
    np.testing.assert_allclose(scores["generic"], logits(W_FLAT), rtol=1e-4)
    own = logits(tiny.flat_params({"base": W["base"], "head": OTHER["head"]}))
    np.testing.assert_allclose(scores["personal"], logits(W_FLAT) + own, rtol=1e-4)


def test_absent_classes_have_no_part_in_fedrod_and_no_nan():
    prior = log_shares(jnp.array([4, 0, 1]), 0.5)
    shares = jax.nn.softmax(jnp.array([0.0, 9.0, 0.0]) + prior)
    np.testing.assert_allclose(shares, [2 / 3, 0, 1 / 3], rtol=1e-6)
    slope = jax.grad(lambda z: jax.nn.log_softmax(z + log_shares(jnp.zeros(3), 1.0))[0])(
        jnp.zeros(3)
    )
    assert np.isfinite(slope).all()


POLICY = init_policy(jax.random.key(2), K)


def test_a_head_without_a_direction_gives_finite_shares_and_slopes_of_fedcp():
    rows, nothing = jnp.ones((2, K)), jnp.zeros(K)
    assert np.isfinite(shares_of(POLICY, rows, nothing)).all()
    slope = jax.grad(lambda v: shares_of(POLICY, rows, v)[:, 0].sum())(nothing)
    assert np.isfinite(slope).all()


def test_noise_of_fedcps_training_follows_the_seed():
    client = {"params": V, "stats": {}, "policy": POLICY, "context": jnp.ones(K)}
    kernels = []
    for seed in (0, 1):
        ctx = tiny.context(0, seed, last_round=0)
        _, trained, _, _ = play(fedcp(TRAINING), client, W | {"policy": POLICY}, ctx=ctx)
        kernels.append(np.asarray(trained["params"]["head"]["kernel"]))
    assert (kernels[0] != kernels[1]).any()


def test_a_trained_client_of_fedcp_is_scored_beside_the_head_that_it_received():
    client, method = {"params": V, "stats": {}, "context": jnp.ones(K)}, fedcp(TRAINING)
    _, trained, _, _ = play(method, client, W | {"policy": POLICY}, ctx=tiny.context(0))
    check_equal(trained["shared"], W["head"])
    want = method.predict(BUCKET, trained, W, X, MASK)["head"]
    np.testing.assert_array_equal(method.predict(BUCKET, trained, OTHER, X, MASK)["head"], want)
    other = method.predict(BUCKET, trained | {"shared": OTHER["head"]}, W, X, MASK)["head"]
    assert (other != want).any()


def test_a_client_of_fedamp_writes_its_own_row_of_its_architecture():
    federation, method = tiny.linear_federation(), fedamp(TRAINING)
    start = method.init_server(federation, jax.random.key(0))
    uploads = {i: model(i) for i in range(4)}
    received = tiny.receive(uploads, tiny.ORDER, samples={2: 0}, arrived=[0, 1, 2])
    server, _ = method.server_update(federation, start, received, tiny.context())
    for i in range(4):
        want = uploads[i] if i in (0, 1) else jax.tree.map(lambda x: x[0], start[0])
        check_equal(jax.tree.map(lambda x, i=i: x[i], server[0]), want)
    heterogeneous = mixed_federation()
    models = method.init_server(heterogeneous, jax.random.key(0))
    rows = {len(jax.tree.leaves(model)[0]) for model in models}
    assert rows == {len(heterogeneous.members(bucket)) for bucket in heterogeneous.buckets}


def test_fedamp_refuses_a_negative_share_of_oneself():
    with pytest.raises(ValueError, match=r"negative shares.*at least alpha times 3$"):
        fedamp(TRAINING, alpha=1.0, sigma=2.9).check(ONE_BUCKET)
    fedamp(TRAINING, alpha=1.0, sigma=3.0).check(ONE_BUCKET)


def updated(method, adapt_epochs: int | None):
    """The model of a client after a round, or after its tuning for a score, and its uplink."""
    ctx = tiny.context(0)
    if adapt_epochs is not None:
        ctx = ctx._replace(adapt_epochs=jnp.int32(adapt_epochs))
    update = jax.jit(method.client_update, static_argnums=(0,))
    client, uplink, _ = update(BUCKET, {"params": W, "stats": {}}, W, tiny.DATA, ctx)
    return client["params"], uplink


@pytest.mark.parametrize(
    ("tune", "moved"), [("all", {"base", "head"}), ("base", {"base"}), ("head", {"head"})]
)
def test_fedbabu_trains_the_extractor_and_tunes_what_is_chosen(tune, moved):
    for epochs, expected in ((None, {"base"}), (1, moved)):
        params, uplink = updated(fedbabu(tiny.TRAINING, tune), epochs)
        check_equal(uplink.params, params["base"])
        assert {k for k in ("base", "head") if not identical(params[k], W[k])} == expected


def test_perfedavg_tunes_by_plain_sgd_of_length_alpha():
    """Whatever the recipe's optimiser is."""
    recipe = dataclasses.replace(tiny.TRAINING, optimizer=optax.adam(0.5))
    step = dataclasses.replace(tiny.TRAINING, optimizer=optax.sgd(0.2))
    tuned, expected = (updated(m, 1)[0] for m in (perfedavg(recipe, alpha=0.2), fedavg(step)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), tuned, expected)
