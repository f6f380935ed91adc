"""Arms of an experiment: each an entry with its method, models and data; and their simulations."""

import dataclasses
from typing import NamedTuple

import numpy as np

from fedjax_ht.core.federation import Federation
from fedjax_ht.core.method import Method
from fedjax_ht.core.trees import PyTree
from fedjax_ht.data.client_data import arranged
from fedjax_ht.data.dataset import Dataset, Partition
from fedjax_ht.lab.config.entries import Entry
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.simulation.lanes import simulation_lanes
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import Simulation, bound_simulation


class Arm(NamedTuple):
    """An entry with all that its runs are made of, a run a trial.

    Attributes:
      entry: the entry, as the config has it.
      config: the experiment's config with the entry's training and models.
      method: the method with the entry's options and recipe.
      federation: the clients and their models.
      dataset: the data set of all arms.
      partitions: one split for each trial, of all arms.
      options: the options of the simulation; each trial adds its number to the seed.
      settings: values of a method that varies, see `make_simulation`.
    """

    entry: Entry
    config: Config
    method: Method
    federation: Federation
    dataset: Dataset
    partitions: tuple[Partition, ...]
    options: SimulationOptions
    settings: PyTree = ()

    @property
    def label(self) -> str:
        """The label of its entry, unique in an experiment."""
        return self.entry.label


def simulate(arm: Arm, trial: int = 0, *, beside: Simulation | None = None) -> Simulation:
    """Returns the simulation of one run of an arm.

    Args:
      arm: the arm.
      trial: number of the run, from 0.
      beside: a simulation of the same data, whose samples on the devices are taken.
    """
    data = arranged(arm.dataset, arm.partitions[trial], arm.federation, beside=arm.partitions)
    options = dataclasses.replace(arm.options, seed=arm.options.seed + trial)
    return bound_simulation(
        arm.method, arm.federation, data, options=options, settings=arm.settings, beside=beside
    )


def simulate_trials(arm: Arm, *, beside: Simulation | None = None) -> list[Simulation]:
    """Returns the simulations of all runs of an arm, which share the samples on the devices."""
    simulations: list[Simulation] = []
    for trial in range(len(arm.partitions)):
        made = simulate(arm, trial, beside=beside)
        beside = beside or made
        simulations.append(made)
    return simulations


def lanes_of(arm: Arm) -> dict[str, int]:
    """Returns architecture -> lanes of an arm."""
    counts = np.array([len(client.train) for client in arm.partitions[0]])
    return simulation_lanes(arm.federation, counts, arm.method, arm.options)
