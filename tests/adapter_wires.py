"""Messages of methods whose clients train low-rank adapters."""

from collections.abc import Callable

from tests.federations import ASSIGNMENT, FEATURE_DIM, RANKS, TRAIN_COUNTS
from tests.part_wires import FLAT, HEAD_SIZE, Sent


def adapter_size(client: int) -> int:
    """Numbers of the client's A and B of both layers."""
    return RANKS[ASSIGNMENT[client]] * (FLAT + 6 + 6 + FEATURE_DIM)


def fedit_wire(participants, arrived, earlier) -> Sent:
    """Adapters of the client's rank, and the head."""

    def size(ids):
        return sum(adapter_size(i) + HEAD_SIZE for i in ids)

    return Sent(size(arrived), size(participants))


def flora_wire(participants, arrived, earlier) -> Sent:
    """The last round's stack; the sum of all where more than that is missing."""
    head, last = HEAD_SIZE, len(earlier) - 1
    total = FLAT * 6 + 6 * FEATURE_DIM
    down = head * len(participants)
    for i in participants:
        heard = max((round for round, ids in enumerate(earlier) if i in ids), default=-1)
        if last >= 1 and last - 1 >= heard:
            down += total
        elif last >= 0:
            down += sum(adapter_size(j) for j in earlier[-1] if TRAIN_COUNTS.sum(1)[j])
    return Sent(fedit_wire(participants, arrived, earlier).up, down)


def side_wire(*widths: int, head: int) -> Callable:
    """Makes the wire of methods that send one side of each layer's adapter."""

    def sent(participants, arrived, earlier) -> Sent:
        def size(ids):
            return sum(RANKS[ASSIGNMENT[i]] * sum(widths) + head for i in ids)

        return Sent(size(arrived), size(participants))

    return sent
