"""One client with two images of each of 100 classes of Tiny-ImageNet learns from natural images.

    fedjax-ht run --config=tiny_imagenet_few_shot_fedktl
    fedjax-ht run --config=tiny_imagenet_few_shot_fedktl --config.method.options.mu=0.0
    fedjax-ht run --config=tiny_imagenet_few_shot_fedktl:method=local
    fedjax-ht run --config=tiny_imagenet_few_shot_fedktl:shots=9 --config.partition.seed=2

FedKTL's Table 9 with the generator of natural images and as many classes as CIFAR-100, none of
which the generator has seen: 2, 9 or 23 images of each (shots=9, shots=23), tested on the rest of
53 per class. Every `config.partition.seed` draws other images. Needs `tiny_imagenet_32.npz` in
`data/`.
"""

from experiments.configs import few_shot_fedktl
from experiments.configs.tiny_imagenet_fedktl import UNSEEN
from fedjax_ht.lab.config.base import apply_argument, method_config, partition_config
from fedjax_ht.lab.config.entries import preset


def get_config(argument=None):
    config = few_shot_fedktl.get_config()
    config.entries = (preset("fedktl:generator=natural_32"),)
    config.method = method_config("fedktl", generator="natural_32")
    config.dataset.name = "npz:tiny_imagenet_32.npz"
    config.dataset.classes = UNSEEN
    config.dataset.subset = 5_300
    set_shots(config, "2")
    config.rounds = 100
    config.evaluate.every = 10
    config.evaluate.patience = 0
    return apply_argument(config, argument, {"shots": set_shots}, rounds=1)


def set_shots(config, value):
    if not value.isdigit() or int(value) < 1:
        raise ValueError(f"shots is {value!r}; it must be an integer of at least 1")
    config.partition = partition_config("few_shot", num_clients=1, shots=int(value))
