"""The runs of an entry have checkpoints of their own."""

from fedjax_ht.lab.checkpoints.checkpoint import Checkpointer, TrialCheckpoints
from tests.lab.checkpoints.toy import COURSE, assert_same, course, toy_simulation

OTHER = course([3], [3, 4], [11])
HISTORIES = [[{"round": r, "trial": trial} for r in range(4)] for trial in (0, 1)]


def runs(folder, keep: int = 2) -> TrialCheckpoints:
    return TrialCheckpoints(folder, [toy_simulation()] * 2, keep, background=False)


def test_runs_are_saved_and_restored_one_by_one(folder):
    assert runs(folder).restore(print) == ([None, None], [[], []])
    runs(folder).save([COURSE[2], OTHER[1]], HISTORIES)
    states, histories = runs(folder).restore(print)
    assert_same(states[0], COURSE[2])
    assert_same(states[1], OTHER[1])
    assert histories == HISTORIES


def test_another_run_is_not_read_for_one_that_is_missing(folder):
    Checkpointer(folder, toy_simulation()).save(COURSE[2], HISTORIES[0])
    states, histories = runs(folder).restore(print)
    assert_same(states[0], COURSE[2])
    assert states[1] is None and histories == [HISTORIES[0], []]
