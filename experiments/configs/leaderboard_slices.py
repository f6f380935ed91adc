"""A setting of the leaderboard: twenty clients with slices of three widths of one small network.

    fedjax-ht compare --config=leaderboard_slices --fair=5 --trials=3 --methods=all --skip_unfit

The images, public set and splits of leaderboard_images.py. Clients have all, half or a quarter of
the channels of a 4-conv CNN, and are scored as training left them, whatever they receive next.
Results: docs/leaderboard.md.
"""

from experiments.configs import leaderboard_images
from fedjax_ht.lab.config.base import apply_argument


def get_config(argument=None):
    config = leaderboard_images.get_config(warmup=3)  # the first settings end after 5 rounds
    config.model.group = "conv4_quarter"
    config.model.norm = "static_batch"
    config.model.rates = "1,0.5,0.25"
    config.scoring.state = "trained"
    config.rounds = 20
    return apply_argument(config, argument, leaderboard_images.SETTERS, rounds=2, trials=1)
