"""Checkpoints come back bit for bit; a broken newest one falls back to the one before it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.simulation import SimulationState
from fedjax_ht.io.checkpoint import make_checkpointer


def make_state(round):
    return SimulationState(
        round,
        {"w": jnp.arange(3.0) + round, "ready": jnp.array(True)},
        {"a": {"params": jnp.ones((2, 4)) / (round + 3), "stats": {}}, "b": np.full((1, 2), round, np.float32)},
        np.array([round, -1], np.int32),
    )


def assert_same(a, b):
    assert a.round == b.round
    assert jax.tree.structure(a[1:]) == jax.tree.structure(b[1:])
    for x, y in zip(jax.tree.leaves(a[1:]), jax.tree.leaves(b[1:])):
        assert np.asarray(x).dtype == np.asarray(y).dtype
        np.testing.assert_array_equal(x, y)


@pytest.fixture
def checkpointer(tmp_path):
    return make_checkpointer(tmp_path / "checkpoints", keep=2)


def test_round_trip_keeps_the_newest(checkpointer, tmp_path):
    assert checkpointer.restore(make_state(0)) is None
    for round in (1, 2, 3):
        checkpointer.save(make_state(round), [{"round": round, "accuracy": 0.1 + 0.2, "clients": [None, 1 / 3]}])
    state, history = checkpointer.restore(make_state(0))
    assert_same(state, make_state(3))
    assert history == [{"round": 3, "accuracy": 0.1 + 0.2, "clients": [None, 1 / 3]}]
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["2", "3"]
    state.last_round[0] = 7  # a restored state can go on: its host arrays are writable


def test_a_truncated_checkpoint_falls_back_with_a_warning(checkpointer, tmp_path):
    for round in (1, 2):
        checkpointer.save(make_state(round), [{"round": round}])
    newest = tmp_path / "checkpoints" / "2"
    for file in newest.rglob("*"):
        if file.is_file() and file.stat().st_size > 1:
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    warnings = []
    state, history = checkpointer.restore(make_state(0), warnings.append)
    assert_same(state, make_state(1))
    assert history == [{"round": 1}]
    assert len(warnings) == 1 and str(newest) in warnings[0] and "\n" not in warnings[0]
    checkpointer.save(make_state(2), [{"round": 2}])  # the run goes on over the broken one
    assert_same(checkpointer.restore(make_state(0))[0], make_state(2))
