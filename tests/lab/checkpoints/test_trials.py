"""The runs of an entry have checkpoints of their own."""

from fedjax_ht.lab.checkpoints.checkpoint import Checkpointer
from tests.lab.checkpoints.toy import COURSE, assert_same, course, toy_simulation

OTHER = course([3], [3, 4], [11])
HISTORIES = [[{"round": r, "trial": trial} for r in range(4)] for trial in (0, 1)]


def run(folder, trial: int) -> Checkpointer:
    return Checkpointer(folder, toy_simulation(), trial=trial)


def test_runs_are_saved_and_restored_one_by_one(folder):
    for trial, state in enumerate((COURSE[2], OTHER[1])):
        assert run(folder, trial).restore(print) is None
        run(folder, trial).save(state, HISTORIES[trial])
    for trial, state in enumerate((COURSE[2], OTHER[1])):
        restored, history = run(folder, trial).restore(print)
        assert_same(restored, state)
        assert history == HISTORIES[trial]
