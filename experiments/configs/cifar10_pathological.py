r"""FedTGP and FedProto, each in both forms, on CIFAR-10 with two classes per client.

    fedjax-ht compare --config=cifar10_pathological
    fedjax-ht run --config=cifar10_pathological:method=fedtgp \
        --config.method.options.variant=released

20 clients of CNN-1..5; the second command runs one method alone. cifar10_practical.py, next to this
file, explains the forms. FedTGP's and FedKTL's Table 1 have this split with other models.

The whole run has not been recorded yet. Needs CIFAR-10 (python version) in `data/`.
"""

from experiments.configs.cifar10_practical import setting
from fedjax_ht.lab.config.base import partition_config


def get_config(argument=None):
    return setting(partition_config("pathological", classes_per_client=2), argument)
