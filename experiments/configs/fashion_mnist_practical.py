"""FedTGP (or :method=fedproto, local) on Fashion-MNIST with Dirichlet 0.1.

    fedjax-ht run --config=fashion_mnist_practical

20 clients of CNN-1..5. The whole run has not been recorded yet; its first round, compilation
included, took 47 s on 2 CPU cores. Needs the four files of Fashion-MNIST (idx, gzipped or not) in
`data/`.
"""

from fedjax_ht.lab.config.base import apply_argument, base_config, partition_config


def get_config(argument=None):
    config = base_config()
    config.dataset.name = "fashion_mnist"
    config.partition = partition_config("practical", alpha=0.1)
    config.rounds = 100
    config.evaluate.every = 5
    return apply_argument(config, argument, rounds=1)
