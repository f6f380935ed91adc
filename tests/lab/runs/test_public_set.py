"""`dataset.public`: what a config may name, and what is refused before anything is read."""

import numpy as np
import pytest

import fedjax_ht as fl
from fedjax_ht.lab.report.report import setting
from fedjax_ht.lab.runs.plan import plan, settle
from fedjax_ht.lab.runs.train import notes


def config_of(public: str | None = "hold_out:0.1", method: str = "fedmd", **options):
    config = fl.base_config()
    config.dataset.name = "fashion_mnist_10k"
    config.dataset.subset = 300
    config.dataset.public = public
    config.partition.kind, config.partition.num_clients = "iid", 3
    config.partition.options = {}
    config.method.name, config.method.options = method, options
    return config


def test_a_share_is_held_out_before_the_split():
    experiment = plan(config_of(public_per_round=20))
    (partition,), dataset = experiment.partitions, experiment.dataset
    owned = np.concatenate([indices for client in partition for indices in client])
    assert len(dataset.public) == 30 and len(owned) == 270
    assert not set(owned) & set(dataset.public)
    assert experiment.runs["fedmd"].federation.public_set.samples == 30
    assert not [line for line in notes(experiment) if "public" in line]
    assert "30 samples are public." in setting(experiment)


def test_another_set_is_public(tmp_path):
    path, x = tmp_path / "other.npz", np.random.default_rng(0).integers(0, 256, (40, 28, 28))
    np.savez(path, x_train=x.astype(np.uint8), y_train=np.arange(40) % 4)
    dataset = plan(config_of(f"npz:{path}", "dsfl", public_per_round=40)).dataset
    np.testing.assert_array_equal(dataset.public, np.arange(300, 340))


def test_a_public_set_that_nothing_reads_is_said():
    (line,) = [line for line in notes(plan(config_of(method="local"))) if "public" in line]
    assert line.startswith("30 samples are public (dataset.public), but no method of this run")


@pytest.mark.parametrize(
    ("public", "message"),
    [
        (None, "fedmd needs a public set, shared by server and clients: set dataset.public to"),
        ("fashion_mnist_10k", "dataset.public is 'fashion_mnist_10k', the clients' own set"),
        ("mnistt", "dataset.public: .*'mnistt'.*hold_out:0.1"),
    ],
)
def test_wrong_public_sets_are_refused_without_reading_data(public, message):
    with pytest.raises(ValueError, match=message):
        settle(config_of(public=public))
