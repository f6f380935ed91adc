"""Twenty clients with five architectures on Fashion-MNIST's 10,000 test images, FedTGP beside local training.

python -m experiments.main --config=experiments/configs/quickstart.py
"""

from experiments.configs.base import apply_argument, base_config, method_config


def get_config(argument=None):
    config = base_config()
    config.method = method_config("fedtgp")
    config.compare = ("local",)
    config.dataset.name = "fashion_mnist_10k"
    config.partition.kind = "practical"
    config.partition.options = {"alpha": 0.1}
    config.model.group = "cnn5"
    config.rounds = 30
    return apply_argument(config, argument, rounds=2)
