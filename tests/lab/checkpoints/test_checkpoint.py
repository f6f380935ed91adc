"""Checkpoints write what changed, and come back bit for bit."""

import itertools
import shutil
import threading

import jax
import numpy as np
import pytest

from fedjax_ht.core.keys import OtherGenerator
from fedjax_ht.lab.checkpoints import checkpoint
from fedjax_ht.lab.checkpoints import segments as stored
from fedjax_ht.lab.checkpoints.checkpoint import Checkpointer
from fedjax_ht.lab.checkpoints.segments import Placement, rows_to_write
from fedjax_ht.methods.fedproto import fedproto
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from tests.federations import TRAINING, federation_data, uniform_federation
from tests.lab.checkpoints.toy import (
    COURSE,
    assert_same,
    checkpoints,
    course,
    segments,
    stored_rows,
    toy_simulation,
)


def test_every_kind_of_state_comes_back(folder):
    simulation = toy_simulation()
    assert Checkpointer(folder, simulation).restore() is None
    history = [{"round": 2, "accuracy": 0.1 + 0.2, "clients": [None, 1 / 3]}]
    Checkpointer(folder, simulation).save(COURSE[2], history)
    state, past = Checkpointer(folder, simulation).restore()
    assert_same(state, COURSE[2])
    assert past == history
    # a restored state can go on: its host arrays are writable
    state.last_round[0] = state.changed["wide"][0] = 7


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        (1, [[0, 1, 2], [1, 5], [7], [1, 11]]),  # since the last checkpoint
        (2, [[0, 1, 2], [0, 1, 2, 5], [1, 5, 7], [1, 7, 11]]),  # since the one before it
        (3, [[0, 1, 2], [0, 1, 2, 5], [1, 5, 7], [1, 7, 11]]),
    ],
)
def test_a_checkpoint_writes_only_the_rows_that_changed(folder, keep, expected):
    writer = Checkpointer(folder, toy_simulation(), keep)
    written = []
    for state in COURSE[:5]:
        before = segments(folder)
        writer.save(state, [])
        written += [
            stored_rows(path) for number, path in segments(folder).items() if number not in before
        ]
    assert written == expected  # nothing at round 0
    assert_same(Checkpointer(folder, toy_simulation()).restore()[0], COURSE[4])


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("keep", [1, 2, 3])
def test_checkpoints_in_a_row_share_no_segment(folder, keep, restarted):
    writer = Checkpointer(folder, toy_simulation(), keep)
    for state in COURSE:
        if restarted:
            writer = Checkpointer(folder, toy_simulation(), keep)
            writer.restore()
        writer.save(state, [])
        held = [set(stored.held(folder / str(step))) for step in checkpoints(folder)]
        assert all(older.isdisjoint(newer) for older, newer in itertools.pairwise(held))
    assert checkpoints(folder) == [0, 1, 2, 3, 4, 5][-keep:]
    assert held[-1] and set(segments(folder)) == set().union(*held)
    for step in range(5, 5 - keep, -1):
        assert_same(Checkpointer(folder, toy_simulation()).restore()[0], COURSE[step])
        shutil.rmtree(folder / str(step))


def test_a_checkpoint_of_another_random_generator_is_refused(folder):
    """No older checkpoint is taken instead: the run would start again."""
    writer = Checkpointer(folder, toy_simulation())
    for state in COURSE[1:3]:
        writer.save(state, [])
    with (
        jax.threefry_partitionable(not jax.config.jax_threefry_partitionable),
        pytest.raises(OtherGenerator, match="with jax_threefry_partitionable "),
    ):
        Checkpointer(folder, toy_simulation()).restore()
    assert checkpoints(folder) == [1, 2]
    assert_same(Checkpointer(folder, toy_simulation()).restore()[0], COURSE[2])


def test_the_same_round_may_be_saved_again(folder):
    writer = Checkpointer(folder, toy_simulation(), keep=1)
    for _ in range(2):
        writer.save(COURSE[2], [{"round": 2}])
    assert len(segments(folder)) == 1
    # without restoring
    Checkpointer(folder, toy_simulation(), keep=1).save(COURSE[2], [{"round": 2, "again": 1}])
    state, history = Checkpointer(folder, toy_simulation()).restore()
    assert_same(state, COURSE[2])
    assert history == [{"round": 2, "again": 1}] and checkpoints(folder) == [2]
    assert len(segments(folder)) == 1


def test_segments_hold_at_most_twice_what_has_changed():
    rng = np.random.default_rng(0)
    rows, cost = 400, {"a": 10}
    changed = {"a": np.zeros(rows, np.int32)}
    base = Placement(0, {"a": np.zeros(rows, np.int32)}, {})
    written = []
    for round in range(1, 301):
        fresh = rng.choice(rows, 8, replace=False)
        changed["a"][fresh] = round
        taken = rows_to_write(base, changed, cost)["a"]
        assert set(fresh) <= set(taken)
        where = {"a": base.where["a"].copy()}
        where["a"][taken] = round
        held = base.held | {round: {"a": len(taken)}}
        base = Placement(round, where, {s: held[s] for s in np.unique(where["a"]).tolist() if s})
        assert np.array_equal(where["a"] > 0, changed["a"] > 0)
        assert sum(x["a"] for x in base.held.values()) <= 2 * np.sum(changed["a"] > 0)
        written.append(len(taken))
    # and no checkpoint rewrites them all
    assert max(written) < rows / 4 and np.mean(written) < 3 * 8


def test_trials_are_saved_and_restored_one_by_one(folder):
    states = COURSE[2], course([3], [3, 4], [11])[1]
    histories = [[{"round": r, "trial": trial} for r in range(4)] for trial in (0, 1)]
    for trial in (0, 1):
        writer = Checkpointer(folder, toy_simulation(), trial=trial)
        assert writer.restore() is None
        writer.save(states[trial], histories[trial])
    for trial in (0, 1):
        state, history = Checkpointer(folder, toy_simulation(), trial=trial).restore()
        assert_same(state, states[trial])
        assert history == histories[trial]


def test_moved_rows_are_still_the_newest(folder):
    states = course([0, 1, 2, 3], *[[0, i] for i in (1, 2, 4, 1, 2)])
    writer = Checkpointer(folder, toy_simulation(), keep=1)
    for state in states:
        writer.save(state, [])
        assert_same(Checkpointer(folder, toy_simulation()).restore()[0], state)
    assert sum(len(stored_rows(path)) for path in segments(folder).values()) <= 2 * 5


def test_much_is_cut_into_several_segments(folder, monkeypatch):
    monkeypatch.setattr(checkpoint, "SEGMENT_BYTES", 130)
    state = course(list(range(12)))[1]
    Checkpointer(folder, toy_simulation()).save(state, [])
    assert len(segments(folder)) == 4  # 12 rows of 40 bytes and one of 4, each where it begins
    assert_same(Checkpointer(folder, toy_simulation()).restore()[0], state)


def test_segments_deleted_under_a_run_are_written_again(folder):
    writer = Checkpointer(folder, toy_simulation(), keep=1)
    writer.save(COURSE[1], [])
    shutil.rmtree(segments(folder)[1])
    writer.save(COURSE[2], [])
    assert_same(Checkpointer(folder, toy_simulation()).restore()[0], COURSE[2])


def test_in_the_background_a_checkpoint_is_of_the_state_that_was_given(folder, monkeypatch):
    go_on, write = threading.Event(), stored.write
    monkeypatch.setattr(stored, "write", lambda *args: go_on.wait(60) and write(*args))
    writer, history = Checkpointer(folder, toy_simulation(), background=True), [{"round": 1}]
    state = course([0, 1, 2])[1]
    expected = jax.tree.map(lambda x: x.copy() if isinstance(x, np.ndarray) else x, state)
    writer.save(state, history)
    state.clients["wide"]["params"][:] = -1  # the next round writes into the host's rows
    history.append({"round": 2})
    assert not segments(folder)
    go_on.set()
    writer.wait()
    restored, past = Checkpointer(folder, toy_simulation()).restore()
    assert_same(restored, expected)
    assert past == [{"round": 1}]


def test_in_the_background_every_checkpoint_builds_on_the_one_before(folder):
    writer = Checkpointer(folder, toy_simulation(), background=True)
    for state in COURSE[:5]:
        writer.save(state, [])
    assert_same(writer.restore()[0], COURSE[4])  # it waits, too
    assert sorted(len(stored_rows(path)) for path in segments(folder).values()) == [3, 3, 3, 4]


def test_errors_in_the_background_are_raised(folder, monkeypatch):
    def full(*_):
        raise OSError("No space left on device")

    writer = Checkpointer(folder, toy_simulation(), background=True)
    writer.save(COURSE[1], [])
    writer.wait()
    with monkeypatch.context() as patch:
        patch.setattr(stored, "write", full)
        writer.save(COURSE[2], [])
        with pytest.raises(OSError, match="No space left"):
            writer.wait()
    writer.save(COURSE[3], [])  # the next one holds what that one lacked
    assert_same(writer.restore()[0], COURSE[3])


@pytest.mark.parametrize("store", ["device", "host"])
def test_a_run_resumed_at_every_checkpoint_equals_one_never_interrupted(folder, store):
    federation = uniform_federation()
    options = SimulationOptions(seed=3, participation=0.25, client_store=store)
    simulation = make_simulation(
        fedproto(TRAINING), federation, federation_data(federation), options
    )
    whole, resumed = simulation.init(), simulation.init()
    for round in range(1, 7):
        whole, _ = simulation.run_round(whole)
        resumed, _ = simulation.run_round(resumed)
        if round % 2 == 0:
            writer = Checkpointer(folder, simulation, keep=1)
            writer.restore()
            writer.save(resumed, [])
            resumed, _ = Checkpointer(folder, simulation).restore()
    assert_same(resumed, jax.tree.map(np.asarray, whole))
    assert len(segments(folder)) > 1  # it was put together from several
