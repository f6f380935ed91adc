"""Training that diverges and stays finite is told of, once; training that learns is not."""

import dataclasses
import math

import pytest

import fedjax_ht as fl
from fedjax_ht.simulation.divergence import Divergence
from tests.simulation.test_history import scripted

GUESSING = math.log(4)


def rows(losses, accuracies=(), name="loss", untrained=0.25) -> list[dict]:
    """Rows of rounds with these losses, as multiples of that of guessing, and accuracies of their
    participants; an accuracy of None is not known."""
    history = [{"round": 0, "trial": 0, "accuracy": untrained}]
    for i, times in enumerate(losses):
        row = {"round": i + 1, "trial": 0, name: times * GUESSING}
        if i < len(accuracies) and accuracies[i] is not None:
            row["accuracy_participants"] = accuracies[i]
        history.append(row)
    return history


def told(history, num_classes=4) -> list[int]:
    divergence = Divergence(num_classes)
    return [row["round"] for row in history for _ in divergence.notes(row)]


@pytest.mark.parametrize(
    "history, rounds",
    [
        (rows([1.0, 0.5, 11.0, 1e9]), [3]),  # once
        (rows([1e5, 1.0, 1.0]), [1]),  # from the first round on
        (rows([1.0, 2.9, 9.9]), []),
        (rows([16, 14, 12], [0.5, 0.6, 0.7]), []),  # regularisers, and it learns
        (rows([16, 60, 12], [0.5, 0.6, 0.7]), [2]),
        (rows([3.0, 7.0, 1.0], [0.3, 0.3, 0.3]), [2]),  # stuck at chance
        (rows([3.0, 7.0, 1.0], [0.3, 0.6, 0.3]), []),
        (rows([7.0, 6.0, 5.0], [0.3, 0.3, 0.3]), []),  # a slow start
        (rows([3.0, 7.0, 1.0], [None, None]), []),
        (rows([20.0, 90.0, 15.0], name="generator_loss"), []),
        (rows([2.0, 21.0, 1e6], name="generator_loss"), [2]),
        (rows([1e5, 1e4], name="server_loss"), [1]),
        (rows([1e5, 1e4], name="margin"), []),
        (rows([math.nan, 1.0]), []),
    ],
)
def test_a_loss_that_diverges_is_told_of_once(history, rounds):
    assert told(history) == rounds
    assert told(history, num_classes=None) == []


def evaluations(*accuracies) -> list[dict]:
    return [{"round": i, "trial": 0, "accuracy": a} for i, a in enumerate(accuracies)]


@pytest.mark.parametrize(
    "accuracies, rounds",
    [
        ((0.2, 0.7, 0.26), [2]),  # chance is that of guessing
        ((0.0, 0.7, 0.26), [2]),  # no prototypes yet
        ((0.5, 0.8, 0.52), [2]),  # chance is that of the untrained federation
        ((0.2, 0.7, 0.4), []),
        ((0.2, 0.4, 0.2), []),  # gained too little to say
        ((0.2, 0.7, 0.1, 0.7, 0.1), [2]),  # once
    ],
)
def test_accuracy_that_falls_to_chance_is_told_of_once(accuracies, rounds):
    assert told(evaluations(*accuracies)) == rounds


def test_the_clients_of_the_latest_outlying_uploads_are_named():
    history = evaluations(0.2, 0.7, 0.1)
    history[1]["far_off"], history[2]["far_off"] = [[4, 40.0]], [[i, 98.0] for i in range(7)]
    divergence, lines = Divergence(4), []
    for row in history:
        lines += divergence.notes(row)
    assert lines[0].endswith("; outlying uploads in round 2 of clients 0, 1, 2, 3, 4 and 2 more")
    (line,) = Divergence(4, history[:2]).notes(history[2] | {"far_off": []})
    assert line.endswith("; outlying uploads in round 1 of client 4")


def test_an_earlier_course_was_told_of():
    again = Divergence(4, evaluations(0.2, 0.7, 0.1))
    assert again.notes(evaluations(0.2, 0.7, 0.1)[2]) == []
    later = Divergence(4, evaluations(0.2, 0.7))
    (line,) = later.notes(evaluations(0.2, 0.7, 0.1)[2])
    assert line.startswith("accuracy is 10.0 %, where an untrained federation has 25.0 %, after")


def test_a_run_warns_at_its_caller():
    simulation = dataclasses.replace(scripted([0.2, 0.9, 0.2, 0.2]), num_classes=4)
    with pytest.warns(RuntimeWarning, match=r"^round 2: accuracy is 20.0 %, where an") as caught:
        fl.run(simulation, rounds=3)
    assert len(caught) == 1 and caught[0].filename == __file__
