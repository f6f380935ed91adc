"""Twenty clients with five architectures on Fashion-MNIST's 10,000 test images, FedTGP beside local training.

    python -m experiments.main --config=experiments/configs/quickstart.py

Dirichlet @@ALPHA@@
"""

from experiments.configs.base import apply_argument, base_config, method_config


def get_config(argument=None):
    config = base_config()
    config.method = method_config("fedtgp", variant="released", weight=3.0, tau=3.0)
    config.compare = ("local",)
    config.dataset.name = "fashion_mnist_10k"
    config.partition.kind = "practical"
    config.partition.options = {"alpha": 1.0}
    config.model.group = "cnn5"
    config.training.learning_rate = 0.05
    config.rounds = 40
    config.evaluate.every = 2
    return apply_argument(config, argument, rounds=2)
