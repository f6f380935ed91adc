"""FedTGP (or :method=fedproto, local) on CIFAR-10, Dirichlet 0.1, 20 clients of CNN-1..5.

    fedjax-ht run --config=cifar10_practical

Accuracy and time of the whole run have not been recorded yet.
Needs CIFAR-10 (python or binary version) in `data/`. FedTGP and FedKTL, Table 1, use this split with other models.
"""

from fedjax_ht.configs.base import apply_argument, base_config, partition_config


def get_config(argument=None):
    config = base_config()
    config.dataset.name = "cifar10"
    config.partition = partition_config("practical", alpha=0.1)
    config.rounds = 100
    config.evaluate.every = 5
    return apply_argument(config, argument, rounds=1)
