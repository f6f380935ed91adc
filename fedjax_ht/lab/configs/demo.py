"""Local training, LG-FedAvg and FedSSA, equally tuned, among clients with few samples.

    fedjax-ht compare --config=demo

It shows what working together is worth. Twenty clients with five architectures, four classes each
and some hundred images to train on; three trials, each with a seed and a split of its own. Of nine
settings a method, the best was chosen by validation on the first of these splits
(few_samples.py:classes=4).
"""

from fedjax_ht.lab.config.base import apply_argument
from fedjax_ht.lab.config.entries import only
from fedjax_ht.lab.configs import few_samples


def get_config(argument=None):
    config = few_samples.get_config("classes=4")
    config = only(config, ("local@tuned", "lg_fedavg@tuned", "fedssa@tuned"))
    config.trials = 3
    return apply_argument(config, argument, rounds=2, trials=1)
