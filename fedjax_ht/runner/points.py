"""Trains the points of a search, the worse half of them for fewer rounds, and chooses one by
validation."""

import dataclasses
import json
import logging
import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from fedjax_ht.checkpoints.trials import TrialCheckpoints
from fedjax_ht.checkpoints.writers import write_runs
from fedjax_ht.configs.sections import Config
from fedjax_ht.core.files import atomic_open
from fedjax_ht.experiment.build import Experiment, build
from fedjax_ht.experiment.families import Family, families, point_simulations
from fedjax_ht.experiment.fingerprints import fingerprints
from fedjax_ht.experiment.options import evaluated_clients
from fedjax_ht.experiment.run_folder import remember_config
from fedjax_ht.experiment.run_lock import locked
from fedjax_ht.runner.search import better_half, rungs
from fedjax_ht.runner.search_result import SearchResult, divergence
from fedjax_ht.runner.signals import Interrupted, catch_signals
from fedjax_ht.simulation.history import Row
from fedjax_ht.simulation.runs import run_each
from fedjax_ht.simulation.simulation import Simulation, SimulationState
from fedjax_ht.simulation.together import fastest

_LOGGER = logging.getLogger(__name__)

SCORE = "val_accuracy"


class Search(NamedTuple):
    """The fixed parts of a search.

    Attributes:
      experiment: the experiment, with the points as its entries.
      config: the config that it was built from.
      workdir: the search's folder.
      simulations: label of a point -> the simulations of its runs.
      caught: numbers of signals; one in it stops the search, when the round in progress is saved.
      tell: called with a line about every point.
    """

    experiment: Experiment
    config: Config
    workdir: Path
    simulations: Callable[[str], list[Simulation]]
    caught: Sequence[int]
    tell: Callable[[str], None]


def searched(
    config: Config,
    labels: Sequence[str],
    halvings: int,
    *,
    together: int | None,
    workdir: Path,
    tell: Callable[[str], None],
) -> SearchResult:
    """Searches among entries, on the config's split and seeds.

    Args:
      config: the config of the run; its `entries` are replaced.
      labels: labels of the points, as entries are written.
      halvings: number of times that the worse half of the points ends.
      together: number of points that train in one program; None is 1 on CPU, elsewhere all.
      workdir: the search's folder. A second call goes on from what is in it.
      tell: called with a line about every point.

    Raises:
      ValueError, OSError: the config is wrong or has no validation sets, or `workdir` is in use or
        of another search. One line.
      Interrupted: by a signal.
    """
    if jax.process_count() > 1:
        raise ValueError(
            f"a search runs in one process, and there are {jax.process_count()}; start one alone"
        )
    config = dataclasses.replace(config, entries=tuple(labels))
    at = rungs(config.rounds, halvings)
    experiment = build(config)
    if not any(len(client.val) for client in experiment.partitions[0]):
        raise ValueError(
            "the clients have no validation sets to choose by; give them a share of each client's "
            "samples, such as --config.partition.options.val_share=0.2"
        )
    size = together or (1 if jax.default_backend() == "cpu" else len(labels))
    with (
        locked(workdir, tell),
        catch_signals() as caught,
        jax.default_matmul_precision(config.precision),
    ):
        prints = fingerprints(experiment.dataset, experiment.partitions)
        remember_config(config, experiment.entries.values(), workdir, prints)

        def search(groups: Sequence[Family]) -> SearchResult:
            simulations = point_simulations(experiment, groups, size)
            return _search(
                Search(
                    experiment=experiment,
                    config=config,
                    workdir=workdir,
                    simulations=simulations,
                    caught=caught,
                    tell=tell,
                ),
                groups,
                at,
                size,
            )

        try:
            return search(families(experiment))
        except jax.errors.ConcretizationTypeError:
            tell("a setting cannot vary within a program, so that every point compiles its own")
            return search(families(experiment, trace=False))


def _search(
    search: Search, groups: Sequence[Family], at: Sequence[int], together: int
) -> SearchResult:
    """Trains the points up to the rounds `at`; the better half goes on from each but the last.

    Scores are kept in search.json, and checkpoints of points that may go on below points/.
    """
    record, scores_at = search.workdir / "search.json", {}
    if record.exists():
        content = json.loads(record.read_text())
        scores_at = {int(rounds): scores for rounds, scores in content.items()}
    alive = list(search.experiment.entries)
    places: dict[str, Path] = {}  # where each point was trained for fewer rounds
    for rounds in at:
        scores = scores_at.setdefault(rounds, {})
        new_places: dict[str, Path] = {}
        companies = _companies(groups, alive, together)
        for number, label in enumerate(label for company in companies for label in company):
            new_places[label] = search.workdir / "points" / f"{rounds:05d}" / f"{number:03d}"
        for company in companies:
            if set(company) <= set(scores):
                continue
            histories = _train(search, company, new_places, rounds, places)
            scores |= _scores(search, histories, rounds)
            with atomic_open(record) as file:
                json.dump(scores_at, file, indent=2)
        _remove_checkpoints(places.values())
        places = new_places
        if all(math.isnan(scores[label]) for label in alive):
            raise ValueError(
                f"in every setting of {alive[0].partition(':')[0]} a client or the server stopped "
                "being finite; search lower learning rates"
            )
        if rounds != at[-1]:
            alive = better_half({label: scores[label] for label in alive})
    last = {label: scores_at[at[-1]][label] for label in alive}
    return SearchResult(max(better_half(last), key=last.__getitem__), scores_at)


def _companies(groups: Sequence[Family], alive: Sequence[str], together: int) -> list[list[str]]:
    """Returns the labels that train in one program at a time, at most `together` each."""
    companies = []
    for family in groups:
        labels = [label for label in family.labels if label in alive]
        companies += [labels[i : i + together] for i in range(0, len(labels), together)]
    return companies


def _scores(
    search: Search, histories: Mapping[str, list[list[Row]]], rounds: int
) -> dict[str, float]:
    """Returns each point's mean over trials of the best validation accuracy; NaN where it
    diverged."""
    scores = {}
    for label, runs in histories.items():
        diverged = divergence(runs)
        if diverged:
            scores[label] = math.nan
            outcome = f"left out, {diverged}"
        else:
            best = [max(row[SCORE] for row in run if SCORE in row) for run in runs]
            scores[label] = float(np.mean(best))
            outcome = f"{100 * scores[label]:.2f} % on validation"
        search.tell(f"{label}, {rounds} rounds: {outcome}")
    return scores


class _Point(NamedTuple):
    """A point in training: its folder, simulations, and the checkpoints of its runs."""

    folder: Path
    simulations: list[Simulation]
    checkpoints: TrialCheckpoints


def _train(
    search: Search,
    company: Sequence[str],
    folders: Mapping[str, Path],
    rounds: int,
    before: Mapping[str, Path],
) -> dict[str, list[list[Row]]]:
    """Trains some points up to `rounds`, from where they stand: in their `folders`, in those where
    they were trained for fewer rounds, or nowhere. Returns the rows of each point's runs."""
    config = search.config
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
        stop, done = bool(search.caught), {state.round for state in states}
        if len(done) == 1 and (stop or done.pop() % config.checkpoint.every == 0):
            save(states, histories)
        return stop

    reached, histories = run_each(
        simulations,
        rounds,
        states,
        histories=histories,
        each=fastest(simulations),
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


def _remove_checkpoints(folders: Iterable[Path]) -> None:
    """Removes the checkpoints of points that have all gone on or ended."""
    for folder in folders:
        for kept in folder.glob("checkpoints*"):
            shutil.rmtree(kept)
