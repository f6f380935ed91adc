"""FedRolex (or :method=heterofl, feddropout, fedrolex+dfrd, ...) in DFRD's setting on CIFAR-10: meant for a GPU.

    fedjax-ht run --config=cifar10_sliced:method=fedrolex+dfrd
    fedjax-ht run --config=cifar10_sliced:method=fedavg+dfrd --config.model.rates=1

DFRD (NeurIPS 2023), rows of Table 2 (rho = 10; its other columns are `--config.model.rates=rho=5`, rho=40) and, with
whole models, of Table 1. Everything else as in fashion_mnist_sliced.py, next to this file, with the released code's
crops and flips. The paper does not give the number of rounds; 200 is a guess from the released code's defaults.
It has not been run to the end. Needs CIFAR-10 (python or binary version) in `data/`.
"""

from fedjax_ht.configs import fashion_mnist_sliced
from fedjax_ht.configs.base import apply_argument


def get_config(argument=None):
    config = fashion_mnist_sliced.get_config()
    config.dataset.name = "cifar10"
    config.training.augmentation = ("padded_crop", "flip")
    config.rounds = 200
    return apply_argument(config, argument, rounds=1)
