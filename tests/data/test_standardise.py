"""Features are standardised by the training samples, images by a set's own moments."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_ht as fl
from fedjax_ht.data.client_data import arranged
from fedjax_ht.lab.config.base import base_config, partition_config
from fedjax_ht.lab.readers.registry import SOURCES, normalised
from fedjax_ht.lab.runs.plan import plan
from tests.lab.readers.source_files import write
from tests.lab.readers.toy_dataset import make_dataset

RNG = np.random.default_rng(0)
LABELS = np.arange(60) % 2
UNITS = np.array([1.0, 300.0, 1e-3, 0.0], np.float32)  # of the columns; the last is constant
ROWS = (RNG.normal(size=(60, 4)) * UNITS + [5, 1000, 0, 7]).astype(np.float32)
NONE = np.array([], int)
SPLIT = (
    fl.ClientIndices(np.arange(20), NONE, np.arange(40, 50)),
    fl.ClientIndices(np.arange(20, 40), NONE, np.arange(50, 60)),
)
TRAIN = np.arange(40)


def table(rule=fl.Standardised(), inputs=ROWS) -> fl.Dataset:  # noqa: B008  (it is a tuple)
    return fl.Dataset("t", inputs, LABELS, ("a", "b"), preprocess=rule)


def federation(dataset: fl.Dataset) -> fl.Federation:
    modules = {"mlp": fl.mlp(2, (4,))}
    return fl.make_federation(modules, dataset.input_shape, 2, num_clients=2)


def test_a_model_sees_mean_0_and_deviation_1_of_the_training_samples():
    dataset = fl.standardised(table(), SPLIT)
    seen = np.asarray(dataset.preprocess(jax.numpy.asarray(ROWS)))
    np.testing.assert_allclose(seen[TRAIN].mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(seen[TRAIN, :3].std(0), 1, atol=1e-4)
    assert not seen[:, 3].any()  # constant: only shifted
    other = fl.standardised(table(inputs=np.where(np.arange(60)[:, None] < 40, ROWS, 0)), SPLIT)
    jax.tree.map(np.testing.assert_array_equal, dataset.preprocess, other.preprocess)
    assert dataset.input_shape == table().input_shape == (4,)


def test_a_column_far_from_0_is_scaled_if_float32_holds_its_spread():
    seconds = 1.7e9 + 1500 * RNG.normal(size=60)
    dataset = fl.standardised(table(inputs=np.float32(np.stack([seconds, ROWS[:, 0]], 1))), SPLIT)
    assert 1000 < dataset.preprocess.std[0] < 2000


def test_windows_are_standardised_by_signal():
    windows = RNG.normal(size=(60, 8, 3)) * [1, 50, 2] + [0, 9, 0]
    dataset = fl.standardised(table(fl.AsStored(), windows), SPLIT)
    np.testing.assert_allclose(dataset.preprocess.mean, windows[TRAIN].mean((0, 1)), rtol=1e-5)
    np.testing.assert_allclose(dataset.preprocess.std, windows[TRAIN].std((0, 1)), rtol=1e-5)
    for axes in ((128, 3, 3), (256, 3, 9)):  # units and signals
        dataset = fl.standardised(table(fl.AsStored(), np.zeros((60, *axes))), SPLIT)
        assert dataset.preprocess.mean.shape == axes[1:]


def test_a_partition_standardises_a_table():
    dataset = table()
    data = fl.make_federation_data(dataset, SPLIT, federation(dataset))
    expected = fl.standardised(dataset, SPLIT).preprocess
    jax.tree.map(np.testing.assert_array_equal, data.buckets["mlp"].preprocess, expected)


def test_splits_may_share_a_scale():
    dataset = table()
    swapped = tuple(client._replace(train=client.test, test=client.train) for client in SPLIT)
    both = fl.standardised(dataset, SPLIT, swapped)
    np.testing.assert_allclose(both.preprocess.mean, ROWS.mean(0), rtol=1e-5)


@pytest.mark.parametrize(
    "dataset",
    [
        fl.Dataset("t", np.ones((60, 3), int), LABELS, ("a", "b")),
        fl.Dataset("t", np.full((60, 4, 4, 1), 99, np.uint8), LABELS, ("a", "b")),
        table(lambda x: x),
        table(fl.AsStored(), np.ones((60, 8, 8, 3))),
    ],
)
def test_what_cannot_be_standardised_is_refused(dataset):
    with pytest.raises(
        ValueError, match=r"t cannot be standardised: its (stored samples are not floats|.* images)"
    ):
        fl.standardised(dataset, SPLIT)


def test_features_of_another_scale_are_said():
    dataset = table(fl.AsStored())
    with pytest.warns(
        UserWarning, match=r"1 of 4 features have a scale unsuitable .*: 1 \(1\.03e\+03"
    ):
        fl.make_federation_data(dataset, SPLIT, federation(dataset))
    whole = table(fl.AsStored(), ROWS.astype(int))
    with pytest.warns(UserWarning, match="token ids need vocabulary="):
        fl.make_federation_data(whole, SPLIT, federation(whole))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        usual = table(fl.AsStored(), (ROWS - ROWS.mean(0)) / np.maximum(ROWS.std(0), 1e-9))
        for quiet in (usual, table(), fl.load_dataset("har_10persons")):
            split = fl.make_partition("iid", quiet, 2)
            modules = {"mlp": fl.mlp(quiet.num_classes, (4,))}
            shape, count = quiet.input_shape, quiet.num_classes
            fl.make_federation_data(
                quiet, split, fl.make_federation(modules, shape, count, num_clients=2)
            )


# By config


@pytest.fixture
def config(tmp_path):
    rows = [",".join(map(str, [*row, f"c{label}"])) for row, label in zip(ROWS.tolist(), LABELS)]
    write(tmp_path / "t.csv", "\n".join(["age,dose,ratio,one,label", *rows]))
    config = base_config()
    config.dataset.name, config.dataset.data_dir = "csv:t.csv:label", str(tmp_path)
    config.model.group, config.partition = "mlp2", partition_config("iid", num_clients=2)
    return config


def test_tables_are_standardised_by_config_and_the_head_says_so(config):
    (run,) = plan(config).runs.values()
    dataset, partition = run.dataset, run.partitions[0]
    trains = np.concatenate([client.train for client in partition])
    data = arranged(dataset, partition, run.federation)
    rule = data.buckets[run.federation.buckets[0].name].preprocess
    np.testing.assert_allclose(rule.mean, ROWS[trains].mean(0), rtol=1e-5)
    assert "each feature standardised by the training samples" in fl.describe(dataset).lines[0]
    config.dataset.standardise = "off"
    assert isinstance(plan(config).dataset.preprocess, fl.AsStored)


def test_the_samples_of_a_deployment_have_the_moments_of_all_clients(config, tmp_path):
    from fedjax_ht.deploy.command import split
    from fedjax_ht.deploy.samples import read_samples

    (run,) = plan(config).runs.values()
    trains = np.concatenate([client.train for client in run.partitions[0]])
    for path in split(config, tmp_path):
        read, _ = read_samples(f"npz:{path}", "")
        np.testing.assert_allclose(read.preprocess.mean, ROWS[trains].mean(0), rtol=1e-5)
        np.testing.assert_allclose(read.preprocess.std[:3], ROWS[trains, :3].std(0), rtol=1e-5)


def test_other_floats_are_standardised_on_demand(config):
    config.dataset.name, config.model.group = "har_10persons", "harcnn_s1"
    assert isinstance(plan(config).dataset.preprocess, fl.AsStored)
    config.dataset.standardise = "on"
    assert plan(config).dataset.preprocess == fl.Standardised()
    config.dataset.name, config.model.group = "fashion_mnist_10k", "mlp2"
    with pytest.raises(ValueError, match="fashion_mnist_10k cannot be standardised"):
        plan(config)


def test_half_is_the_default_and_changes_nothing():
    dataset = make_dataset([3, 2])
    assert normalised(dataset, "half") is dataset
    assert base_config().dataset.normalisation == "half"


OWN = [(name, "dataset", source.moments) for name, source in SOURCES.items() if source.moments]
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.mark.parametrize(("name", "kind", "moments"), [*OWN, ("cifar10", "imagenet", IMAGENET)])
def test_images_are_normalised_by_the_moments_of_their_set_or_imagenets(name, kind, moments):
    """FedSSA's released code normalises CIFAR-10 by ImageNet's moments, DFRD's code by its own."""
    mean, std = moments
    images = np.random.default_rng(0).integers(0, 256, (5, 2, 2, len(mean)), np.uint8)
    toy = dataclasses.replace(make_dataset([3, 2]), name=name, inputs=images)
    dataset = normalised(toy, kind)
    assert all(0.1 < m < 0.6 for m in mean)
    np.testing.assert_array_equal(dataset.preprocess.mean, np.float32(mean))
    got = dataset.preprocess(jnp.asarray(images))
    np.testing.assert_allclose(got, (images / 255 - mean) / std, rtol=1e-5, atol=1e-5)
    assert SOURCES["cifar10"].moments.mean != IMAGENET[0]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("dataset", "normalisation is 'dataset', but the moments of toy are unknown"),
        ("imagenet", "'imagenet', which needs images of three channels; a sample of toy is"),
    ],
)
def test_moments_that_are_unknown_or_do_not_fit(kind, message):
    with pytest.raises(ValueError, match=message):
        normalised(make_dataset([3, 2]), kind)


def test_floats_are_not_normalised_again():
    photos = fl.Dataset("p", RNG.normal(size=(60, 8, 8, 3)), LABELS)
    with pytest.raises(ValueError, match="imagenet', but models see the floats of p as stored"):
        normalised(photos, "imagenet")
