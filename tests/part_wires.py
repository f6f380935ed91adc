"""Messages of methods whose clients hold a part of one network: slices, entries, stages."""

from typing import NamedTuple

import numpy as np

from tests.federations import ASSIGNMENT, CLASSES, FEATURE_DIM, NUM_CLASSES, RATES, SHAPE

FLAT = int(np.prod(SHAPE))
HEAD_SIZE = FEATURE_DIM * NUM_CLASSES + NUM_CLASSES
NARROW_SIZE = FLAT * FEATURE_DIM + FEATURE_DIM + HEAD_SIZE
WIDE_EXTRACTOR = (FLAT + 1) * 6 + (6 + 1) * FEATURE_DIM
INDEX = 4  # bytes of an int32


class Sent(NamedTuple):
    """Payload float32 elements of a round, of all clients."""

    up: int
    down: int


def slice_size(i: int, classes: int) -> int:
    """Parameters of client i's slice with so many of the head's rows: at half width it has half of
    the channels."""
    hidden, features = (int(RATES[i] * width) for width in (6, FEATURE_DIM))
    return (FLAT + 1) * hidden + (hidden + 1) * features + (features + 1) * classes


def sliced_wire(participants, arrived, earlier) -> Sent:
    """Slices of the whole model; up without the head's rows of other classes."""
    up = sum(slice_size(i, len(CLASSES[i])) for i in arrived)
    return Sent(up, sum(slice_size(i, NUM_CLASSES) for i in participants))


def whole_slices_wire(participants, arrived, earlier) -> Sent:
    """Slices with all rows of the head both ways."""

    def size(ids):
        return sum(slice_size(i, NUM_CLASSES) for i in ids)

    return Sent(size(arrived), size(participants))


def held_entries(i: int) -> int:
    """Entries of client i's model at the share that it has, of which there are four."""
    size = {"narrow": NARROW_SIZE, "wide": WIDE_EXTRACTOR + HEAD_SIZE}[ASSIGNMENT[i]]
    return size // (1, 4, 16, 64)[i % 4]


def fiarse_wire(participants, arrived, earlier) -> Sent:
    """The largest entries of either architecture, both ways; there are no norms."""
    return Sent(sum(map(held_entries, arrived)), sum(map(held_entries, participants)))


def depth_wire(participants, arrived, earlier) -> Sent:
    """The first stage and its classifier, or both with theirs."""
    first = (FLAT + 1) * 6 + (6 + 1) * NUM_CLASSES
    sizes = {"narrow": first, "wide": first + (6 + 1) * FEATURE_DIM + HEAD_SIZE}

    def size(ids):
        return sum(sizes[ASSIGNMENT[i]] for i in ids)

    return Sent(size(arrived), size(participants))


def alone_wire(participants, arrived, earlier) -> Sent:
    """Without data, by themselves: all of a client's model up, nothing down."""
    return Sent(sum(slice_size(i, NUM_CLASSES) for i in arrived), 0)


def entry_positions(sent: Sent, participants, arrived) -> Sent:
    """Counts an index for each entry, or a bit for each of the model, whichever is shorter."""

    def size(i):
        total = {"narrow": NARROW_SIZE, "wide": WIDE_EXTRACTOR + HEAD_SIZE}[ASSIGNMENT[i]]
        return min(INDEX * held_entries(i), -(-total // 8))

    return Sent(sum(map(size, arrived)), sum(map(size, participants)))
