"""FedProto (or :method=local) with 10,000 clients of CNN-1..5, half a per cent of them per round.

    fedjax-ht run --config=many_clients

Every client trains on about six images of two classes of Fashion-MNIST and tests on about one:
pFedHN's class shares of the 60,000 training and 10,000 test images, without a validation set.
Client states stay in host memory, every evaluation scores the same 200 clients (160 of them have a
test image), and a checkpoint writes only the clients that changed.

An example of scale, not of accuracy: in 200 rounds a client takes part once on average. After 40 of
them the clients' own heads have risen from 11 to 22 %; nearest prototypes, the reported rule, stay
at chance, since features never align. Needs the four files of Fashion-MNIST (idx, gzipped or not)
in `data/`.
"""

from fedjax_ht.lab.config.base import apply_argument, base_config, method_config, partition_config


def get_config(argument=None):
    config = base_config()
    config.method = method_config("fedproto")
    config.dataset.name = "fashion_mnist"
    config.partition = partition_config(
        "class_shares", num_clients=10_000, classes_per_client=2, val_size=0
    )
    config.model.group = "cnn5"
    config.training.learning_rate = 0.05
    config.training.epochs = 10
    config.participation = 0.005
    config.client_store = "host"
    config.rounds = 200
    config.evaluate.every = 10
    config.evaluate.sample = 200
    config.checkpoint.every = 10
    return apply_argument(config, argument, rounds=2)
