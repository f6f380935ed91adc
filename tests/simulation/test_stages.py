"""Seconds of a round's stages, and rounds whose participants nobody scores."""

import jax
import numpy as np

from fedjax_ht.lab.report.results import run_results
from fedjax_ht.simulation.history import run
from tests.standard import simulation_of


def test_stages_and_rounds_that_are_not_scored_change_no_number():
    name = "fedproto"
    plain, changed = simulation_of(name), simulation_of(name, time_stages=True)
    (state, history), (other, rows) = run(plain, 3), run(changed, 3, score_every=2)
    states = (state.server, state.clients), (other.server, other.clients)
    jax.tree.map(np.testing.assert_array_equal, *states)
    named = [name for row in rows for name in row if name.startswith("seconds_")]
    assert {"seconds_train", "seconds_score", "seconds_serve", "seconds_host"} < set(named)
    for row in rows[1:]:  # the host's seconds are what no stage has: together they are the round
        parts = [row[f"seconds_{stage}"] for stage in ("train", "score", "serve", "host")]
        assert min(parts) >= 0 and sum(parts) <= row["seconds_round"]
    assert sum(parts) > 0.5 * row["seconds_round"]
    # the last always
    assert ["accuracy_participants" in row for row in rows] == [False, False, True, True]
    for row, expected in zip(history, rows):
        common = [key for key in row if key in expected and not key.startswith("seconds")]
        common = [key for key in row if key in expected and not key.startswith("seconds")]
        same = {key: row[key] for key in common}
        assert same == {key: expected[key] for key in same}
    assert "| train s | score s | serve s | host s |" in run_results({name: [rows]}).markdown()
    assert "train s" not in run_results({name: [history]}).markdown()
