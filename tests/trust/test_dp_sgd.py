import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ht.core.batches import Batch
from fedjax_ht.core.local_training import LocalTraining, Loss, train
from fedjax_ht.core.samples import Split
from fedjax_ht.losses import cross_entropy
from fedjax_ht.trust.privacy import clipped, clipped_sum, dp_train, poisson_batch
from tests import tiny
from tests.reference import privacy as reference

KEY = jax.random.key(3)


def test_clipping_is_that_of_the_reference():
    rng = np.random.default_rng(0)
    shapes = {"a": (4, 3), "b": (5,)}
    tree = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    clip_tree = jax.jit(clipped)
    for clip in (0.1, 2.0, 100.0):
        result = clip_tree(tree, clip)
        for x, y in zip(result.values(), reference.clipped(tree.values(), clip)):
            np.testing.assert_allclose(x, y, rtol=1e-6)
    for bad in (np.nan, np.inf, 1e30):  # the last one's square is not finite
        result = clip_tree({"a": np.float32([1.0, bad])}, 1.0)
        np.testing.assert_array_equal(result["a"], 0)
    np.testing.assert_array_equal(clip_tree(np.zeros(3, np.float32), 1.0), 0)


@pytest.mark.parametrize("clip", [0.5, 1e6])
def test_gradients_of_samples_are_clipped_one_by_one(clip):
    rng = np.random.default_rng(0)
    x, labels, kernel = rng.normal(size=(5, 3)), np.array([0, 1, 1, 0, 1]), rng.normal(size=(3, 2))

    def gradient_of(batch, key):
        def loss(kernel):
            return cross_entropy(batch.x @ kernel, batch.y, batch.mask)

        return jax.value_and_grad(loss)(jnp.asarray(kernel, jnp.float32))

    masked = np.where(np.arange(5)[:, None] < 4, x, np.nan).astype(np.float32)
    batch = Batch(masked, labels, np.arange(5) < 4)
    run = jax.jit(lambda batch, keys: clipped_sum(gradient_of, batch, keys, clip))
    total, _ = run(batch, jax.random.split(KEY, 5))
    gradients = reference.softmax_gradients(kernel, x[:4], labels[:4])
    expected = sum(reference.clipped([g], clip)[0] for g in gradients)
    np.testing.assert_allclose(total, expected, rtol=1e-5)


def test_every_sample_is_drawn_by_itself_and_with_its_chance():
    draws, count, size = 4000, 12, 3
    draw = jax.jit(functools.partial(poisson_batch, size=size))
    split = Split(np.arange(20, dtype=np.int32), np.int32(count))
    keys = jax.random.split(KEY, draws)
    drawn = jax.vmap(draw, (0, None))(keys, split)
    batches = zip(np.asarray(drawn.indices), np.asarray(drawn.count))
    seen = np.stack([np.bincount(row[:size], minlength=20) for row, size in batches])
    assert seen.max() == 1 and not seen[:, count:].any()
    chance, error = size / count, np.sqrt(size / count * (1 - size / count) / draws)
    np.testing.assert_allclose(seen[:, :count].mean(0), chance, atol=4.5 * error)
    # Together in a batch as often as independent ones are; of a fixed size they would be in 0.045
    # of the batches.
    both = (seen[:, :count].T @ seen[:, :count])[np.triu_indices(count, 1)] / draws
    assert abs(both.mean() - chance**2) < 0.006
    longer = Split(np.arange(50, dtype=np.int32), split.count)
    again = jax.device_get(draw(keys[0], longer))
    assert again.count == drawn.count[0]
    first = np.asarray(drawn.indices)[0]
    np.testing.assert_array_equal(again.indices[: again.count], first[: again.count])
    few = jax.device_get(draw(KEY, split._replace(count=np.int32(2))))
    np.testing.assert_array_equal(few.indices[: few.count], [0, 1])


@functools.cache
def visits(clip: float, noise: float, width: int = 9):
    """(keys, counts) -> parameters after a step where sample i has gradient -1 in place i."""
    data = tiny.client_data(np.arange(9))

    def loss_fn(params, stats, batch, key):
        return Loss(-jnp.sum(jnp.where(batch.mask, params[batch.y], 0)), stats)

    def run(key, count):
        client = data._replace(splits={"train": Split(data.splits["train"].indices, count)})
        training = LocalTraining(optax.sgd(1.0), batch_size=3, steps=1)
        start = jnp.zeros(width), {}, client, key, 9
        return dp_train(clip, noise, (), training, loss_fn, *start).params

    return jax.jit(jax.vmap(run))


def test_a_batch_of_any_length_is_summed_whole():
    seen = 3 * visits(1e6, 0.0)(jax.random.split(KEY, 200), jnp.full(200, 9))
    np.testing.assert_allclose(seen, np.round(seen), atol=1e-5)
    lengths = np.round(np.asarray(seen).sum(1)).astype(int)
    assert set(np.unique(np.round(seen))) == {0, 1} and lengths.min() == 0 and lengths.max() > 6
    assert abs(lengths.mean() - 3) < 0.4
    few = visits(1e6, 0.0)(jax.random.split(KEY, 3), jnp.array([2, 1, 0]))
    np.testing.assert_allclose(few[:, :3], [[0.5, 0.5, 0], [1, 0, 0], [0, 0, 0]])


def test_noise_is_as_strong_as_told_and_its_keys_own():
    clip, noise, width = 0.5, 2.0, 40_000
    keys = jnp.stack([KEY, KEY, jax.random.key(4)])
    noisy = np.asarray(visits(clip, noise, width)(keys, jnp.full(3, 9)))[:, 9:]
    np.testing.assert_array_equal(noisy[0], noisy[1])
    assert abs(np.corrcoef(noisy[0], noisy[2])[0, 1]) < 5 / np.sqrt(width)
    # The variance of n squares of normal numbers is 2 / n.
    np.testing.assert_allclose(noisy.std(1), clip * noise / 3, rtol=5 / np.sqrt(2 * width))
    assert np.abs(noisy.mean(1)).max() < 5 * clip * noise / 3 / np.sqrt(width)


def test_a_loss_of_a_vector_is_refused_as_without_privacy():
    data = tiny.client_data(np.arange(9))._replace(
        trainer=functools.partial(dp_train, 1.0, 0.0, ())
    )
    training = LocalTraining(optax.sgd(1.0), batch_size=3, steps=1)

    def vector(params, stats, batch, key):
        return Loss(jnp.zeros(len(batch.y)) * params, stats)

    with pytest.raises(ValueError, match="returns a value of shape"):
        train(training, vector, jnp.float32(1), {}, data, key=KEY)


def test_without_noise_and_clipping_it_trains_as_training_does():
    """A client that fills one batch has all of its samples in each."""
    data = tiny.client_data([0, 1, 2, 3, 1, 0])
    optimizer, schedule = optax.sgd(0.5, momentum=0.5), lambda round: 0.5
    training = LocalTraining(optimizer, batch_size=6, epochs=3, schedule=schedule)
    params = {"kernel": 0.1 * jax.random.normal(KEY, (4, 4)), "bias": jnp.zeros(4)}

    def loss_fn(params, stats, batch, key):
        scores = batch.x.reshape(len(batch.x), -1) @ params["kernel"] + params["bias"]
        return Loss(cross_entropy(scores, batch.y, batch.mask), stats)

    trainer = jax.tree_util.Partial(functools.partial(dp_train, 1e6, 0.0, ()))

    @jax.jit
    def run(params, data):
        return train(training, loss_fn, params, {}, data, key=KEY, num_classes=4)

    usual, trained = run(params, data), run(params, data._replace(trainer=trainer))
    chex.assert_trees_all_close(trained, usual, rtol=1e-5, atol=1e-6)
    assert not np.allclose(trained.params["kernel"], params["kernel"])
