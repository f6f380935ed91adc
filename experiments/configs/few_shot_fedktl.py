r"""One edge client with a few images of every class learns from a server's generator (FedKTL).

    fedjax-ht run --config=few_shot_fedktl --config.partition.options.shots=9

FedKTL, Appendix B: the paper's clients have 23, 9 or 2 images of each class of CIFAR-100 and the
4-layer CNN, and as many test images as make it 3:1. The default here is CIFAR-10, tested on all
other images. The paper's smallest cell, with 100 test images:

    ... --config.dataset.name=cifar100 --config.partition.options.shots=2 \
        --config.partition.options.test_shots=1

and 9 with 3, 23 with 7. With one client, aggregation is the identity; :method=local is the client
alone.

Results: experiments/results/fedktl.md. They are in units of the latents' spread:
--config.method.options.latents=spread reproduces them. Needs CIFAR-10 (python version)
in `data/`.
"""

from experiments.configs import cifar10_fedktl
from fedjax_ht.lab.config.base import apply_argument, partition_config


def get_config(argument=None):
    config = cifar10_fedktl.get_config()
    config.dataset.subset = None
    config.partition = partition_config("few_shot", num_clients=1, shots=23)
    config.model.group = "cnn4"
    config.rounds = 200
    config.evaluate.patience = 20  # evaluations
    return apply_argument(config, argument, rounds=2)
