"""Plays a protocol by pfl-research's FederatedAveraging on its SimulatedBackend, on one thread."""

from importlib.metadata import version

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from protocols import rows_of
from side import Marks, arguments, first_weights
from torch import nn
from with_torch import network, tensors, weights_of


class Classifier(nn.Module):
    """The protocol's model with the functions that pfl asks of a module."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Returns the mean cross entropy of a batch."""
        return nn.functional.cross_entropy(self.layers(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict:
        """Returns no metrics: pfl evaluates the users of round 0 in any case."""
        return {}


class MarkRounds(TrainingProcessCallback):
    """Marks the end of each round."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Continues the training."""
        self._marks(lambda: weights_of(model.pytorch_model))
        return False, Metrics()


def main() -> None:
    """Plays the protocol, see `side`."""
    protocol, problem, rounds, answer = arguments()
    torch.set_num_threads(1)
    images, labels = tensors(problem["images"], problem["labels"])

    def dataset(user: int) -> PyTorchTensorDataset:
        rows = rows_of(protocol, user, len(labels))
        return PyTorchTensorDataset((images[rows], labels[rows]), user_id=str(user))

    classifier = Classifier(network(protocol, first_weights(problem)))
    # The cohorts one after another: pfl draws a round's users one by one.
    users = FederatedDataset(dataset, problem["cohorts"].flat.__next__)
    marks = Marks()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds + 1,
            evaluation_frequency=rounds + 1,
            train_cohort_size=protocol.cohort,
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=users, val_data=users),
        PyTorchModel(
            classifier,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(classifier.parameters(), lr=1.0),
        ),
        NNTrainHyperParams(
            local_num_epochs=protocol.epochs,
            local_learning_rate=protocol.learning_rate,
            local_batch_size=protocol.batch_size,
        ),
        callbacks=[MarkRounds(marks)],
        send_metrics_to_platform=False,
    )
    marks.write(rounds, answer, f"pfl {version('pfl')}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
