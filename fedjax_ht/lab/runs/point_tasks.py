"""Trains the points of a search as tasks of a cluster, see tasks.py."""

import os
import pickle
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from fedjax_ht.lab.runs.build import build
from fedjax_ht.lab.runs.families import families, point_simulations
from fedjax_ht.lab.runs.signals import Interrupted
from fedjax_ht.lab.runs.tasks import Cluster, play
from fedjax_ht.lab.runs.train_points import (
    Histories,
    Rung,
    Search,
    UntraceableSetting,
    train_company,
)
from fedjax_ht.lab.runs.workplace import Event, Report, Workplace, in_place, kept, workplace


def train_points_on(
    open_cluster: Callable[[], Cluster],
    config_file: str | None,
    search: Search,
    rung: Rung,
    done: Callable[[Histories], None],
) -> None:
    """Trains each company of points in a task. Bound to its first two arguments it is a
    `points.Trainer`.

    Raises:
      Interrupted: by a signal.
    """
    if not rung.companies:
        return
    cluster = open_cluster()
    place = workplace(search.experiment, search.workdir, config_file, cluster.accelerated)
    folders = {label: os.path.abspath(path) for label, path in rung.folders.items()}
    before = {label: os.path.abspath(path) for label, path in rung.before.items()}
    kind = (pickle.dumps(search.experiment.config), search.trace, search.together)
    calls = {}
    for company in rung.companies:
        arguments = (*kind, tuple(company), folders, rung.rounds, before)
        calls[tuple(company)] = (point_task, place, *arguments)

    def told(event: Event) -> None:
        if event[0] in ("warn", "stage"):
            search.tell(event[1])

    def played(company: Any, histories: Histories | None) -> None:
        if histories is not None:
            done(histories)

    play(cluster, calls, told, search.caught, played)
    if search.caught:
        raise Interrupted(search.caught[0])


def point_task(
    place: Workplace,
    config: bytes,
    trace: bool,
    together: int,
    company: Sequence[str],
    folders: Mapping[str, str],
    rounds: int,
    before: Mapping[str, str],
    report: Report,
) -> Histories | None:
    """Trains a company of points in the process of a task; returns None where it was stopped. Other
    arguments as of `train_points.train_company`, `Search` and `tasks.train_task`."""
    caught: list[int] = []

    def look() -> None:
        if report(("round",)):
            caught.append(signal.SIGTERM)

    with in_place(place, report):
        search = kept(_search_of, config, place.workdir, trace, together)
        try:
            with jax.default_matmul_precision(search.experiment.config.precision):
                return train_company(
                    search._replace(caught=caught, look=look),
                    company,
                    {label: Path(path) for label, path in folders.items()},
                    rounds,
                    before={label: Path(path) for label, path in before.items()},
                )
        except Interrupted:
            return None
        except jax.errors.ConcretizationTypeError as error:
            # which has parts of a trace in it, that no other process can have
            raise UntraceableSetting(str(error).partition("\n")[0]) from None


def _search_of(config: bytes, workdir: Path, trace: bool, together: int) -> Search:
    """Makes the search of a pickled config, whose points share programs."""
    experiment = build(pickle.loads(config))
    groups = families(experiment, trace)
    return Search(
        experiment=experiment,
        workdir=workdir,
        simulations=point_simulations(groups),
        caught=(),
        tell=lambda line: None,
        trace=trace,
        together=together,
    )
