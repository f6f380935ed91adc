"""Model-heterogeneous federated learning in JAX: the public names."""

from fedjax_ht.core.federation import Bucket, Federation, make_federation, make_sliced_federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import ClientInfo, Context, Data, Method, Received
from fedjax_ht.core.wire import Masked, Metadata, wire_elements
from fedjax_ht.data.client_data import make_federation_data
from fedjax_ht.data.dataset import ClientIndices, Dataset
from fedjax_ht.data.partition import make_partition
from fedjax_ht.data.sources import load_dataset
from fedjax_ht.generators import open_generator
from fedjax_ht.methods import METHODS, fedavg, fedproto, fedtgp, local
from fedjax_ht.models import SplitModel, model_group, sliced_network
from fedjax_ht.simulation.history import best, by_trial, run
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import Simulation, SimulationState, make_simulation, make_trials

__all__ = [
    "METHODS",
    "Bucket",
    "ClientIndices",
    "ClientInfo",
    "Context",
    "Data",
    "Dataset",
    "Federation",
    "LocalTraining",
    "Masked",
    "Metadata",
    "Method",
    "Received",
    "Simulation",
    "SimulationOptions",
    "SimulationState",
    "SplitModel",
    "best",
    "by_trial",
    "fedavg",
    "fedproto",
    "fedtgp",
    "load_dataset",
    "local",
    "make_federation",
    "make_federation_data",
    "make_partition",
    "make_simulation",
    "make_sliced_federation",
    "make_trials",
    "model_group",
    "open_generator",
    "run",
    "sliced_network",
    "wire_elements",
]
