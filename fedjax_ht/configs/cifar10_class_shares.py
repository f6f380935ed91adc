r"""FedSSA's and FedRAL's small setting on CIFAR-10: 100 clients of CNN-1..5, two classes a client, ten clients a round.

    fedjax-ht run --config=cifar10_class_shares:method=fedral
    fedjax-ht run --config=cifar10_class_shares:method=fedssa,clients=50
    ... --config.partition.options.sets=merged        # each client's own samples 8:1:1, as the papers' texts say

The authors of FedClassAvg train by another optimizer, which here is asked for:

    ...:method=fedclassavg --config.training.optimizer=adam --config.training.learning_rate=1e-4 \
        --config.training.beta1=0.5

FedSSA, Table 2, and FedRAL, Table 3 (column "pathological"): pFedHN's class shares of 40,000 training, 10,000
validation and 10,000 test images, flips, erasing and crops, plain SGD at 0.01. Ten clients take part in a round:
`clients=10` is all of them, `clients=50` a fifth. As in the authors' code, all clients of one architecture start from
the same weights, and the score to put beside their tables is `accuracy_participants`, that of a round's participants
freshly trained; the mean over all clients is `accuracy`.

The papers search over batches of 32 to 512, 1 or 10 local epochs, 100 or 500 rounds and each method's own options.
Nothing is searched here: batches of 10, one epoch, 500 rounds, the methods' defaults, and for FedRAL 5 x 5 blocks.

Results and what they say: experiments/results/class_shares.md. Needs CIFAR-10 (python or binary version) in `data/`.
"""

from fedjax_ht.configs.base import apply_argument, base_config, method_config, partition_config

PARTICIPANTS = 10  # of a round, however many clients there are


def get_config(argument=None):
    return setting("cifar10", fedral_blocks=100, argument=argument)


def set_clients(config, value):
    if not value.isdigit() or not int(value):
        raise ValueError(f"clients is {value!r}; it must be a positive integer, such as 10, 50 or 100")
    config.partition.num_clients = int(value)
    config.participation = min(1.0, PARTICIPANTS / int(value))


def setting(dataset, fedral_blocks, argument):
    config = base_config()
    config.method = method_config("fedssa")
    config.dataset.name = dataset
    config.partition = partition_config("class_shares", num_clients=100, classes_per_client=2, val_size=10_000)
    config.training.augmentation = ("flip", "random_erasing", "mean_padded_crop")
    config.participation = 0.1
    config.shared_init = True
    config.rounds = 500
    config.evaluate.every = 10
    config.evaluate.mode = "trained"
    config = apply_argument(config, argument, {"clients": set_clients}, rounds=1)
    # What a method's defaults do not suit: 5 x 5 blocks, and T reaching its end within the run.
    own = {"fedral": {"blocks": fedral_blocks}, "fedkd": {"rounds": config.rounds}}
    config.given = (f"fedral:blocks={fedral_blocks}", f"fedkd:rounds={config.rounds}")
    config.method = method_config(config.method.name, **own.get(config.method.name, {}))
    return config
