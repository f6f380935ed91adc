"""Plays a protocol by Flower's simulation engine with Ray.

Each client has one CPU and one thread; as many run at once as there are cores.
"""

import functools
import os
import sys
from importlib.metadata import version

import numpy as np
import torch
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import Context, FitIns, FitRes, Parameters, ndarrays_to_parameters
from flwr.server import ClientManager, ServerApp, ServerAppComponents, ServerConfig
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation
from protocols import PROTOCOLS, rows_of
from side import Marks, arguments, first_weights
from torch import nn
from with_torch import network, set_weights, tensors, train, weights_of


@functools.cache
def loaded(path: str, name: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Returns the model, images and labels: an actor of Ray reads them once, for all users that it
    trains."""
    torch.set_num_threads(1)
    problem = dict(np.load(path))
    model = network(PROTOCOLS[name], first_weights(problem))
    return model, *tensors(problem["images"], problem["labels"])


class User(NumPyClient):
    """Trains the user named by its instructions: Flower's server does not know a node's
    partition."""

    def __init__(self, path: str, name: str) -> None:
        self._path, self._name = path, name

    def fit(self, parameters: list[np.ndarray], config: dict) -> tuple[list[np.ndarray], int, dict]:
        """Returns the trained weights, and how many samples the user has."""
        protocol = PROTOCOLS[self._name]
        model, images, labels = loaded(self._path, self._name)
        set_weights(model, parameters)
        rows = rows_of(protocol, config["user"], len(labels))
        train(model, images[rows], labels[rows], protocol)
        return weights_of(model), len(rows), {}


class Cohorts(FedAvg):
    """FedAvg with the problem's cohorts [rounds, cohort]. A client that fails ends the
    simulation."""

    def __init__(self, cohorts: np.ndarray, **options) -> None:
        super().__init__(**options)
        self._cohorts = cohorts

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Assigns each of the round's users to a node."""
        users = self._cohorts[server_round - 1].tolist()
        nodes = client_manager.sample(len(users))
        return [(node, FitIns(parameters, {"user": user})) for node, user in zip(nodes, users)]

    def aggregate_fit(
        self, server_round: int, results: list[tuple[ClientProxy, FitRes]], failures: list
    ) -> tuple[Parameters | None, dict]:
        """Returns the mean of the models, weighted by samples, which are as many for each user."""
        if failures:
            raise RuntimeError(failures[0])
        return super().aggregate_fit(server_round, results, failures)


def main() -> None:
    """Plays the protocol, see `side`."""
    protocol, problem, rounds, answer = arguments()
    name, path = sys.argv[1], os.path.abspath(sys.argv[2])
    marks = Marks()

    def mark(server_round: int, weights: list[np.ndarray], config: dict) -> None:
        if server_round:  # 0 is before the first
            marks(lambda: weights)

    def server(context: Context) -> ServerAppComponents:
        strategy = Cohorts(
            problem["cohorts"],
            fraction_evaluate=0.0,
            initial_parameters=ndarrays_to_parameters(first_weights(problem)),
            evaluate_fn=mark,
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds + 1))

    def client(context: Context) -> NumPyClient:
        return User(path, name).to_client()

    run_simulation(
        ServerApp(server_fn=server),
        ClientApp(client),
        num_supernodes=protocol.users,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": len(os.sched_getaffinity(0)), "include_dashboard": False},
        },
    )
    versions = f"flwr {version('flwr')}, ray {version('ray')}, torch {torch.__version__}"
    marks.write(rounds, answer, versions)


if __name__ == "__main__":
    # As a module that Ray's actors can import: they would unpickle what a script defines, the cache
    # with it.
    import with_flower

    with_flower.main()
