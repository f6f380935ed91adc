"""The run that stored/version_3.zip began, for one round more."""

from fedjax_ht.lab.config.base import base_config, method_config, partition_config


def get_config():
    config = base_config()
    config.method = method_config("fedtgp", server_epochs=2)
    config.dataset.name = "npz:data.npz"
    config.partition = partition_config("dirichlet", num_clients=3, alpha=1.0, min_samples=6)
    config.model.group = "mlp2"
    config.model.feature_dim = 8
    config.rounds = 3
    config.checkpoint = {"every": 1, "keep": 1}
    return config
