r"""A setting of the leaderboard: twenty clients with few images each, two small architectures.

    fedjax-ht compare --config=leaderboard_images --fair=5 --trials=3 --methods=all --skip_unfit
    fedjax-ht compare --config=leaderboard_images:classes=4 --fair=5 --trials=3 --methods=all \
        --skip_unfit
    fedjax-ht compare --config=leaderboard_images:form=released --fair=5 --trials=3 \
        --methods=fedtgp,fedproto

A tenth of the embedded images of Fashion-MNIST is a public set, also for methods that use none. The
rest is split by Dirichlet(0.3), or, with classes=4, into four classes per client. A fifth of a
client's samples is for training, a fifth for validation and three fifths for testing; every trial
has its own split. Clients have perceptrons of two widths, and are scored after the newest downlink
and as their training left them. `form` gives methods another form, see `FORMS`. Results:
docs/leaderboard.md.
"""

from typing import Any

from fedjax_ht.check.names import unknown
from fedjax_ht.lab.config.base import apply_argument, base_config, method_config, partition_config
from fedjax_ht.lab.config.entries import preset

FORMS = {
    # as published code runs: all clients of an architecture also start from the same weights
    "released": ("fedtgp:variant=released", "fedproto:variant=released"),
    # without the first phase, on the labels of the public set
    "unlabelled": ("fedmd:public_per_round=1000:pretrain_epochs=0",),
    # local training after that phase: nothing that is sent is used
    "alone": ("fedmd:public_per_round=1000:digest_epochs=0",),
}
"""Name of a form -> the methods that have it, with its settings."""
SHARES: dict[str, Any] = {"train_share": 0.2, "val_share": 0.2}


def get_config(argument=None, warmup=5):
    config = base_config()
    config.method = method_config("local")
    # Settings that these methods need here besides their papers': a generator of other data, a
    # warm-up that ends before the first settings are dropped, and no more public samples per round
    # than there are.
    config.entries = (
        preset("fedktl:generator=natural_32:latents=spread"),
        preset(f"fedl2g:warmup={warmup}"),
        preset("fedmd:public_per_round=1000"),
    )
    config.dataset.name = "fashion_mnist_10k"
    config.dataset.public = "hold_out:0.1"
    config.partition = partition_config("practical", alpha=0.3, **SHARES)
    config.partition.per_trial = True
    config.model.group = "mlp2"
    config.training.learning_rate = 0.05
    config.trials = 3
    config.scoring.state = "both"
    config.rounds = 40
    config.evaluate.every = 5
    return apply_argument(config, argument, SETTERS, rounds=2, trials=1)


def set_classes(config, value):
    """Deals every client images of so many classes."""
    if not value.isdigit():
        raise ValueError(f"classes is {value!r}; it must be an integer, such as 4")
    config.partition = partition_config("pathological", classes_per_client=int(value), **SHARES)
    config.partition.per_trial = True


def set_form(config, value):
    """Gives the methods of a form its settings."""
    if value not in FORMS:
        raise ValueError(unknown("form", value, FORMS))
    config.entries = (*config.entries, *map(preset, FORMS[value]))
    config.shared_init = value == "released"


SETTERS = {"classes": set_classes, "form": set_form}
