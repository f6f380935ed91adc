"""The runs of an entry have checkpoints of their own, and read those that earlier versions wrote of
all trials together."""

import types

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.lab.checkpoints.checkpoint import make_checkpointer
from fedjax_ht.lab.checkpoints.trials import TrialCheckpoints
from tests.lab.checkpoints.toy import COURSE, assert_same, checkpoints, course, toy_simulation

OTHER = course([3], [3, 4], [11])
HISTORIES = [[{"round": r, "trial": trial} for r in range(4)] for trial in (0, 1)]


def together(trees):
    """Arrays of two runs one behind another."""

    def joined(*arrays):
        arrange = jnp if isinstance(arrays[0], jax.Array) else np
        return arrange.concatenate(arrays)

    return jax.tree.map(joined, *trees)


def of_both(states):
    """A state as earlier versions held it: the server and the rounds with an axis of trials, the
    clients' rows trial after trial."""

    def stacked(*arrays):
        arrange = jnp if isinstance(arrays[0], jax.Array) else np
        return arrange.stack(arrays)

    return states[0]._replace(
        server=jax.tree.map(stacked, *(state.server for state in states)),
        clients=together([state.clients for state in states]),
        last_round=np.stack([state.last_round for state in states]),
        changed=together([state.changed for state in states]),
    )


def simulation_of_both():
    simulation = toy_simulation()
    start = simulation.init()
    return types.SimpleNamespace(
        init=lambda: of_both([start, start]),
        read_clients=simulation.read_clients,
        write_clients=simulation.write_clients,
    )


def runs(folder, keep: int = 2) -> TrialCheckpoints:
    return TrialCheckpoints(folder, [toy_simulation()] * 2, keep, background=False)


def test_runs_are_saved_and_restored_one_by_one(folder):
    assert runs(folder).restore(print) == ([None, None], [[], []])
    runs(folder).save([COURSE[2], OTHER[1]], HISTORIES)
    states, histories = runs(folder).restore(print)
    assert_same(states[0], COURSE[2])
    assert_same(states[1], OTHER[1])
    assert histories == HISTORIES


def test_a_checkpoint_of_all_trials_is_read_and_gone_on_from(folder):
    history = sorted(sum(HISTORIES, []), key=lambda row: row["round"])  # noqa: RUF017
    make_checkpointer(folder, simulation_of_both()).save(of_both([COURSE[3], OTHER[3]]), history)
    going_on = runs(folder, keep=1)
    states, histories = going_on.restore(print)
    assert_same(states[0], COURSE[3])
    assert_same(states[1], OTHER[3])
    assert histories == HISTORIES
    going_on.save([COURSE[4], OTHER[3]._replace(round=4)], HISTORIES)
    assert checkpoints(folder) == checkpoints(folder.with_name("checkpoints.1")) == [4]
    states, _ = runs(folder).restore(print)
    assert_same(states[0], COURSE[4])
    assert_same(states[1], OTHER[3]._replace(round=4))


def test_another_run_is_not_read_for_one_that_is_missing(folder):
    make_checkpointer(folder, toy_simulation()).save(COURSE[2], HISTORIES[0])
    states, histories = runs(folder).restore(print)
    assert_same(states[0], COURSE[2])
    assert states[1] is None and histories == [HISTORIES[0], []]
