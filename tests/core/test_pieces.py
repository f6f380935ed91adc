"""Batches, pieces and blocks give the same wherever they end."""

import io
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.executor import Schedule, capacity_for, longest_first, run_clients
from fedjax_ht.core.inputs import AsStored
from fedjax_ht.core.prediction_counts import score
from fedjax_ht.core.samples import Data, Split
from fedjax_ht.data.dataset import ClientIndices, Dataset
from fedjax_ht.lab.checkpoints.segments import pieces
from fedjax_ht.lab.readers import motion
from fedjax_ht.lab.runs.folder import fingerprints
from fedjax_ht.lab.safe import arrays
from fedjax_ht.simulation.roster import PADDING, lay_out

SIZE = 3
COUNTS = range(2 * SIZE + 2)
ROWS = np.random.default_rng(0).normal(size=(len(COUNTS), 2)).astype(np.float32)
LABELS = np.arange(len(COUNTS), dtype=np.int32) % 4


def data_of(count) -> Data:
    """A client of so many samples; what is behind them would be noticed."""
    order = jnp.arange(len(COUNTS), dtype=jnp.int32)
    split = Split(order, jnp.int32(count))
    return Data(jnp.asarray(ROWS), jnp.asarray(LABELS), AsStored(), {"train": split})


def test_scores_of_any_number_of_samples():
    def scores(count):
        data = data_of(count)

        def predict(x, mask):
            right = jax.nn.one_hot((x[:, :1] == ROWS[:, 0]).argmax(1) % 4, 4)
            return {"right": right, "wrong": -right, "none": jnp.full((len(x), 4), -jnp.inf)}

        return score(predict, data, data.splits["train"], SIZE, by_class_of="right", auc=True)

    compiled = jax.jit(scores)
    for count in COUNTS:
        correct, of_count, by_class, auc, _ = compiled(count)
        # of each class, predicted to be of it, and both
        np.testing.assert_array_equal(by_class, [np.bincount(LABELS[:count], minlength=4)] * 3)
        assert (correct["right"], correct["none"], of_count) == (count, 0, count)
        assert correct["wrong"] == 0
        np.testing.assert_equal(float(auc), 1.0 if count > 1 else np.nan)  # of two classes or more


@pytest.mark.parametrize("count", COUNTS)
def test_arrays_are_read_whole_whatever_their_length(count, monkeypatch):
    monkeypatch.setattr(arrays, "_CHUNK", SIZE)
    file = io.BytesIO()
    np.save(file, np.arange(count, dtype=np.uint8))
    size = file.tell()
    file.seek(0)
    np.testing.assert_array_equal(arrays.read_npy(file, size), np.arange(count))


@pytest.mark.parametrize("count", [4095, 4096, 4097, 8192])
def test_checksums_see_every_sample(count):
    def prints(inputs, last):
        dataset = Dataset("d", inputs, np.zeros(count, int), ("a", "b"))
        nothing = np.array([], int)
        return fingerprints(dataset, [(ClientIndices(np.arange(last), nothing, nothing),)])

    inputs = np.arange(count, dtype=np.float32)[:, None]
    whole = prints(inputs, count)
    assert prints(inputs.copy(), count) == whole
    assert prints(inputs, count - 1)["split"] != whole["split"]
    for sample in (0, 4094, count - 1):
        changed = inputs.copy()
        changed[sample] += 0.5
        assert prints(changed, count)["data"] != whole["data"]


@pytest.mark.parametrize("limit", [1, 7, 8, 9, 16, 23, 24, 25, 100])
def test_pieces_of_a_checkpoint_hold_each_row_once(limit):
    """Three rows of eight bytes and two of four: each part begins below its limit."""
    rows = {"wide": np.array([4, 1, 9]), "narrow": np.array([0, 5])}
    row_bytes = {"wide": 8, "narrow": 4}
    parts = list(pieces(rows, row_bytes, limit))
    for name, expected in rows.items():
        joined = np.concatenate([part[name] for part in parts if name in part])
        np.testing.assert_array_equal(joined, expected)
    sizes = [sum(len(x) * row_bytes[name] for name, x in part.items()) for part in parts]
    assert sum(sizes) == 32 and max(sizes) < limit + 8
    if limit >= 8:
        assert len(parts) == -(-32 // limit)


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5])
def test_blocks_of_clients_hold_each_once(count, lanes):
    """Two devices, the first with the even rows, two rows of a device a block."""
    steps = np.arange(6)
    roster = types.SimpleNamespace(device=steps % 2, devices=2, lanes=lanes, steps=steps)
    layouts = lay_out(roster, np.arange(count), 2)
    assert len(layouts) == max(1, -(-((count + 1) // 2) // 2))  # of nobody all is padding
    placed = np.concatenate([np.zeros(0, int), *layouts])
    assert sorted(placed[placed != PADDING]) == list(range(count))
    for layout in layouts:
        first, second = layout[:2], layout[2:]
        assert not (first[first != PADDING] % 2).any() and (second[second != PADDING] % 2).all()


def table(steps: int) -> bytes:
    """A recording of so many steps, lying, with a signal that counts them."""
    line = "{} 1 " + "0 " * 52
    return "\n".join(line.format(i) for i in range(steps)).encode()


@pytest.mark.parametrize("steps, windows", [(-1, 0), (0, 1), (motion.STRIDE - 1, 1)])
@pytest.mark.parametrize("further", [0, 1])
def test_windows_of_a_recording_of_any_length(steps, windows, further):
    steps, windows = steps + motion.STEPS + further * motion.STRIDE, windows + further
    signals, labels, _ = motion._recording("recording", table(steps))
    assert len(signals) == len(labels) == windows


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
    slots = np.concatenate([np.array(slots), np.full(padding, np.iinfo(np.int32).max)])
    return Schedule(slots.astype(np.int32), rows, np.int32(count))


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


@pytest.mark.parametrize("lanes", [1, 3, 6])
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
    [(8, 5, 1, (5, 1)), (5, 8, 4, (8, 4)), (3, 8, 4, (3, 3)), (8, 8, 4, (8, 4)), (0, 8, 4, (1, 1))],
)
def test_capacity(participants, bucket_size, lanes, capacity):
    assert capacity_for(participants, bucket_size, lanes) == capacity


def test_longest_first_is_stable():
    np.testing.assert_array_equal(longest_first(np.array([2, 7, 0, 7, 2, 9])), [5, 1, 3, 0, 4, 2])
    assert len(longest_first(np.array([], int))) == 0
