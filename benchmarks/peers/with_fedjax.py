"""Plays a protocol by FedJAX's federated averaging with its `jit` backend.

Its `pmap` backend calls functions that JAX has removed.
"""

from importlib.metadata import version

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
from protocols import Network, flattened, from_torch, rows_of, to_torch
from side import arguments, first_weights, play

# the only removed name of JAX that fedjax 0.0.17 calls here
jax.tree_map = jax.tree_util.tree_map


def haiku_model(network: Network) -> hk.Transformed:
    """Returns the network in haiku, whose k-th layer is named `layer<k>`."""

    def forward(batch: fedjax.BatchExample) -> jax.Array:
        x, layer = batch["x"].astype(jnp.float32) / 255, 0
        for channels, kernel, padding, pooled in network.convs:
            edges = [(padding, padding)] * 2
            x = hk.Conv2D(channels, kernel, padding=edges, name=f"layer{layer}")(x)
            x = jax.nn.relu(max_pool(x) if pooled else x)
            layer += 1
        x = hk.Flatten()(x)
        for width in network.widths:
            x = jax.nn.relu(hk.Linear(width, name=f"layer{layer}")(x))
            layer += 1
        return hk.Linear(network.classes, name=f"layer{layer}")(x)

    return hk.transform(forward)


def max_pool(x: jax.Array) -> jax.Array:
    """Pools a map [N, H, W, C] of even height and width by 2.

    It equals `hk.max_pool`, whose gradient is slower on a CPU.
    """
    count, height, width, channels = x.shape
    return x.reshape(count, height // 2, 2, width // 2, 2, channels).max((2, 4))


def loss(batch: fedjax.BatchExample, logits: jax.Array) -> jax.Array:
    """Returns each sample's cross entropy, of which fedjax takes the mean."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])


def from_layers(network: Network, weights: list[np.ndarray]) -> fedjax.Params:
    """Returns haiku's parameters with these weights of all layers."""
    params = {}
    for k, (channels, weight, bias) in enumerate(
        zip(flattened(network), weights[::2], weights[1::2])
    ):
        params[f"layer{k}"] = {
            "w": jnp.asarray(from_torch(weight, channels)),
            "b": jnp.asarray(bias),
        }
    return params


def to_layers(network: Network, params: fedjax.Params) -> list[np.ndarray]:
    """Returns the weights of all layers: the inverse of `from_layers`."""
    weights = []
    for k, channels in enumerate(flattened(network)):
        layer = params[f"layer{k}"]
        weights += [to_torch(np.asarray(layer["w"]), channels), np.asarray(layer["b"])]
    return weights


def main() -> None:
    """Plays the protocol, see `side`."""
    protocol, problem, rounds, answer = arguments()
    network = protocol.network
    images, labels = problem["images"], problem["labels"].astype(np.int32)
    users = {}
    for user in range(protocol.users):
        rows = rows_of(protocol, user, len(labels))
        users[user] = {"x": images[rows], "y": labels[rows]}
    federation = fedjax.InMemoryFederatedData(users)
    sample = {"x": images[:1], "y": labels[:1]}
    model = fedjax.create_model_from_haiku(haiku_model(network), sample, loss)
    with fedjax.for_each_client_backend("jit"):
        algorithm = fedjax.algorithms.fed_avg.federated_averaging(
            grad_fn=fedjax.model_grad(model),
            client_optimizer=fedjax.optimizers.sgd(protocol.learning_rate),
            server_optimizer=fedjax.optimizers.sgd(1.0),
            client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(
                protocol.batch_size, num_epochs=protocol.epochs, skip_shuffle=True
            ),
        )
    state = algorithm.init(from_layers(network, first_weights(problem)))
    rng = jax.random.key(0)  # the model draws nothing

    def one_round(number: int) -> None:
        nonlocal state
        cohort = federation.get_clients(problem["cohorts"][number].tolist())
        state, _ = algorithm.apply(state, [(user, samples, rng) for user, samples in cohort])
        jax.block_until_ready(state.params)

    versions = f"fedjax {version('fedjax')}, jax {jax.__version__}"
    play(one_round, lambda: to_layers(network, state.params), rounds, answer, versions)


if __name__ == "__main__":
    main()
