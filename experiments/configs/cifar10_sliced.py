"""FedRolex (or :method=heterofl, fedrolex+dfrd, ...) in DFRD's setting on CIFAR-10.

    fedjax-ht run --config=cifar10_sliced:method=fedrolex+dfrd
    fedjax-ht run --config=cifar10_sliced:method=fedavg+dfrd --config.model.rates=1

DFRD (NeurIPS 2023), rows of Table 2 (rho = 10; its other columns are `--config.model.rates=rho=5`,
rho=40) and, with whole models, of Table 1. Everything else is as in fashion_mnist_sliced.py, next
to this file, with the released code's crops and flips.

Two things are guesses. The paper does not give the number of rounds: 200 is a default of the
released code. The paper's network for CIFAR-10 is in an appendix that was not available. Here it is
the 4-conv CNN, as for Fashion-MNIST; the released code also offers ResNets
(--config.model.group=preact_resnet18, preact_resnet20 or preact_resnet34).

Meant for a GPU; it has not been run to the end. Needs CIFAR-10 (python version) in
`data/`.
"""

from experiments.configs import fashion_mnist_sliced


def get_config(argument=None):
    config = fashion_mnist_sliced.get_config()
    config.dataset.name = "cifar10"
    config.training.augmentation = ("padded_crop", "flip")
    config.rounds = 200
    return fashion_mnist_sliced.with_argument(config, argument)
