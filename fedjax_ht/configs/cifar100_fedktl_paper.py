"""FedKTL as its paper runs it (Table 1, Dirichlet 0.1): CIFAR-100, 20 clients of HtFE8, 1,000 rounds, StyleGAN-XL.

    fedjax-ht run --config=cifar100_fedktl_paper
    fedjax-ht run --config=cifar100_fedktl_paper:method=fedproto  (or another)

Needs CIFAR-100 in `data/` and the authors' StyleGAN-XL of ImageNet at 64 pixels, which its authors publish as
imagenet64.pkl, at `checkpoints/imagenet64.pkl` or wherever --config.method.options.generator says. It has not been run:
neither the file nor a GPU was at hand. The paper reports 46.94 % (best round, mean of three trials: seeds 0, 1 and 2).
"""

from fedjax_ht.configs.base import apply_argument, base_config, method_config, partition_config


def get_config(argument=None):
    config = base_config()
    config.given = ("fedktl:generator=checkpoints/imagenet64.pkl",)
    config.method = method_config("fedktl", generator="checkpoints/imagenet64.pkl")
    config.dataset.name = "cifar100"
    config.partition = partition_config("practical", alpha=0.1)
    config.model.group = "htfe8"
    config.rounds = 1000
    config.evaluate.every = 10
    return apply_argument(config, argument, rounds=1)
