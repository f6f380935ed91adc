r"""A setting of the leaderboard: thirty persons with a phone, five architectures.

    fedjax-ht compare --config=leaderboard_sensors --fair=5 --trials=10 --methods=all --skip_unfit
    fedjax-ht compare --config=leaderboard_sensors:form=released --fair=5 --trials=10 \
        --methods=fedtgp,fedproto

The models and the recipe of quickstart_sensors.py, for all persons of `har_30persons`. Each person
does six activities twice: three fifths of the first time are for training and two fifths for
validation; the second time is for testing. That is 1,009, 659 and 1,682 windows. Trials differ only
in their seeds, since the persons are the split. Scores and `form` are as in leaderboard_images.py.
Results: docs/leaderboard.md.
"""

from experiments.configs import quickstart_sensors
from experiments.configs.leaderboard_images import set_form
from fedjax_ht.lab.config.base import apply_argument, method_config, partition_config
from fedjax_ht.lab.config.entries import preset


def get_config(argument=None):
    config = quickstart_sensors.get_config()
    config.method = method_config("local")
    # its paper's 50 rounds are more than the run has
    config.entries = (preset("fedl2g:warmup=3"),)
    config.dataset.name = "har_30persons"
    config.partition = partition_config(
        "natural", num_clients=30, tested="last", train_share=0.3, val_share=0.2
    )
    config.scoring.state = "both"
    config.trials = 10
    config.evaluate.every = 4
    return apply_argument(config, argument, {"form": set_form}, rounds=2, trials=1)
