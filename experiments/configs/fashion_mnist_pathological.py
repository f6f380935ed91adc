"""FedTGP (or :method=fedproto, local) on Fashion-MNIST with two classes per client.

    fedjax-ht run --config=fashion_mnist_pathological

20 clients of CNN-1..5. Accuracy and time of the whole run have not been recorded yet. Needs the
four files of Fashion-MNIST (idx, gzipped or not) in `data/`.
"""

from experiments.configs import fashion_mnist_practical
from fedjax_ht.lab.config.base import apply_argument, partition_config


def get_config(argument=None):
    config = fashion_mnist_practical.get_config()
    config.partition = partition_config("pathological", classes_per_client=2)
    return apply_argument(config, argument, rounds=1)
