"""Data sets of other tasks than classification: their labels for partitions, and what is refused."""

import dataclasses

import numpy as np
import pytest

from fedjax_ht.core.federation import make_federation
from fedjax_ht.core.task import regression
from fedjax_ht.data.client_data import make_federation_data
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.partition import make_partition
from fedjax_ht.data.selection import of_classes, subset
from fedjax_ht.data.shift import shifted
from fedjax_ht.data.targets import (
    multi_label_dataset,
    output_names,
    per_pixel_dataset,
    regression_dataset,
    standardised_targets,
)
from fedjax_ht.models import mlp

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3)).astype(np.float32)
Y = 5 * X[:, 0] + 700
MARKS = (X > 0.3).astype(int)
IMAGES = RNG.integers(0, 255, (60, 4, 3, 1)).astype(np.uint8)
MASKS = (IMAGES[..., 0] > 99).astype(int)
EMPTY_LAST = np.where(np.arange(60)[:, None, None] < 59, MASKS, 255)


def test_quantiles_of_a_target_are_its_labels():
    dataset = regression_dataset("toy", X, Y, bins=6)
    assert np.bincount(dataset.labels).tolist() == [10] * 6
    order = np.argsort(Y)
    assert (np.diff(dataset.labels[order]) >= 0).all()
    centre, scale = Y.mean(dtype=np.float64), Y.std(dtype=np.float64)
    standard = (Y - centre) / scale
    np.testing.assert_allclose(dataset.task.predictions(standard[:, None])[:, 0], Y, rtol=1e-5)
    assert dataset.targets.dtype == np.float32 and not dataset.targets.flags.writeable
    assert dataset.task.name == "regression" and dataset.num_outputs == 1


def test_targets_of_training_samples_alone_set_the_units():
    dataset = regression_dataset("toy", X, Y)
    partition = make_partition("iid", dataset, 3, seed=0)
    train = np.concatenate([client.train for client in partition])
    task = standardised_targets(dataset, partition).task
    assert len(train) < len(Y) and task is not dataset.task
    mean, std = Y[train].mean(dtype=np.float64), Y[train].std(dtype=np.float64)
    np.testing.assert_allclose(task.predictions(np.zeros((1, 1))), mean, rtol=1e-5)
    np.testing.assert_allclose(task.predictions(np.ones((1, 1))), mean + std, rtol=1e-5)
    marked = multi_label_dataset("toy", X, MARKS)
    assert standardised_targets(marked, partition) is marked
    alike = np.where(np.isin(np.arange(len(Y)), train), 1.0, Y)
    with pytest.raises(ValueError, match="toy: all targets of column 0 are 1; remove it"):
        standardised_targets(regression_dataset("toy", X, alike), partition)
    untrained = [client._replace(train=client.val) for client in partition]
    with pytest.raises(ValueError, match="toy: the split has no training samples"):
        standardised_targets(dataset, untrained)


def test_targets_that_float32_cannot_tell_apart_are_pointed_at():
    x = np.linspace(-1, 1, 40, dtype=np.float32)[:, None]
    with pytest.warns(UserWarning, match=r"column 0 are 1.7e\+09 .* subtract a constant"):
        regression_dataset("time", x, 1.7e9 + 100 * x)


def test_targets_that_repeat_make_fewer_groups():
    dataset = regression_dataset("toy", X, np.repeat([0, 1, 2], 20), bins=10)
    assert dataset.num_classes == 3 and np.bincount(dataset.labels).tolist() == [20] * 3


@pytest.mark.parametrize(("zeros", "sizes"), [(57, [57, 3]), (42, [42, 6, 6, 6])])
def test_targets_that_are_mostly_0_have_a_group_of_zeros(zeros, sizes):
    targets = np.concatenate([np.zeros(zeros), np.arange(1, 61 - zeros)])
    dataset = regression_dataset("claims", X, targets, bins=10)
    assert np.bincount(dataset.labels).tolist() == sizes


def test_outputs_have_the_names_of_labels_or_classes():
    marked = multi_label_dataset("toy", X, MARKS, ("a", "b", "c"))
    assert output_names(marked) == ("a", "b", "c")
    assert output_names(of_classes(marked, ("c", "a"))) == ()  # there are still three outputs
    masked = per_pixel_dataset("toy", IMAGES, MASKS, ("ground", "road"))
    assert output_names(masked) == ("ground", "road")
    assert output_names(regression_dataset("toy", X, Y)) == ()
    assert output_names(Dataset("toy", X, np.arange(60) % 2, ("x", "y"))) == ("x", "y")


def test_the_rarest_label_of_a_sample_is_its_class():
    marks = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 1], [0, 0, 0], [1, 0, 0]])
    dataset = multi_label_dataset("tags", np.eye(5), marks, ("a", "b", "c"))
    assert [dataset.class_names[i] for i in dataset.labels] == ["a", "b", "c", "no label", "a"]
    assert dataset.targets.dtype == np.int8 and dataset.num_outputs == 3


def test_the_rarest_class_among_an_images_pixels_is_its_class():
    masks = np.zeros((4, 4, 3), np.uint8)
    masks[1, 0], masks[2, 0, :2], masks[3] = 1, (1, 2), 255
    masks[3, 0, 0] = 1
    dataset = per_pixel_dataset("toy", IMAGES[:4], masks, ("ground", "tree", "car"))
    assert [dataset.class_names[i] for i in dataset.labels] == ["ground", "tree", "car", "tree"]
    assert dataset.num_outputs == 4 * 3 * 3 and dataset.targets.dtype == np.uint8
    beside = per_pixel_dataset("toy", IMAGES[1:3], masks[1:3], ("ground", "tree", "car"))
    assert beside.labels.tolist() == [1, 2] and beside.doubts == ()


@pytest.mark.parametrize(
    "make",
    [
        lambda: regression_dataset("toy", X, Y),
        lambda: multi_label_dataset("toy", X, MARKS),
        lambda: per_pixel_dataset("toy", IMAGES, MASKS),
    ],
)
def test_partitions_subsets_and_clients_keep_targets_with_their_samples(make):
    dataset = make()
    half = subset(dataset, 30, 0)
    of_sample = dict(zip(map(bytes, dataset.inputs), dataset.targets))
    for x, target in zip(half.inputs, half.targets, strict=True):
        np.testing.assert_array_equal(of_sample[bytes(x)], target)
    models = {"mlp": mlp(dataset.num_outputs, (4,))}
    federation = make_federation(
        models, dataset.input_shape, dataset.num_outputs, num_clients=3, task=dataset.task
    )
    assert dataset.task.name in repr(federation) and dataset.task.name in repr(dataset)
    partition = make_partition("dirichlet", dataset, 3, seed=0, alpha=1.0, min_samples=5)
    data = make_federation_data(dataset, partition, federation)
    np.testing.assert_array_equal(data.buckets["mlp"].labels, dataset.targets)
    other = make_federation(models, dataset.input_shape, dataset.num_outputs, num_clients=3)
    with pytest.raises(ValueError, match=r"classification; make it with task=dataset\.task"):
        make_federation_data(dataset, partition, other)
    wide = make_federation(
        {"mlp": mlp(7, (4,))}, dataset.input_shape, 7, num_clients=3, task=dataset.task
    )
    with pytest.raises(ValueError, match=r"7 outputs; make it with num_classes=(1|3|24)$"):
        make_federation_data(dataset, partition, wide)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: regression_dataset("toy", X, np.where(Y > 700, np.nan, Y)), "NaN, infinite"),
        (lambda: regression_dataset("toy", X, 1e300 * Y), "or above 3.4"),
        (lambda: regression_dataset("toy", X, np.full(60, 3)), "are 3; remove it"),
        (lambda: regression_dataset("toy", X, np.full(60, 0.1)), "are 0.1; remove it"),
        (lambda: regression_dataset("toy", X, ["a"] * 60), "toy: targets are <U1; give numbers"),
        (lambda: regression_dataset("toy", X, Y[:50]), "50"),
        (lambda: regression_dataset("toy", X, Y, bins=0), "bins is 0"),
        (lambda: multi_label_dataset("toy", X, MARKS + 1), "of 0 and 1"),
        (lambda: multi_label_dataset("toy", X, MARKS[:, 0]), "of 0 and 1"),
        (lambda: multi_label_dataset("toy", X, 0 * MARKS), "no sample has a label"),
        (lambda: multi_label_dataset("toy", X, MARKS, ("a",)), "1 names for 3 labels"),
        (lambda: per_pixel_dataset("toy", IMAGES, MARKS), r"are \[60, 3\] int64; give whole"),
        (lambda: per_pixel_dataset("toy", IMAGES, MASKS / 2), "float64; give whole numbers"),
        (lambda: per_pixel_dataset("toy", IMAGES, MASKS - 1), "run from -1 to 0 for 1 classes"),
        (lambda: per_pixel_dataset("toy", IMAGES, MASKS, ("a",)), "from 0 to 1 for 1 classes"),
        (lambda: per_pixel_dataset("toy", IMAGES, 255 * MASKS), "one class besides unlabelled"),
        (
            lambda: per_pixel_dataset("toy", IMAGES, MASKS, ignored=MASKS.max()),
            "unlabelled pixels, 1",
        ),
        (lambda: per_pixel_dataset("toy", IMAGES, EMPTY_LAST), "1 images have .* first image 59"),
        (lambda: per_pixel_dataset("toy", IMAGES, MASKS[:, :3]), r"are \[3, 3\] pixels, but a"),
        (
            lambda: shifted(per_pixel_dataset("toy", IMAGES, MASKS), "rotate/2"),
            "does not rotate the masks",
        ),
    ],
)
def test_wrong_targets_are_refused(make, words):
    with pytest.raises(ValueError, match=words) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["pathological", "few_shot", "class_shares"])
def test_partitions_skip_groups_without_samples(kind):
    """All samples have a label; the background is no image's rarest class."""
    marks, masks = np.eye(2, dtype=int)[np.arange(60) % 2], np.zeros((60, 4, 3), int)
    masks[:, 0, 0] = 1 + np.arange(60) % 2
    options = {"sets": "merged"} if kind == "class_shares" else {}
    for dataset in (multi_label_dataset("tags", X, marks), per_pixel_dataset("a", IMAGES, masks)):
        assert dataset.num_classes == 3
        for client in make_partition(kind, dataset, 2, **options):
            assert len(np.unique(dataset.labels[client.train])) == 2


def test_targets_are_checked_against_their_task():
    dataset = regression_dataset("toy", X, Y)
    with pytest.raises(ValueError, match=r"targets have the shape \[60, 2\]; regression"):
        dataclasses.replace(dataset, targets=np.zeros((60, 2)))
    with pytest.raises(ValueError, match=r"^toy: 60 targets are not finite or no .*, first nan"):
        dataclasses.replace(dataset, targets=np.full((60, 1), np.nan))
    with pytest.raises(ValueError, match=r"^toy: targets are complex128; regression has float32"):
        dataclasses.replace(dataset, targets=np.full((60, 1), 1j))
    marked = multi_label_dataset("toy", X, MARKS)
    for wrong in (0.9, 300):
        with pytest.raises(ValueError, match=f"180 targets are .* no int8, first {wrong}"):
            dataclasses.replace(marked, targets=np.full((60, 3), wrong))


def test_a_task_of_ones_own_may_have_one_number_for_each_sample():
    task = dataclasses.replace(regression((0.0,), (1.0,)), target=((), "float32"))
    dataset = Dataset("toy", X, np.zeros(60, int), ("all",), targets=Y, task=task)
    assert dataset.num_outputs == 1 and "1 outputs" in repr(dataset)
