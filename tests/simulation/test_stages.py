"""Seconds of a round's stages, and rounds whose participants nobody scores."""

import jax
import numpy as np
import pytest

from fedjax_ht.lab.report.results import run_results
from fedjax_ht.methods import METHODS
from fedjax_ht.simulation.history import run
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from tests.federations import TRAINING, federation_data, federation_for


def simulation_of(name: str, **options):
    federation = federation_for(name)
    return make_simulation(
        METHODS[name](TRAINING),
        federation,
        federation_data(federation),
        SimulationOptions(**options),
    )


@pytest.mark.parametrize("name", ["fedavg", "fedproto"])
def test_stages_and_rounds_that_are_not_scored_change_no_number(name):
    plain, changed = simulation_of(name), simulation_of(name, time_stages=True)
    (state, history), (other, rows) = run(plain, 3), run(changed, 3, score_every=2)
    jax.tree.map(
        np.testing.assert_array_equal,
        (state.server, state.clients),
        (other.server, other.clients),
    )
    named = [name for row in rows for name in row if name.startswith("seconds_")]
    assert {"seconds_train", "seconds_score", "seconds_serve", "seconds_host"} < set(named)
    for row in rows[1:]:  # the host's seconds are what no stage has: together they are the round
        parts = [row[f"seconds_{stage}"] for stage in ("train", "score", "serve", "host")]
        assert min(parts) >= 0 and sum(parts) <= row["seconds_round"]
    assert sum(parts) > 0.5 * row["seconds_round"]
    # the last always
    assert ["accuracy_participants" in row for row in rows] == [False, False, True, True]
    for row, expected in zip(history, rows):
        same = {
            key: value
            for key, value in row.items()
            if key in expected and not key.startswith("seconds")
        }
        assert same == {key: expected[key] for key in same}
    assert "| train s | score s | serve s | host s |" in run_results({name: [rows]}).markdown()
    assert "train s" not in run_results({name: [history]}).markdown()
