"""Settles a config: finds all mistakes that show before data are read."""

import itertools
from collections.abc import Collection, Mapping
from typing import NamedTuple

from fedjax_ht.check.options import MAX_SEED, Rest, check_value
from fedjax_ht.core.contract import lacks_public_set
from fedjax_ht.core.method import Method
from fedjax_ht.core.user_code import module_folders, names_user_function
from fedjax_ht.data.partition import check_partition, partition_options
from fedjax_ht.data.public import HOLD_OUT, hold_out_share
from fedjax_ht.data.shift import parse_shift
from fedjax_ht.lab.config.entries import Entry, as_run, entries_of, method_of
from fedjax_ht.lab.config.sections import Config, DatasetConfig, PartitionConfig
from fedjax_ht.lab.readers import dataset_names, names_user_data, unknown_dataset
from fedjax_ht.lab.runs.federation import check_group, width_rates
from fedjax_ht.lab.runs.method import make_method, refuse_unknown
from fedjax_ht.lab.runs.objects import NO_OBJECTS, Objects, with_names
from fedjax_ht.lab.runs.options import simulation_options, uplink_steps
from fedjax_ht.methods import names_user_method
from fedjax_ht.methods.shared.coded import CODES
from fedjax_ht.models.registry import names_folder
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.trust.epsilon import accounting


class Settled(NamedTuple):
    """The settings of a config that are known before any data is read.

    Attributes:
      config: the checked config.
      options: the options of the federation.
      entries, methods: label -> the entry, and its method.
      configs: label -> the config with the training and model of the entry.
    """

    config: Config
    options: SimulationOptions
    entries: dict[str, Entry]
    configs: dict[str, Config]
    methods: dict[str, Method]


def settle(config: Config, trust: bool = True, objects: Objects = NO_OBJECTS) -> Settled:
    """Checks all of a config that can be wrong without the data.

    Args:
      config: the config to check.
      trust: False refuses a config by which a user's own code is imported, before it is; see
        `named_code`.
      objects: objects from Python in place of names.

    Raises:
      ValueError, FileNotFoundError: one line that names the field, its value, and what would be
        right.
      ImportError: the config has privacy, and the accountant is not installed. One line.
    """
    config = with_names(config, objects)
    check_together(config)
    options = simulation_options(config)
    if not trust:  # before the options of its methods are asked for, which imports them
        _refuse_code(_method_code(config))
    entries = {entry.label: entry for entry in entries_of(config)}
    if options.privacy is not None:
        accounting()  # it is imported now, and not after the first round
    configs = {label: as_run(entry, config) for label, entry in entries.items()}
    for entry_config in configs.values():
        width_rates(entry_config.model.rates, config.partition.num_clients)
        check_group(entry_config.model.group)
    if not trust:
        named = [named_code(entry, configs[label]) for label, entry in entries.items()]
        _refuse_code(set().union(*named))
    codes = uplink_steps(config, CODES)
    methods = {
        label: make_method(entry, configs[label].training, codes, objects=objects.methods)
        for label, entry in entries.items()
    }
    check_data(config.dataset, config.partition)
    for method in methods.values():
        if method.public_samples and not config.dataset.public:
            raise ValueError(lacks_public_set(method))
    return Settled(
        config=config, options=options, entries=entries, configs=configs, methods=methods
    )


def named_code(entry: Entry, config: Config) -> set[str]:
    """Returns each "module:function" that an entry's method, its options, models and data name.

    Building a run imports these modules, which runs them. Names of the library's own are none.

    Args:
      entry: the entry.
      config: the config of the entry.
    """
    of_model = [value for value in vars(config.model).values() if isinstance(value, str)]
    of_method = [value for value in entry.options.values() if isinstance(value, str)]
    texts = [*of_method, *itertools.filterfalse(names_folder, of_model)]
    names = set(filter(names_user_function, texts))
    if names_user_data(config.dataset.name):
        names.add(config.dataset.name)
    if names_user_method(entry.method):
        names.add(entry.method)
    return names


def _method_code(config: Config) -> set[str]:
    """Returns every method that is a "module:function", of a config whose entries are not read."""
    names = {str(config.method.name)}
    for spec in config.entries:
        if isinstance(spec, Entry):
            names.add(spec.method)
        else:
            names.add(str(spec.get("method")) if isinstance(spec, Mapping) else method_of(spec))
    return set(filter(names_user_method, names))


def _refuse_code(names: Collection[str]) -> None:
    """Refuses code of a user's own that nobody has allowed to be run."""
    if names:
        raise ValueError(
            f"the config names {', '.join(sorted(names))}, which would be imported from "
            f"{' or '.join(module_folders())} or where it is installed, and run; if you know whose "
            "code that is, allow it by --trust, from Python by trust=True"
        )


def check_together(config: Config) -> None:
    """Checks the rules that join several fields and need no data."""
    last = config.trials - 1  # each trial has a seed of its own, and all fit in 32 bits
    for name, seed in (("seed", config.seed), ("partition.seed", config.partition.seed)):
        if seed + last > MAX_SEED:
            raise ValueError(
                f"{name} is {seed}; it must be at most {MAX_SEED - last} with {last + 1} trials"
            )
    # accuracies of a run are those of the clients that do not attack: there must be some
    check_value("attack.share", config.attack.share, Rest)
    sample, num_clients = config.evaluate.sample, config.partition.num_clients
    if sample is not None and sample > num_clients:
        raise ValueError(
            f"evaluate.sample is {sample}; it must be at most the {num_clients} clients"
        )


def check_data(dataset: DatasetConfig, partition: PartitionConfig) -> None:
    """Checks the names and options of the data set and of the split."""
    if ":" not in dataset.name and dataset.name not in dataset_names():
        raise ValueError(unknown_dataset(dataset.name, dataset.data_dir))
    known = list(partition_options(partition.kind))
    owner = f"partition {partition.kind!r}"
    refuse_unknown(owner, partition.options, known, f"partition={partition.kind}")
    check_partition(partition.kind, partition.num_clients, None, **partition.options)
    if dataset.shift:
        parse_shift(dataset.shift)
    if dataset.public:
        check_public(dataset)


def check_public(dataset: DatasetConfig) -> None:
    """Checks the name of the public set, or the share that is held out for it."""
    name = dataset.public or ""
    if hold_out_share(name) is not None:
        return
    if name == dataset.name:
        raise ValueError(
            f"dataset.public is {name!r}, the clients' own set, whose samples they test on; take "
            f"{HOLD_OUT}0.1, or another set"
        )
    if ":" not in name and name not in dataset_names():
        reason = unknown_dataset(name, dataset.data_dir)
        raise ValueError(f"dataset.public: {reason}; or {HOLD_OUT}0.1 for a share of the samples")
