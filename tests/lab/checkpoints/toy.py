"""A simulation whose states are of every kind, without anything to compile, and its checkpoints."""

import types

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.lab.checkpoints.segments import ARRAYS
from fedjax_ht.simulation.simulation import SimulationState

ROWS = {"wide": 12, "stateless": 3}


def toy_simulation(width=4):
    """States of every awkward kind in host memory, without anything to compile."""

    def init():
        wide = {
            "params": np.arange(ROWS["wide"] * width, dtype=np.float32).reshape(-1, width),
            "half": np.zeros((ROWS["wide"], 2), jnp.bfloat16),
            "nothing": (np.zeros((ROWS["wide"], 0), np.float32), {}),
            "key": jax.random.split(jax.random.key(5, impl="rbg"), ROWS["wide"]),
        }
        server = {"w": jnp.zeros(3), "key": jax.random.key(0), "step": np.int32(0), "none": ()}
        changed = {name: np.zeros(rows, np.int32) for name, rows in ROWS.items()}
        return SimulationState(
            0, server, {"wide": wide, "stateless": ()}, np.full(4, -1, np.int32), changed
        )

    def write(state, name, rows, tree):
        def put(x, new):
            return x.at[rows].set(new) if isinstance(x, jax.Array) else _put(x, rows, new)

        return state._replace(
            clients=state.clients | {name: jax.tree.map(put, state.clients[name], tree)}
        )

    def read(state, name, rows):
        return jax.tree.map(lambda x: x[rows], state.clients[name])

    program = types.SimpleNamespace(sums=lambda: {"data": "toy"})
    return types.SimpleNamespace(init=init, read_clients=read, write_clients=write, program=program)


def _put(x, rows, new):
    x = x.copy()
    x[rows] = new
    return x


def _with_keys(keys, rows, seed):
    data = _put(np.asarray(jax.random.key_data(keys)), rows, [6, 0, 0, seed])
    return jax.random.wrap_key_data(data, impl="rbg")


def advance(state, rows):
    """A round after which these rows of "wide", the server and one stateless client differ."""
    round, wide = state.round + 1, state.clients["wide"]
    changed = {name: x.copy() for name, x in state.changed.items()}
    changed["wide"][rows] = changed["stateless"][0] = round
    wide = wide | {
        "params": _put(wide["params"], rows, wide["params"][rows] / 3 + round),
        "half": _put(wide["half"], rows, round),
        "key": _with_keys(wide["key"], rows, round),
    }
    server = {
        "w": state.server["w"] + 0.1,
        "key": jax.random.key(round),
        "step": np.int32(round),
        "none": (),
    }
    last_round = np.array([round, -1, 0, 0], np.int32)
    return SimulationState(round, server, state.clients | {"wide": wide}, last_round, changed)


def course(*rows_of_rounds):
    """States after 0, 1, 2, ... rounds, where round i changes rows_of_rounds[i]."""
    states = [toy_simulation().init()]
    for rows in rows_of_rounds:
        states.append(advance(states[-1], rows))
    return states


COURSE = course([0, 1, 2], [1, 5], [7], [1, 11], [0, 2])


def assert_same(a, b):
    assert a.round == b.round
    assert jax.tree.structure(a[1:]) == jax.tree.structure(b[1:])
    for x, y in zip(jax.tree.leaves(a[1:]), jax.tree.leaves(b[1:])):
        assert x.dtype == y.dtype
        x, y = (
            jax.random.key_data(v) if jnp.issubdtype(v.dtype, jax.dtypes.prng_key) else v
            for v in (x, y)
        )
        np.testing.assert_array_equal(x, y)


def checkpoints(folder):
    return sorted(int(p.name) for p in folder.iterdir())


def segments(folder):
    return {int(p.name): p for p in folder.with_name("checkpoints.segments").glob("*")}


def stored_rows(segment):
    """Rows of "wide" in a segment that also holds one of "stateless": leaves are sorted by name."""
    with np.load(segment / ARRAYS) as arrays:
        return arrays["00001"].tolist()


def damage(folder):
    """Cuts every file of a folder in half."""
    for file in folder.rglob("*"):
        if file.is_file() and file.stat().st_size > 1:
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(file, at, bit=0):
    """Flips a bit of the byte at a position of a file."""
    content = bytearray(file.read_bytes())
    content[at] ^= 1 << bit
    file.write_bytes(content)
