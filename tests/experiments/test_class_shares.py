"""The configs of FedSSA's and FedRAL's small setting."""

import pytest

from fedjax_ht.configs import cifar10_class_shares, fashion_mnist_class_shares
from fedjax_ht.methods import METHODS
from fedjax_ht.runner.build import make_method, simulation_options
from fedjax_ht.runner.entries import entries_of

CONFIGS = pytest.mark.parametrize("file", [cifar10_class_shares, fashion_mnist_class_shares])


@CONFIGS
@pytest.mark.parametrize("clients, share", [(10, 1.0), (50, 0.2), (100, 0.1), (4, 1.0)])
def test_ten_clients_take_part_however_many_there_are(file, clients, share):
    config = file.get_config(f"method=local,clients={clients}")
    assert config.partition.num_clients == clients and config.participation == share
    assert simulation_options(config).participants(clients) == min(10, clients)
    assert file.get_config().partition.num_clients == 100 and file.get_config().participation == 0.1


@pytest.mark.parametrize("value", ["0", "-5", "many", ""])
def test_a_bad_number_of_clients_is_one_line(value):
    with pytest.raises(ValueError, match=f"clients is '{value}'; it must be a positive integer, such as 10, 50 or 100"):
        cifar10_class_shares.get_config(f"clients={value}")
    with pytest.raises(ValueError, match="There are runlocal, method=NAME, partition=KIND, clients=VALUE"):
        cifar10_class_shares.get_config("client=5")


@CONFIGS
def test_every_method_has_the_same_training_and_starts_from_shared_weights(file):
    """A table compares methods; what they are trained by is not chosen method by method."""
    trainings = set()
    for name in set(METHODS) - {"fedktl"}:  # that one reads its generator
        config = file.get_config(f"method={name}")
        trainings.add(config.training.to_json())
        assert config.shared_init and config.evaluate.mode == "trained"
        (entry,) = entries_of(config)
        assert make_method(entry, config.training).name == name and not entry.tuned
    assert len(trainings) == 1
