import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.executor import Schedule, capacity_for, longest_first, run_clients

STATES = {
    "a": np.arange(14, dtype=np.float32).reshape(7, 2),
    "b": np.arange(7, dtype=np.int32) * 10,
}


def client(state, row):
    """A step count that differs from client to client, as in training."""
    a, b = jax.lax.fori_loop(
        0, row["steps"], lambda i, s: (s[0] * 2 + row["x"], s[1] + 1), (state["a"], state["b"])
    )
    return {"a": a, "b": b}, {"sum": a.sum(), "x": row["x"]}


def schedule(slots, capacity) -> Schedule:
    """Clients `slots` in this order; padding points out of range and its rows are NaN."""
    count, padding = len(slots), capacity - len(slots)
    rows = {
        "x": np.concatenate([np.array(slots) + 0.5, np.full(padding, np.nan)]).astype(np.float32),
        "steps": np.concatenate([np.array(slots) % 3, np.full(padding, 9)]).astype(np.int32),
    }
    slots = np.concatenate([np.array(slots, int), np.full(padding, np.iinfo(np.int32).max)]).astype(
        np.int32
    )
    return Schedule(slots, rows, np.int32(count))


def in_chunks(plan: Schedule, lanes: int) -> Schedule:
    return plan._replace(slots=plan.slots.reshape(-1, lanes))


def one_by_one(plan: Schedule):
    states = {name: value.copy() for name, value in STATES.items()}
    outputs = []
    for i in range(plan.count):
        row = {name: value[i] for name, value in plan.arguments.items()}
        a, b = states["a"][plan.slots[i]], states["b"][plan.slots[i]]
        for _ in range(row["steps"]):
            a, b = a * 2 + row["x"], b + 1
        states["a"][plan.slots[i]], states["b"][plan.slots[i]] = a, b
        outputs.append((a.sum(), row["x"]))
    return states, outputs


@pytest.mark.parametrize("lanes", [1, 2, 3, 6])
def test_run_clients_as_a_python_loop(lanes):
    run = jax.jit(lambda states, plan: run_clients(client, states, in_chunks(plan, lanes)))
    for slots in ([4, 0, 6, 2, 5, 1], [6, 3, 5, 0], [2], []):
        plan = schedule(slots, capacity=6)
        states, outputs = jax.device_get(run(STATES, plan))
        expected, results = one_by_one(plan)
        np.testing.assert_array_equal(states["a"], expected["a"])
        np.testing.assert_array_equal(states["b"], expected["b"])
        for name, column in zip(("sum", "x"), zip(*results)):
            np.testing.assert_array_equal(outputs[name][: len(slots)], column)
        unused = -(-len(slots) // lanes) * lanes  # whole chunks beyond the last client never run
        assert not outputs["sum"][unused:].any() and not outputs["x"][unused:].any()
    assert run._cache_size() == 1  # one compiled function for any number of participants


def test_one_lane_has_no_client_axis():
    shapes = []

    def note(state, row):
        shapes.append((state.shape, row.shape))
        return state, jnp.sum(row)

    plan = Schedule(jnp.arange(2).reshape(2, 1), jnp.zeros((2, 5)), jnp.int32(2))
    run_clients(note, jnp.zeros((4, 3)), plan)
    assert set(shapes) == {((3,), (5,))}


@pytest.mark.parametrize(
    ("participants", "bucket_size", "lanes", "capacity"),
    [
        (5, 8, 1, (5, 1)),
        (8, 5, 1, (5, 1)),
        (5, 8, 4, (8, 4)),
        (5, 8, 2, (6, 2)),
        (3, 8, 4, (3, 3)),
        (8, 8, 4, (8, 4)),
        (0, 8, 4, (1, 1)),
        (9, 9, 4, (12, 4)),
    ],
)
def test_capacity(participants, bucket_size, lanes, capacity):
    assert capacity_for(participants, bucket_size, lanes) == capacity


def test_longest_first_is_stable():
    np.testing.assert_array_equal(longest_first(np.array([2, 7, 0, 7, 2, 9])), [5, 1, 3, 0, 4, 2])
    assert len(longest_first(np.array([], int))) == 0
