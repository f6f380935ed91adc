"""FedAvg and LG-FedAvg among a hundred clients, with and without differential privacy.

    fedjax-ht run --config=private
    fedjax-ht run --config=private:unit=client,noise=4
    fedjax-ht run --config=private:unit=sample,noise=1

A hundred clients have about a hundred of the embedded images each (16x16, Dirichlet(1.0)), and all
have one perceptron. FedAvg averages its 8,554 numbers, and LG-FedAvg the head's 330. Nothing was
tuned.

Results: experiments/results/private.md.
"""

from fedjax_ht.lab.config.base import apply_argument, base_config, method_config, partition_config
from fedjax_ht.models import mlp


def perceptron(num_classes, input_shape, feature_dim):
    return {"mlp": mlp(num_classes, (feature_dim or 32,))}


def get_config(argument=None):
    config = base_config()
    config.method = method_config("fedavg")
    config.entries = ("lg_fedavg", "local")
    config.dataset.image_size = 16
    config.partition = partition_config("practical", num_clients=100, alpha=1.0)
    config.model.group = "experiments.configs.private:perceptron"
    config.training.learning_rate = 0.05
    config.privacy.clip = 0.5
    config.trials = 3
    config.rounds = config.evaluate.every = 20
    return apply_argument(config, argument, {"unit": set_unit, "noise": set_noise}, rounds=2)


def set_unit(config, value):
    config.privacy.unit = value


def set_noise(config, value):
    config.privacy.noise = float(value)
