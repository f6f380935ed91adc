r"""FedSSA's and FedRAL's small setting on CIFAR-10: 100 clients of CNN-1..5, two classes each.

    fedjax-ht run --config=cifar10_class_shares:method=fedral
    fedjax-ht run --config=cifar10_class_shares:method=fedssa,clients=50
    fedjax-ht run --config=cifar10_class_shares:method=fedssa,recipe=released
    fedjax-ht run --config=cifar10_class_shares:method=fedssa,dataset=cifar100
    # each client's own samples 8:1:1, as the papers' texts say
    ... --config.partition.options.sets=merged

The authors of FedClassAvg train with another optimizer:

    ...:method=fedclassavg --config.training.optimizer=adam --config.training.learning_rate=1e-4 \
        --config.training.beta1=0.5

FedSSA, Table 2, and FedRAL, Table 3 (column "pathological"): pFedHN's class shares of 40,000
training, 10,000 validation and 10,000 test images, with flips, erasing and crops. Ten clients take
part in a round: `clients=10` is all of them, `clients=50` a fifth. As in the authors' code, all
clients of one architecture start from the same weights. The score to compare with their tables is
`accuracy_participants`, that of a round's freshly trained participants; `accuracy` is the mean over
all clients. `dataset=cifar100` is the papers' columns of CIFAR-100: ten classes per client, and
otherwise as here.

`recipe=` sets the training:

    recipe=paper          the papers' texts: SGD at 0.01, batches of 64, one epoch (the default)
    recipe=searched       the same at 0.1
    recipe=small_batches  SGD at 0.01, batches of 10, without the last short batch
    recipe=released       FedSSA's released code: 25 epochs in batches of 512, SGD at 0.005 with
                          momentum 0.9, weight decay 5e-5, gradients clipped at 50, pixels
                          normalised by ImageNet's moments

Both texts fix plain SGD at 0.01. They search batches of 64 to 512 (FedRAL also 32), 1 or 10 local
epochs, 100 or 500 rounds and each method's own options, so `paper` is one point of their grid.
`searched` is the point chosen by validation on CIFAR-10 among batches of 64 and 512 and rates of
0.01 to 0.3, after 152 rounds, for all searched methods except FedProto (0.03). Its rate and the
batches of `small_batches` are outside the papers' grid. FedRAL has 5 x 5 blocks, and other options
have their defaults.

The released recipe also sets FedSSA's T_stable in global rounds: 2 if all clients take part, and 45
otherwise. The code has values for ten of 10 and ten of 50 clients, none for ten of 100. FedSSA's
Table 1, one model for all, is

    ...:method=fedssa,recipe=released --config.model.group=fedssa_cnn1 --config.training.epochs=10

with the ten epochs of the authors' script. FedRAL's code was not available.

Each trial has its own split. `--config.partition.per_trial=False` gives all the same.

Results and discussion: experiments/results/class_shares.md. Needs CIFAR-10, or CIFAR-100 (python
version), in `data/`.
"""

from fedjax_ht.lab.config.base import (
    apply_argument,
    base_config,
    method_config,
    partition_config,
)
from fedjax_ht.lab.config.entries import preset

PARTICIPANTS = 10  # per round, however many clients there are
CLASSES = {"cifar10": 2, "cifar100": 10}  # per client, by data set

PAPER = {"learning_rate": 0.01, "batch_size": 64, "drop_remainder": False}
"""Fields of `training` at a point of the papers' grid."""

SEARCHED = {"learning_rate": 0.1, "batch_size": 64, "drop_remainder": False}
"""Fields of `training` chosen by a search with validation."""

SMALL_BATCHES = {"learning_rate": 0.01, "batch_size": 10, "drop_remainder": True}
"""Fields of `training` in most earlier runs."""

RELEASED = {
    "learning_rate": 0.005,
    "momentum": 0.9,
    "weight_decay": 5e-5,
    "clip_norm": 50.0,
    "batch_size": 512,
    "epochs": 25,  # the script for one architecture: 10
    "drop_remainder": False,
}
"""Fields of `training` by which FedSSA's released script for five architectures trains."""

RECIPES = {
    "paper": PAPER,
    "searched": SEARCHED,
    "small_batches": SMALL_BATCHES,
    "released": RELEASED,
}


def get_config(argument=None):
    return setting("cifar10", fedral_blocks=100, argument=argument, dataset=set_dataset)


def set_dataset(config, value):
    if value not in CLASSES:
        raise ValueError(f"dataset is {value!r}; it must be {' or '.join(CLASSES)}")
    config.dataset.name = value
    if "classes_per_client" in config.partition.options:
        config.partition.options.classes_per_client = CLASSES[value]


def set_clients(config, value):
    if not value.isdigit() or not int(value):
        raise ValueError(
            f"clients is {value!r}; it must be a positive integer, such as 10, 50 or 100"
        )
    config.partition.num_clients = int(value)
    config.participation = min(1.0, PARTICIPANTS / int(value))


def set_recipe(config, value):
    if value not in RECIPES:
        raise ValueError(f"recipe is {value!r}; it must be one of {', '.join(RECIPES)}")
    config.training.update(RECIPES[value])
    # the code lacks Fashion-MNIST, whose pixels stay as they are
    if value == "released" and config.dataset.name != "fashion_mnist":
        config.dataset.normalisation = "imagenet"


def method_options(config, fedral_blocks):
    """Returns the method options that the setting fixes, by the method's name."""
    options = {
        "fedral": {"blocks": fedral_blocks},  # 5 x 5 numbers each
        "fedkd": {"rounds": config.rounds},  # T reaches its end within the run
    }
    is_released = all(getattr(config.training, field) == value for field, value in RELEASED.items())
    if is_released:
        everybody = config.participation == 1.0
        options["fedssa"] = {"clock": "round", "stable_rounds": 2 if everybody else 45}
    return options


def setting(dataset_name, fedral_blocks, argument, **setters):
    """Returns the setting on a data set.

    Args:
      dataset_name: name of the data set.
      fedral_blocks: FedRAL's option `blocks`.
      argument: argument of the config, see `apply_argument`.
      **setters: further setters of `apply_argument`, besides clients= and recipe=.
    """
    config = base_config()
    config.method = method_config("fedssa")
    config.dataset.name = dataset_name
    config.partition = partition_config(
        "class_shares", num_clients=100, classes_per_client=2, val_size=10_000
    )
    config.training.update(PAPER)
    config.training.augmentation = ("flip", "random_erasing", "mean_padded_crop")
    config.participation = 0.1
    config.shared_init = True
    config.rounds = 500
    config.evaluate.every = 10
    config.scoring.state = "trained"
    arguments = {"clients": set_clients, "recipe": set_recipe, **setters}
    config = apply_argument(config, argument, arguments, rounds=1)
    config.partition.per_trial = True
    options = method_options(config, fedral_blocks)
    config.entries = tuple(preset(method, **fixed) for method, fixed in options.items())
    config.method = method_config(config.method.name, **options.get(config.method.name, {}))
    return config
