r"""FedAvg (or :method=fedavg+dfrd, dfrd) in DFRD's setting with one network, on a CPU.

    fedjax-ht run --config=fashion_mnist_quarter
    fedjax-ht run --config=fashion_mnist_quarter:method=fedavg+dfrd
    fedjax-ht compare --config=fashion_mnist_quarter \
        --methods=fedavg,fedavg+dfrd,fedavg+dfrd:variant=released,fedavg+dense,fedavg+fedftg

All clients have the 4-conv CNN with a quarter of its channels, 16-32-64-128, on Fashion-MNIST.
DFRD's own homogeneous rows have the full width (`model.group=conv4`). Everything else is as in
fashion_mnist_sliced.py, next to this file.

Needs the four files of Fashion-MNIST (idx, gzipped or not) in `data/`.
"""

from experiments.configs import fashion_mnist_sliced
from fedjax_ht.lab.config.base import method_config


def get_config(argument=None):
    config = fashion_mnist_sliced.get_config()
    config.method = method_config("fedavg")
    config.model.group = "conv4_quarter"
    config.model.rates = "1"
    return fashion_mnist_sliced.with_argument(config, argument)
