"""A call of the system that fails while a checkpoint is written or read loses nothing."""

import copy
import errno
import functools
import shutil

import pytest

from fedjax_ht.lab.checkpoints import sealed
from fedjax_ht.lab.checkpoints.checkpoint import Checkpointer
from tests.faults import Fault, injected, some_or_all, try_faults
from tests.lab.checkpoints.toy import COURSE, assert_same, damage, toy_simulation

SIMULATION = toy_simulation()
SIMULATION.init = functools.partial(copy.copy, SIMULATION.init())  # made once


def checkpointer(folder):
    return Checkpointer(folder / "checkpoints", SIMULATION)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A folder with the checkpoints of rounds 1 and 2."""
    folder = tmp_path_factory.mktemp("begun")
    writer = checkpointer(folder)
    for state in COURSE[1:3]:
        writer.save(state, [{"round": state.round}])
    return folder


@pytest.fixture(scope="module")
def broken(tmp_path_factory, begun):
    """Saves and restores beside a checkpoint of round 3 that cannot be read."""
    folder = tmp_path_factory.mktemp("broken") / "folder"
    shutil.copytree(begun, folder)
    save(3)(folder)
    damage(folder / "checkpoints/3")
    return folder


def copy_of(source):
    return lambda folder: shutil.copytree(source, folder, dirs_exist_ok=True)


def save(round):
    """Goes on from the newest checkpoint and saves this round."""

    def act(folder):
        writer = checkpointer(folder)
        writer.restore(lambda line: None)
        writer.save(COURSE[round], [{"round": round}])

    return act


def restored(folder):
    """The round of the newest readable checkpoint, which must be whole, and the warnings."""
    warnings = []
    state, history = checkpointer(folder).restore(warnings.append)
    assert history == [{"round": state.round}]
    assert_same(state, COURSE[state.round])
    return state.round, warnings


@some_or_all
def test_a_fault_while_a_checkpoint_is_written(tmp_path, begun, which):
    def check(folder, is_through):
        round, warnings = restored(folder)
        assert not warnings and round in ((3,) if is_through else (2, 3))
        for parent in ("checkpoints", "checkpoints.segments"):
            for number in sealed.numbers(folder / parent):
                sealed.check(folder / parent / str(number))

    tried = try_faults(tmp_path, copy_of(begun), save(3), check, **which)
    assert tried.faults > 30 and tried.ended > tried.faults / 2, tried


@some_or_all
def test_a_fault_while_an_unreadable_checkpoint_is_moved_aside(tmp_path, broken, which):
    def contents(folder):
        return {path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    newest = max(sealed.numbers(broken / "checkpoints.segments"))
    kept = contents(broken / "checkpoints/3")
    kept |= contents(broken / "checkpoints.segments" / str(newest))

    def check(folder, is_through):
        assert restored(folder)[0] in ((4,) if is_through else (2, 4))
        assert kept <= contents(folder)

    tried = try_faults(tmp_path, copy_of(broken), save(4), check, **which)
    assert tried.faults > 30, tried


def test_too_many_open_files_are_no_reason_to_take_an_older_checkpoint(tmp_path, begun):
    warnings = []
    with (
        injected(begun, Fault("open", 3, errno.EMFILE)),
        pytest.raises(OSError, match=r"Too many open files: .*/checkpoints/2/"),
    ):
        checkpointer(begun).restore(warnings.append)
    assert not warnings
    with injected(begun, Fault("open", 3, errno.EIO)):
        assert checkpointer(begun).restore(warnings.append)[0].round == 1
    assert len(warnings) == 1 and "Input/output error" in warnings[0]
