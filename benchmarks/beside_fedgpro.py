"""Repeats public runs of PFLlib's algorithms on the client folders that come with them.

    python -m benchmarks.beside_fedgpro --folder=PATH/dataset/Uci [--methods=FedAvg] [--seeds=5]

PATH is a checkout of github.com/lidengjiajia/EuropeJournalOfOrperationResearch-FedGpro (6fd3c67), a
fork of PFLlib: ten clients with rows of the UCI credit card set, all of which take part in 100
rounds of five epochs. Its runs are in system/results/Uci_METHOD_feature/*.h5, each an array
rs_test_acc: five repetitions from one start. Ours have a seed each.
"""

import flax.linen as nn
import jax
import numpy as np
import optax
from absl import app, flags

import fedjax_ht as fl
from benchmarks.report import machine
from fedjax_ht.lab.cli import parse_flags
from fedjax_ht.models.layers import Norm

_FOLDER = flags.DEFINE_string("folder", None, "The folder with train/ and test/.", required=True)
_METHODS = flags.DEFINE_list("methods", ["FedAvg", "FedProx", "FedMoon", "FedRep"], "Methods.")
_SEEDS = flags.DEFINE_integer("seeds", 5, "Runs of a method.")

TRAINING = fl.LocalTraining(optax.sgd(0.005), batch_size=64, epochs=5, drop_remainder=True)
METHODS = {
    "FedAvg": fl.fedavg(TRAINING),
    "FedProx": fl.fedprox(TRAINING, mu=0.2),
    "FedMoon": fl.moon(TRAINING, mu=1.0, tau=1.0),
    "FedRep": fl.fedrep(TRAINING, head_epochs=1),
}
HE_OUT = nn.initializers.variance_scaling(2.0, "fan_out", "normal")


class Extractor(nn.Module):
    """The fork's CreditNet without its last layer."""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False, mask: jax.Array | None = None):
        for width, rate in ((32, 0.4), (16, 0.2)):
            x = nn.relu(Norm()(nn.Dense(width, kernel_init=HE_OUT)(x), train, mask))
            x = nn.Dropout(rate)(x, deterministic=not train)
        return x


def last_accuracies(folder: str, method: fl.Method, seeds: int) -> list[float]:
    """Returns each run's accuracy in percent after 100 rounds, over all clients' test samples."""
    dataset = fl.load_dataset(f"client_folders:{folder}")
    model = fl.SplitModel(Extractor(), nn.Dense(2, kernel_init=HE_OUT), stateful=True)
    clients = len(dataset.clients or ())
    federation = fl.make_federation({"credit": model}, dataset.input_shape, 2, num_clients=clients)
    partition = fl.make_partition("given", dataset, clients, seed=0)
    data = fl.make_federation_data(dataset, partition, federation)
    accuracies = []
    for seed in range(seeds):
        options = fl.SimulationOptions(seed=seed, shared_init=True)
        simulation = fl.make_simulation(method, federation, data, options)
        _, history = fl.run(simulation, rounds=100, eval_every=100)
        accuracies.append(100 * history[-1]["accuracy_weighted"])
    return accuracies


def main(_) -> None:
    print(machine())
    for name in _METHODS.value:
        values = last_accuracies(_FOLDER.value, METHODS[name], _SEEDS.value)
        spread = np.std(values, ddof=1) if len(values) > 1 else 0
        shown = ", ".join(f"{value:.2f}" for value in values)
        print(f"{name}: {np.mean(values):.2f} ± {spread:.2f} % ({shown})", flush=True)


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
