"""The library's partitions: equal parts, label skew, and natural groups."""

from typing import Literal

import numpy as np

from fedjax_ht.check.docstrings import documented_by
from fedjax_ht.check.options import Count, Part, Positive, Rest, Whole
from fedjax_ht.data.dataset import ClientIndices, Dataset, Partition
from fedjax_ht.data.partition.splits import (
    Plan,
    Sets,
    by_class,
    deal_classes,
    official_sets,
    split_clients,
)


def iid(labels: np.ndarray, num_clients: int, num_classes: int, rng: np.random.RandomState) -> Plan:
    """Cuts a random permutation of all samples into parts whose sizes differ by at most one."""
    return np.array_split(rng.permutation(len(labels)), num_clients)


def few_shot(
    dataset: Dataset,
    num_clients: int,
    rng: np.random.RandomState,
    *,
    shots: Count = 5,
    test_shots: Count | None = None,
) -> Partition:
    """Trains every client on `shots` random samples of every class, and tests it on others.

    A client of FedKTL's Table 9 has 30, 12 or 3 images of each class of CIFAR-100 and splits them
    3:1, i.e. shots 23, 9 or 2 with test_shots 7, 3 or 1. In the last case a test set has 100
    images, so that one image is one percentage point.

    Args:
      dataset: the samples.
      num_clients: number of clients.
      rng: the stream of random numbers.
      shots: number of training samples per class and client.
      test_shots: number of test samples per class and client; None distributes all the rest, in
        test sets whose sizes differ by at most one.

    Raises:
      ValueError: a class has fewer than (shots + test_shots) * num_clients samples.
    """
    train, test = [[] for _ in range(num_clients)], [[] for _ in range(num_clients)]
    test_sizes = np.zeros(num_clients, int)
    trained = shots * num_clients
    needed = trained + (test_shots or 0) * num_clients
    classes, labels = np.unique(dataset.labels, return_inverse=True)
    for c, members in zip(classes, by_class(labels, len(classes))):
        if len(members) < needed:
            raise ValueError(
                f"class {c} has {len(members)} samples, but {shots} shots and {test_shots or 0} "
                f"test_shots for {num_clients} clients are {needed}; lower them or num_clients"
            )
        shuffled = rng.permutation(members)
        tested = shuffled[trained : needed if test_shots else None]
        for client, part in enumerate(np.split(shuffled[:trained], num_clients)):
            train[client].append(part)
        # The first parts have the remainder: start at the client with the fewest so far.
        turn = np.roll(np.arange(num_clients), -np.argmin(test_sizes))
        for client, part in zip(turn, np.array_split(tested, num_clients)):
            test[client].append(part)
            test_sizes[client] += len(part)
    clients = []
    for train_parts, test_parts in zip(train, test):
        indices = np.concatenate(train_parts)
        clients.append(ClientIndices(indices, indices[:0], np.concatenate(test_parts)))
    return tuple(clients)


def pfllib_least(num_samples: int, num_clients: int) -> int:
    """Returns PFLlib's minimum number of samples per client.

    It is one test batch of 10 at a test share of a quarter, but at most half an equal share.
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
    """Cuts each class by Dirichlet shares with a gate, as in PFLlib.

    A client that already holds an equal share of all samples gets no more classes. Reproduces
    PFLlib's "dir" exactly for the same class sizes and seed. FedRAL and FedAPEN have alpha=0.4 and
    min_samples=10.

    Args:
      labels: the samples' classes, int [N].
      rng: the stream, continued by the split of the clients.
      alpha: concentration; lower is more skewed.
      min_samples: fewest samples of a client; None is PFLlib's minimum, one test batch of 10, at
        most half an equal share.
      max_tries: complete draws before giving up.

    Raises:
      ValueError: no draw gave every client the minimum.
    """
    if min_samples is None:
        min_samples = pfllib_least(len(labels), num_clients)
    options = {"alpha": alpha, "min_samples": min_samples, "max_tries": max_tries}
    capacity = len(labels) / num_clients
    return dirichlet(labels, num_clients, num_classes, rng, capacity, **options)


@documented_by(practical)
def dirichlet(
    labels: np.ndarray,
    num_clients: int,
    num_classes: int,
    rng: np.random.RandomState,
    capacity: float = np.inf,
    *,
    alpha: Positive = 0.1,
    min_samples: Count = 10,
    max_tries: Count = 100,
) -> Plan:
    """Cuts each class by Dirichlet(alpha) shares of the clients, drawn for each class.

    Other arguments and errors as in `practical`.

    Args:
      capacity: number of samples from which on a client gets no more classes.
      min_samples: fewest samples of a client.
    """
    is_possible = num_clients * min_samples <= len(labels)
    for _ in range(max_tries if is_possible else 0):
        plan = _try(by_class(labels, num_classes), num_clients, rng, alpha, capacity)
        if plan is not None and min(map(len, plan)) >= min_samples:
            return plan
    raise ValueError(
        f"no split with alpha={alpha} of {len(labels)} samples gave each of {num_clients} clients "
        f"at least {min_samples} samples in {max_tries} tries; raise alpha or max_tries, or lower "
        "min_samples or num_clients"
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
    """DFRD's split: gated Dirichlet shares of the official training set, equal shares for testing.

    A client tests on floor(n_c / num_clients) random test samples of every class c, regardless of
    its training classes; the remainder of a class is unused. The options are `val_share` and those
    of `practical`, where `alpha` is the paper's omega.

    Args:
      dataset: the samples, with official sets.
      num_clients: number of clients.
      rng: the stream of random numbers.
      min_samples: fewest samples of a client.
      val_share: share of a client's training samples that is held out at random to validate. The
        paper has none. It affects neither a client's samples nor the test sets.

    Raises:
      ValueError: no official sets, or no draw gave every client the minimum.
    """
    train, test = official_sets(dataset)
    options = {"alpha": alpha, "min_samples": min_samples, "max_tries": max_tries}
    plan = practical(dataset.labels[train], num_clients, dataset.num_classes, rng, **options)
    plan = [train[rng.permutation(x)] for x in plan]
    even = [
        _even_rows(rng.permutation(x), num_clients)
        for x in by_class(dataset.labels[test], dataset.num_classes)
    ]
    tests = test[np.concatenate(even, axis=1)]
    if not val_share:  # training samples keep the order of the draw above
        return tuple(ClientIndices(x, x[:0], y) for x, y in zip(plan, tests))
    clients = split_clients(plan, dataset.labels, rng, 1 - val_share, val_share)
    return tuple(client._replace(test=test) for client, test in zip(clients, tests))


def _even_rows(indices: np.ndarray, num_rows: int) -> np.ndarray:
    """Returns equal parts of the indices as rows, without the remainder."""
    width = len(indices) // num_rows
    return indices[: num_rows * width].reshape(num_rows, width)


def _try(
    classes: list[np.ndarray],
    num_clients: int,
    rng: np.random.RandomState,
    alpha: float,
    capacity: float,
) -> Plan | None:
    """Returns one draw, or None if the shares of a class underflow to zero (a tiny alpha)."""
    hands = [[] for _ in range(num_clients)]
    held = np.zeros(num_clients, int)
    for members in classes:
        # draws in PFLlib's order, even for a class without samples
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


def pathological(
    labels: np.ndarray,
    num_clients: int,
    num_classes: int,
    rng: np.random.RandomState,
    *,
    classes_per_client: Count = 2,
    balanced: bool = False,
) -> Plan:
    """PFLlib's "pat": fixed blocks of clients share the same few classes.

    It uses the same random stream. Each class goes, in the dataset's order, to the first
    ceil(num_clients / num_classes * classes_per_client) clients that still need classes. All but
    the last of them get a random amount between a tenth of an equal share and an equal share, or an
    equal share if `balanced`; the last gets the rest. If classes and clients do not divide evenly,
    the last clients hold fewer classes, or the last classes are unused (Flowers102 with 20 clients
    of 10).

    Args:
      labels: int [N].
      num_clients: number of clients.
      num_classes: number of classes of the data, including those without samples.
      rng: the stream, continued by the split of the clients.
      classes_per_client: number of classes that a client holds.
      balanced: equal shares of a class for the clients that share it, instead of random ones.

    Raises:
      ValueError: a class is too small for its clients.
    """
    left = np.full(num_clients, classes_per_client)  # classes that a client still needs
    hands = [[] for _ in range(num_clients)]
    classes, labels = np.unique(labels, return_inverse=True)
    num_classes = len(classes)
    block = int(np.ceil(num_clients / num_classes * classes_per_client))
    least = pfllib_least(len(labels), num_clients) / num_classes
    for c, members in zip(classes, by_class(labels, num_classes)):
        owners = np.flatnonzero(left)[:block]
        if not len(owners):
            break
        equal = len(members) / len(owners)
        low, high = int(max(equal / 10, least)), int(equal)
        draws = len(owners) > 1 and not balanced
        if high < 1 or (draws and low >= high):
            raise ValueError(
                f"class {c} has {len(members)} samples, too few for the {len(owners)} clients that "
                "share it; lower num_clients or classes_per_client"
            )
        if balanced:
            sizes = np.full(len(owners) - 1, high)
        else:
            sizes = rng.randint(low, high, len(owners) - 1)
        for client, share in zip(owners, np.split(members, np.cumsum(sizes))):
            hands[client].append(share)
        left[owners] -= 1
    return [np.concatenate(hand) for hand in hands]


def class_shares(
    dataset: Dataset,
    num_clients: int,
    rng: np.random.RandomState,
    *,
    classes_per_client: Count = 2,
    val_size: Whole = 10_000,
    sets: Sets = "official",
    train_share: Part = 0.8,
    val_share: Rest = 0.1,
) -> Partition:
    """One plan of classes and shares (Shamsian et al., pFedHN, ICML 2021; FedSSA, FedRAL).

    Every class has classes_per_client * num_clients / num_classes shares, proportional to draws
    from U(0.4, 0.6). Each client in turn takes classes_per_client times the next share of a random
    class among those with the most shares left, so sometimes two of the same. Every sample is used,
    except those of an official validation set if `sets` is "official".

    Args:
      dataset: the samples.
      num_clients: number of clients.
      rng: the stream of random numbers.
      classes_per_client: number of class shares that a client holds.
      val_size: size of the validation set that is taken from the official training set.
      sets: sets that the plan distributes. "official", as in the released code: the official
        training set without `val_size` random samples, these samples, and the official test set.
        "merged", as in the papers: all samples at once, and each client's are split at random.
      train_share: share of a client's samples that train, for merged sets.
      val_share: share of a client's samples that validate, for merged sets; the rest tests.

    Raises:
      ValueError: no official sets, or val_size leaves no training set.
    """
    classes, labels = np.unique(dataset.labels, return_inverse=True)
    if sets == "merged":
        weights = _share_plan(num_clients, len(classes), classes_per_client, rng)
        plan = deal_classes(np.arange(len(labels)), labels, weights, rng)
        return split_clients(plan, dataset.labels, rng, train_share, val_share)
    train, test = official_sets(dataset)
    if val_size >= len(train):
        raise ValueError(
            f"val_size is {val_size}; it must be below the {len(train)} training samples of "
            f"{dataset.name}"
        )
    held_out, train = np.split(rng.permutation(train), [val_size])
    weights = _share_plan(num_clients, len(classes), classes_per_client, rng)
    plans = [deal_classes(x, labels, weights, rng) for x in (train, held_out, test)]
    return tuple(ClientIndices(*client) for client in zip(*plans))


def _share_plan(
    num_clients: int, num_classes: int, classes_per_client: int, rng: np.random.RandomState
) -> np.ndarray:
    """Returns each client's share of each class, float64 [num_clients, num_classes].

    Each column sums to 1.
    """
    slots = classes_per_client * num_clients // num_classes
    shares = rng.uniform(0.4, 0.6, (num_classes, slots))
    shares /= shares.sum(1, keepdims=True)
    weights, left = np.zeros((num_clients, num_classes)), np.full(num_classes, slots)
    for client in range(num_clients):
        for _ in range(classes_per_client):
            c = rng.choice(np.flatnonzero(left == left.max()))
            weights[client, c] += shares[c, slots - left[c]]
            left[c] -= 1
    return weights


Tested = Literal["random", "last", "new_groups"]


def natural(
    dataset: Dataset,
    num_clients: int,
    rng: np.random.RandomState,
    *,
    tested: Tested = "random",
    train_share: Part = 0.75,
    val_share: Rest = 0.0,
    min_samples: Count = 1,
) -> Partition:
    """Each client holds the samples of one of `Dataset.groups`, ascending.

    With fewer clients than groups, each client has a random group. With a multiple of their number,
    each group is split at random over that many consecutive clients.

    Args:
      tested: samples that test. "random": a random part of a client's own samples. "last": the
        last part in stored order, which for recordings is time; of the part before, the last
        samples of each class validate.
        "new_groups": clients train on all their samples, and test on those of groups without a
        client, distributed at random; this measures how well models serve new people.
      train_share: share of a client's samples that train; with tested="new_groups" all that do not
        validate.
      val_share: share of a client's samples that validate.
      min_samples: fewest samples of a group that becomes a client; smaller groups are skipped, but
        with "new_groups" still test.

    Raises:
      ValueError: the set has no groups, their number does not fit, or one has fewer samples than
        its clients.
    """
    if dataset.groups is None:
        raise ValueError(
            f"partition natural needs Dataset.groups, the person or place of each sample, but "
            f"{dataset.name} has none; choose another partition"
        )
    owners = _owners(dataset, dataset.groups, num_clients, tested, min_samples)
    each = max(num_clients // len(owners), 1)
    chosen = np.sort(rng.permutation(owners)[:num_clients])
    parts = []
    for group in chosen:
        parts += _deal(np.flatnonzero(dataset.groups == group), each, rng)
    if tested == "last":
        return tuple(
            _split_in_order(part, dataset.labels, train_share, val_share) for part in parts
        )
    if tested == "random":
        return split_clients(parts, dataset.labels, rng, train_share, val_share)
    strangers = rng.permutation(np.flatnonzero(~np.isin(dataset.groups, chosen)))
    clients = split_clients(parts, dataset.labels, rng, 1 - val_share, val_share)
    tests = np.array_split(strangers, num_clients)
    return tuple(client._replace(test=test) for client, test in zip(clients, tests))


def _owners(
    dataset: Dataset, groups: np.ndarray, num_clients: int, tested: Tested, min_samples: int
) -> np.ndarray:
    """Returns the groups with at least `min_samples`; ValueError if `num_clients` does not fit."""
    known, sizes = np.unique(groups, return_counts=True)
    owners = known[sizes >= min_samples]
    if not len(owners):
        raise ValueError(
            f"min_samples is {min_samples}, but the largest group of {dataset.name} has "
            f"{sizes.max(initial=0)} samples"
        )
    large = f" of at least {min_samples} samples" if min_samples > 1 else ""
    if num_clients > len(owners) and num_clients % len(owners):
        raise ValueError(
            f"num_clients is {num_clients}; {dataset.name} has {len(owners)} groups{large}: use "
            "at most as many clients, or a multiple of it"
        )
    if tested == "new_groups" and min(num_clients, len(owners)) == len(known):
        raise ValueError(
            f"num_clients is {num_clients}, but {dataset.name} has {len(known)} groups; "
            "tested='new_groups' needs groups without a client: use fewer clients"
        )
    return owners


def _split_in_order(
    part: np.ndarray, labels: np.ndarray, train_share: float, val_share: float
) -> ClientIndices:
    """Splits a client's samples in stored order.

    The last ones test; of the others, the last ones of each class validate.
    """
    # the margin is for rounding: 0.6 + 0.3 is just below 0.9, but 9 of 10 samples are intended
    before, test = np.split(part, [int((train_share + val_share) * len(part) + 1e-9)])
    is_val = np.zeros(len(before), bool)
    # Recordings have one activity after another: without classes, the end would have few of them.
    for label in np.unique(labels[before]):
        of_class = np.flatnonzero(labels[before] == label)
        kept = len(of_class) - round(len(of_class) * val_share / (train_share + val_share))
        is_val[of_class[kept:]] = True
    return ClientIndices(before[~is_val], before[is_val], test)


def _deal(indices: np.ndarray, clients: int, rng: np.random.RandomState) -> list[np.ndarray]:
    """Distributes indices at random into parts of equal size, each in stored order."""
    if len(indices) < clients:
        raise ValueError(
            f"a group has {len(indices)} samples for {clients} clients; use fewer clients"
        )
    parts = np.array_split(rng.permutation(indices), clients) if clients > 1 else [indices]
    return [np.sort(part) for part in parts]
