import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.bucket import init_variables
from fedjax_ht.core.federation import make_federation
from fedjax_ht.methods.data_free.bases import Teachers, ask, label_weights, norm_moments
from fedjax_ht.methods.shared.averaging import keep_present
from fedjax_ht.models import SplitModel
from fedjax_ht.models.layers import Linear, Norm
from tests.federations import NUM_CLASSES, SHAPE, sliced_federation
from tests.reference import dfrd as reference

FEDERATION = sliced_federation()
BUCKETS = FEDERATION.buckets
CLIENTS = (2, 3)  # of each bucket
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(6, *SHAPE)).astype(np.float32)
LABELS = np.array([0, 1, 2, 3, 4, 1])


def uploads() -> dict:
    """Models of both buckets' clients."""

    def init(bucket, n):
        return jax.jit(jax.vmap(lambda key: init_variables(bucket, key)["params"]))(
            jax.random.split(jax.random.key(n), n)
        )

    return {bucket.name: init(bucket, n) for bucket, n in zip(BUCKETS, CLIENTS)}


def teachers(params: dict) -> Teachers:
    counts = RNG.integers(0, 9, (sum(CLIENTS), NUM_CLASSES))
    present = jnp.ones(sum(CLIENTS), bool)
    return Teachers(params, {}, *label_weights(counts, present), present)


def test_weights_and_label_shares_equal_the_reference():
    """The absent may have any counts; class 3 has nobody."""
    counts = np.random.default_rng(1).integers(0, 9, (5, 4)).astype(np.float32)
    counts[:, 3] = 0
    present = np.array([True, False, True, True, False])
    held = np.where(present[:, None], counts, np.nan)
    tau, shares = jax.jit(label_weights)(held, present)
    want_tau, want_shares = reference.label_weights(np.float64(counts[present]))
    np.testing.assert_allclose(tau[present], want_tau, rtol=1e-6)
    np.testing.assert_allclose(tau[present, 3], 1 / 3, rtol=1e-6)
    assert (tau[~present] == 0).all() and shares[3] == 0
    np.testing.assert_allclose(shares, want_shares, rtol=1e-6)
    tau, shares = jax.jit(label_weights)(held, np.zeros(5, bool))
    assert (tau == 0).all() and (shares == 0).all()


def test_each_teacher_is_asked_and_weighed_by_the_label():
    """One by one, with and without memory to spare, in value and in the images' gradient."""
    params = uploads()
    team = teachers(params)

    def slow(images):
        answers = []
        for bucket in BUCKETS:
            for i in range(len(jax.tree.leaves(params[bucket.name])[0])):
                client_params = jax.tree.map(lambda x, i=i: x[i], params[bucket.name])
                answers.append(bucket.module.apply({"params": client_params}, images))
        return sum(
            team.weights[i, LABELS][:, None] * logits for i, logits in enumerate(answers)
        ), jnp.stack(answers)

    def fast(images, low_memory):
        opinions = ask(FEDERATION, team, images, labels=LABELS, low_memory=low_memory)
        return opinions.ensemble, opinions.logits

    def with_gradient(f):
        def loss(images):
            return (jnp.sum(jnp.sin(f(images)[0])), f(images))

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(IMAGES)

    want = with_gradient(slow)
    for low_memory in (False, True):
        got = with_gradient(lambda images, low_memory=low_memory: fast(images, low_memory))
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_absent_teachers_are_never_read():
    params = uploads()
    first = BUCKETS[0].name
    spoilt = jax.tree.map(lambda x: x.at[1].set(jnp.nan), params[first])
    params[first] = keep_present(spoilt, jnp.array([True, False]))
    present = jnp.array([True, False, True, True, True])
    team = Teachers(params, {}, *label_weights(jnp.ones((5, NUM_CLASSES)), present), present)

    def ensemble_of(images):
        return ask(FEDERATION, team, images, labels=LABELS).ensemble

    assert np.isfinite(ensemble_of(IMAGES)).all()
    assert np.isfinite(jax.grad(lambda images: ensemble_of(images).sum())(IMAGES)).all()


class Normed(nn.Module):
    """Batch norm by the batch, twice."""

    @nn.compact
    def __call__(self, x, train=False, mask=None):
        x = Norm("static_batch", name="first")(x, train, mask)
        return Norm("static_batch", name="second")(2 * x + 1, train, mask).reshape(len(x), -1)


def test_moments_of_the_norms_inputs():
    """The moments are those of the real samples; a model without such norms has none."""
    federation = make_federation(
        {"normed": SplitModel(Normed(), Linear(3), stateful=True)}, (2, 2, 2), 3, num_clients=1
    )
    bucket = federation.buckets[0]
    x = RNG.normal(size=(5, 2, 2, 2)).astype(np.float32)
    mask = np.array([True, True, False, True, False])
    params = init_variables(bucket, jax.random.key(0))["params"]
    _, moments = norm_moments(bucket, params, np.where(mask[:, None, None, None], x, np.nan), mask)
    leaves = jax.tree.leaves(moments)
    real = np.float64(x[mask]).reshape(-1, 2)
    np.testing.assert_allclose(leaves[0], [real.mean(0), real.var(0)], rtol=1e-4, atol=1e-6)
    # of what is normalised already
    np.testing.assert_allclose(leaves[1], [[1, 1], [4, 4]], rtol=1e-3)
    client_params = jax.tree.map(lambda x: x[0], uploads()[BUCKETS[0].name])
    assert norm_moments(BUCKETS[0], client_params, IMAGES, np.ones(6, bool))[1] == {}
