"""Plays a protocol by BlazeFL's FedAvg.

It uses its sequential trainer on one core, and its pool with a thread per core on more.
"""

import copy
import os
from importlib.metadata import version

import numpy as np
import torch
from blazefl.contrib import (
    FedAvgBaseClientTrainer,
    FedAvgBaseServerHandler,
    FedAvgThreadPoolClientTrainer,
)
from protocols import Protocol, rows_of
from side import arguments, first_weights, play
from torch import nn
from torch.utils.data import DataLoader
from with_torch import network, tensors, weights_of


class Models:
    """Selects the protocol's model (BlazeFL's ModelSelector)."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def select_model(self, model_name: str) -> nn.Module:
        """Returns a copy: the server and the trainers each change theirs."""
        return copy.deepcopy(self._model)


class Users:
    """The users' samples (BlazeFL's PartitionedDataset)."""

    def __init__(self, protocol: Protocol, images: torch.Tensor, labels: torch.Tensor) -> None:
        self._protocol, self._images, self._labels = protocol, images, labels

    def get_dataloader(
        self, type_: str, cid: int, batch_size: int, generator: torch.Generator | None = None
    ) -> DataLoader:
        """Returns a user's batches in stored order.

        They are cut in advance: collating samples one by one would cost time that is the loader's,
        not BlazeFL's.
        """
        rows = rows_of(self._protocol, cid, len(self._labels))
        batches = zip(self._images[rows].split(batch_size), self._labels[rows].split(batch_size))
        return DataLoader(list(batches), batch_size=None)


class Server(FedAvgBaseServerHandler):
    """BlazeFL's server with the problem's cohorts."""

    cohorts: np.ndarray

    def sample_clients(self) -> list[int]:
        """Returns the users of the round."""
        return self.cohorts[self.round].tolist()


def main() -> None:
    """Plays the protocol, see `side`."""
    protocol, problem, rounds, answer = arguments()
    torch.set_num_threads(1)
    users = Users(protocol, *tensors(problem["images"], problem["labels"]))
    models = Models(network(protocol, first_weights(problem)))
    server = Server(
        model_selector=models,
        model_name="cnn",
        dataset=users,
        global_round=rounds + 1,
        num_clients=protocol.users,
        sample_ratio=protocol.cohort / protocol.users,
        device="cpu",
        batch_size=protocol.batch_size,
        seed=0,
    )
    server.cohorts = problem["cohorts"]
    options = {
        "model_selector": models,
        "model_name": "cnn",
        "dataset": users,
        "device": "cpu",
        "num_clients": protocol.users,
        "epochs": protocol.epochs,
        "batch_size": protocol.batch_size,
        "lr": protocol.learning_rate,
        "seed": 0,
    }
    cores = len(os.sched_getaffinity(0))
    if cores == 1:
        trainer = FedAvgBaseClientTrainer(**options)
    else:
        trainer = FedAvgThreadPoolClientTrainer(**options, num_parallels=cores)

    def one_round(number: int) -> None:
        trainer.local_process(server.downlink_package(), server.sample_clients())
        for package in trainer.uplink_package():
            server.load(package)
        assert server.round == number + 1

    versions = f"blazefl {version('blazefl')}, torch {torch.__version__}"
    play(one_round, lambda: weights_of(server.model), rounds, answer, versions)


if __name__ == "__main__":
    main()
