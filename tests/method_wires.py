"""The methods as their contract is tested: settings that end soon, and what each sends, by its
paper's arithmetic."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tests.federations import (
    ASSIGNMENT,
    BATCH_SIZE,
    CLASSES,
    COMPOSED,
    FEATURE_DIM,
    NUM_CLASSES,
    RANKS,
    RATES,
    SHAPE,
    TRAIN_COUNTS,
    samples,
)
from tests.generators_tiny import LATENT_DIM, tiny_generator

SAMPLES = TRAIN_COUNTS.sum(1)
FLAT = int(np.prod(SHAPE))
HEAD_SIZE = FEATURE_DIM * NUM_CLASSES + NUM_CLASSES
NARROW_SIZE = FLAT * FEATURE_DIM + FEATURE_DIM + HEAD_SIZE
WIDE_EXTRACTOR = (FLAT + 1) * 6 + (6 + 1) * FEATURE_DIM
MODEL_SIZES = {"narrow": NARROW_SIZE, "wide": WIDE_EXTRACTOR + HEAD_SIZE}
INDEX = 4  # bytes of an int32


class Sent(NamedTuple):
    """Payload float32 elements of a round, of all clients."""

    up: int
    down: int


TINY_DISTILLATION = {
    "iterations": 2,
    "generator_steps": 1,
    "student_steps": 2,
    "batch_size": 6,
    "noise_dim": 4,
}

PUBLIC_SAMPLES = 6  # of the ten; a batch of them is short
ON_PUBLIC = {"public_per_round": PUBLIC_SAMPLES, "digest_batch_size": 4}

SETTINGS = {  # many batches a round, so that order could tell
    "fedtgp": {"server_batch_size": 3, "server_epochs": 10},
    "fedorgp": {"lambda_c": 3.0, "server_batch_size": 3, "server_epochs": 10},
    # Losses not so steep that prototypes grow large.
    "fedktl": {
        "generator": tiny_generator(),
        "server_batch_size": 6,
        "server_epochs": 3,
        "scale": 2.0,
        "mu": 0.5,
    },
    "fedgh": {"server_batch_size": 3, "server_epochs": 10},
    "fedgen": {"noise_dim": 4, "hidden_dim": 8, "server_steps": 10},
    "fedkd": {"start": 1.0, "end": 1.0},  # the wire is then known beforehand
    "fedbuff": {"buffer": 2},  # a round's uploads fill it
    "fedl2g": {"warmup": 0, "study_batches": 4},  # all of what a client studies
    "fedmd": ON_PUBLIC | {"pretrain_epochs": 1},
    "dsfl": ON_PUBLIC,
    "ktpfl": ON_PUBLIC,
    "fedhenn": {"public_per_round": PUBLIC_SAMPLES},
    "pfedes": {"extra_epochs": 1},
    "hetlora": {"min_rank": 3},  # the wire is then known beforehand
    # few samples: rounding grows by the inverse of these
    "afl": {"ridge": 0.1},
    "fedcgs": {"shrinkage": 0.1},
    "fedpft": {"server_lr": 0.01, "server_epochs": 20},
    "fedapen": {"adapt_every": 4},  # no client has twenty samples
    "dense": TINY_DISTILLATION,
    "fedftg": TINY_DISTILLATION,
    "dfrd": TINY_DISTILLATION,
    # a control that sees the clients' data
    "heterofl+dfrd": TINY_DISTILLATION | {"images": "real"},
}


def settings(name: str) -> dict:
    """Returns the options of a method or a composition; a composition without an entry has those of
    the method that it puts on a base."""
    return SETTINGS.get(name, SETTINGS.get(name.split("+")[-1], {}))


Wire = Callable[..., Sent]
"""(participants, those that arrived, those that arrived in each earlier round) -> what the papers'
arithmetic gives."""


def both_ways(size: Callable[[int], int]) -> Wire:
    """Makes the wire of methods whose clients send and are sent as many numbers, in every round."""
    return lambda participants, arrived, earlier: Sent(
        sum(map(size, arrived)), sum(map(size, participants))
    )


def of_size(size: int) -> Wire:
    return both_ways(lambda i: size)


def model_size(i: int) -> int:
    return MODEL_SIZES[ASSIGNMENT[i]]


model_wire = both_ways(model_size)  # the whole model of either architecture


def fedbabu_wire(participants, arrived, earlier) -> Sent:
    """Extractors up, models down."""
    up = sum(model_size(i) - HEAD_SIZE for i in arrived)
    return Sent(up, sum(map(model_size, participants)))


def prototypes_up(arrived) -> int:
    return FEATURE_DIM * sum(len(CLASSES[i]) for i in arrived)


def fedproto_wire(participants, arrived, earlier) -> Sent:
    existing = set().union(*(CLASSES[i] for i in earlier[-1])) if earlier else set()
    return Sent(prototypes_up(arrived), FEATURE_DIM * len(existing) * len(participants))


def fedtgp_wire(participants, arrived, earlier) -> Sent:
    down = FEATURE_DIM * NUM_CLASSES * bool(earlier) * len(participants)
    return Sent(prototypes_up(arrived), down)


def fedsa_anchors_wire(participants, arrived, earlier) -> Sent:
    """All anchors, and the mean of every class that ever came."""
    heard = set().union(*(CLASSES[i] for ids in earlier for i in ids))
    down = FEATURE_DIM * (NUM_CLASSES + len(heard)) * len(participants)
    return Sent(prototypes_up(arrived), down)


def fedktl_wire(participants, arrived, earlier) -> Sent:
    """Prototypes as long as there are classes; a pair for every class that ever came."""
    paired = set().union(*(CLASSES[i] for ids in earlier for i in ids))
    up = prototypes_up(arrived) * NUM_CLASSES // FEATURE_DIM
    return Sent(up, (FLAT + LATENT_DIM) * len(paired) * len(participants))


def fedssa_wire(participants, arrived, earlier) -> Sent:
    """Whom the server has not heard from gets every row of the header."""

    def rows(i):
        return len(CLASSES[i])

    heard = {i for ids in earlier for i in ids if rows(i)}
    down = sum(rows(i) if i in heard else NUM_CLASSES for i in participants)
    return Sent((FEATURE_DIM + 1) * sum(map(rows, arrived)), (FEATURE_DIM + 1) * down)


def fedpac_wire(participants, arrived, earlier) -> Sent:
    """The model both ways; beside it moments and means of a client's classes, and the means that
    each architecture's clients ever sent."""
    up, down = model_wire(participants, arrived, earlier)
    up += sum(2 * FEATURE_DIM * len(CLASSES[i]) + 1 for i in arrived)
    for i in participants:
        senders = {j for ids in earlier for j in ids if ASSIGNMENT[j] == ASSIGNMENT[i]}
        down += FEATURE_DIM * len(set().union(*(CLASSES[j] for j in senders)))
    return Sent(up, down)


def fedre_wire(participants, arrived, earlier) -> Sent:
    """A mixture from each client, and its label for each of the client's classes."""
    labels = sum(len(CLASSES[i]) for i in arrived)
    return Sent(FEATURE_DIM * len(arrived) + labels, HEAD_SIZE * len(participants))


def fedl2g_wire(participants, arrived, earlier) -> Sent:
    """Rows of logits of the classes that a client has besides its first batch, the quiz."""
    dataset, partition = samples()
    rows = sum(len(set(dataset.labels[partition[i].train[BATCH_SIZE:]])) for i in arrived)
    return Sent(NUM_CLASSES * rows, NUM_CLASSES**2 * len(participants))


def public_wire(size: int) -> Wire:
    """Makes the wire of what is made of a round's public samples, and down the mean of the round
    before."""
    return lambda participants, arrived, earlier: Sent(
        size * len(arrived), size * bool(earlier) * len(participants)
    )


def feddbe_wire(participants, arrived, earlier) -> Sent:
    """The model both ways; up a mean of features beside it, and down that of each architecture's
    clients once some have answered."""
    up, down = model_wire(participants, arrived, earlier)
    ready = {ASSIGNMENT[i] for ids in earlier for i in ids if SAMPLES[i]}
    down += FEATURE_DIM * sum(ASSIGNMENT[i] in ready for i in participants)
    return Sent(up + FEATURE_DIM * len(arrived), down)


def gpfl_wire(i: int) -> int:
    """The extractor, an embedding for each class, and two layers with a norm behind each."""
    layers = 2 * (FEATURE_DIM + 3) * FEATURE_DIM
    return model_size(i) - HEAD_SIZE + NUM_CLASSES * FEATURE_DIM + layers


def fedcp_wire(i: int) -> int:
    """The model, and a layer to twice the features with a norm behind it."""
    return model_size(i) + 2 * (FEATURE_DIM + 3) * FEATURE_DIM


def scaffold_wire(participants, arrived, earlier) -> Sent:
    """A control variate as large as the model beside it."""
    return Sent(*(2 * numbers for numbers in model_wire(participants, arrived, earlier)))


def beside_loss(participants, arrived, earlier) -> Sent:
    """A number of the client's loss beside its model."""
    up, down = model_wire(participants, arrived, earlier)
    return Sent(up + len(arrived), down)


def fedgh_wire(participants, arrived, earlier) -> Sent:
    return Sent(prototypes_up(arrived), HEAD_SIZE * len(participants))


def fd_wire(participants, arrived, earlier) -> Sent:
    """Logits where FedProto has features."""
    up, down = fedproto_wire(participants, arrived, earlier)
    return Sent(up * NUM_CLASSES // FEATURE_DIM, down * NUM_CLASSES // FEATURE_DIM)


def fedral_wire(participants, arrived, earlier) -> Sent:
    """Two blocks; the first matrix is sent whole."""
    blocks = FEATURE_DIM**2 // 2
    return Sent(blocks * len(arrived), (blocks if earlier else FEATURE_DIM**2) * len(participants))


def fedgen_wire(participants, arrived, earlier) -> Sent:
    """The generator is sent once it has been trained."""
    hidden, inputs = SETTINGS["fedgen"]["hidden_dim"], SETTINGS["fedgen"]["noise_dim"] + NUM_CLASSES
    generator = (inputs * hidden + hidden) + 2 * hidden + (hidden * FEATURE_DIM + FEATURE_DIM)
    down = (HEAD_SIZE + generator * bool(earlier)) * len(participants)
    return Sent(HEAD_SIZE * len(arrived), down)


def fedkd_wire(participants, arrived, earlier) -> Sent:
    """Whole at threshold 1; but the change of a client without samples is zero and has no singular
    component."""
    biases = FEATURE_DIM + NUM_CLASSES
    up = sum(NARROW_SIZE if SAMPLES[i] else biases for i in arrived)
    return Sent(up, NARROW_SIZE * len(participants))


def slice_size(i: int, classes: int = NUM_CLASSES) -> int:
    """Parameters of client i's slice with so many of the head's rows: at half width it has half of
    the channels."""
    hidden, features = (int(RATES[i] * width) for width in (6, FEATURE_DIM))
    return (FLAT + 1) * hidden + (hidden + 1) * features + (features + 1) * classes


def sliced_wire(participants, arrived, earlier) -> Sent:
    """Slices of the whole model; up without the head's rows of other classes."""
    up = sum(slice_size(i, len(CLASSES[i])) for i in arrived)
    return Sent(up, sum(map(slice_size, participants)))


def alone_wire(participants, arrived, earlier) -> Sent:
    """Without data, by themselves: all of a client's model up, nothing down."""
    return Sent(sum(map(slice_size, arrived)), 0)


def held_entries(i: int) -> int:
    """Entries of client i's model at the share that it has, of which there are four."""
    return model_size(i) // (1, 4, 16, 64)[i % 4]


def stages_size(i: int) -> int:
    """Parameters of the first stage and its classifier, or of both with theirs."""
    first = (FLAT + 1) * 6 + (6 + 1) * NUM_CLASSES
    return first if ASSIGNMENT[i] == "narrow" else first + (6 + 1) * FEATURE_DIM + HEAD_SIZE


def adapter_size(i: int, *widths: int) -> int:
    """Numbers of client i's adapters with sides of these widths, of A and B of both layers by
    default."""
    return RANKS[ASSIGNMENT[i]] * sum(widths or (FLAT, 6, 6, FEATURE_DIM))


fedit_wire = both_ways(lambda i: adapter_size(i) + HEAD_SIZE)


def flora_wire(participants, arrived, earlier) -> Sent:
    """The last round's stack; the sum of all where more than that is missing."""
    last, total = len(earlier) - 1, FLAT * 6 + 6 * FEATURE_DIM
    down = HEAD_SIZE * len(participants)
    for i in participants:
        heard = max((round for round, ids in enumerate(earlier) if i in ids), default=-1)
        if last >= 1 and last - 1 >= heard:
            down += total
        elif last >= 0:
            down += sum(adapter_size(j) for j in earlier[-1] if SAMPLES[j])
    return Sent(fedit_wire(participants, arrived, earlier).up, down)


def one_shot_wire(size: int, of_class: int = 0) -> Wire:
    """Makes the wire of what a client sends until it arrives, numbers and numbers by class that it
    has, and of the model down."""

    def wire(participants, arrived, earlier):
        heard = {i for ids in earlier for i in ids}
        new = [i for i in arrived if i not in heard]
        up = sum(size + of_class * len(CLASSES[i]) for i in new)
        return Sent(up, sum(map(model_size, participants)))

    return wire


SECOND_MOMENT = FEATURE_DIM * (FEATURE_DIM + 1) // 2
CHANNELS = SHAPE[-1]
WIRE = {
    "local": of_size(0),
    "fedproto": fedproto_wire,
    **dict.fromkeys(("fedtgp", "fedorgp"), fedtgp_wire),
    "fedsa_anchors": fedsa_anchors_wire,
    "fedktl": fedktl_wire,
    "fedssa": fedssa_wire,
    **dict.fromkeys(("lg_fedavg", "fedclassavg"), of_size(HEAD_SIZE)),
    # the extractors of either architecture
    **dict.fromkeys(("fedper", "fedrep"), both_ways(lambda i: model_size(i) - HEAD_SIZE)),
    **dict.fromkeys(("fedit", "hetlora", "flexlora", "raflora"), fedit_wire),
    "flora": flora_wire,
    "ffa_lora": both_ways(lambda i: adapter_size(i, 6, FEATURE_DIM) + HEAD_SIZE),
    "fedsa_lora": both_ways(lambda i: adapter_size(i, FLAT, 6)),
    "fedbabu": fedbabu_wire,
    "fedgh": fedgh_wire,
    "fd": fd_wire,
    "fedral": fedral_wire,
    "fedgen": fedgen_wire,
    # the smallest model of the group, where the auxiliary one is it, too
    **dict.fromkeys(("fedavg", "fml", "fedapen"), of_size(NARROW_SIZE)),
    "fedkd": fedkd_wire,
    # with a head on a quarter of its features
    "fedmrl": of_size(NARROW_SIZE - (FEATURE_DIM - FEATURE_DIM // 4) * NUM_CLASSES),
    **dict.fromkeys(("pfedafm", "pfedmoe"), of_size(NARROW_SIZE - HEAD_SIZE)),
    # two 3x3 convolutions with biases, to eight channels and back
    "pfedes": of_size((9 * CHANNELS * 8 + 8) + (9 * 8 * CHANNELS + CHANNELS)),
    **dict.fromkeys(("heterofl", "feddropout", "fedrolex"), sliced_wire),
    # the server of a composition goes on to use the uploaded models, and needs whole heads
    **dict.fromkeys((*COMPOSED, "fjord", "fedspu"), both_ways(slice_size)),
    "depthfl": both_ways(stages_size),
    "fiarse": both_ways(held_entries),  # the largest entries of either architecture; no norms
    **dict.fromkeys(("dense", "fedftg", "dfrd"), alone_wire),
    "fedl2g": fedl2g_wire,
    "fedre": fedre_wire,
    **dict.fromkeys(("fedmd", "dsfl", "ktpfl"), public_wire(PUBLIC_SAMPLES * NUM_CLASSES)),
    "fedhenn": public_wire(PUBLIC_SAMPLES**2),
    "fedpac": fedpac_wire,
    # FedBN's models have no norms here
    **dict.fromkeys(
        (
            *("fedprox", "fedbuff", "feddyn", "moon", "ditto", "apfl", "fedala", "fedbn"),
            *("fedrod", "pfedme", "fedamp", "perfedavg"),
        ),
        model_wire,
    ),
    **dict.fromkeys(("qfedavg", "agnostic"), beside_loss),
    "scaffold": scaffold_wire,
    "feddbe": feddbe_wire,
    "gpfl": both_ways(gpfl_wire),
    "fedcp": both_ways(fedcp_wire),
    "afl": one_shot_wire(SECOND_MOMENT + FEATURE_DIM * NUM_CLASSES),
    "fedcgs": one_shot_wire(SECOND_MOMENT + FEATURE_DIM * NUM_CLASSES + NUM_CLASSES),
    "fedpft": one_shot_wire(0, of_class=FEATURE_DIM + 1),
}

COUNT = INDEX  # bytes of an int32
COUNTS = COUNT * NUM_CLASSES


def beside_each(up: int = 0, down: int = 0) -> Callable:
    """Makes the cost of metadata with as many bytes in each message."""

    def cost(sent: Sent, participants, arrived) -> Sent:
        return Sent(up * len(arrived), down * len(participants))

    return cost


def index_of_rows(up: float = np.inf, down: float = np.inf) -> Callable:
    """Makes the cost of an index with each row of as many numbers; by default with none."""

    def cost(sent: Sent, participants, arrived) -> Sent:
        return Sent(int(INDEX * sent.up / up), int(INDEX * sent.down / down))

    return cost


def slice_metadata(sent: Sent, participants, arrived) -> Sent:
    """Counts a byte for each class, which says whether it counts, and an index for each row of the
    head."""
    return Sent(sum(NUM_CLASSES + INDEX * len(CLASSES[i]) for i in arrived), 0)


def beside_gaussians(sent: Sent, participants, arrived) -> Sent:
    """Counts two indices and a count for each Gaussian, and whether the client was heard."""
    rows = sent.up // (FEATURE_DIM + 1)
    return Sent(rows * (2 * INDEX + COUNT), len(participants))


def label_indices(sent: Sent, participants, arrived) -> Sent:
    """Counts an index for each of a client's classes."""
    return Sent(INDEX * sum(len(CLASSES[i]) for i in arrived), 0)


def entry_positions(sent: Sent, participants, arrived) -> Sent:
    """Counts an index for each entry, or a bit for each of the model, whichever is shorter."""

    def size(i):
        return min(INDEX * held_entries(i), -(-model_size(i) // 8))

    return Sent(sum(map(size, arrived)), sum(map(size, participants)))


def beside_anchors(sent: Sent, participants, arrived) -> Sent:
    """Counts an index for each class mean, and none for anchors."""
    rows = sent.down // FEATURE_DIM - NUM_CLASSES * len(participants)
    return Sent(INDEX * sent.up // FEATURE_DIM, INDEX * rows)


def fedpac_metadata(sent: Sent, participants, arrived) -> Sent:
    """Counts the samples of each class and an index for each of a client's classes, and down one
    for each class mean."""
    model = model_wire(participants, arrived, [])
    up, _ = label_indices(sent, participants, arrived)
    return Sent(COUNTS * len(arrived) + up, INDEX * (sent.down - model.down) // FEATURE_DIM)


def public_indices(width: int) -> Callable:
    """Makes the cost of an index for each sample that is asked for, and for each that has a target
    of so many numbers."""

    def cost(sent: Sent, participants, arrived) -> Sent:
        requested = PUBLIC_SAMPLES * len(participants)
        return Sent(0, INDEX * (requested + sent.down // width))

    return cost


# (payload, participants, those that arrived) -> bytes of metadata. Rows have an index only where
# their number does not tell which they are: FedTGP sends all prototypes or none, FedRAL's blocks
# and FedKD's components are known by their number.
METADATA = {
    **dict.fromkeys(
        (
            *("local", "fml", "fedapen", "dense", "scaffold", "feddyn", "fedbabu", "fedamp"),
            *("qfedavg", "agnostic"),
        ),
        beside_each(),
    ),
    **dict.fromkeys(
        ("fedavg", "lg_fedavg", "fedper", "fedclassavg", "fedmrl", "fedral"),
        beside_each(up=COUNT),
    ),
    **dict.fromkeys(
        (
            *("fedprox", "moon", "ditto", "apfl", "fedbn", "fedrep", "fedala", "feddbe"),
            *("fedrod", "gpfl", "fedcp", "pfedme", "perfedavg"),
        ),
        beside_each(up=COUNT),
    ),
    "fjord": beside_each(up=COUNT),
    "fedspu": beside_each(up=COUNT + NUM_CLASSES),
    "depthfl": beside_each(),
    "fedbuff": beside_each(),
    "fiarse": entry_positions,
    **dict.fromkeys(("pfedes", "pfedafm", "pfedmoe"), beside_each(up=COUNT)),
    **dict.fromkeys(
        ("fedit", "hetlora", "flexlora", "raflora", "fedsa_lora"), beside_each(up=COUNT)
    ),
    "flora": beside_each(up=COUNT, down=4),  # the round of the stack
    "ffa_lora": beside_each(up=COUNT, down=8),  # the seed
    **dict.fromkeys(("afl", "fedcgs"), beside_each(down=1)),  # whether the client was heard
    "fedpft": beside_gaussians,
    "fedkd": beside_each(down=1),  # whether it is the weights or their change
    "fedgen": beside_each(up=COUNTS, down=COUNTS + 1),  # whether the generator is there
    "fedproto": index_of_rows(FEATURE_DIM, FEATURE_DIM),
    **dict.fromkeys(("fedtgp", "fedorgp"), index_of_rows(FEATURE_DIM)),
    "fedsa_anchors": beside_anchors,
    "fedktl": index_of_rows(NUM_CLASSES, (FLAT + LATENT_DIM) / 2),  # of an image, of its latent
    "fedssa": index_of_rows(FEATURE_DIM + 1, FEATURE_DIM + 1),
    "fedgh": index_of_rows(FEATURE_DIM),
    "fd": index_of_rows(NUM_CLASSES, NUM_CLASSES),
    "fedl2g": index_of_rows(NUM_CLASSES),
    "fedre": label_indices,
    "fedpac": fedpac_metadata,
    **dict.fromkeys(("fedmd", "dsfl", "ktpfl"), public_indices(NUM_CLASSES)),
    "fedhenn": public_indices(PUBLIC_SAMPLES),
    **dict.fromkeys(("heterofl", "feddropout", "fedrolex"), slice_metadata),
    **dict.fromkeys(("fedftg", "dfrd"), beside_each(up=COUNTS)),
    "heterofl+dense": beside_each(up=NUM_CLASSES + COUNT),
    **dict.fromkeys(
        ("fedrolex+dfrd", "heterofl+dfrd", "feddropout+fedftg"),
        beside_each(up=NUM_CLASSES + COUNT + COUNTS),
    ),
}
