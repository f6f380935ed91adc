"""FedKTL with the generator of garments on 100 classes of Tiny-ImageNet at 32 pixels.

    fedjax-ht run --config=tiny_imagenet_100_fedktl

As many classes as CIFAR-100: 6,000 images, 20 clients of CNN-1..5, Dirichlet 0.1. The arms and the
data are those of tiny_imagenet_fedktl.py, next to this file.
"""

from experiments.configs import tiny_imagenet_fedktl
from fedjax_ht.lab.config.base import apply_argument
from fedjax_ht.lab.config.entries import preset


def get_config(argument=None):
    config = tiny_imagenet_fedktl.get_config("classes=100")
    config.entries = (preset("fedktl:generator=fashion_mnist_32:latents=spread"),)
    config.method.options.generator = "fashion_mnist_32"
    config.dataset.subset = 6_000
    config.rounds = 25
    return apply_argument(config, argument, {"arms": tiny_imagenet_fedktl.set_arms}, rounds=1)
