"""Puts points of a search that were trained in other programs into one, to train on together."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_ht.simulation.history import Row
from fedjax_ht.simulation.simulation import Simulation, SimulationState
from fedjax_ht.simulation.trials import of_trial
from fedjax_ht.simulation.uploads import regrouped_waiting


class Trained(NamedTuple):
    """Points that were trained in one program.

    Attributes:
      simulation: the simulation of the points' trials, those of the first point before those of the
        next.
      restored: the simulation's state and history.
      labels: labels of the points, in this order.
    """

    simulation: Simulation
    restored: tuple[SimulationState, list[Row]]
    labels: list[str]


def regrouped(
    target: Simulation, labels: Sequence[str], trials: int, sources: Mapping[str, Trained]
) -> tuple[SimulationState, list[Row]]:
    """Returns state and history of points in another simulation than they were trained in.

    Args:
      target: the simulation of these points' trials.
      labels: labels of the points, in the order of their trials.
      trials: number of trials of each point.
      sources: label -> the points that it was trained with.
    """
    state = target.init()
    history: list[Row] = []
    servers, last_round, waiting, done = [], [], [], 0
    changed = {name: x.copy() for name, x in state.changed.items()}
    sizes = {name: len(x) // (trials * len(labels)) for name, x in changed.items()}
    for position, label in enumerate(labels):
        simulation, (before, rows), company = sources[label]
        first = company.index(label) * trials
        old, new = range(first, first + trials), range(position * trials, (position + 1) * trials)
        servers += [of_trial(before.servers, t) for t in old]
        last_round += [before.last_round[t] for t in old]
        waiting.append((before.waiting, old))
        done = before.round
        for name, size in sizes.items():
            # rows of a bucket's stacked states are ordered by trial, then by client
            old_rows, new_rows = _rows(old, size), _rows(new, size)
            states = simulation.read_clients(before, name, old_rows)
            state = target.write_clients(state, name, new_rows, states)
            changed[name][new_rows] = before.changed[name][old_rows]
        for row in rows:
            if row["trial"] in old:
                history.append(row | {"trial": row["trial"] + new.start - old.start})
    history.sort(key=lambda row: (row["round"], row["trial"]))
    stacked: Any = jax.tree.map(lambda *xs: jax.numpy.stack(xs), *servers)
    state = state._replace(
        round=done, servers=stacked, last_round=np.stack(last_round), changed=changed
    )
    if state.waiting is not None:
        state = state._replace(waiting=regrouped_waiting(waiting))
    return state, history


def _rows(trials: range, size: int) -> np.ndarray:
    return np.arange(trials.start * size, trials.stop * size)
