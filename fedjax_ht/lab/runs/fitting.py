"""Leaves out the entries of a comparison that do not fit its federation."""

from collections.abc import Callable

from fedjax_ht.lab.config.entries import entries_of, only
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.runs.build import fitted, make_dataset
from fedjax_ht.lab.runs.settle import settle


def fitting(config: Config, tell: Callable[[str], None]) -> Config:
    """Returns a config with those of its entries that can run.

    Args:
      config: the config of a comparison.
      tell: called with a line for each entry that is left out, which says why.

    Raises:
      ValueError, OSError, ImportError: the data cannot be read, or no entry fits. One line.
    """
    dataset = make_dataset(config.dataset, config.partition, [config.training])
    kept, reasons = [], []
    for entry in entries_of(config):
        try:
            fitted(settle(only(config, [entry.label])), dataset)
            kept.append(entry.label)
        except (ValueError, OSError, ImportError) as error:
            reasons.append(f"{entry.label} is left out: {error}")
    if not kept:
        raise ValueError(f"no entry fits; {reasons[0]}")
    for reason in reasons:
        tell(reason)
    return only(config, kept)
