"""FedKTL end to end on the embedded data, with a generator that has only seen natural images.

    fedjax-ht run --config=quickstart_fedktl

Clients have Fashion-MNIST. The images that the server sends, one per class, are in fedktl/images
below the run's folder. The learning rate is the paper's 0.01: with the 0.05 of quickstart.py,
ArcFace hardly learns (40 % after 20 rounds).

FedKTL starts faster than local training, with the pairs and without them (mu=0), because of ArcFace
rather than the images. Results recorded on other data: experiments/results/fedktl.md. A run takes
some minutes on one core.
"""

from fedjax_ht.lab.config.base import apply_argument, base_config, method_config, partition_config
from fedjax_ht.lab.config.entries import preset


def get_config(argument=None):
    config = base_config()
    config.entries = (preset("fedktl:generator=natural_32"), "local")
    config.method = method_config("fedktl", generator="natural_32")
    config.dataset.name = "fashion_mnist_10k"
    config.partition = partition_config("practical", alpha=1.0)
    config.rounds = 30
    config.evaluate.every = 2
    return apply_argument(config, argument, rounds=2)
