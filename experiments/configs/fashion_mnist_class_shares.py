"""FedSSA's and FedRAL's small setting on Fashion-MNIST: 100 clients, two classes each.

    fedjax-ht run --config=fashion_mnist_class_shares:method=fedral
    fedjax-ht run --config=fashion_mnist_class_shares:method=fedral,recipe=released

FedRAL, Table 3 (column "pathological"), on 50,000 training, 10,000 validation and 10,000 test
images, CNN-1..5, ten clients per round; otherwise as in cifar10_class_shares.py, next to this file,
including `recipe=`. FedSSA's released code lacks Fashion-MNIST, so pixels stay in [-1, 1] with
`recipe=released`.

Results and discussion: experiments/results/class_shares.md. Needs the four files of
Fashion-MNIST (idx, gzipped or not) in `data/`.
"""

from experiments.configs.cifar10_class_shares import setting


def get_config(argument=None):
    return setting("fashion_mnist", fedral_blocks=10, argument=argument)
