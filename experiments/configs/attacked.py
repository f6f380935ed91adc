"""Six methods among clients that attack, with or without a defence.

    fedjax-ht run --config=attacked:attack=sign_flip,share=0.3
    fedjax-ht run --config=attacked:attack=sign_flip,share=0.3,robust=median

Accuracies are those of the honest clients.

Twenty clients have some hundred images each of a Dirichlet(1.0) split of the embedded images. There
are three seeds with a split each, and the methods have their options, as in the config few_samples.
FedAvg's clients have one architecture, and FedRolex's slices of one network; neither was tuned.
`attack` and `robust` are as in fedjax_ht/trust/attacks.py and defences.py. Results:
experiments/results/attacked.md.
"""

from fedjax_ht.lab.config.base import apply_argument
from fedjax_ht.lab.config.entries import only
from fedjax_ht.lab.configs import few_samples

STRENGTHS = {"sign_flip": 5.0, "scaled": 100.0, "noise": 10.0, "shift": 3.0}
DEFENCES = {
    "none": (),
    "norm_bound": (("norm_bound", 2.0),),
    "median": (("norm_bound", 2.0), ("median",)),
    "trimmed_mean": (("norm_bound", 2.0), ("trimmed_mean", 0.3)),
    "geometric_median": (("norm_bound", 2.0), ("geometric_median",)),
    "multi_krum": (("norm_bound", 2.0), ("multi_krum", 0.3)),
}


def get_config(argument=None):
    config = few_samples.get_config()
    entries = (
        "local@tuned",
        "fedavg:model.group=conv4_quarter:model.norm=static_batch:training.learning_rate=0.11",
        "fedproto@tuned",
        "fedtgp@tuned",
        "fedssa@tuned",
        "fedrolex:model.group=conv4_quarter:model.norm=static_batch:model.rates=1,1/2,1/4"
        ":training.learning_rate=0.11",
    )
    config = only(config, entries)
    config.dataset.image_size = 16
    config.model.group = "mlp2"
    config.attack.seed = 1
    config.refuse_outliers = 0.0  # also a defence; only those in `robust` are compared
    config.trials = 3
    config.rounds = config.evaluate.every = 20
    arguments = {"attack": set_attack, "share": set_share, "robust": set_defence}
    return apply_argument(config, argument, arguments, rounds=2)


def set_attack(config, value):
    config.attack.kind, config.attack.strength = value, STRENGTHS.get(value, 1.0)


def set_share(config, value):
    config.attack.share = float(value)


def set_defence(config, value):
    config.robust = DEFENCES[value]
