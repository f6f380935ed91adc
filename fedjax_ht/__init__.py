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
from fedjax_ht.methods import METHODS, method_factory
from fedjax_ht.methods.dense import dense
from fedjax_ht.methods.dfrd import dfrd
from fedjax_ht.methods.fd import fd
from fedjax_ht.methods.fedapen import fedapen
from fedjax_ht.methods.fedavg import fedavg
from fedjax_ht.methods.fedclassavg import fedclassavg
from fedjax_ht.methods.feddropout import feddropout
from fedjax_ht.methods.fedftg import fedftg
from fedjax_ht.methods.fedgen import fedgen
from fedjax_ht.methods.fedgh import fedgh
from fedjax_ht.methods.fedkd import fedkd
from fedjax_ht.methods.fedktl import fedktl
from fedjax_ht.methods.fedproto import fedproto
from fedjax_ht.methods.fedral import fedral
from fedjax_ht.methods.fedrolex import fedrolex
from fedjax_ht.methods.fedssa import fedssa
from fedjax_ht.methods.fedtgp import fedtgp
from fedjax_ht.methods.fml import fml
from fedjax_ht.methods.heterofl import heterofl
from fedjax_ht.methods.lg_fedavg import lg_fedavg
from fedjax_ht.methods.local import local
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
    "dense",
    "dfrd",
    "fd",
    "fedapen",
    "fedavg",
    "fedclassavg",
    "feddropout",
    "fedftg",
    "fedgen",
    "fedgh",
    "fedkd",
    "fedktl",
    "fedproto",
    "fedral",
    "fedrolex",
    "fedssa",
    "fedtgp",
    "fml",
    "heterofl",
    "lg_fedavg",
    "load_dataset",
    "local",
    "make_federation",
    "make_federation_data",
    "make_partition",
    "make_simulation",
    "make_sliced_federation",
    "make_trials",
    "method_factory",
    "model_group",
    "open_generator",
    "run",
    "sliced_network",
    "wire_elements",
]
