"""Trains the points of a search, the worse half of them for fewer rounds, and chooses one by
validation."""

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from fedjax_ht.checkpoints.checkpoint import make_checkpointer
from fedjax_ht.checkpoints.writers import write_history
from fedjax_ht.core.files import atomic_open
from fedjax_ht.experiment.build import Experiment, build, evaluated_clients
from fedjax_ht.experiment.families import Family, families, simulations
from fedjax_ht.experiment.run_folder import fingerprints, remember_config
from fedjax_ht.experiment.run_lock import locked
from fedjax_ht.runner.search import better_half, rounds_trained, rungs
from fedjax_ht.runner.signals import catch_signals
from fedjax_ht.runner.train import Interrupted
from fedjax_ht.simulation.history import Row, best_by, by_trial, run_rounds
from fedjax_ht.simulation.simulation import Simulation, SimulationState
from fedjax_ht.simulation.trials import of_trial
from fedjax_ht.simulation.waiting import regrouped_waiting

SCORE = "val_accuracy"


class Place(NamedTuple):
    """Where a point stands: a folder, and the labels of the points that were trained there
    together."""

    folder: Path
    labels: list[str]


def regrouped(
    target: Simulation,
    labels: Sequence[str],
    trials: int,
    sources: Mapping[str, tuple[Simulation, Any, list[str]]],
) -> tuple[SimulationState, list[Row]]:
    """State and history of points that were trained in other company; `sources` are label ->
    (simulation, (state, history), labels there)."""
    state, history = target.init(), []
    servers, last_round, waiting, changed = (
        [],
        [],
        [],
        {name: x.copy() for name, x in state.changed.items()},
    )
    sizes = {name: len(x) // (trials * len(labels)) for name, x in changed.items()}
    for position, label in enumerate(labels):
        simulation, (before, rows), company = sources[label]
        there = range(company.index(label) * trials, (company.index(label) + 1) * trials)
        here = range(position * trials, (position + 1) * trials)
        servers += [of_trial(before.servers, t) for t in there]
        last_round += [before.last_round[t] for t in there]
        waiting.append((before.waiting, there))
        for name, size in sizes.items():
            source, to = (np.arange(r.start * size, r.stop * size) for r in (there, here))
            state = target.write_clients(
                state, name, to, simulation.read_clients(before, name, source)
            )
            changed[name][to] = before.changed[name][source]
        moved = position * trials - there.start
        history += [row | {"trial": row["trial"] + moved} for row in rows if row["trial"] in there]
    history.sort(key=lambda row: (row["round"], row["trial"]))
    stacked = jax.tree.map(lambda *xs: jax.numpy.stack(xs), *servers)
    state = state._replace(
        round=before.round, servers=stacked, last_round=np.stack(last_round), changed=changed
    )
    return state if state.waiting is None else state._replace(
        waiting=regrouped_waiting(waiting)
    ), history


class Found(NamedTuple):
    """The result of a search.

    Attributes:
      best: the label of the chosen point.
      scores: after so many rounds -> label -> its best validation accuracy till then, mean over
        trials; NaN where a client or the server stopped being finite: such a point is not chosen.
    """

    best: str
    scores: dict[int, dict[str, float]]


def search(
    experiment: Experiment,
    config: ConfigDict,
    workdir: Path,
    at: Sequence[int],
    together: int,
    caught: Sequence[int],
    tell: Callable[[str], None],
) -> Found:
    """Trains the points of an experiment up to the rounds `at`; the better half goes on from each
    but the last.

    What is done is kept in `workdir`/search.json, and checkpoints of what is not below
    `workdir`/points: a second call goes on from there.

    Args:
      together: points that train in one program, side by side where trials do.
      caught: a signal's number in it stops the search, when the round in progress is saved.
      tell: is told how every point did.

    Raises:
      Interrupted: by a signal.
    """
    try:
        return _search(
            experiment, config, workdir, at, together, caught, tell, families(experiment, config)
        )
    except jax.errors.ConcretizationTypeError:
        tell("one of these settings cannot vary within a program: every point compiles its own")
        found = families(experiment, config, trace=False)
        return _search(experiment, config, workdir, at, together, caught, tell, found)


def _search(
    experiment, config, workdir, at, together, caught, tell, found: Sequence[Family]
) -> Found:
    record = workdir / "search.json"
    done = {int(k): v for k, v in json.loads(record.read_text()).items()} if record.exists() else {}
    simulation = simulations(experiment, config.trials, found)
    alive, places = list(experiment.entries), {}
    for before, rounds in zip([0, *at], at):
        scores, new = done.setdefault(rounds, {}), {}
        for number, company in enumerate(_companies(found, alive, together)):
            folder = workdir / "points" / f"{rounds:05d}" / f"{number:03d}"
            new |= {label: Place(folder, company) for label in company}
            if set(company) <= set(scores):
                continue
            own = {label: places[label] for label in company} if before else {}
            history = _train(simulation, company, config, folder, rounds, own, experiment, caught)
            for label, trials in zip(company, _parts(by_trial(history), config.trials)):
                diverged = divergence(trials)
                best = [best_by(trial, SCORE)[SCORE] for trial in trials]
                scores[label] = math.nan if diverged else float(np.mean(best))
                outcome = (
                    f"left out, {diverged}"
                    if diverged
                    else f"{100 * scores[label]:.2f} % on validation"
                )
                tell(f"{label}, {rounds} rounds: {outcome}")
            with atomic_open(record) as file:
                json.dump(done, file, indent=2)
        for folder in {place.folder for place in places.values()}:
            for kept in folder.glob("checkpoints*"):
                shutil.rmtree(kept)
        places = new
        if all(math.isnan(scores[label]) for label in alive):
            raise ValueError(
                f"in every setting of {alive[0].partition(':')[0]} a client or the server stopped "
                "being finite; "
                "search lower learning rates"
            )
        if rounds != at[-1]:
            alive = better_half({label: scores[label] for label in alive})
    last = {label: done[at[-1]][label] for label in alive}
    return Found(max(better_half(last), key=last.get), done)


def divergence(trials: Sequence[Sequence[Row]]) -> str | None:
    """Says where a client or the server first stopped being finite; None where all stayed so."""
    for number, trial in enumerate(trials):
        for row in trial:
            if clients := row.get("not_finite"):
                return f"clients {clients} not finite in round {row['round']} of trial {number}"
            if not row.get("server_finite", True):
                return f"the server not finite in round {row['round']} of trial {number}"
    return None


def _companies(found: Sequence[Family], alive: Sequence[str], together: int) -> list[list[str]]:
    """Those that train in one program at a time."""
    members = [[label for label in family.labels if label in alive] for family in found]
    return [own[i : i + together] for own in members for i in range(0, len(own), together)]


def _parts(trials: list, size: int) -> list[list]:
    return [trials[i : i + size] for i in range(0, len(trials), size)]


def _train(simulation, company, config, folder, rounds, places, experiment, caught) -> list[Row]:
    """Trains some points up to `rounds`, from where they stand: here, in the places where they were
    before, or new."""
    own = simulation(company)
    checkpointer = make_checkpointer(folder / "checkpoints", own, keep=1)
    state, history = checkpointer.restore() or (None, [])
    if state is None and places:
        sources = {}
        for label, place in places.items():
            there = simulation(place.labels)
            found = make_checkpointer(place.folder / "checkpoints", there).restore()
            if found is None:
                raise ValueError(
                    f"{place.folder} has no checkpoint that can be read; begin again in another "
                    "--workdir"
                )
            sources[label] = there, found, place.labels
        state, history = regrouped(own, company, config.trials, sources)

    def after_round(state, history) -> bool:
        stop = bool(caught)
        if stop or state.round % config.checkpoint.every == 0:
            checkpointer.save(state, history)
        return stop

    every, only = config.evaluate.every, evaluated_clients(config)
    state, history = run_rounds(
        own, rounds, state, history, every, after_round=after_round, only=only
    )
    if caught:
        raise Interrupted(caught[0])
    checkpointer.save(state, history)
    checkpointer.wait()
    write_history(history, folder)
    return history


def searched(
    config: ConfigDict,
    labels: Sequence[str],
    halvings: int,
    together: int | None,
    workdir: Path,
    tell: Callable[[str], None],
) -> Found:
    """Searches among entries, on the config's split and seeds.

    Raises:
      ValueError, OSError: the config is wrong or has no validation sets, or `workdir` is in use or
        of another search. One line.
      Interrupted: by a signal.
    """
    if jax.process_count() > 1:
        raise ValueError(f"a search runs in one process, and there are {jax.process_count()}")
    config = config.copy_and_resolve_references()
    config.entries, at = tuple(labels), rungs(config.rounds, halvings)
    experiment = build(config)
    if not any(len(client.val) for client in experiment.partitions[0]):
        raise ValueError(
            "the clients have no validation sets to choose by; give them a share of each client's "
            "samples, such as "
            "--config.partition.options.val_share=0.2"
        )
    size = together or (1 if jax.default_backend() == "cpu" else len(labels))
    with (
        locked(workdir, tell),
        catch_signals() as caught,
        jax.default_matmul_precision(config.precision),
    ):
        prints = fingerprints(experiment.dataset, experiment.partitions)
        remember_config(config, experiment.entries.values(), workdir, prints)
        return search(experiment, config, workdir, at, size, caught, tell)


def table(found: Found) -> str:
    """Markdown: every point's validation accuracy by rounds, the best of the longest first."""
    rounds = sorted(found.scores)
    order = sorted(
        found.scores[rounds[0]],
        key=lambda x: [-found.scores[r].get(x, -1) for r in reversed(rounds)],
    )
    rows = [["entry", *(f"{r} rounds, validation %" for r in rounds)], ["---"] * (1 + len(rounds))]
    for label in order:
        scores = [found.scores[r].get(label) for r in rounds]
        rows.append([label, *map(_cell, scores)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _cell(score: float | None) -> str:
    if score is None:
        return ""
    return "not finite" if math.isnan(score) else f"{100 * score:.2f}"


def budget(config: ConfigDict, points: int, halvings: int) -> str:
    """What a search spends, in words."""
    at = rungs(config.rounds, halvings)
    trained = rounds_trained(points, at)
    return (
        f"{points} settings, {trained} rounds of training, by validation on {config.trials} split"
        f"{'s' * (config.trials > 1)} of seed {config.partition.seed}, seed {config.seed}"
    )
