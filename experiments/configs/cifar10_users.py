"""FedAvg among a thousand users of one CNN: pfl-research's benchmark of simulators on CIFAR-10.

    fedjax-ht run --config=cifar10_users

Each of 1,000 users has 50 training images, dealt at random. 50 users take part in a round, with one
epoch of batches of 10 and plain SGD at 0.1; 1,500 rounds (arXiv 2404.06430, with the network of its
comparison code). Every tenth round scores all test images, ten at each user, so `accuracy` is the
server model's.

The published code reads CIFAR-10's colour planes as if they were interleaved pixels, which
scrambles its images. Here they are intact, so accuracies differ; a round costs the same.

Seconds of other simulators: benchmarks/results/peers_cpu.md. Needs CIFAR-10 (python or binary
version) in `data/`.
"""

import flax.linen as nn
import jax

from fedjax_ht.lab.config.base import apply_argument, base_config, method_config, partition_config
from fedjax_ht.models.layers import Conv, Linear
from fedjax_ht.models.split import SplitModel
from fedjax_ht.ops import max_pool


class Features(nn.Module):
    """Two convolutions and a hidden layer; dropout if training has a "dropout" key."""

    width: int

    @nn.compact
    def __call__(
        self, x: jax.Array, train: bool = False, mask: jax.Array | None = None
    ) -> jax.Array:
        constant = not (train and self.has_rng("dropout"))
        x = nn.relu(Conv(32, 3, initialisation="glorot", name="conv1")(x))
        x = nn.relu(max_pool(Conv(64, 3, initialisation="glorot", name="conv2")(x), 2, 2))
        x = nn.Dropout(0.25, deterministic=constant)(x)
        x = nn.relu(Linear(self.width, "glorot", name="hidden")(x.reshape(x.shape[0], -1)))
        return nn.Dropout(0.5, deterministic=constant)(x)


def network(num_classes, input_shape, feature_dim):
    base, head = Features(feature_dim or 128), Linear(num_classes, "glorot")
    # It keeps no statistics: `stateful` makes `train` reach the base, or else nothing drops.
    return {"cnn": SplitModel(base, head, stateful=True)}


def get_config(argument=None):
    config = base_config()
    config.method = method_config("fedavg")
    config.dataset.name = "cifar10"
    config.dataset.normalisation = "dataset"
    config.partition = partition_config("iid", num_clients=1000, sets="official")
    config.model.group = "experiments.configs.cifar10_users:network"
    config.training.learning_rate = 0.1
    config.participation = 0.05
    config.rounds = 1500
    config.evaluate.every = config.evaluate.participants = 10
    return apply_argument(config, argument, rounds=2)
