"""Splits by the partitioners of flwr-datasets, as they are (pip install flwr-datasets)."""

from typing import Any

import numpy as np

from fedjax_ht.check.options import Part, Rest, Seed, checked
from fedjax_ht.check.packages import needing
from fedjax_ht.data.dataset import Dataset, Partition
from fedjax_ht.data.partition.splits import Plan, Sets, official_sets, split_plan
from fedjax_ht.data.public import at_places, private_part


@checked
def flwr_partition(
    partitioner: Any,
    dataset: Dataset,
    *,
    seed: Seed = 1,
    sets: Sets = "merged",
    train_share: Part | None = None,
    val_share: Rest = 0.0,
    stratified: bool = False,
) -> Partition:
    """Splits a dataset among clients by a partitioner of flwr-datasets.

    The partitioner plans each client's samples by the columns "label" (the class's number) and
    "group" (a person's or writer's, where the dataset has groups): its `partition_by` names one of
    them. It draws by its own seed.

    Args:
      partitioner: a partitioner that no data were assigned to.
      dataset: the samples; those that are public are no client's.
      seed: seed by which each client's samples are shuffled into train, val and test.
      sets, train_share, val_share, stratified: options as of `make_partition("dirichlet", ...)`.

    Raises:
      ValueError: it has data already, names another column, cannot split these data, or leaves a
        client without samples. One line.
      ImportError: `datasets`, which flwr-datasets brings, is not installed. One line.

    Example:
      >>> import fedjax_ht as fl
      >>> from flwr_datasets.partitioner import DirichletPartitioner  # doctest: +SKIP
      >>> dataset = fl.load_dataset("har_10persons")
      >>> partitioner = DirichletPartitioner(10, "label", alpha=0.5)  # doctest: +SKIP
      >>> partition = fl.flwr_partition(partitioner, dataset)  # doctest: +SKIP
    """
    if dataset.public is not None:
        private, kept = private_part(dataset)
        options = {"train_share": train_share, "val_share": val_share, "stratified": stratified}
        return at_places(
            flwr_partition(partitioner, private, seed=seed, sets=sets, **options), kept
        )
    planned = np.arange(len(dataset.labels)) if sets == "merged" else official_sets(dataset)[0]

    def plan_of(labels, num_clients, num_classes, rng) -> Plan:
        groups = None if dataset.groups is None else dataset.groups[planned]
        return _planned(partitioner, dataset.name, labels, groups)

    rng = np.random.RandomState(seed)
    return split_plan(
        plan_of,
        dataset,
        0,  # the partitioner knows the number of clients
        rng,
        sets=sets,
        train_share=train_share,
        val_share=val_share,
        stratified=stratified,
    )


def _planned(partitioner: Any, name: str, labels: np.ndarray, groups: np.ndarray | None) -> Plan:
    """Returns the positions of each client's samples among the labels."""
    with needing("a partitioner of flwr-datasets"):
        import datasets
    if not callable(getattr(partitioner, "load_partition", None)):
        raise ValueError(
            f"partitioner is a {type(partitioner).__name__}; it must be one of flwr-datasets, such "
            "as DirichletPartitioner(10, 'label', alpha=0.5)"
        )
    if partitioner.is_dataset_assigned():
        raise ValueError(
            f"the {type(partitioner).__name__} has data already, and takes them once; make a new "
            "one"
        )
    columns = {"label": labels, "place": np.arange(len(labels))}
    if groups is not None:
        columns["group"] = groups
    partitioner.dataset = datasets.Dataset.from_dict(columns)
    try:
        clients = range(partitioner.num_partitions)
        plan = [np.asarray(partitioner.load_partition(i)["place"], np.int64) for i in clients]
    except Exception as error:
        reasons = str(error).splitlines() or [type(error).__name__]
        raise ValueError(
            f"{type(partitioner).__name__} cannot split {name}, whose columns are "
            f"{', '.join(sorted(set(columns) - {'place'}))}: {reasons[0]}"
        ) from error
    for i, places in enumerate(plan):
        if not len(places):
            raise ValueError(
                f"{type(partitioner).__name__} leaves client {i} of {len(plan)} without samples"
            )
    return plan
