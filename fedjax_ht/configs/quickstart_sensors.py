"""x"""

from fedjax_ht.configs.base import apply_argument, base_config, method_config, partition_config


def get_config(argument=None):
    config = base_config()
    config.method = method_config("fedtgp", variant="released", weight=3.0, tau=3.0)
    config.compare = ("local",)
    config.dataset.name = "har_10persons"
    config.partition = partition_config("natural", num_clients=10, tested="last", train_share=0.5)
    config.model.group = "htfe_sen5"
    config.training.optimizer = "adam"
    config.training.learning_rate = 0.001
    config.training.epochs = 2
    config.rounds = 20
    config.evaluate.every = 2
    return apply_argument(config, argument, rounds=2)
