import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_ht as fl
from fedjax_ht.core.batches import class_means, shuffled, sum_by_class, take_batch
from fedjax_ht.core.bucket import init_variables
from fedjax_ht.core.local_training import LocalTraining, Loss, label_counts, num_steps, train
from fedjax_ht.core.samples import Split
from fedjax_ht.losses import cross_entropy
from fedjax_ht.simulation.lanes import simulation_lanes
from fedjax_ht.simulation.simulation import batch_notes
from tests import tiny
from tests.federations import ASSIGNMENT, TRAINING, federation_data, mixed_federation
from tests.reference import linear_client
from tests.tiny import client_data, context, linear_federation

KEY = jax.random.key(7)
SAMPLES, MOST_STEPS = 8, 8


def recipe(**changes):
    return LocalTraining(**{"optimizer": optax.sgd(1.0), "batch_size": 3} | changes)


def recorded(notes, note):
    """Batch statistics that keep a note of every step: (steps so far, notes [MOST_STEPS, ...])."""
    step, pages = notes
    return step + 1, pages.at[step].set(note)


def read(notes):
    step, pages = notes
    return np.asarray(pages)[: int(step)]


@functools.cache
def recorder(training, padding):
    """Compiles (counts, round) -> the results of `record`."""
    # A label is the sample's number.
    data = tiny.client_data(np.arange(SAMPLES), padding=padding)

    def loss_fn(params, stats, batch, key):
        return Loss(-params, recorded(stats, jnp.where(batch.mask, batch.y, -1)))

    def run(count, round):
        splits = {"train": Split(data.splits["train"].indices, count)}
        client = data._replace(splits=splits, round=round)
        stats = (jnp.int32(0), jnp.zeros((MOST_STEPS, training.batch_size), jnp.int32))
        return train(training, loss_fn, jnp.float32(0), stats, client, key=KEY, num_classes=SAMPLES)

    return jax.jit(jax.vmap(run, (0, None)))


def record(training, counts, padding=0, round=None):
    """Trains clients that hold the first `count` of SAMPLES samples; each step moves a counter by
    its learning rate.

    Returns:
      Per client, the samples of each step, int [steps, batch], -1 where masked; and the results,
      stacked.
    """
    result = jax.device_get(recorder(training, padding)(np.array(counts, np.int32), round))
    steps, pages = result.stats
    return list(map(read, zip(steps, pages))), result


def assert_counted(training, count, seen, round=None):
    """Checks the counts of labels of a client of `count` samples against those that it has seen."""
    data = tiny.client_data(np.arange(SAMPLES), padding=3)
    split = Split(data.splits["train"].indices, jnp.int32(count))
    client = data._replace(splits={"train": split}, round=round)
    counted = label_counts(training, client, KEY, SAMPLES)
    expected = np.bincount(seen[seen >= 0].astype(int), minlength=SAMPLES)
    np.testing.assert_array_equal(counted, expected)


STEP_RULES = [
    # changes to the recipe, samples -> steps
    ({}, {0: 0, 1: 1, 2: 1, 3: 1, 5: 1, 6: 2, 8: 2}),
    ({"epochs": 3}, {0: 0, 2: 3, 3: 3, 5: 3, 7: 6}),
    ({"drop_remainder": False}, {0: 0, 1: 1, 3: 1, 4: 2, 8: 3}),
    ({"drop_remainder": False, "epochs": 2}, {0: 0, 2: 2, 7: 6}),
    ({"steps": 5}, {0: 0, 1: 5, 7: 5}),
    ({"steps": 5, "epochs": 9, "drop_remainder": False}, {0: 0, 2: 5, 8: 5}),
]


@pytest.mark.parametrize(("changes", "expected"), STEP_RULES, ids=str)
def test_num_steps(changes, expected):
    counts = np.array(list(expected))
    np.testing.assert_array_equal(num_steps(recipe(**changes), counts), list(expected.values()))
    assert [num_steps(recipe(**changes), int(c)) for c in counts] == list(expected.values())


@pytest.mark.parametrize("drop_remainder", [True, False])
def test_an_epoch_visits_each_sample_once(drop_remainder):
    training = recipe(epochs=2, drop_remainder=drop_remainder)
    counts = [8, 6, 5, 2, 0]
    batches, result = record(training, counts)
    for count, steps, moved in zip(counts, batches, result.params):
        assert len(steps) == num_steps(training, count) == moved
        for epoch in np.split(steps, 2):
            used = sorted(epoch[epoch >= 0].tolist())
            assert len(used) == len(set(used))
            if drop_remainder and count >= 3:
                assert len(used) == count // 3 * 3 and set(used) <= set(range(count))
            else:  # a client below one batch takes one masked step
                assert used == list(range(count))
    assert not np.array_equal(batches[1][:2], batches[1][2:])  # a new order each epoch
    # The loss before step i is -i; its mean over steps is reported, and 0 without any.
    expected = [-np.mean(range(len(b))) if len(b) else 0 for b in batches]
    np.testing.assert_allclose(result.loss, expected)


def test_a_number_of_steps_crosses_epochs():
    (full, small, empty), _ = record(recipe(steps=5), [7, 2, 0])
    assert full.shape == (5, 3) and (full >= 0).all()
    for epoch in (full[0:2], full[2:4]):
        assert len(np.unique(epoch)) == 6
    assert [sorted(b.tolist()) for b in small] == [[-1, 0, 1]] * 5
    assert len(empty) == 0


def test_a_schedule_multiplies_the_learning_rate_of_a_round():
    """And not the gradients, whose scale Adam takes out."""
    halved = optax.exponential_decay(0.5, 2, 0.5, staircase=True)
    scheduled = recipe(optimizer=optax.adam(0.4), schedule=halved)
    fixed = {factor: recipe(optimizer=optax.adam(0.4 * factor)) for factor in (0.5, 0.25, 0.125)}
    for round, factor in ((0, 0.5), (1, 0.5), (2, 0.25), (5, 0.125)):
        _, result = record(scheduled, [8], round=jnp.int32(round))
        _, expected = record(fixed[factor], [8], round=jnp.int32(round))
        assert result.params != 0
        np.testing.assert_allclose(result.params, expected.params, rtol=1e-5)


def test_without_shuffle_samples_come_in_stored_order():
    (batches,), _ = record(recipe(shuffle=False, epochs=2, drop_remainder=False), [5])
    np.testing.assert_array_equal(batches, [[0, 1, 2], [3, 4, -1]] * 2)


@pytest.mark.parametrize("drop_remainder", [True, False])
def test_steps_in_stored_order_go_on_where_the_last_round_ended(drop_remainder):
    """The batches are those of one iterator that never ends, and their labels are counted."""
    training, counts = recipe(steps=2, shuffle=False, drop_remainder=drop_remainder), [8, 7, 2, 0]
    full = {True: [[0, 1, 2], [3, 4, 5]], False: [[0, 1, 2], [3, 4, 5], [6, 7, -1]]}[drop_remainder]
    released = {8: full, 7: full[:2], 2: [[0, 1, -1]], 0: []}
    if not drop_remainder:
        released[7] = [*full[:2], [6, -1, -1]]
    for round in range(4):
        visits, _ = record(training, counts, padding=3, round=jnp.int32(round))
        for count, seen in zip(counts, visits):
            batches = released[count]
            visited = [(2 * round + i) % len(batches) for i in range(2)] if batches else []
            want = [batches[i] for i in visited] or np.zeros((0, 3))
            np.testing.assert_array_equal(seen, want)
            assert_counted(training, count, seen, jnp.int32(round))


def test_shuffled_is_a_permutation_that_does_not_see_the_padding():
    samples = np.array([4, 9, 2, 7, 5])
    keys = jax.random.split(KEY, 300)
    orders = []
    for padding in (0, 40):
        split = Split(jnp.asarray(np.pad(samples, (0, padding), constant_values=99)), jnp.int32(5))
        order = jax.jit(jax.vmap(shuffled, (0, None)))(keys, split)
        np.testing.assert_array_equal(order[:, 5:], 99)
        orders.append(np.asarray(order[:, :5]))
    np.testing.assert_array_equal(orders[0], orders[1])
    np.testing.assert_array_equal(np.sort(orders[0]), np.tile(np.sort(samples), (300, 1)))
    for place in orders[0].T:  # each sample comes to each place about 60 times
        assert min(np.unique_counts(place).counts) > 35


def test_optimiser_state_lives_through_a_round():
    training = recipe(optimizer=optax.sgd(1.0, momentum=1.0), steps=4)
    assert float(record(training, [5])[1].params[0]) == 1 + 2 + 3 + 4


def test_augmentation_is_told_what_black_is():
    data = tiny.client_data(np.arange(4), mean=np.float32(0.25), std=np.float32(0.5))
    training = recipe(steps=1, augmentation=lambda key, x, black: jnp.broadcast_to(black, x.shape))

    def loss_fn(params, stats, batch, key):
        return Loss(params, batch.x)

    notes, last = jnp.zeros((3, 2, 2, 1)), {"key": KEY, "num_classes": 4}
    seen = train(training, loss_fn, jnp.float32(0), notes, data, **last).stats
    np.testing.assert_allclose(seen, (0 - 0.25) / 0.5)


def test_an_augmentation_that_changes_shapes_is_refused():
    training = recipe(augmentation=lambda key, x, black: x[:, 1:])

    def loss_fn(params, stats, batch, key):
        return Loss(params, stats)

    data = tiny.client_data(np.arange(4))
    with pytest.raises(ValueError, match=r"returns \(3, 1, 2, 1\) for \(3, 2, 2, 1\)"):
        train(training, loss_fn, jnp.float32(0), (), data, key=KEY)


@pytest.mark.parametrize(
    "returned",
    [
        lambda value: value,
        lambda value: Loss(value, None),
        lambda value: Loss(value * jnp.ones(3), ()),
    ],
)
def test_a_loss_that_is_no_scalar_with_statistics_is_refused(returned):
    def loss_fn(params, stats, batch, key):
        return returned(jnp.mean(batch.x) * params)

    data = tiny.client_data(np.arange(4))
    with pytest.raises(ValueError, match="the loss function returns "):
        train(recipe(), loss_fn, jnp.float32(0), (), data, key=KEY, num_classes=4)


def test_rows_to_sum_need_a_number_of_classes():
    def loss_fn(params, stats, batch, key):
        return Loss(jnp.mean(batch.x) * params, (), jnp.ones((len(batch.y), 2)))

    with pytest.raises(ValueError, match="rows to sum by class; give train num_classes"):
        train(recipe(), loss_fn, jnp.float32(0), (), tiny.client_data(np.arange(4)), key=KEY)


def test_augmentation_and_loss_get_a_key_of_their_own_each_step():
    def augmentation(key, x, black):
        return jnp.full_like(x, jax.random.uniform(key))

    training = recipe(steps=4, augmentation=augmentation)

    def loss_fn(params, stats, batch, key):
        return Loss(params, recorded(stats, jnp.stack([batch.x.max(), jax.random.uniform(key)])))

    stats = (jnp.int32(0), jnp.zeros((MOST_STEPS, 2)))
    data = tiny.client_data(np.arange(4))

    @jax.jit
    def run(key):
        return train(training, loss_fn, jnp.float32(0), stats, data, key=key, num_classes=4).stats

    draws = read(run(KEY))
    assert draws.shape == (4, 2) and len(np.unique(draws)) == 8
    assert ((draws > 0) & (draws < 1)).all()


LABELS = np.array([0, 2, 2, 0, 3, 0, 3])
CLASSES, DIM, WIDTH = 4, 4, 3


@pytest.fixture(scope="module")
def linear_run():
    """A linear softmax model trained for two epochs; what is masked is NaN."""
    rng = np.random.default_rng(0)
    shapes = {"base_kernel": (DIM, WIDTH), "base_bias": (WIDTH,)}
    shapes |= {"head_kernel": (WIDTH, CLASSES), "head_bias": (CLASSES,)}
    params = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    training = recipe(optimizer=optax.sgd(0.3), epochs=2, drop_remainder=False)
    data = tiny.client_data(LABELS, padding=4)
    number = jnp.arange(len(LABELS))  # of the sample whose first pixel is this
    firsts = jnp.asarray(tiny.pixels(data)[:, 0], jnp.float32)

    def loss_fn(params, stats, batch, key):
        x = batch.x.reshape(len(batch.x), -1)
        features = x @ params["base_kernel"] + params["base_bias"]
        logits = features @ params["head_kernel"] + params["head_bias"]
        logits, rows = (jnp.where(batch.mask[:, None], a, jnp.nan) for a in (logits, features))
        which = number[jnp.argmin(jnp.abs(x[:, :1] - firsts), axis=1)]
        stats = recorded(stats, jnp.where(batch.mask, which, -1))
        return Loss(cross_entropy(logits, batch.y, batch.mask), stats, rows)

    @jax.jit
    def run(count):
        split = Split(data.splits["train"].indices, count)
        stats = (jnp.int32(0), jnp.zeros((MOST_STEPS, 3), jnp.int32))
        client = data._replace(splits={"train": split})
        return train(training, loss_fn, params, stats, client, key=KEY, num_classes=CLASSES)

    return params, data, run


def test_sgd_equals_the_reference_given_the_order(linear_run):
    params, data, run = linear_run
    result = run(jnp.int32(len(LABELS)))
    orders = [step[step >= 0] for step in read(result.stats)]
    assert [len(o) for o in orders] == [3, 3, 1] * 2
    x = tiny.pixels(data)
    start = {name: value.astype(np.float64) for name, value in params.items()}
    want, loss, seen = linear_client.train(start, [(x[o], LABELS[o]) for o in orders], lr=0.3)
    for name in params:
        np.testing.assert_allclose(result.params[name], want[name], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(result.loss, loss, rtol=1e-5)
    features, labels = (np.concatenate(part) for part in zip(*seen))
    expected = 2 * np.bincount(LABELS, minlength=CLASSES)
    np.testing.assert_array_equal(result.class_sums.counts, expected)
    for c in range(CLASSES):
        want_sum = features[labels == c].sum(0)
        np.testing.assert_allclose(result.class_sums.sums[c], want_sum, rtol=1e-5, atol=1e-5)


def test_a_client_without_samples_comes_back_unchanged(linear_run):
    params, _, run = linear_run
    result = run(jnp.int32(0))
    jax.tree.map(np.testing.assert_array_equal, result.params, params)
    assert result.loss == 0
    np.testing.assert_array_equal(result.class_sums.sums, 0)
    np.testing.assert_array_equal(result.class_sums.counts, 0)


@pytest.mark.parametrize("batch_size", [3, 7, 64])
def test_class_sums_of_one_pass_equal_the_reference(batch_size):
    indices = np.array([6, 0, 2, 3, 1])  # a part of the images, in no order
    data = tiny.client_data(LABELS, indices, padding=2)

    def extract(x, mask):
        return jnp.where(mask[:, None], x.reshape(len(x), -1), jnp.nan)

    sums = jax.jit(lambda data: sum_by_class(extract, data, CLASSES, batch_size))(data)
    np.testing.assert_array_equal(sums.counts, np.bincount(LABELS[indices], minlength=CLASSES))
    means = class_means(sums)
    want = linear_client.class_means(tiny.pixels(data)[indices], LABELS[indices])
    assert set(want) == {0, 2, 3}
    for c in range(CLASSES):
        np.testing.assert_allclose(means[c], want.get(c, np.zeros(DIM)), rtol=1e-5, atol=1e-6)


def test_take_batch_normalises_and_masks():
    data = tiny.client_data(LABELS, [5, 1, 2, 6], mean=0.25, std=0.5, padding=3)
    split = data.splits["train"]
    batch = take_batch(data, split.indices, split.count, jnp.int32(2), 3)
    np.testing.assert_array_equal(batch.mask, [True, True, False])
    np.testing.assert_array_equal(batch.y[:2], LABELS[[2, 6]])
    want = (np.asarray(data.inputs)[[2, 6]] / 255 - 0.25) / 0.5
    assert batch.x.dtype == jnp.float32 and batch.x.shape == (3, 2, 2, 1)
    np.testing.assert_allclose(batch.x[:2], want, rtol=1e-5, atol=1e-6)


def test_an_optimiser_that_needs_more_than_gradients_is_refused_at_once():
    for optimizer in (optax.lbfgs(0.1), optax.chain(optax.clip(1.0), optax.polyak_sgd())):
        message = r"optimizer needs 'value'.* clients only provide gradients"
        with pytest.raises(ValueError, match=message):
            LocalTraining(optimizer)
    parts = {"a": optax.sgd(0.1), "b": optax.adam(0.1)}  # of parameters of its own form
    LocalTraining(optax.multi_transform(parts, {"a": "a", "b": "b"}))


SLOW = dataclasses.replace(TRAINING, optimizer=optax.adam(0.01), batch_size=2, epochs=3)


def test_a_client_trains_by_the_recipe_of_its_architecture():
    federation, data = linear_federation(), client_data([0, 1, 2, 3, 1])
    first, second = federation.buckets
    method = fl.by_architecture(fl.local, {first.name: SLOW, "*": TRAINING})
    for bucket, recipe in ((first, SLOW), (second, TRAINING)):
        assert method.training_of(bucket.name) is recipe
        arguments = init_variables(bucket, jax.random.key(0)), (), data, context(0)
        programs = []
        for each in (method, fl.local(recipe)):
            update = jax.jit(functools.partial(each.client_update, bucket))
            programs.append(update.lower(*arguments).as_text())
        assert programs[0] == programs[1]


def test_flops_follow_the_recipe_of_each_architecture():
    federation = mixed_federation()
    data = federation_data(federation)
    long = dataclasses.replace(TRAINING, epochs=3)
    methods = fl.local(TRAINING), fl.by_architecture(fl.local, {"wide": long, "*": TRAINING})
    flops = []
    for method in methods:
        flops.append(fl.make_simulation(method, federation, data).client_flops())
    times = np.where(np.array(ASSIGNMENT) == "wide", 3, 1)
    np.testing.assert_array_equal(flops[1], times * flops[0])


def test_lanes_and_notes_take_the_recipe_of_each_architecture():
    federation = linear_federation()
    counts = np.array([4, 4, 4, 4])
    method = fl.by_architecture(fl.local, {"linear1": SLOW, "*": TRAINING})
    options = fl.SimulationOptions(devices=1)
    assert simulation_lanes(federation, counts, method, options) == {"linear0": 1, "linear1": 1}
    assert batch_notes(federation, method, counts) == []
    assert num_steps(method.training_of("linear1"), 4) == 6


def test_numbers_of_the_method_vary_under_all_recipes():
    def make(settings):
        return fl.fedproto(TRAINING, weight=settings["weight"])

    method = fl.by_architecture(
        lambda recipe: fl.varied(make, {"weight": 1.0})._replace(training=recipe),
        {"wide": SLOW, "*": TRAINING},
    )
    assert method.at({"weight": 2.0}).training_of("narrow") is TRAINING


def test_a_recipe_for_all_others_is_needed_and_names_are_those_of_the_federation():
    with pytest.raises(
        ValueError, match="training has recipes for wide; it also needs one for '\\*'"
    ):
        fl.by_architecture(fl.local, {"wide": SLOW})
    federation = mixed_federation()
    method = fl.by_architecture(fl.local, {"wild": SLOW, "*": TRAINING})
    with pytest.raises(ValueError, match="training has a recipe for 'wild'; did you mean 'wide'"):
        fl.make_simulation(method, federation, federation_data(federation))
