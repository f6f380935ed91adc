"""Eight methods among twenty clients with five architectures and some hundred training images each.

    fedjax-ht compare --config=few_samples --fair=9 --trials=6
    fedjax-ht compare --config=few_samples:classes=4 --fair=9 --trials=6

The embedded images by a Dirichlet(1.0) split, or, with classes=4, four classes a client. A fifth of
a client's samples trains, a fifth validates, three fifths test; every trial has a split of its own.
`@tuned` is what these commands' search chose. Results: experiments/results/comparisons.md.
"""

from typing import Any

from fedjax_ht.lab.config.base import apply_argument, base_config, method_config, partition_config
from fedjax_ht.lab.config.entries import preset

SHARES: dict[str, Any] = {"train_share": 0.2, "val_share": 0.2}
# What --fair=9 chose; of four classes local, lg_fedavg and fedssa in a second search, which left
# out settings in which a client stops being finite (local's 0.21).
TUNED = {
    "local": "local:training.learning_rate=0.11",
    "lg_fedavg": "lg_fedavg:training.learning_rate=0.11",
    "fedproto": "fedproto:training.learning_rate=0.21:weight=0.063",
    "fedtgp": "fedtgp:training.learning_rate=0.041:weight=1.8:tau=15",
    "fedssa": "fedssa:training.learning_rate=0.11:mu=0.71",
    "fedgen": "fedgen:training.learning_rate=0.041:alpha=7.4:beta=2.9",
    "fedclassavg": "fedclassavg",
    "fedktl": "fedktl:latents=spread:training.learning_rate=0.01:mu=2.6:server_lr=0.024",
}
TUNED_ON_FOUR_CLASSES = TUNED | {
    "fedtgp": "fedtgp",
    "fedssa": "fedssa:training.learning_rate=0.08:mu=0.93",
    "fedgen": "fedgen:training.learning_rate=0.01:alpha=0.32:beta=5",
}
SEARCHED = {
    "fedproto": ", weight from 0.01 to 10",
    "fedtgp": ", weight from 0.01 to 10, tau from 1 to 100",
    "fedssa": ", mu from 0 to 1",
    "fedgen": ", alpha from 0.1 to 30, beta from 0.1 to 30",
    "fedclassavg": ", mu from 0.01 to 1, temperature from 0.05 to 0.5",
    "fedktl": ", mu from 1 to 100, server_lr from 0.001 to 0.1",
}
HOW = (
    "9 settings, 120 rounds of training, by validation on 1 split of seed 1, seed 0; searched: "
    "training.learning_rate from 0.00625 to 0.4"
)


def get_config(argument=None):
    config = base_config()
    config.method = method_config("local")
    config.partition = partition_config("practical", alpha=1.0, **SHARES)
    config.partition.per_trial = True
    config.entries = entries(TUNED, config)
    config.training.learning_rate = 0.05
    config.rounds = 24
    config.evaluate.every = 6
    return apply_argument(config, argument, {"classes": set_classes}, rounds=2)


def set_classes(config, value):
    """Deals every client images of so many classes."""
    if not value.isdigit():
        raise ValueError(f"classes is {value!r}; it must be an integer, such as 4")
    config.partition = partition_config("pathological", classes_per_client=int(value), **SHARES)
    config.partition.per_trial = True
    config.entries = entries(TUNED_ON_FOUR_CLASSES if value == "4" else {}, config)


def entries(tuned, config):
    """Returns the methods beside local training, and their settings in `tuned`, which were searched
    on the config's data, split and models."""
    given = preset("fedktl:generator=natural_32:latents=spread")  # in which mu was searched
    presets = [given]
    for method, text in tuned.items():
        searched = HOW + SEARCHED.get(method, "")
        presets.append(preset(text, searched, {"fedktl": given}, on=config))
    return (*presets, *(method for method in TUNED if method != "local"))
