"""A setting of the leaderboard: twenty clients with slices of three widths of one small network.

    fedjax-ht compare --config=leaderboard_slices --fair=5 --trials=3 --methods=all --skip_unfit

The images, public set and splits of leaderboard_images.py. Clients have the whole, the half or a
quarter of the channels of a 4-conv CNN and are scored as training left them, whatever they receive
next. Results: docs/leaderboard.md.
"""

from experiments.configs import leaderboard_images
from fedjax_ht.lab.config.base import apply_argument
from fedjax_ht.lab.config.entries import preset


def get_config(argument=None):
    config = leaderboard_images.get_config()
    # as there, but for a warm-up that ends before the first settings are left out, after 5 rounds
    config.entries = (
        preset("fedktl:generator=natural_32:latents=spread"),
        preset("fedl2g:warmup=3"),
        preset("fedmd:public_per_round=1000"),
    )
    config.model.group = "conv4_quarter"
    config.model.norm = "static_batch"
    config.model.rates = "1,0.5,0.25"
    config.scoring.state = "trained"
    config.rounds = 20
    setters = {"classes": leaderboard_images.set_classes, "form": leaderboard_images.set_form}
    return apply_argument(config, argument, setters, rounds=2, trials=1)
