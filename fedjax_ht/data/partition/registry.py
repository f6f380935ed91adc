"""The partitions by name, as used in configs, and checks that need no data."""

import functools
import inspect
from collections.abc import Callable
from types import MappingProxyType

import numpy as np

from fedjax_ht.check.names import unknown, unknown_option
from fedjax_ht.check.options import Count, Seed, check_value, checked
from fedjax_ht.check.registration import check_registration
from fedjax_ht.data.dataset import Dataset, Partition
from fedjax_ht.data.indices import checked_partition
from fedjax_ht.data.partition.kinds import (
    class_shares,
    dfrd,
    dirichlet,
    few_shot,
    iid,
    natural,
    pathological,
    practical,
)
from fedjax_ht.data.partition.splits import Plan, split_plan
from fedjax_ht.data.public import at_places, private_part


def given(dataset: Dataset, num_clients: int, rng: np.random.RandomState) -> Partition:
    """The split that came with the data.

    Raises:
      ValueError: there is none, or it has another number of clients.
    """
    if dataset.clients is None:
        raise ValueError(
            f"{dataset.name} came without a split into clients; choose one of {', '.join(PLANS)}"
        )
    if len(dataset.clients) != num_clients:
        raise ValueError(
            f"num_clients is {num_clients}, but {dataset.name} came with {len(dataset.clients)} "
            f"clients; set it to {len(dataset.clients)}"
        )
    return dataset.clients


# The samples of each client: (labels, num_clients, num_classes, rng, *, options); `split_plan` then
# makes train, val and test.
PLANS: dict[str, Callable[..., Plan]] = {
    "pathological": pathological,
    "practical": practical,
    "dirichlet": dirichlet,
    "iid": iid,
}
# Those with their own train, val and test: (dataset, num_clients, rng, *, options).
SPLITS: dict[str, Callable[..., Partition]] = {
    "dfrd": dfrd,
    "class_shares": class_shares,
    "few_shot": few_shot,
    "natural": natural,
    "given": given,
}

LIBRARY = frozenset([*PLANS, *SPLITS])
"""Names of the library's partitions."""

PARTITIONS: MappingProxyType[str, Callable[..., Partition]] = MappingProxyType(SPLITS)
"""Name -> function of the partitions in `SPLITS`, including those of `register_partition`."""


def register_partition(name: str, function: Callable[..., Partition]) -> None:
    """Registers a user-defined partition under a name that configs and `make_partition` accept.

    Args:
      name: the name, of letters, digits and underscores.
      function: the function (dataset, num_clients, rng, *, options) -> a tuple with one
        `ClientIndices` per client; `rng` is a numpy.random.RandomState with the partition's seed.

    Raises:
      ValueError: the name is the library's, another function is registered under it, or `function`
        has another signature. One line. A cell or a config file may be run again.

    Example:
      >>> import numpy as np
      >>> import fedjax_ht as fl
      >>> def in_turn(dataset, num_clients, rng, *, tested: fl.Share = 0.5):
      ...     clients = []
      ...     for i in range(num_clients):
      ...         samples = np.arange(i, len(dataset.labels), num_clients)
      ...         test, train = np.split(samples, [int(tested * len(samples))])
      ...         clients.append(fl.ClientIndices(train, train[:0], test))
      ...     return tuple(clients)
      >>> fl.register_partition("in_turn", in_turn)
      >>> dataset = fl.load_dataset("har_10persons")
      >>> [len(client.train) for client in fl.make_partition("in_turn", dataset, 2, tested=0.2)]
      [416, 416]
    """
    check_registration(
        "partition",
        name,
        function,
        registered=PARTITIONS,
        library=LIBRARY,
        takes=("dataset", "num_clients", "rng"),
    )
    SPLITS[name] = function


@checked
def make_partition(
    kind: str, dataset: Dataset, num_clients: Count, seed: Seed = 1, **options
) -> Partition:
    """Splits a dataset among clients; a pure function of its arguments, independent of the images.

    Classes without samples are skipped.

    Args:
      kind: a name in `PLANS` or `PARTITIONS`; the function there documents the partition.
      num_clients: number of clients, at least 1.
      seed: the seed of numpy's legacy RandomState, in [0, 2**32); PFLlib's is 1.
      **options: the keyword arguments of that function, and for a kind in `PLANS` also those of
        `split_plan`.

    Returns:
      One ClientIndices per client, without public samples. No sample occurs twice, except in
      several clients of a split of your own.

    Raises:
      ValueError: a setting is invalid (`check_partition`) or does not fit the data, a client has no
        training samples (except of the kind "given"), or no client has test samples.

    Examples:
      >>> from fedjax_ht.lab.readers import load_dataset
      >>> dataset = load_dataset("har_10persons")
      >>> partition = make_partition("dirichlet", dataset, num_clients=4, alpha=1.0)
      >>> sum(len(client.train) + len(client.test) for client in partition)
      1039
    """
    check_partition(kind, num_clients, len(np.unique(dataset.labels)), **options)
    if dataset.public is not None and kind != "given":  # whose clients have none of it
        private, kept = private_part(dataset)
        return at_places(make_partition(kind, private, num_clients, seed, **options), kept)
    place = f"{dataset.name} has {len(dataset.labels)} samples"
    if (kind in PLANS or kind == "dfrd") and num_clients > len(dataset.labels):
        raise ValueError(
            f"partition {kind!r} leaves some of {num_clients} clients without training samples; "
            f"{place}: lower num_clients"
        )
    rng, planned, shares = np.random.RandomState(seed), dict(options), {}
    if kind in PLANS:
        for name in _options(split_plan):
            if name in planned:
                shares[name] = planned.pop(name)
        plan_of = functools.partial(PLANS[kind], **planned)
        partition = split_plan(plan_of, dataset, num_clients, rng, **shares)
    else:
        partition = PARTITIONS[kind](dataset, num_clients, rng, **options)
        partition = checked_partition(dataset.name, partition, len(dataset.labels))
    known = partition_options(kind)
    for i, client in enumerate(partition):
        if not len(client.train) and kind != "given":
            raised = [name for name in ("train_share", "min_samples") if name in known]
            advice = " or raise ".join(["lower num_clients", *raised])
            raise ValueError(
                f"partition {kind!r} leaves client {i} of {num_clients} without training samples; "
                f"{place}: {advice}"
            )
    if not any(len(client.test) for client in partition):
        lowered = [name for name in ("shots", "train_share", "val_share") if name in known]
        advice = "lower " + " or ".join(["num_clients", *lowered])
        if "stratified" in known:
            advice += ", or remove stratified"
        raise ValueError(
            f"partition {kind!r} leaves none of {num_clients} clients a test sample; {place}: "
            f"{advice}"
        )
    return partition


def partition_options(kind: str) -> dict[str, inspect.Parameter]:
    """Returns the options that `make_partition` accepts for a kind, with defaults and types.

    Raises:
      ValueError: there is no such kind.
    """
    if kind in PLANS:
        return _options(PLANS[kind]) | _options(split_plan)
    if kind in PARTITIONS:
        return _options(PARTITIONS[kind])
    names = [*PLANS, *PARTITIONS]
    raise ValueError(unknown("partition", kind, names, f"the partitions are {', '.join(names)}"))


def check_partition(kind: str, num_clients: int, num_classes: int | None, **options) -> None:
    """Checks settings before any data is read.

    `num_classes` counts classes with samples; None skips checks that depend on it.

    Raises:
      ValueError: the kind or an option is unknown, or a value is out of range.
    """
    known = partition_options(kind)
    check_value("num_clients", num_clients, Count)
    for name, value in options.items():
        if name not in known:
            raise ValueError(unknown_option(f"partition {kind!r}", name, known))
        check_value(name, value, known[name].annotation)
    values = {name: parameter.default for name, parameter in known.items()} | options
    if kind in PLANS:
        _check_shares(values["sets"], values["train_share"], values["val_share"])
    elif "train_share" in values and values.get("tested") != "new_groups":
        _check_shares("merged", values["train_share"], values["val_share"])
    if kind == "class_shares":
        unread = ["val_size"] if values["sets"] == "merged" else ["train_share", "val_share"]
        for name in unread:
            if values[name] != known[name].default:
                raise ValueError(f"{name} is not read with sets={values['sets']!r}; remove it")
    if num_classes is not None and "classes_per_client" in values:
        _check_classes(kind, num_clients, num_classes, values["classes_per_client"])


def _check_classes(kind: str, num_clients: int, num_classes: int, classes_per_client: int) -> None:
    if classes_per_client > num_classes:
        raise ValueError(
            f"classes_per_client is {classes_per_client}; it must be at most the {num_classes} "
            "classes of the data"
        )
    if kind == "class_shares" and classes_per_client * num_clients % num_classes:
        raise ValueError(
            f"classes_per_client * num_clients is {classes_per_client * num_clients}; it must be a "
            f"multiple of the {num_classes} classes, so that all have the same number of owners"
        )


def _check_shares(sets: str, train_share: float | None, val_share: float) -> None:
    if sets == "official" and train_share is not None:
        raise ValueError(
            f"train_share is {train_share} with sets='official', whose test set is given; only "
            "set val_share"
        )
    train_share = 0.75 if train_share is None else train_share
    if sets == "merged" and train_share + val_share > 1 + 1e-9:
        raise ValueError(
            f"train_share + val_share is {train_share + val_share:g}; it must be at most 1; the "
            "rest is for testing"
        )


def _options(function: Callable) -> dict[str, inspect.Parameter]:
    """Returns the keyword-only parameters."""
    return {
        p.name: p
        for p in inspect.signature(function).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    }
