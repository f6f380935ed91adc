"""Plays a protocol by FL-bench's FedAvg server and client.

It uses FL-bench's serial mode on one core, else its parallel mode with a Ray worker per core.
"""

import json
import os
import pickle
import subprocess
import tempfile
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from protocols import Protocol, rows_of
from side import Marks, arguments, first_weights
from src.server import fedavg
from src.utils.functional import parse_args
from src.utils.models import DecoupledModel
from torch import nn
from torch.utils.data import DataLoader
from with_torch import network, tensors, weights_of

CHECKOUT = Path(fedavg.FLBENCH_ROOT)
DATASET = "images"  # not one of FL-bench's own, which it would normalise


class Classifier(DecoupledModel):
    """The protocol's model, cut before its head as FL-bench's models are."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.base, self.classifier = layers[:-1], layers[-1]


class Client(fedavg.FedAvgClient):
    """FL-bench's client with a loader that keeps the stored order."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.trainloader = DataLoader(self.trainset, batch_size=self.args.common.batch_size)


class Server(fedavg.FedAvgServer):
    """FL-bench's server; it marks the end of each round."""

    client_cls = Client
    marks: Marks

    def train_one_round(self) -> None:
        """Trains the round's users and averages their models."""
        super().train_one_round()
        self.marks(lambda: weights_of(self.model))


def config(protocol: Protocol, rounds: int, folder: str) -> DictConfig:
    """Returns FL-bench's default config with the protocol's values, and nothing scored or saved.

    It starts Ray if there is more than one core.
    """
    cores = len(os.sched_getaffinity(0))
    changes = {
        "dataset.name": DATASET,
        "mode": "serial" if cores == 1 else "parallel",
        "parallel.num_workers": cores,
        "parallel.num_cpus": cores,
        # Its parallel mode asks Ray for a GPU's name; without GPUs none uses this one.
        "parallel.num_gpus": 1,
        "optimizer.lr": protocol.learning_rate,
        "common.global_epoch": rounds + 1,
        "common.local_epoch": protocol.epochs,
        "common.batch_size": protocol.batch_size,
        "common.client_side_evaluation": False,
        "common.test.client.interval": -1,
        "common.test.client.test": False,
        "common.use_cuda": False,
        "common.save_log": False,
        "common.save_learning_curve_plot": False,
        "common.save_metrics": False,
        "hydra.runtime.output_dir": folder,
    }
    with initialize_config_dir(str(CHECKOUT / "config"), version_base=None):
        overrides = [f"{key}={value}" for key, value in changes.items()]
        composed = compose("defaults", overrides, return_hydra_config=True)
    HydraConfig.instance().set_config(composed)
    return parse_args(composed, "fedavg", None)


def write_partition(folder: Path, protocol: Protocol, samples: int) -> None:
    """Writes the users' training samples where FL-bench's generate_data.py would."""
    users = list(range(protocol.users))
    indices = []
    for user in users:
        indices.append({"train": rows_of(protocol, user, samples), "val": [], "test": []})
    separation = {"train": users, "val": [], "test": [], "total": protocol.users}
    target = folder / "data" / DATASET
    target.mkdir(parents=True)
    with open(target / "partition.pkl", "wb") as file:
        pickle.dump({"data_indices": indices, "separation": separation}, file)
    (target / "args.json").write_text(json.dumps({"split": "sample"}))


def main() -> None:
    """Plays the protocol, see `side`."""
    protocol, problem, rounds, answer = arguments()
    torch.set_num_threads(1)
    images, labels = tensors(problem["images"], problem["labels"])

    def dataset(root: Path, args: DictConfig, **transforms) -> fedavg.BaseDataset:
        classes = list(range(protocol.network.classes))
        return fedavg.BaseDataset(images, labels, classes, **transforms)

    fedavg.DATASETS[DATASET] = dataset
    with tempfile.TemporaryDirectory(prefix="flbench") as folder:
        write_partition(Path(folder), protocol, len(labels))
        # The server would look for the partition in the checkout.
        fedavg.FLBENCH_ROOT = Path(folder)
        server = Server(config(protocol, rounds, folder), init_trainer=False, init_model=False)
        server.init_model(Classifier(network(protocol, first_weights(problem))))
        server.init_trainer()
    server.client_sample_stream = problem["cohorts"].tolist()
    server.marks = Marks()
    server.run_experiment()
    commit = subprocess.check_output(
        ["git", "-C", str(CHECKOUT), "rev-parse", "--short=7", "HEAD"], text=True
    )
    server.marks.write(rounds, answer, f"FL-bench {commit.strip()}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
