import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ht.core.batches import shuffled
from fedjax_ht.core.server_training import RowTraining, compact, train_on_rows

KEY = jax.random.key(3)
LR, EPOCHS, BATCH = 0.1, 3, 4


def mean_distance(params, rows, mask, key):
    """Half the mean square distance of the rows to params, over unmasked rows."""
    squares = jnp.sum((rows - params) ** 2, -1) / 2
    return jnp.sum(jnp.where(mask, squares, 0)) / jnp.maximum(mask.sum(), 1)


@jax.jit
def train(rows, valid):
    training = RowTraining(optax.sgd(LR), EPOCHS, BATCH)
    return train_on_rows(training, mean_distance, jnp.zeros(2), rows, valid, key=KEY)


def reference(rows, orders):
    """Computes the same steps in NumPy; the gradient of the mean is params - mean(rows)."""
    params = np.zeros(2)
    for order in orders:
        losses = []
        for start in range(0, len(order), BATCH):
            batch = rows[order[start : start + BATCH]]
            losses.append(np.mean(np.sum((batch - params) ** 2, -1) / 2))
            params = params - LR * (params - batch.mean(0))
    return params, np.mean(losses)


def rows_of(count, seed=0):
    drawn = np.random.default_rng(seed).normal(size=(count, 2)).astype(np.float32)
    return drawn + np.arange(count)[:, None]


def test_compact_puts_valid_rows_first_and_in_order():
    split = compact(jnp.array([False, True, True, False, True]))
    assert int(split.count) == 3
    np.testing.assert_array_equal(split.indices[:3], [1, 2, 4])
    assert sorted(split.indices.tolist()) == [0, 1, 2, 3, 4]


# full batches, a masked last batch, less than one batch
@pytest.mark.parametrize("count", [8, 6, 3])
def test_training_equals_the_reference(count):
    rows, valid = rows_of(8), np.arange(8) < count
    shuffle_key, _ = jax.random.split(KEY)
    keys = [jax.random.fold_in(shuffle_key, e) for e in range(EPOCHS)]
    orders = [shuffled(key, compact(valid))[:count] for key in keys]
    assert all(sorted(o.tolist()) == list(range(count)) for o in orders)
    assert len({tuple(o.tolist()) for o in orders}) > 1  # shuffled anew each epoch
    params, loss = train(rows, valid)
    want_params, want_loss = reference(rows.astype(np.float64), [np.asarray(o) for o in orders])
    np.testing.assert_allclose(params, want_params, rtol=1e-5)
    np.testing.assert_allclose(loss, want_loss, rtol=1e-5)


def test_rows_that_are_not_valid_change_nothing_wherever_they_stand():
    rows = rows_of(6)
    alone = train(rows, np.ones(6, bool))
    valid = np.array([0, 1, 1, 0, 1, 0, 0, 1, 1, 1], bool)
    padded = np.full((10, 2), 1e6, np.float32)
    padded[valid] = rows
    jax.tree.map(np.testing.assert_array_equal, train(padded, valid), alone)


def test_without_valid_rows_nothing_is_trained():
    params, loss = train(rows_of(8), np.zeros(8, bool))
    np.testing.assert_array_equal(params, 0)
    assert loss == 0


def test_steps_follow_the_valid_rows_and_each_has_its_own_key():
    @jax.jit
    def run(valid):
        # every step moves `steps` by one, and `drawn` by a random number
        def loss(params, rows, mask, key):
            return -params["steps"] - params["drawn"] * jax.random.uniform(key)

        start = {"steps": jnp.float32(0), "drawn": jnp.float32(0)}
        training = RowTraining(optax.sgd(1.0), EPOCHS, BATCH)
        return train_on_rows(training, loss, start, jnp.zeros(8), valid, key=KEY)[0]

    for count, steps in ((8, 6), (5, 6), (4, 3), (0, 0)):
        assert run(np.arange(8) < count)["steps"] == steps
    _, loss_key = jax.random.split(KEY)
    draws = [float(jax.random.uniform(jax.random.fold_in(loss_key, i))) for i in range(6)]
    np.testing.assert_allclose(run(np.ones(8, bool))["drawn"], sum(draws), rtol=1e-5)


@pytest.mark.parametrize(
    ("count", "size", "steps"), [(5, 2, 2), (4, 2, 2), (1, 2, 0), (3, 1, 3), (6, 4, 2)]
)
def test_a_single_row_behind_full_batches_is_left_out_where_it_is_asked(count, size, steps):
    """A batch size of one leaves nothing else to train on."""
    valid = jnp.arange(8) < count

    def summed(params, batch, mask, key):
        return -params.sum()

    for drop_single, number in ((True, steps), (False, -(-count // size))):
        rows = jnp.asarray(rows_of(8))
        training = RowTraining(optax.sgd(1.0), 1, size, drop_single)
        params, _ = train_on_rows(training, summed, jnp.zeros(1), rows, valid, key=KEY)
        assert params[0] == number
