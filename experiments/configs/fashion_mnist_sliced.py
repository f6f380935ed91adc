r"""FedRolex (or :method=heterofl, feddropout) in DFRD's setting on Fashion-MNIST: slices of a CNN.

    fedjax-ht run --config=fashion_mnist_sliced
    fedjax-ht run --config=fashion_mnist_sliced:method=fedrolex+dfrd
    fedjax-ht compare --config=fashion_mnist_sliced \
        --methods=heterofl,fedrolex,fedrolex+dfrd,fedrolex+fedftg,fedrolex+dense
    fedjax-ht run --config=fashion_mnist_sliced:method=fedavg --config.model.rates=1

DFRD (NeurIPS 2023): ten clients, Dirichlet(omega = 0.1), rho = 10, so nobody has more than half the
channels; all clients in every round, 20 steps of batch 64, SGD 0.01. DFRD's G.acc is the column
global_accuracy_head, and its L.acc is accuracy_train_weighted: the clients' own models after
training, weighted by their training samples.

Distillation is DFRD's, DENSE's or FedFTG's: ten times two steps of a generator and five of the
model, in every round. On their own, as :method=dfrd, they are data-free. DENSE's generator is given
the label here (merge="mul", as in one of the two released configs of DFRD's comparison). Without
it, labels drawn anew in every step ask for images of which the ensemble is unsure. The other config
is --config.method.options.merge=none, or fedrolex+dense:merge=none among --methods.
fashion_mnist_quarter.py, next to this file, has whole models of a quarter of the width, for a CPU.

`sweep` and `compare --fair` choose by held-out training samples,
--config.partition.options.val_share=0.2, and by the clients' own accuracy on them, which the
server's model does not affect if methods are data-free.

On one core of an AMD EPYC, a round took 5 s, with distillation 45 to 86 s, and scoring the whole
model on the 10,000 test images 25 s. Therefore only every fifth round is evaluated. Results and
discussion: experiments/results/dfrd.md. Needs the four files of Fashion-MNIST (idx,
gzipped or not) in `data/`.
"""

from fedjax_ht.lab.config.base import (
    apply_argument,
    base_config,
    method_config,
    partition_config,
)
from fedjax_ht.lab.config.entries import preset
from fedjax_ht.methods.data_free.bases import BASES
from fedjax_ht.methods.registry import DISTILLING


def get_config(argument=None):
    config = base_config()
    config.method = method_config("fedrolex")
    config.rounds = 100
    config.dataset.name = "fashion_mnist"
    config.dataset.image_size = 32
    config.partition = partition_config("dfrd", num_clients=10, alpha=0.1)
    config.model.group = "conv4"
    config.model.norm = "static_batch"
    config.model.rates = "rho=10"
    config.training.batch_size = 64
    config.training.steps = 20
    config.evaluate.every = 5
    config.scoring.state = "trained"
    # divides the test sets, since the norms use the batch's statistics
    config.scoring.batch_size = 250
    return with_argument(config, argument)


def with_argument(config, argument, **shared):
    """Applies a config's argument, and the setting's options of distilling methods.

    Args:
      config: a config of DFRD's setting.
      argument: argument of the config, see `apply_argument`.
      **shared: options of all three methods, besides DENSE's merge="mul".
    """
    config = apply_argument(config, argument, rounds=1)
    fixed = {}
    for base in BASES:
        for distilling in DISTILLING:
            # Base "none" is the distilling method on its own.
            name = distilling if base == "none" else f"{base}+{distilling}"
            fixed[name] = dict(shared)
            if distilling == "dense":
                fixed[name]["merge"] = "mul"
    entries = []
    for name, options in fixed.items():
        if options:
            entries.append(preset(name, **options))
    config.entries = tuple(entries)
    if config.method.name in fixed:
        config.method.options.update(fixed[config.method.name])
    return config
