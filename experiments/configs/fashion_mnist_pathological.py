"""FedTGP (or :method=fedproto, local) on Fashion-MNIST with two classes a client.

    fedjax-ht run --config=fashion_mnist_pathological

20 clients of CNN-1..5. Accuracy and time of the whole run have not been recorded yet. Needs the
four files of Fashion-MNIST (idx, gzipped or not) in `data/`.
"""

from fedjax_ht.lab.config.base import apply_argument, base_config, partition_config


def get_config(argument=None):
    config = base_config()
    config.dataset.name = "fashion_mnist"
    config.partition = partition_config("pathological", classes_per_client=2)
    config.rounds = 100
    config.evaluate.every = 5
    return apply_argument(config, argument, rounds=1)
