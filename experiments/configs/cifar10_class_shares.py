"""FedSSA's and FedRAL's small setting on CIFAR-10: 100 clients of CNN-1..5, two classes a client, ten clients a round.

    python -m experiments.main --config=experiments/configs/cifar10_class_shares.py:method=fedral

FedSSA, Table 2, and FedRAL, Table 3 (column "pathological"): pFedHN's class shares of 40,000 training, 10,000
validation and 10,000 test images, flips, erasing and crops, plain SGD at 0.01. The papers search over batches of 32 to
512, 1 or 10 local epochs, 100 or 500 rounds and each method's own options. Nothing is searched here: batches of 10, one
epoch, at most 300 rounds and 100 without a new best mean on validation, the options below. Clients are scored as their
training left them, as the authors of FedSSA do.

Results and what they say: experiments/results/class_shares.md. Needs CIFAR-10 (python or binary version) in `data/`.
"""

from experiments.configs.base import apply_argument, base_config, method_config, partition_config


def get_config(argument=None):
    return setting("cifar10", fedral_blocks=100, argument=argument)


def setting(dataset, fedral_blocks, argument):
    config = base_config()
    config.method = method_config("fedssa")
    config.dataset.name = dataset
    config.partition = partition_config("class_shares", num_clients=100, classes_per_client=2, val_size=10_000)
    config.training.augmentation = ("flip", "random_erasing", "padded_crop")
    config.participation = 0.1
    config.rounds = 300
    config.evaluate.every = 10
    config.evaluate.mode = "trained"
    config.evaluate.patience = 10  # evaluations
    config = apply_argument(config, argument, rounds=1)
    # What a method's defaults do not suit: 5 x 5 blocks, T reaching its end within the run, and the authors' optimizer.
    own = {"fedral": {"blocks": fedral_blocks}, "fedkd": {"rounds": config.rounds}}
    config.method = method_config(config.method.name, **own.get(config.method.name, {}))
    if config.method.name == "fedclassavg":
        config.training.optimizer, config.training.learning_rate = "adam", 1e-3
    return config
