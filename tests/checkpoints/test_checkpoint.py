"""Checkpoints write what changed, come back bit for bit, and a broken one falls back to the one
before it."""

import itertools
import shutil
import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from fedjax_ht.checkpoints import checkpoint, sealed
from fedjax_ht.checkpoints.checkpoint import Placement, make_checkpointer, rows_to_write
from fedjax_ht.methods.fedproto import fedproto
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import SimulationState, make_simulation
from tests.federations import TRAINING, federation_data, uniform_federation

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
            0, server, {"wide": wide, "stateless": ()}, np.full((1, 4), -1, np.int32), changed
        )

    def write(state, name, rows, tree):
        def put(x, new):
            return x.at[rows].set(new) if isinstance(x, jax.Array) else _put(x, rows, new)

        return state._replace(
            clients=state.clients | {name: jax.tree.map(put, state.clients[name], tree)}
        )

    def read(state, name, rows):
        return jax.tree.map(lambda x: x[rows], state.clients[name])

    return types.SimpleNamespace(init=init, read_clients=read, write_clients=write)


def _put(x, rows, new):
    x = x.copy()
    x[rows] = new
    return x


def advance(state, rows):
    """A round after which these rows of "wide", the server and one stateless client differ."""
    round, wide = state.round + 1, state.clients["wide"]
    changed = {name: x.copy() for name, x in state.changed.items()}
    changed["wide"][rows] = changed["stateless"][0] = round
    wide = wide | {
        "params": _put(wide["params"], rows, wide["params"][rows] / 3 + round),
        "half": _put(wide["half"], rows, round),
        "key": wide["key"]
        .at[np.array(rows)]
        .set(jax.random.fold_in(jax.random.key(6, impl="rbg"), round)),
    }
    server = {
        "w": state.servers["w"] + 0.1,
        "key": jax.random.key(round),
        "step": np.int32(round),
        "none": (),
    }
    last_round = np.array([[round, -1, 0, 0]], np.int32)
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


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoints"


def checkpoints(folder):
    return sorted(int(p.name) for p in folder.iterdir())


def segments(folder):
    return {int(p.name): p for p in folder.with_name("checkpoints.segments").glob("*")}


def stored_rows(segment):
    """Rows of "wide" in a segment that also holds one of "stateless": the leaves come by sorted
    name."""
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        return checkpointer.restore(segment)["00001"].tolist()


def damage(folder):
    for file in folder.rglob("*"):
        if file.is_file() and file.stat().st_size > 1:
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def test_every_kind_of_state_comes_back(folder):
    simulation = toy_simulation()
    assert make_checkpointer(folder, simulation).restore() is None
    history = [{"round": 2, "accuracy": 0.1 + 0.2, "clients": [None, 1 / 3]}]
    make_checkpointer(folder, simulation).save(COURSE[2], history)
    state, found = make_checkpointer(folder, simulation).restore()
    assert_same(state, COURSE[2])
    assert found == history
    # a restored state can go on: its host arrays are writable
    state.last_round[0, 0] = state.changed["wide"][0] = 7


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        (1, [[0, 1, 2], [1, 5], [7], [1, 11]]),  # since the last checkpoint
        (2, [[0, 1, 2], [0, 1, 2, 5], [1, 5, 7], [1, 7, 11]]),  # since the one before it
        (3, [[0, 1, 2], [0, 1, 2, 5], [1, 5, 7], [1, 7, 11]]),
    ],
)
def test_a_checkpoint_writes_only_the_rows_that_changed(folder, keep, expected):
    writer = make_checkpointer(folder, toy_simulation(), keep)
    written = []
    for state in COURSE[:5]:
        before = segments(folder)
        writer.save(state, [])
        written += [
            stored_rows(path) for number, path in segments(folder).items() if number not in before
        ]
    assert written == expected  # nothing at round 0
    assert_same(make_checkpointer(folder, toy_simulation()).restore()[0], COURSE[4])


def test_the_newest_stay_with_the_segments_they_need(folder):
    writer = make_checkpointer(folder, toy_simulation(), keep=2)
    states = course([0, 1, 2, 3], [4], [0, 1, 2, 3], [4, 5])
    for state in states[1:]:
        writer.save(state, [])
    assert checkpoints(folder) == [3, 4]
    assert sorted(segments(folder)) == [3, 4]  # each checkpoint has one of its own
    damage(folder / "4")
    assert_same(
        make_checkpointer(folder, toy_simulation()).restore(lambda line: None)[0], states[3]
    )


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("keep", [2, 3])
def test_checkpoints_in_a_row_share_no_segment(folder, keep, restarted):
    writer = make_checkpointer(folder, toy_simulation(), keep)
    for state in COURSE:
        if restarted:
            writer = make_checkpointer(folder, toy_simulation(), keep)
            writer.restore()
        writer.save(state, [])
        held = [set(checkpoint.held_segments(folder / str(step))) for step in checkpoints(folder)]
        assert all(older.isdisjoint(newer) for older, newer in itertools.pairwise(held))
    assert held[-1]
    for step in range(5, 5 - keep, -1):
        assert_same(make_checkpointer(folder, toy_simulation()).restore()[0], COURSE[step])
        shutil.rmtree(folder / str(step))


@pytest.mark.parametrize("keep", [1, 3])
def test_keep(folder, keep):
    for state in COURSE:  # a process for every checkpoint
        writer = make_checkpointer(folder, toy_simulation(), keep)
        writer.restore()
        writer.save(state, [])
    assert checkpoints(folder) == [0, 1, 2, 3, 4, 5][-keep:]


def test_the_same_round_may_be_saved_again(folder):
    writer = make_checkpointer(folder, toy_simulation(), keep=1)
    for _ in range(2):
        writer.save(COURSE[2], [{"round": 2}])
    assert len(segments(folder)) == 1
    # without restoring
    make_checkpointer(folder, toy_simulation(), keep=1).save(COURSE[2], [{"round": 2, "again": 1}])
    state, history = make_checkpointer(folder, toy_simulation()).restore()
    assert_same(state, COURSE[2])
    assert (
        history == [{"round": 2, "again": 1}]
        and checkpoints(folder) == [2]
        and len(segments(folder)) == 1
    )


def test_keeping_none_is_refused(folder):
    with pytest.raises(ValueError, match="keep is 0; it must be at least 1"):
        make_checkpointer(folder, toy_simulation(), keep=0)


def test_segments_hold_at_most_twice_what_has_changed():
    rng = np.random.default_rng(0)
    rows, cost = 400, {"a": 10}
    changed, base = (
        {"a": np.zeros(rows, np.int32)},
        Placement(0, {"a": np.zeros(rows, np.int32)}, {}),
    )
    written = []
    for round in range(1, 301):
        fresh = rng.choice(rows, 8, replace=False)
        changed["a"][fresh] = round
        taken = rows_to_write(base, changed, cost)["a"]
        assert set(fresh) <= set(taken)
        where = {"a": base.where["a"].copy()}
        where["a"][taken] = round
        held = base.held | {round: {"a": len(taken)}}
        base = Placement(round, where, {s: held[s] for s in np.unique(where["a"]).tolist() if s})
        assert np.array_equal(where["a"] > 0, changed["a"] > 0)
        assert sum(x["a"] for x in base.held.values()) <= 2 * np.sum(changed["a"] > 0)
        written.append(len(taken))
    # and no checkpoint rewrites them all
    assert max(written) < rows / 4 and np.mean(written) < 3 * 8


def test_moved_rows_are_still_the_newest(folder):
    states = course([0, 1, 2, 3], *[[0, i] for i in (1, 2, 4, 1, 2)])
    writer = make_checkpointer(folder, toy_simulation(), keep=1)
    for state in states:
        writer.save(state, [])
        assert_same(make_checkpointer(folder, toy_simulation()).restore()[0], state)
    assert sum(len(stored_rows(path)) for path in segments(folder).values()) <= 2 * 5


def test_much_is_cut_into_several_segments(folder, monkeypatch):
    monkeypatch.setattr(checkpoint, "SEGMENT_BYTES", 130)
    state = course(list(range(12)))[1]
    make_checkpointer(folder, toy_simulation()).save(state, [])
    assert len(segments(folder)) == 4  # 12 rows of 40 bytes and one of 4, each where it begins
    assert_same(make_checkpointer(folder, toy_simulation()).restore()[0], state)


def test_segments_deleted_under_a_run_are_written_again(folder):
    writer = make_checkpointer(folder, toy_simulation(), keep=1)
    writer.save(COURSE[1], [])
    shutil.rmtree(segments(folder)[1])
    writer.save(COURSE[2], [])
    assert_same(make_checkpointer(folder, toy_simulation()).restore()[0], COURSE[2])


def test_in_the_background_a_checkpoint_is_of_the_state_that_was_given(folder, monkeypatch):
    go_on, write = threading.Event(), checkpoint.write_segments
    monkeypatch.setattr(checkpoint, "write_segments", lambda *args: go_on.wait(60) and write(*args))
    writer, history = make_checkpointer(folder, toy_simulation(), background=True), [{"round": 1}]
    state = course([0, 1, 2])[1]
    expected = jax.tree.map(lambda x: x.copy() if isinstance(x, np.ndarray) else x, state)
    writer.save(state, history)
    state.clients["wide"]["params"][:] = -1  # the next round writes into the host's rows
    history.append({"round": 2})
    assert not segments(folder)
    go_on.set()
    writer.wait()
    found, past = make_checkpointer(folder, toy_simulation()).restore()
    assert_same(found, expected)
    assert past == [{"round": 1}]


def test_in_the_background_every_checkpoint_builds_on_the_one_before(folder):
    writer = make_checkpointer(folder, toy_simulation(), background=True)
    for state in COURSE[:5]:
        writer.save(state, [])
    assert_same(writer.restore()[0], COURSE[4])  # it waits, too
    assert sorted(len(stored_rows(path)) for path in segments(folder).values()) == [3, 3, 3, 4]


def test_what_goes_wrong_in_the_background_is_raised(folder, monkeypatch):
    def full(*_):
        raise OSError("No space left on device")

    writer = make_checkpointer(folder, toy_simulation(), background=True)
    writer.save(COURSE[1], [])
    writer.wait()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_segments", full)
        writer.save(COURSE[2], [])
        with pytest.raises(OSError, match="No space left"):
            writer.wait()
    writer.save(COURSE[3], [])  # the next one holds what that one lacked
    assert_same(writer.restore()[0], COURSE[3])


@pytest.mark.parametrize("what", ["checkpoint", "segment", "no segment"])
def test_a_broken_newest_falls_back_with_a_warning(folder, what):
    writer = make_checkpointer(folder, toy_simulation())
    for state in COURSE[1:4]:
        writer.save(state, [{"round": state.round}])
    newest = max(segments(folder).items())[1]
    if what == "no segment":
        newest.rename(folder.parent / "elsewhere")
    else:
        damage(newest if what == "segment" else folder / "3")
    warnings = []
    writer = make_checkpointer(folder, toy_simulation())
    state, history = writer.restore(warnings.append)
    assert_same(state, COURSE[2])
    assert history == [{"round": 2}]
    assert len(warnings) == 1 and str(folder / "3") in warnings[0] and "\n" not in warnings[0]
    # the run goes on past the broken one, which does not count among the newest
    writer.save(COURSE[4], [])
    assert checkpoints(folder) == [2, 4]
    assert_same(make_checkpointer(folder, toy_simulation()).restore()[0], COURSE[4])


def flip(file, at, bit=0):
    content = bytearray(file.read_bytes())
    content[at] ^= 1 << bit
    file.write_bytes(content)


def test_a_flipped_bit_in_any_file_is_named_or_harmless(folder):
    writer = make_checkpointer(folder, toy_simulation())
    for state in COURSE[1:4]:
        writer.save(state, [{"round": state.round}])
    files = sorted(p for p in folder.parent.rglob("*") if p.is_file() and p.stat().st_size)
    named = set()
    for file in files:
        at, whole, warnings = file.stat().st_size // 2, file.read_bytes(), []
        flip(file, at)
        found = make_checkpointer(folder, toy_simulation()).restore(warnings.append)
        assert_same(found[0], COURSE[3 - len(warnings)])
        assert found[1] == [{"round": found[0].round}]
        named |= {file} if warnings and file.name in warnings[0] else set()
        file.write_bytes(whole)
    own = {
        str(folder / "3"),
        *(str(segments(folder)[s]) for s in checkpoint.held_segments(folder / "3")),
    }
    newest = {file for file in files if any(str(file).startswith(f"{place}/") for place in own)}
    assert newest <= named and len(own) == 3 and len(newest) > 10


def test_a_segment_of_another_run_is_not_taken_for_its_own(folder, tmp_path):
    for place, rows in ((folder, [0, 1]), (tmp_path / "other" / "checkpoints", [2, 3])):
        make_checkpointer(place, toy_simulation()).save(course(rows)[1], [])
    shutil.rmtree(segments(folder)[1])
    shutil.copytree(
        segments(tmp_path / "other" / "checkpoints")[1],
        folder.with_name("checkpoints.segments") / "1",
    )
    warnings = []
    assert make_checkpointer(folder, toy_simulation()).restore(warnings.append) is None
    assert "checkpoints.segments/1 is not the one that was written with it" in warnings[0]


def test_what_could_not_be_read_is_moved_aside_as_it_is(folder):
    writer = make_checkpointer(folder, toy_simulation())
    for state in COURSE[1:4]:
        writer.save(state, [])
    own = [folder / "3", *(segments(folder)[s] for s in checkpoint.held_segments(folder / "3"))]
    damage(folder / "3")
    before = {
        p.relative_to(folder.parent): p.read_bytes()
        for f in own
        for p in f.rglob("*")
        if p.is_file()
    }
    writer = make_checkpointer(folder, toy_simulation())
    writer.restore(lambda line: None)
    writer.save(COURSE[4], [])
    aside = folder.parent / "set_aside_1"
    assert {p.relative_to(aside): p.read_bytes() for p in aside.rglob("*") if p.is_file()} == before
    writer.save(COURSE[5], [])
    assert not (folder.parent / "set_aside_2").exists()


def test_strays_in_the_folders_crash_nothing(folder):
    make_checkpointer(folder, toy_simulation()).save(COURSE[1], [])
    for parent in (folder, folder.with_name("checkpoints.segments")):
        for name in (".DS_Store", "7", "notes.txt"):
            (parent / name).write_text("stray")
        for name in ("copy of 1", "²", "007"):
            (parent / name).mkdir()
    writer, warnings = make_checkpointer(folder, toy_simulation()), []
    assert_same(writer.restore(warnings.append)[0], COURSE[1])
    writer.save(COURSE[2], [])
    assert_same(make_checkpointer(folder, toy_simulation()).restore(warnings.append)[0], COURSE[2])
    assert not warnings and (folder / "notes.txt").exists() and (folder / "copy of 1").exists()


def test_a_full_disk_is_an_os_error_and_the_last_checkpoint_stays(folder, monkeypatch):
    def full(*args, **kwargs):
        # as tensorstore says it
        raise ValueError("RESOURCE_EXHAUSTED: Failed writing:\n No space left on device")

    writer = make_checkpointer(folder, toy_simulation(), keep=1)
    writer.save(COURSE[1], [])
    with (
        monkeypatch.context() as patch,
        pytest.raises(OSError, match="writing: No space left on device"),
    ):
        patch.setattr(ocp.Checkpointer, "save", full)
        writer.save(COURSE[2], [])
    assert_same(make_checkpointer(folder, toy_simulation()).restore()[0], COURSE[1])


def test_a_checkpoint_of_another_simulation_is_passed_over(folder):
    make_checkpointer(folder, toy_simulation()).save(COURSE[1], [])
    warnings = []
    assert make_checkpointer(folder, toy_simulation(width=5)).restore(warnings.append) is None
    assert len(warnings) == 1 and "it holds float32[3, 4], expected float32[3, 5]" in warnings[0]


@pytest.mark.parametrize(
    "owner, name, below",
    [
        (sealed, "place", "checkpoints.segments"),
        (sealed, "place", "checkpoints"),
        (sealed, "remove", "checkpoints"),
        (sealed.shutil, "rmtree", "checkpoints"),
        (checkpoint, "delete_unused", ""),
        (sealed.shutil, "rmtree", "checkpoints.segments"),
    ],
)
def test_killed_while_saving(folder, owner, name, below, monkeypatch):
    make_checkpointer(folder, toy_simulation(), keep=1).save(COURSE[1], [])
    whole = getattr(owner, name)

    def die(path):
        if below in ("", path.parent.name):
            raise KeyboardInterrupt
        whole(path)

    writer = make_checkpointer(folder, toy_simulation(), keep=1)
    writer.restore()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(owner, name, die)
        writer.save(COURSE[5], [])
    for parent in (folder, folder.with_name("checkpoints.segments")):
        for number in sealed.numbers(parent):
            sealed.check(parent / str(number))  # under its name nothing is ever half there
    half_written = folder.with_name("checkpoints.segments") / "9.orbax-checkpoint-tmp"
    half_written.mkdir()
    writer = make_checkpointer(folder, toy_simulation(), keep=1)
    warnings = []
    state, _ = writer.restore(warnings.append)
    assert_same(state, COURSE[1 if name == "place" else 5])
    assert not warnings
    final = advance(COURSE[5], [0, 1, 2, 5, 7, 11])
    writer.save(final, [])
    assert checkpoints(folder) == [6]
    assert len(segments(folder)) == 1 and not half_written.exists()
    assert_same(make_checkpointer(folder, toy_simulation()).restore()[0], final)


@pytest.mark.parametrize("store", ["device", "host"])
def test_a_run_resumed_at_every_checkpoint_equals_one_never_interrupted(folder, store):
    federation = uniform_federation()
    options = SimulationOptions(seed=3, participation=0.25, client_store=store)
    simulation = make_simulation(
        fedproto(TRAINING), federation, federation_data(federation), options
    )
    whole, resumed = simulation.init(), simulation.init()
    for round in range(1, 7):
        whole, _ = simulation.run_round(whole)
        resumed, _ = simulation.run_round(resumed)
        if round % 2 == 0:
            writer = make_checkpointer(folder, simulation, keep=1)
            writer.restore()
            writer.save(resumed, [])
            resumed, _ = make_checkpointer(folder, simulation).restore()
    assert_same(resumed, jax.tree.map(np.asarray, whole))
    assert len(segments(folder)) > 1  # it was put together from several
