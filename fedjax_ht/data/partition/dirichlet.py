"""Label skew by Dirichlet shares of each class: PFLlib's "practical", the plain one, and DFRD's.

Sources: Hsu et al., "Measuring the effects of non-identical data distribution" (2019) for the plain
draw; PFLlib (Zhang et al., JMLR 2025), whose generator FedTGP and FedKTL use, and which FedAPEN and
DFRD share but for the minimum.
"""

import numpy as np

from fedjax_ht.check.docstrings import documented_by
from fedjax_ht.check.options import Count, Positive, Rest
from fedjax_ht.data.dataset import ClientIndices, Dataset, Partition
from fedjax_ht.data.partition.splits import Plan, by_class, official_sets, split_client


class NoDraw(ValueError):
    """No draw gave every client its minimum of samples.

    Attributes:
      largest: minimum that a draw reached, 0 where each left a client without.
    """

    def __init__(self, line: str, largest: int):
        super().__init__(line)
        self.largest = largest


def pfllib_least(num_samples: int, num_clients: int) -> int:
    """The minimum of samples for a client in PFLlib.

    It is one test batch of 10 at a test share of a quarter, at most half an equal share.
    """
    return int(min(10 / (1 - 0.75), num_samples / num_clients / 2))


def practical(
    labels: np.ndarray,
    num_clients: int,
    num_classes: int,
    rng: np.random.RandomState,
    *,
    alpha: Positive = 0.1,
    min_samples: Count | None = None,
    max_tries: Count = 100,
) -> Plan:
    """Dirichlet shares with a gate, as in PFLlib.

    A client that already holds an equal share of all samples takes no more classes. Reproduces
    PFLlib's "dir" digit for digit from the same class sizes and seed. FedRAL and FedAPEN have
    alpha=0.4 and min_samples=10.

    Args:
      labels: the samples' classes, int [N].
      rng: the stream, continued by the split of the clients.
      alpha: concentration; lower is more skewed.
      min_samples: fewest samples of a client; None is PFLlib's minimum, one test batch of 10, at
        most half an equal share.
      max_tries: whole draws before giving up.

    Raises:
      ValueError: no draw gave every client the minimum.
    """
    if min_samples is None:
        min_samples = pfllib_least(len(labels), num_clients)
    return _draw(
        labels,
        num_clients,
        num_classes,
        rng,
        alpha=alpha,
        min_samples=min_samples,
        max_tries=max_tries,
        capacity=len(labels) / num_clients,
    )


@documented_by(practical)
def dirichlet(
    labels: np.ndarray,
    num_clients: int,
    num_classes: int,
    rng: np.random.RandomState,
    *,
    alpha: Positive = 0.1,
    min_samples: Count = 10,
    max_tries: Count = 100,
) -> Plan:
    """Cuts each class by Dirichlet(alpha) shares of the clients, drawn for the class.

    Other arguments and errors as in `practical`.

    Args:
      min_samples: fewest samples of a client.
    """
    return _draw(
        labels,
        num_clients,
        num_classes,
        rng,
        alpha=alpha,
        min_samples=min_samples,
        max_tries=max_tries,
        capacity=np.inf,
    )


@documented_by(practical)
def dfrd(
    dataset: Dataset,
    num_clients: int,
    rng: np.random.RandomState,
    *,
    alpha: Positive = 0.1,
    min_samples: Count = 10,
    max_tries: Count = 100,
    val_share: Rest = 0.0,
) -> Partition:
    """DFRD's split: gated Dirichlet shares of the official training set, even ones of the test set.

    A client tests on floor(n_c / num_clients) random test samples of every class c, whatever it
    trains on; the remainder of a class is unused. The options are those of `practical`, where
    `alpha` is the paper's omega, and `val_share`.

    Args:
      dataset: the samples, with official sets.
      num_clients: number of clients.
      rng: the stream of random numbers.
      min_samples: fewest samples of a client.
      val_share: share of a client's training samples that is held out at random to validate. The
        paper has none. Which samples a client holds, and the test sets, do not depend on it.

    Raises:
      ValueError: no official sets, or no draw gave every client the minimum.
    """
    train, test = official_sets(dataset)
    plan = practical(
        dataset.labels[train],
        num_clients,
        dataset.num_classes,
        rng,
        alpha=alpha,
        min_samples=min_samples,
        max_tries=max_tries,
    )
    plan = [train[rng.permutation(x)] for x in plan]
    even = [
        _even_rows(rng.permutation(x), num_clients)
        for x in by_class(dataset.labels[test], dataset.num_classes)
    ]
    tests = test[np.concatenate(even, axis=1)]
    if not val_share:  # the order of training samples is the one of the draw above
        return tuple(ClientIndices(x, x[:0], y) for x, y in zip(plan, tests))
    clients = []
    for x, test in zip(plan, tests):
        client = split_client(x, dataset.labels, rng, 1 - val_share, val_share, stratified=False)
        clients.append(client._replace(test=test))
    return tuple(clients)


def _even_rows(indices: np.ndarray, num_rows: int) -> np.ndarray:
    """Equal parts of the indices as rows; the remainder is left out."""
    width = len(indices) // num_rows
    return indices[: num_rows * width].reshape(num_rows, width)


def _draw(
    labels: np.ndarray,
    num_clients: int,
    num_classes: int,
    rng: np.random.RandomState,
    *,
    alpha: float,
    min_samples: int,
    max_tries: int,
    capacity: float,
) -> Plan:
    """Draws until every client has the minimum; a client that holds `capacity` takes no more."""
    largest = 0
    for _ in range(max_tries):
        plan = _try(labels, num_clients, num_classes, rng=rng, alpha=alpha, capacity=capacity)
        if plan is None:
            continue
        smallest = min(map(len, plan))
        if smallest >= min_samples:
            return plan
        largest = max(largest, smallest)
    raise NoDraw(
        f"no split with alpha={alpha} of {len(labels)} samples gave each of {num_clients} clients "
        f"at least {min_samples} samples in {max_tries} tries; raise alpha or max_tries, or lower "
        "min_samples or num_clients",
        largest,
    )


def _try(
    labels: np.ndarray,
    num_clients: int,
    num_classes: int,
    rng: np.random.RandomState,
    alpha: float,
    capacity: float,
) -> Plan | None:
    """One draw, or None where the shares of a class underflow to nothing (a tiny alpha)."""
    hands = [[] for _ in range(num_clients)]
    held = np.zeros(num_clients, int)
    for members in by_class(labels, num_classes):
        # the draws come in PFLlib's order, also for a class without samples
        rng.shuffle(members)
        shares = rng.dirichlet(np.repeat(alpha, num_clients)) * (held < capacity)
        if not len(members):
            continue
        if not 0 < shares.sum() < np.inf:
            return None
        edges = (np.cumsum(shares / shares.sum()) * len(members)).astype(int)[:-1]
        for hand, taken in zip(hands, np.split(members, edges)):
            hand.append(taken)
        held += np.diff(edges, prepend=0, append=len(members))
    return [np.concatenate(hand) for hand in hands]
