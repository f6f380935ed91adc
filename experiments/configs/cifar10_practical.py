r"""FedTGP and FedProto, each in both forms, on CIFAR-10 with Dirichlet 0.1.

    fedjax-ht compare --config=cifar10_practical
    fedjax-ht compare --config=cifar10_practical --config.shared_init=True \
        --methods=fedproto:variant=released,fedtgp:variant=released
    fedjax-ht run --config=cifar10_practical:method=fedtgp --config.method.options.variant=released

20 clients of CNN-1..5; the last command runs one method alone. FedTGP's and FedKTL's Table 1 have
this split with other models, all 60,000 images and 1,000 rounds. The two forms differ in how
strongly, and along what, clients are pulled to the global prototypes:

    fedtgp, fedproto      the paper's text: Euclidean distance of class means, lambda 0.1
    fedtgp:variant=released, fedproto:variant=released
                          the released code: mean square between sample and prototype, lambda 10

FedTGP's authors' script has lambda 10, and their code starts clients of one architecture from the
same weights, so the published numbers belong to the second form with `shared_init`. Each trial has
its own split. Results and discussion: experiments/results/fedtgp.md.

Needs CIFAR-10 (python version) in `data/`.
"""

from fedjax_ht.lab.config.base import apply_argument, base_config, partition_config

# beside FedTGP
FORMS = ("local", "fedproto", "fedproto:variant=released", "fedtgp:variant=released")


def get_config(argument=None):
    return setting(partition_config("practical", alpha=0.1), argument)


def setting(partition, argument):
    config = base_config()
    config.dataset.name = "cifar10"
    config.partition = partition
    config.rounds = 100
    config.evaluate.every = 5
    if "method=" not in (argument or ""):
        config.entries = FORMS
    config = apply_argument(config, argument, rounds=1)
    config.partition.per_trial = True
    return config
