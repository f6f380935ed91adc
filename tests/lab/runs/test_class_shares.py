"""The configs of FedSSA's and FedRAL's small setting."""

import pytest

from experiments.configs import cifar10_class_shares, fashion_mnist_class_shares
from fedjax_ht.lab.config.base import typed_config
from fedjax_ht.lab.config.entries import chosen, entries_of
from fedjax_ht.lab.runs.method import make_method, simulation_options
from fedjax_ht.methods import METHODS


@pytest.mark.parametrize("clients, share", [(50, 0.2), (100, 0.1), (4, 1.0)])
def test_ten_clients_take_part_however_many_there_are(clients, share):
    config = cifar10_class_shares.get_config(f"method=local,clients={clients}")
    assert config.partition.num_clients == clients and config.participation == share
    assert simulation_options(typed_config(config)).participants(clients) == min(10, clients)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("clients=0", "clients is '0'; it must be a positive integer, such as 10, 50 or 100"),
        ("clients=many", "clients is 'many'; it must be a positive integer"),
        ("client=5", "There are runlocal, method=NAME, partition=KIND, clients=VALUE"),
        ("recipe=text", "^recipe is 'text'; it must be one of paper, searched, small_batches"),
        ("dataset=mnist", "^dataset is 'mnist'; it must be cifar10 or cifar100$"),
    ],
)
def test_a_bad_argument_is_one_line(argument, message):
    with pytest.raises(ValueError, match=message):
        cifar10_class_shares.get_config(argument)


@pytest.mark.parametrize(
    ("file", "recipe"),
    [(cifar10_class_shares, "released"), (fashion_mnist_class_shares, "small_batches")],
)
def test_every_method_has_the_same_training_and_starts_from_shared_weights(file, recipe):
    """A table compares methods; what they are trained by is not chosen method by method."""
    trainings = set()
    # FedKTL reads its generator; SCAFFOLD refuses the momentum of the released recipe
    for name in set(METHODS) - {"fedktl", "scaffold"}:
        config = file.get_config(f"recipe={recipe},method={name}")
        trainings.add(repr(config.training))
        assert config.shared_init and config.scoring.state == "trained"
        (entry,) = entries_of(typed_config(config))
        assert make_method(entry, typed_config(config).training).name == name and not entry.tuned
    assert len(trainings) == 1


def test_the_default_recipe_is_the_papers_and_the_last_one_counts():
    default = cifar10_class_shares.get_config()
    for argument in ("recipe=paper", "recipe=small_batches,recipe=paper"):
        assert cifar10_class_shares.get_config(argument) == default


@pytest.mark.parametrize("clients, stable_rounds", [(10, 2), (50, 45)])
def test_the_released_recipe_has_fedssas_released_t_stable(clients, stable_rounds):
    """In either order of the arguments, and where FedSSA is one of several entries."""
    for argument in (
        f"recipe=released,clients={clients}",
        f"clients={clients},recipe=released,method=fedssa",
    ):
        options = cifar10_class_shares.get_config(argument).method.options
        assert (options.mu, options.clock, options.stable_rounds) == (0.5, "round", stable_rounds)
    config = cifar10_class_shares.get_config(f"recipe=released,clients={clients},method=local")
    config.entries = chosen(config.entries, ("fedssa", "fedral"))
    _, fedssa, fedral = entries_of(typed_config(config))
    assert fedssa.options["clock"] == "round" and fedssa.options["stable_rounds"] == stable_rounds
    assert fedral.options["blocks"] == 100


def test_cifar100_has_ten_classes_a_client_and_all_else_as_cifar10():
    config = cifar10_class_shares.get_config("dataset=cifar100,recipe=released")
    assert config == cifar10_class_shares.get_config("recipe=released,dataset=cifar100")
    assert config.dataset.name == "cifar100" and config.partition.options.classes_per_client == 10
    config.dataset.name, config.partition.options.classes_per_client = "cifar10", 2
    assert config == cifar10_class_shares.get_config("recipe=released")
    practical = cifar10_class_shares.get_config("partition=practical,dataset=cifar100")
    assert practical.partition == cifar10_class_shares.get_config("partition=practical").partition
