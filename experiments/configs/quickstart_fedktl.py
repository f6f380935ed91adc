"""FedKTL end to end on the embedded data: Fashion-MNIST clients, a generator that has only seen natural images.

    python -m experiments.main --config=experiments/configs/quickstart_fedktl.py

The images that the server sends, one a class, are in fedktl/images below the run's folder.
"""

from experiments.configs.base import apply_argument, base_config, method_config, partition_config


def get_config(argument=None):
    config = base_config()
    config.method = method_config("fedktl", generator="checkpoints/natural_32.npz")
    config.compare = ("local",)
    config.dataset.name = "fashion_mnist_10k"
    config.partition = partition_config("practical", alpha=1.0)
    config.training.learning_rate = 0.05
    config.rounds = 20
    config.evaluate.every = 2
    return apply_argument(config, argument, rounds=2)
