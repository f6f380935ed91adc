"""Tasks: losses and metrics against NumPy, sums that add, and their edges."""

import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.prediction_counts import macro_auc
from fedjax_ht.core.task import CLASSIFICATION, check_task, multi_label, per_pixel, regression
from fedjax_ht.losses import cross_entropy, kl_divergence
from tests.reference import auc as reference
from tests.reference import task_metrics

RNG = np.random.default_rng(0)
MASK = np.array([True] * 9 + [False])


def measured(task, outputs, targets, parts=(slice(None),), mask=MASK):
    """The metrics of sums over parts of the samples."""
    sums = [task.sums(outputs[part], targets[part], jnp.asarray(mask[part])) for part in parts]
    total = jax.tree.map(lambda *x: np.sum(x, axis=0), *sums)
    return task.metrics(total, np.int64(mask.sum()))


def test_regression_far_from_zero():
    """Targets of mean 2,000 and deviation 1, whose squares float32 does not hold."""
    targets = RNG.normal((2000, -3), (1, 0.1), (10, 2)).astype(np.float32)
    task = regression((2000.0, -3.0), (1.0, 0.1))
    outputs = RNG.normal(size=(10, 2)).astype(np.float32)
    outputs[-1], targets[-1] = np.nan, np.nan  # masked: never read
    known = task.predictions(outputs)[:-1]
    expected = task_metrics.regression(known, targets[:-1])
    for parts in ([slice(None)], [slice(0, 4), slice(4, 10)]):
        found = measured(task, outputs, targets, parts)
        np.testing.assert_allclose([*found.values()], [*expected.values()], rtol=2e-4)
        assert [*found] == ["rmse", "mae", "r2"]
    errors = (outputs[:-1] - (targets[:-1] - (2000, -3)) / (1, 0.1)) ** 2
    loss = task.loss(outputs, targets, jnp.asarray(MASK))
    np.testing.assert_allclose(loss, errors.mean(), rtol=1e-4)


def test_r2_of_equal_targets_and_of_one_sample():
    task, mask = regression((0.0,), (1.0,)), np.ones(3, bool)
    ones = np.ones((3, 1), np.float32)
    for equal in (1, 12.34567, 1e3):  # squares of the others are rounded in float32
        assert np.isnan(measured(task, ones, np.float32(equal) * ones, mask=mask)["r2"])
    assert np.isnan(measured(task, ones[:1], ones[:1], mask=mask[:1])["r2"])
    assert measured(task, 2 * ones, ones, mask=mask)["rmse"] == 1


def test_without_samples_nothing_is_defined():
    ones, nobody = np.ones((3, 2), np.float32), np.zeros(3, bool)
    for task in (regression((0.0,) * 2, (1.0,) * 2), multi_label(2), per_pixel(1, 1, 2)):
        targets = np.ones((3, *task.target[0]), task.target[1])
        assert np.isnan([*measured(task, ones, targets, mask=nobody).values()]).all()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e30])
def test_a_diverged_regression_is_infinitely_wrong(wrong):
    """Its score is not undefined, or the mean over clients would be over the others."""
    targets = np.arange(3, dtype=np.float32)[:, None]
    outputs = np.float32([[0], [wrong], [0]])
    found = measured(regression((0.0,), (1.0,)), outputs, targets, mask=np.ones(3, bool))
    assert found["rmse"] == np.inf and found["r2"] == -np.inf
    assert found["mae"] == np.inf or wrong == 1e30


def test_numbers_that_are_none_are_wrong_in_other_tasks_too():
    """They were the background of a mask, and a "no" of a label."""
    none = np.full((2, 8), np.nan, np.float32)
    everyone = np.ones(2, bool)
    pixels = measured(per_pixel(2, 2, 2), none, np.zeros((2, 2, 2), np.uint8), mask=everyone)
    assert pixels["pixel_accuracy"] == pixels["miou"] == 0
    labels = measured(multi_label(8), none, np.zeros((2, 8), np.int8), mask=everyone)
    assert labels["exact"] == labels["micro_f1"] == 0


def test_multi_label():
    task, targets = multi_label(4), RNG.integers(0, 2, (10, 4)).astype(np.int8)
    outputs = RNG.normal(size=(10, 4)).astype(np.float32)
    targets[:, 3], outputs[:, 3] = 0, -1  # neither true nor predicted
    outputs[:2, :3] = 2 * targets[:2, :3] - 1  # two samples all right
    bins = np.floor(46 * np.arcsinh(8 * outputs)) + 0.5
    outputs = (np.sinh(bins / 46) / 8).astype(np.float32)  # the middles of bins
    outputs[3:5, 0] = 17, 40  # of one bin, the last
    expected = task_metrics.multi_label(outputs[:-1] > 0, targets[:-1])
    placed = np.clip(outputs[:-1], None, 16)
    expected["map"] = task_metrics.average_precision(placed, targets[:-1])
    for parts in ([slice(None)], [slice(0, 7), slice(7, 10)]):
        found = measured(task, outputs, targets, parts)
        np.testing.assert_allclose([*found.values()], [*expected.values()], rtol=1e-12)
    z, y = outputs[:-1].astype(np.float64), targets[:-1]
    binary = np.log1p(np.exp(z)) - y * z
    loss = task.loss(outputs, targets, jnp.asarray(MASK))
    np.testing.assert_allclose(loss, binary.mean(), rtol=1e-6)


def test_per_pixel():
    """Pixels that are not labelled count nowhere; a class that is nowhere leaves the mean."""
    task, targets = per_pixel(3, 2, 200), RNG.integers(0, 3, (10, 3, 2)).astype(np.uint8)
    logits = np.full((10, 3, 2, 200), -5, np.float32)
    logits[..., [0, 1, 2, 150]] = RNG.normal(size=(10, 3, 2, 4))
    targets[0], targets[:, 1, 1] = 255, 255
    targets[1, 0, 0] = 199  # 199 * 200 is beyond uint8
    outputs = logits.reshape(10, -1)
    outputs[-1] = np.nan
    expected = task_metrics.per_pixel(task.predictions(outputs)[:-1], targets[:-1])
    for parts in ([slice(None)], [slice(0, 7), slice(7, 10)]):
        found = measured(task, outputs, targets, parts)
        np.testing.assert_allclose([*found.values()], [*expected.values()], rtol=1e-12)
    z = logits[:-1].astype(np.float64)
    known = targets[:-1] != 255
    chosen = np.take_along_axis(z, np.where(known, targets[:-1], 0)[..., None].astype(int), -1)
    errors = np.log(np.exp(z).sum(-1)) - chosen[..., 0]
    loss = task.loss(outputs, targets, jnp.asarray(MASK))
    np.testing.assert_allclose(loss, errors[known].mean(), rtol=1e-6)
    nobody = np.full_like(targets, 255)
    assert task.loss(outputs, nobody, jnp.asarray(MASK)) == 0
    assert np.isnan(measured(task, outputs, nobody)["miou"])


def test_tasks_are_static():
    assert regression((0.0,), (1.0,)) is regression((0.0,), (1.0,))
    assert hash(multi_label(3)) != hash(multi_label(4))
    assert CLASSIFICATION.loss is cross_entropy and CLASSIFICATION.sums is None
    assert multi_label(3).no_targets(2).shape == (2, 3)
    assert CLASSIFICATION.no_targets(2).dtype == np.int32
    assert pickle.loads(pickle.dumps(CLASSIFICATION)) == CLASSIFICATION


@pytest.mark.parametrize("task", [regression((0.0,), (1.0,)), multi_label(1)])
def test_metrics_keep_the_clients_apart(task):
    outputs = RNG.normal(size=(6, 1)).astype(np.float32)
    targets = task.no_targets(6) + RNG.integers(0, 2, (6, 1)).astype(task.target[1])
    mask = jnp.ones(3, bool)
    both = [task.sums(outputs[i : i + 3], targets[i : i + 3], mask) for i in (0, 3)]
    stacked = jax.tree.map(lambda *x: np.stack(x), *both)
    found = task.metrics(stacked, np.array([3, 3]))
    for i, sums in enumerate(both):
        alone = task.metrics(jax.tree.map(np.asarray, sums), np.int64(3))
        np.testing.assert_allclose([x[i] for x in found.values()], [*alone.values()])


def test_divergences():
    """Zero for equal outputs; else those of Gaussians and of Bernoulli distributions."""
    teacher, outputs = RNG.normal(size=(2, 10, 3)).astype(np.float32)
    mask = jnp.asarray(MASK)
    t, z = teacher[:-1].astype(np.float64), outputs[:-1].astype(np.float64)
    p, q = 1 / (1 + np.exp(-t)), 1 / (1 + np.exp(-z))
    bernoulli = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    log_p, log_q = (z - np.log(np.exp(z).sum(-1, keepdims=True)) for z in (t, z))
    expected = {
        per_pixel(1, 1, 3): (np.exp(log_p) * (log_p - log_q)).sum(-1).mean(),
        multi_label(3): bernoulli.mean(),
        regression((0.0,) * 3, (2.0,) * 3): ((t - z) ** 2).mean(),
    }
    for task, value in expected.items():
        np.testing.assert_allclose(task.divergence(teacher, outputs, mask), value, rtol=1e-5)
        assert abs(task.divergence(teacher, teacher, mask)) < 1e-7
    assert CLASSIFICATION.divergence is kl_divergence


NUMBERS = RNG.normal(size=(10, 2)).astype(np.float32)
LINE = regression((0.0, 0.0), (1.0, 1.0))


def test_the_librarys_tasks_are_tasks():
    check_task(LINE, NUMBERS, 2)
    check_task(multi_label(2), (NUMBERS > 0).astype(np.int8), 2)
    check_task(per_pixel(1, 2, 3), RNG.integers(0, 3, (10, 1, 2)).astype(np.uint8), 6)


def of_all(outputs, targets, mask):
    """Does not leave masked samples out."""
    return jnp.mean((outputs - targets) ** 2)


def means(outputs, targets, mask):
    """Means, which do not add."""
    return jax.tree.map(lambda x: x / mask.sum(), LINE.sums(outputs, targets, mask))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"sums": None}, "it has no sums or no metrics"),
        ({"loss": lambda *x: LINE.loss(*x) * jnp.inf}, "the loss is inf for outputs within"),
        ({"loss": of_all}, "the loss depends on masked samples"),
        ({"sums": means}, "sums over two halves do not add up to the whole"),
        ({"score": "mse"}, "the score is 'mse'; metrics are rmse, mae, r2"),
        ({"metrics": lambda sums, count: {"rmse": 1.0}}, r"rmse of two clients has shape \(\)"),
        ({"better": "higher"}, "rmse goes from .* when outputs descend the loss"),
        ({"divergence": lambda *x: -LINE.divergence(*x)}, "the divergence of equal outputs is"),
    ],
)
def test_a_faulty_task_is_one_line(change, fault):
    with pytest.raises(ValueError, match=r"^better is 'min'; it must be"):
        dataclasses.replace(LINE, better="min")
    with pytest.raises(ValueError, match=f"^task 'regression': {fault}"):
        check_task(dataclasses.replace(LINE, **change), NUMBERS, 2)


SAMPLES, CLASSES = 12, 4

area = jax.jit(jax.vmap(macro_auc))


def drawn(kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, labels and counts of clients with 0 to `SAMPLES` samples, and noise behind."""
    counts = np.arange(SAMPLES + 1)
    scores = RNG.normal(size=(len(counts), SAMPLES, CLASSES)).astype(np.float32)
    labels = RNG.integers(0, CLASSES - 1, (len(counts), SAMPLES))  # none is of the last class
    if kind == "ties":
        scores = np.round(scores)
    elif kind == "distances":
        scores = -np.abs(scores)
    elif kind == "no_prediction":
        scores[..., 1], scores[:, 2], scores[:, 3, 0] = -np.inf, -np.inf, np.inf
    elif kind == "one_class":
        labels[:] = 2
    return scores, labels, counts


@pytest.mark.parametrize("kind", ["plain", "ties", "distances", "no_prediction", "one_class"])
def test_it_counts_pairs(kind):
    scores, labels, counts = drawn(kind)
    mask = np.arange(SAMPLES) < counts[:, None]
    padded = np.where(mask[..., None], scores, np.float32(1e9))
    areas = area(jnp.array(padded), jnp.array(labels), jnp.array(mask))
    want = []
    for of_client, of_labels, count in zip(scores, labels, counts):
        want.append(reference.macro(of_client[:count], of_labels[:count]))
    np.testing.assert_allclose(areas, want, rtol=1e-6)
    assert np.isnan(want).all() == (kind == "one_class")


def test_scores_that_are_no_number_are_no_prediction():
    scores, labels, _ = drawn("plain")
    mask, without = np.ones((1, SAMPLES), bool), scores[-1:].copy()
    without[0, 2, 1] = np.nan
    low = np.where(np.isnan(without), -np.inf, without)
    both = [area(jnp.array(x), jnp.array(labels[-1:]), jnp.array(mask)) for x in (without, low)]
    np.testing.assert_array_equal(*both)
    assert np.isfinite(both[0]).all()
