"""HeteroFL (or :method=fedrolex) as its authors run it: CIFAR-10, 100 clients, five widths.

    fedjax-ht run --config=cifar10_heterofl
    fedjax-ht run --config=cifar10_heterofl:method=fedrolex

The 4-conv CNN, two classes per client, a tenth of the clients per round, rates 1 to 1/16 in turn,
masked cross-entropy, batch 10, momentum 0.9, gradients clipped at norm 1. HeteroFL: five local
epochs at 0.1 (the authors divide it by ten after 300 and 500 of 800 rounds; here it is constant),
and the whole model is scored with statistics of all training data. FedRolex: one epoch at 0.0002,
and the statistics of the batch. Clients keep their rates; the authors' network lacks the last of
our four poolings.

The whole run has not been recorded yet. Needs CIFAR-10 (python version) in `data/`.
"""

from fedjax_ht.lab.config.base import apply_argument, base_config, method_config, partition_config


def get_config(argument=None):
    config = base_config()
    config.method = method_config("heterofl")
    config.rounds = 800
    config.dataset.name = "cifar10"
    config.partition = partition_config(
        "pathological", num_clients=100, classes_per_client=2, sets="official"
    )
    config.model.group = "conv4"
    config.model.norm = "static_batch"
    config.model.rates = "1,1/2,1/4,1/8,1/16"
    config.training.learning_rate = 0.1
    config.training.momentum = 0.9
    config.training.weight_decay = 5e-4
    config.training.clip_norm = 1.0
    config.training.epochs = 5
    config.training.augmentation = ("padded_crop", "flip")
    config.participation = 0.1
    config.evaluate.every = 10
    config.scoring.batch_size = 250
    config.scoring.global_statistics = "training"
    config = apply_argument(config, argument, rounds=1)
    if config.method.name.partition("+")[0] in ("heterofl", "feddropout", "fedrolex"):
        config.method.options.masked_loss = True
    if config.method.name == "fedrolex":
        config.update(
            {"training.epochs": 1, "training.learning_rate": 2e-4, "training.weight_decay": 1e-3}
        )
        config.scoring.global_statistics = "batch"
    return config
