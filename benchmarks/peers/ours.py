"""Plays a protocol by this library, with the arguments of `side`."""

import jax
import numpy as np
import optax
from protocols import Network, flattened, from_torch, rows_of, to_torch
from side import arguments, first_weights, play

import fedjax_ht as fl
from benchmarks.peers.network import split_model
from fedjax_ht.core.trees import PyTree
from fedjax_ht.data.client_data import arranged
from fedjax_ht.data.dataset import ClientIndices, Dataset


def layers(params: PyTree, network: Network) -> list[PyTree]:
    """Returns the layers' parameters in order."""
    names = [f"conv{i}" for i, _ in enumerate(network.convs, 1)]
    names += [f"fc{i}" for i, _ in enumerate(network.widths, 1)]
    return [params["base"][name] for name in names] + [params["head"]]


def main() -> None:
    """Plays the protocol, see `side`."""
    protocol, problem, rounds, answer = arguments()
    network = protocol.network
    images, labels = problem["images"], problem["labels"].astype(np.int32)
    class_names = tuple(map(str, range(network.classes)))
    dataset = Dataset("images", images, labels, class_names, preprocess=fl.Pixels(0.0, 1.0))
    nobody = np.zeros(0, np.int64)
    partition = []
    for user in range(protocol.users):
        rows = rows_of(protocol, user, len(labels))
        partition.append(ClientIndices(rows, nobody, nobody))
    federation = fl.make_federation(
        {"cnn": split_model(network)},
        dataset.input_shape,
        network.classes,
        num_clients=protocol.users,
    )
    training = fl.LocalTraining(
        optax.sgd(protocol.learning_rate),
        epochs=protocol.epochs,
        batch_size=protocol.batch_size,
        shuffle=False,
    )
    data = arranged(dataset, partition, federation)
    options = fl.SimulationOptions(participation=protocol.cohort / protocol.users)
    simulation = fl.make_simulation(fl.fedavg(training), federation, data, options)
    state = simulation.init()
    first = first_weights(problem)
    server = jax.tree.map(np.asarray, state.server)
    for layer, channels, weight, bias in zip(
        layers(server, network), flattened(network), first[::2], first[1::2]
    ):
        layer["kernel"], layer["bias"] = from_torch(weight, channels), bias
    # Placed as the weights that they replace: another placement would compile the next round once
    # more.
    server = jax.tree.map(lambda old, new: jax.device_put(new, old.sharding), state.server, server)
    state = state._replace(server=server)

    def one_round(number: int) -> None:
        nonlocal state
        state, report = simulation.run_round(state)
        jax.block_until_ready(state.server)
        assert np.array_equal(report.participants, problem["cohorts"][number])

    def weights() -> list[np.ndarray]:
        arrays = []
        for layer, channels in zip(layers(state.server, network), flattened(network)):
            arrays += [to_torch(np.asarray(layer["kernel"]), channels), np.asarray(layer["bias"])]
        return arrays

    play(one_round, weights, rounds, answer, f"jax {jax.__version__}")


if __name__ == "__main__":
    main()
