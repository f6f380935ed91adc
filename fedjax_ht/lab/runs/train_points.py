"""Trains points of a search up to a number of rounds; points.py chooses among them."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedjax_ht.lab.checkpoints.trials import TrialCheckpoints
from fedjax_ht.lab.checkpoints.writers import write_runs
from fedjax_ht.lab.runs.build import Experiment
from fedjax_ht.lab.runs.options import evaluated_clients
from fedjax_ht.lab.runs.signals import Interrupted
from fedjax_ht.simulation.rows import Row
from fedjax_ht.simulation.runs import run_each
from fedjax_ht.simulation.simulation import Simulation, SimulationState

_LOGGER = logging.getLogger(__name__)


class Search(NamedTuple):
    """The fixed parts of a search.

    Attributes:
      experiment: the experiment, with the points as its entries.
      workdir: the search's folder.
      simulations: label of a point -> the simulations of its runs.
      caught: numbers of signals; one in it stops the search, when the round in progress is saved.
      tell: called with a line about every point.
      trace: True where settings of points are arguments of their program.
      together: number of points that train in one program.
      look: called after each round, to see whether the search is to stop.
    """

    experiment: Experiment
    workdir: Path
    simulations: Callable[[str], list[Simulation]]
    caught: Sequence[int]
    tell: Callable[[str], None]
    trace: bool
    together: int
    look: Callable[[], None] = lambda: None


class Rung(NamedTuple):
    """Points to be trained up to a number of rounds, a step of the search.

    Attributes:
      companies: labels of the points that train in one program at a time.
      folders: label -> the folder to train in.
      rounds: number of rounds.
      before: label -> the folder where the point was trained for fewer rounds.
    """

    companies: Sequence[Sequence[str]]
    folders: Mapping[str, Path]
    rounds: int
    before: Mapping[str, Path]


Histories = dict[str, list[list[Row]]]
Trainer = Callable[[Search, Rung, Callable[[Histories], None]], None]
"""(search, rung, done): trains the companies, on other machines, say, and calls `done` with the
rows of each company that is trained."""


class UntraceableSetting(Exception):
    """A setting cannot vary within a program."""


def train_here(search: Search, rung: Rung, done: Callable[[Histories], None]) -> None:
    """Trains companies one after another, see `Trainer`."""
    for company in rung.companies:
        done(train_company(search, company, rung.folders, rung.rounds, before=rung.before))


class _Point(NamedTuple):
    """A point in training: its folder, simulations, and the checkpoints of its runs."""

    folder: Path
    simulations: list[Simulation]
    checkpoints: TrialCheckpoints


def train_company(
    search: Search,
    company: Sequence[str],
    folders: Mapping[str, Path],
    rounds: int,
    *,
    before: Mapping[str, Path],
) -> Histories:
    """Trains some points up to `rounds`, from where they stand: in their `folders`, in those where
    they were trained for fewer rounds, or nowhere. Returns the rows of each point's runs."""
    config = search.experiment.config
    points, simulations, states, histories = [], [], [], []
    for label in company:
        made = search.simulations(label)
        points.append(_Point(folders[label], made, _checkpoints(folders[label], made)))
        start, rows = points[-1].checkpoints.restore(_LOGGER.warning)
        if not any(rows) and label in before:
            start, rows = _checkpoints(before[label], made).restore(_LOGGER.warning)
            if not all(rows):
                raise ValueError(
                    f"{before[label]} has no checkpoint that can be read; begin again in another "
                    "--workdir"
                )
        simulations, states, histories = simulations + made, states + start, histories + rows

    def save(states: list[SimulationState], histories: list[list[Row]]) -> None:
        for number, point in enumerate(points):
            runs = slice(number * config.trials, (number + 1) * config.trials)
            point.checkpoints.save(states[runs], histories[runs])

    def after_round(states: list[SimulationState], histories: list[list[Row]]) -> bool:
        search.look()
        stop, done = bool(search.caught), {state.round for state in states}
        if len(done) == 1 and (stop or done.pop() % config.checkpoint.every == 0):
            save(states, histories)
        return stop

    reached, histories = run_each(
        simulations,
        rounds,
        states,
        histories=histories,
        eval_every=config.evaluate.every,
        after_round=after_round,
        only=evaluated_clients(config),
        numbers=[*range(config.trials)] * len(points),
    )
    if search.caught:
        raise Interrupted(search.caught[0])
    save(reached, histories)
    trained = {}
    for number, (label, point) in enumerate(zip(company, points)):
        point.checkpoints.wait()
        trained[label] = histories[number * config.trials : (number + 1) * config.trials]
        write_runs(trained[label], point.folder)
    return trained


def _checkpoints(folder: Path, simulations: Sequence[Simulation]) -> TrialCheckpoints:
    return TrialCheckpoints(folder / "checkpoints", simulations, keep=1, background=False)
