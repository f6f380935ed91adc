"""The best of many draws of clients that do not change."""

import json

import numpy as np
import pytest

from experiments.participants_bias import (
    best_so_far,
    last_accuracies,
    picture,
    read_accuracies,
    write_accuracies,
)


def test_all_clients_have_no_luck():
    accuracy = np.array([0.2, 0.9, 0.4])
    np.testing.assert_allclose(best_so_far(accuracy, 3, 5, 2), np.full((2, 5), 0.5))
    np.testing.assert_allclose(best_so_far(np.full(8, 0.3), 2, 5, 2), np.full((2, 5), 0.3))


def test_the_best_of_draws_rises_to_the_best_clients():
    """With one of ten clients a round, the best has been drawn after k rounds by 1 - 0.9^k."""
    best = best_so_far(np.eye(10)[0], 1, 20, 4000)
    assert (np.diff(best, axis=1) >= 0).all()
    np.testing.assert_allclose(best.mean(0), 1 - 0.9 ** np.arange(1, 21), atol=0.03)
    pairs = best_so_far(np.arange(4.0), 2, 400, 3)
    np.testing.assert_array_equal(pairs[:, -1], 2.5)  # distinct clients: never the best one twice


def test_it_reads_the_last_evaluation_of_the_first_run(tmp_path):
    rows = [
        {"round": 0, "trial": 0, "accuracy": 0.1, "clients": [0.1, 0.2]},
        {"round": 1, "trial": 0, "accuracy": 0.5, "clients": [0.5, None, 0.7]},
        {"round": 2, "trial": 0},
        {"round": 1, "trial": 1, "accuracy": 0.5, "clients": [0.9, 0.9]},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    accuracy = last_accuracies(tmp_path)
    np.testing.assert_array_equal(accuracy, [0.5, 0.7])
    figure = picture(accuracy, 1, best_so_far(accuracy, 1, 5, 3))
    assert len(figure.axes) == 2


def test_accuracies_are_kept(tmp_path):
    write_accuracies(np.array([0.5, 1 / 3]), tmp_path / "a.csv")
    np.testing.assert_array_equal(read_accuracies(tmp_path / "a.csv"), [0.5, 0.333333])
    (tmp_path / "b.csv").write_text("client\n0\n")
    with pytest.raises(ValueError, match="no column accuracy"):
        read_accuracies(tmp_path / "b.csv")
