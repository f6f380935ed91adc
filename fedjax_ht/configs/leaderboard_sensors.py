"""A setting of the leaderboard: ten persons with a phone, five architectures.

    fedjax-ht compare --config=leaderboard_sensors --fair=5 --trials=3 --methods=all --skip_unfit

The windows, clients and models of quickstart_sensors.py, with 15 % of the first time for
validation. Results: docs/leaderboard.md.
"""

from fedjax_ht.configs import quickstart_sensors
from fedjax_ht.configs.base import apply_argument, method_config


def get_config(argument=None):
    config = quickstart_sensors.get_config()
    config.method = method_config("local")
    config.compare = ()
    config.tuned = ()
    config.tuned_on = ""
    config.given = ("fedl2g:warmup=3",)  # its paper's 50 rounds are more than the run has
    config.partition.options.val_share = 0.15
    config.trials = 3
    config.evaluate.every = 4
    return apply_argument(config, argument, rounds=2, trials=1)
