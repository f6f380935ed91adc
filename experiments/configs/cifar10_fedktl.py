r"""FedKTL with the generator of garments on 10,000 images of CIFAR-10: 20 clients of CNN-1..5.

    fedjax-ht run --config=cifar10_fedktl
    fedjax-ht run --config=cifar10_fedktl:method=fedproto   # or fedtgp, local
    ...:method=fedtgp --config.method.options.variant=released   (fedproto likewise)
    fedjax-ht run --config=cifar10_fedktl --config.method.options.mu=0   # ablations
    fedjax-ht run --config=cifar10_fedktl --config.method.options.source=labels \
        --config.method.options.generator=fashion_mnist_classes_32   # "+CS"

Dirichlet 0.1, with the generator trained on Fashion-MNIST. The small form of FedKTL's Table 1 for a
machine without a GPU: the paper uses all 60,000 images, eight large models and 1,000 rounds.

Each trial has its own split; recorded runs share one, `--config.partition.per_trial=False`. Results
and discussion: experiments/results/fedktl.md. Needs CIFAR-10 (python version) in `data/`.
"""

from fedjax_ht.lab.config.base import apply_argument, base_config, method_config, partition_config
from fedjax_ht.lab.config.entries import preset


def get_config(argument=None):
    config = base_config()
    config.entries = (preset("fedktl:generator=fashion_mnist_32"),)
    config.method = method_config("fedktl", generator="fashion_mnist_32")
    config.dataset.name = "cifar10"
    config.dataset.subset = 10_000
    config.partition = partition_config("practical", alpha=0.1)
    config.rounds = 50
    config.evaluate.every = 5
    config = apply_argument(config, argument, rounds=1)
    config.partition.per_trial = True
    return config
