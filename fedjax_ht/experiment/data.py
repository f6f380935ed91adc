"""Builds the dataset and its splits from `config.dataset` and `config.partition`."""

from collections.abc import Iterable

from fedjax_ht.configs.sections import Config, DatasetConfig, PartitionConfig, TrainingConfig
from fedjax_ht.core.inputs import Pixels
from fedjax_ht.core.names import unknown
from fedjax_ht.data.dataset import Dataset, Partition, of_classes, subset
from fedjax_ht.data.moments import normalised
from fedjax_ht.data.partition import check_partition, make_partition, partition_options
from fedjax_ht.data.shift import parse_shift, shifted
from fedjax_ht.data.sources import dataset_names, load_dataset
from fedjax_ht.experiment.method import refuse_unknown


def check_names_of_data(dataset: DatasetConfig, partition: PartitionConfig) -> None:
    """Raises a ValueError for what is wrong before any data is read."""
    if ":" not in dataset.name and dataset.name not in dataset_names():
        raise ValueError(unknown("dataset", dataset.name, dataset_names()))
    known = list(partition_options(partition.kind))
    owner = f"partition {partition.kind!r}"
    refuse_unknown(owner, partition.options, known, f"partition={partition.kind}")
    check_partition(partition.kind, partition.num_clients, None, **partition.options)
    if dataset.shift:
        parse_shift(dataset.shift)


def make_dataset(
    config: DatasetConfig, partition: PartitionConfig, recipes: Iterable[TrainingConfig]
) -> Dataset:
    """Returns the dataset with the classes, samples and domains that the config asks for.

    Args:
      config: `config.dataset`.
      partition: by its seed the subset and the domains are drawn; its classes must fit the data.
      recipes: of all entries; augmentation needs images.

    Raises:
      ValueError, FileNotFoundError, ImportError: the data cannot be read, or do not fit.
    """
    dataset = load_dataset(config.name, config.data_dir, config.image_size, config.text_length)
    dataset = normalised(dataset, config.normalisation)
    for training in recipes:
        if training.augmentation and not isinstance(dataset.preprocess, Pixels):
            raise ValueError(
                f"training.augmentation is {training.augmentation}; {dataset.name} has no images"
            )
    if config.classes:
        dataset = of_classes(dataset, config.classes)
    if config.subset:
        dataset = subset(dataset, config.subset, partition.seed)
    if config.shift:
        dataset = shifted(dataset, config.shift, partition.seed)
    num_classes = dataset.num_classes
    check_partition(partition.kind, partition.num_clients, num_classes, **partition.options)
    return dataset


def make_partitions(config: Config, dataset: Dataset) -> tuple[Partition, ...]:
    """Returns a split for each trial: one object for all, or by `partition.per_trial` one each."""
    partition = config.partition

    def split(trial: int) -> Partition:
        kind, num_clients, seed = partition.kind, partition.num_clients, partition.seed + trial
        return make_partition(kind, dataset, num_clients, seed, **partition.options)

    if partition.per_trial:
        return tuple(split(trial) for trial in range(config.trials))
    return (split(0),) * config.trials
