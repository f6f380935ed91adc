"""A federation with the numbers behind the papers' communication tables: CIFAR-100's 100 classes,
20 clients, 512 features. Models and images are as small as they can be, since neither is sent."""

import functools

import numpy as np
import optax

from fedjax_ht.core.federation import make_federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.data.client_data import arranged
from fedjax_ht.data.dataset import ClientIndices, Dataset, Partition
from fedjax_ht.models import SplitModel
from fedjax_ht.models.layers import Linear
from fedjax_ht.simulation.report import RoundReport
from fedjax_ht.simulation.simulation import make_simulation
from tests.tiny import Flat

CLASSES, CLIENTS, WIDTH = 100, 20, 512
HEAD = WIDTH * CLASSES + CLASSES
# every sample is seen
TRAINING = LocalTraining(optax.sgd(0.01), batch_size=32, drop_remainder=False)


@functools.cache
def samples() -> tuple[Dataset, Partition]:
    """One image for each class of a client; client i has classes 5 i and up, others by chance."""
    rng = np.random.default_rng(0)
    owned = [
        np.union1d(rng.integers(0, CLASSES, 60), np.arange(5 * i, 5 * i + 5))
        for i in range(CLIENTS)
    ]
    ends = np.cumsum([len(classes) for classes in owned])
    nothing = np.array([], int)
    partition = [
        ClientIndices(np.arange(end - len(classes), end), nothing, nothing)
        for classes, end in zip(owned, ends)
    ]
    labels = np.concatenate(owned).astype(np.int32)
    images = rng.integers(0, 256, (len(labels), 2, 2, 1), np.uint8)
    return Dataset("toy", images, labels, tuple(map(str, range(CLASSES)))), tuple(partition)


def sum_of_classes() -> int:
    """s, the clients' numbers of classes added up."""
    return len(samples()[0].labels)


def reports(method: Method, rounds: int = 2) -> list[RoundReport]:
    """Returns the reports of a method's first rounds in which everybody takes part.

    The tables count numbers of four bytes; what messages have beside them may add a hundredth.
    """
    model = SplitModel(Flat(WIDTH), Linear(CLASSES))
    federation = make_federation({"linear": model}, (2, 2, 1), CLASSES, num_clients=CLIENTS)
    dataset, partition = samples()
    simulation = make_simulation(method, federation, arranged(dataset, partition, federation))
    state, costs = simulation.init(), []
    for _ in range(rounds):
        state, report = simulation.run_round(state)
        for cost in (report.uplink, report.downlink):
            assert cost.payload_bytes == 4 * cost.payload_elements
            assert cost.bytes <= 1.01 * cost.payload_bytes or not cost.payload_elements
        costs.append(report)
    return costs
