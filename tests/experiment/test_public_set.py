"""`dataset.public`: what a config may name, and what is refused before anything is read or
compiled."""

import numpy as np
import pytest

import fedjax_ht as fl
from fedjax_ht.experiment.build import build
from fedjax_ht.experiment.notes import notes
from fedjax_ht.experiment.settle import settle


def config_of(method: str = "fedmd", public: str | None = "hold_out:0.1", **options):
    config = fl.base_config()
    config.dataset.name, config.dataset.subset, config.dataset.public = (
        "fashion_mnist_10k",
        300,
        public,
    )
    config.partition.kind, config.partition.num_clients = "iid", 3
    config.partition.options = {}
    config.method.name, config.method.options = method, options
    return config


def test_a_share_is_held_out_before_the_split():
    experiment = build(config_of(public_per_round=20))
    (partition,), dataset = experiment.partitions, experiment.dataset
    owned = np.concatenate([indices for client in partition for indices in client])
    assert len(dataset.public) == 30 and len(owned) == 270
    assert not set(owned) & set(dataset.public)
    assert experiment.federations["fedmd"].public_set.samples == 30
    assert not [line for line in notes(experiment) if "public" in line]


def test_a_public_set_that_nothing_reads_is_said():
    (line,) = [line for line in notes(build(config_of("local"))) if "public" in line]
    assert line.startswith("30 samples are public (dataset.public), and no method of this run")


@pytest.mark.parametrize(
    ("public", "message"),
    [
        (None, "fedmd needs a public set, which server and clients have: set dataset.public to"),
        (
            "fashion_mnist_10k",
            "dataset.public is 'fashion_mnist_10k', the clients' own set, whose samples they test on",
        ),
        ("hold_out:2", "dataset.public is 'hold_out:2'; behind hold_out: it must have a share"),
        ("mnistt", "dataset.public: .*'mnistt'.*hold_out:0.1"),
    ],
)
def test_wrong_public_sets_are_refused_without_reading_data(public, message):
    with pytest.raises(ValueError, match=message):
        settle(config_of(public=public))


def test_a_public_set_that_is_too_small_is_refused():
    message = "fedmd uses 31 public samples a round, and the public set has 30"
    with pytest.raises(ValueError, match=message):
        build(config_of(public_per_round=31))
