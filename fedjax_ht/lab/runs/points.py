"""Trains the points of a search, the worse half of them for fewer rounds, and chooses one by
validation."""

import dataclasses
import functools
import json
import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.files import atomic_open
from fedjax_ht.lab.runs.begin import noted
from fedjax_ht.lab.runs.build import build
from fedjax_ht.lab.runs.families import Family, families, point_simulations
from fedjax_ht.lab.runs.objects import NO_OBJECTS, Objects
from fedjax_ht.lab.runs.run_folder import remember_config
from fedjax_ht.lab.runs.run_lock import locked
from fedjax_ht.lab.runs.search import better_half, rungs
from fedjax_ht.lab.runs.search_result import SearchResult, divergence
from fedjax_ht.lab.runs.signals import catch_signals
from fedjax_ht.lab.runs.train_points import (
    Histories,
    Rung,
    Search,
    Trainer,
    UntraceableSetting,
    train_here,
)
from fedjax_ht.simulation.rows import Row

SCORE = "val_accuracy"


def searched(
    config: Config,
    labels: Sequence[str],
    halvings: int,
    *,
    together: int | None,
    workdir: Path,
    tell: Callable[[str], None],
    trainer: Trainer | None = None,
    objects: Objects = NO_OBJECTS,
) -> SearchResult:
    """Searches among entries, on the config's split and seeds.

    Args:
      config: the config of the run; its `entries` are replaced.
      labels: labels of the points, as entries are written.
      halvings: number of times that the worse half of the points ends.
      together: number of points that train in one program; None is 1 on CPU, elsewhere all.
      workdir: the search's folder. A second call goes on from what is in it.
      tell: called with a line about every point.
      trainer: trains points elsewhere, one in a program unless `together` says otherwise; None
        trains them here.
      objects: objects from Python in place of names of the config; they are in this process alone.

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
    experiment = build(config, objects=objects)
    if not any(len(client.val) for client in experiment.partitions[0]):
        raise ValueError(
            "the clients have no validation sets to choose by; give them a share of each client's "
            "samples, such as --config.partition.options.val_share=0.2"
        )
    is_single = trainer is not None or jax.default_backend() == "cpu"
    size = together or (1 if is_single else len(labels))
    with (
        locked(workdir, tell),
        catch_signals() as caught,
        jax.default_matmul_precision(config.precision),
    ):
        config = experiment.config  # with the names of objects
        remember_config(config, experiment.entries, workdir, noted(experiment))

        def search(trace: bool) -> SearchResult:
            groups = families(experiment, trace)
            simulations = point_simulations(groups)
            return _search(
                Search(
                    experiment=experiment,
                    workdir=workdir,
                    simulations=simulations,
                    caught=caught,
                    tell=tell,
                    trace=trace,
                    together=size,
                ),
                groups,
                at,
                trainer or train_here,
            )

        try:
            return search(trace=True)
        except (jax.errors.ConcretizationTypeError, UntraceableSetting):
            tell("a setting cannot vary within a program, so that every point compiles its own")
            return search(trace=False)


def _search(
    search: Search, groups: Sequence[Family], at: Sequence[int], trainer: Trainer
) -> SearchResult:
    """Trains the points up to the rounds `at`; the better half goes on from each but the last.

    Scores are kept in search.json, and checkpoints of points that may go on below points/.
    """
    record, scores_at = search.workdir / "search.json", {}
    if record.exists():
        content = json.loads(record.read_text())
        scores_at = {int(rounds): scores for rounds, scores in content.items()}
    alive = list(search.experiment.arms)
    places: dict[str, Path] = {}  # where each point was trained for fewer rounds
    for rounds in at:
        scores = scores_at.setdefault(rounds, {})
        new_places: dict[str, Path] = {}
        companies = _companies(groups, alive, search.together)
        order = [label for company in companies for label in company]
        for number, label in enumerate(order):
            new_places[label] = search.workdir / "points" / f"{rounds:05d}" / f"{number:03d}"

        note = functools.partial(_note, search, scores_at, rounds=rounds, order=order)

        left = [company for company in companies if not set(company) <= set(scores)]
        trainer(search, Rung(left, new_places, rounds, places), note)
        scores = scores_at[rounds]
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


def _note(
    search: Search,
    scores_at: dict[int, dict[str, float]],
    histories: Histories,
    *,
    rounds: int,
    order: Sequence[str],
) -> None:
    """Adds the scores of points that were trained to those of their number of rounds, in an order
    that does not depend on which was trained first, and to search.json."""
    scores = scores_at[rounds] | _scores(search, histories, rounds)
    scores_at[rounds] = {label: scores[label] for label in order if label in scores}
    with atomic_open(search.workdir / "search.json") as file:
        json.dump(scores_at, file, indent=2)


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
        search.tell(f"{label}, up to round {rounds}: {outcome}")
    return scores


def _remove_checkpoints(folders: Iterable[Path]) -> None:
    """Removes the checkpoints of points that have all gone on or ended."""
    for folder in folders:
        for kept in folder.glob("checkpoints*"):
            shutil.rmtree(kept)
