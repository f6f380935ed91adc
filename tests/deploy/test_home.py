"""What a client has at home: its samples in a file, its states, and a folder of its own."""

import os
import stat
import threading
from pathlib import Path

import jax
import numpy as np
import pytest

from fedjax_ht.data.dataset import ClientIndices, Dataset
from fedjax_ht.deploy import ledger, states
from fedjax_ht.deploy.data import read_own, write_own
from fedjax_ht.experiment.run_lock import locked
from tests.forked import Forks


@pytest.mark.parametrize("kind", ["images", "windows", "tokens"])
def test_a_clients_samples_come_back_in_their_order(kind, tmp_path):
    rng = np.random.default_rng(0)
    inputs = {
        "images": rng.integers(0, 256, (9, 4, 4, 3)).astype(np.uint8),
        "windows": rng.random((9, 5, 2), np.float32),
        "tokens": rng.integers(0, 30, (9, 6)).astype(np.int32),
    }[kind]
    labels = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2])
    whole = Dataset(
        "own", inputs, labels, ("a", "b", "c", "d"), vocabulary=30 if kind == "tokens" else None
    )
    own = ClientIndices(np.array([5, 2, 0]), np.array([7]), np.array([8, 3]))
    write_own(tmp_path / "one.npz", whole, own)
    found, parts = read_own(f"npz:{tmp_path / 'one.npz'}", "")
    for name in own._fields:
        mine, before = getattr(parts, name), getattr(own, name)
        np.testing.assert_array_equal(found.inputs[mine], inputs[before])
        np.testing.assert_array_equal(found.labels[mine], labels[before])
    assert found.class_names == whole.class_names and found.vocabulary == whole.vocabulary
    assert found.input_shape == whole.input_shape and len(found.labels) == 6


def test_samples_that_do_not_say_what_tests_are_refused(tmp_path):
    np.savez(tmp_path / "one.npz", inputs=np.zeros((4, 3), np.float32), labels=np.arange(4))
    with pytest.raises(ValueError, match=r"does not say what is for training .* official_test"):
        read_own(f"npz:{tmp_path / 'one.npz'}", "")
    np.savez(
        tmp_path / "two.npz",
        inputs=np.zeros((2, 3), np.float32),
        labels=np.arange(2),
        official_test=[True, False],
        official_val=[True, False],
    )
    with pytest.raises(ValueError, match="name a sample twice"):
        read_own(f"npz:{tmp_path / 'two.npz'}", "")
    nothing = {
        "inputs": np.zeros((0, 3), np.float32),
        "labels": np.zeros(0, int),
        "official_test": np.zeros(0, bool),
    }
    np.savez(tmp_path / "none.npz", **nothing, class_names=["a", "b"])
    with pytest.raises(ValueError, match=r"none.npz has no samples; a client needs one at least"):
        read_own(f"npz:{tmp_path / 'none.npz'}", "")


def test_states_are_kept_by_round_and_a_changed_one_is_refused(tmp_path):
    state = {"params": jax.numpy.arange(3.0), "key": jax.random.key(3)}
    for number in (1, 2, 4):
        states.save(tmp_path, number, state | {"params": state["params"] + number})
    assert states.load(tmp_path, 2, state)["params"].tolist() == [2, 3, 4]
    with pytest.raises(FileNotFoundError, match="has no state after 3 rounds; it has 1, 2, 4"):
        states.load(tmp_path, 3, state)
    states.save(tmp_path, 2, state)
    assert states.load(tmp_path, 2, state)["params"].tolist() == [0, 1, 2]
    states.forget(tmp_path, 4)
    with pytest.raises(FileNotFoundError, match="it has 4"):
        states.load(tmp_path, 2, state)
    file = max(
        (f for f in (tmp_path / "4").rglob("*") if f.is_file() and f.name != "seal.json"),
        key=os.path.getsize,
    )
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match="has changed since it was written"):
        states.load(tmp_path, 4, state)


def test_counts_are_of_all_that_count(tmp_path):
    """Each opens the file for itself, as processes do."""
    path = tmp_path / "told.json"
    threads = [
        threading.Thread(target=lambda: [ledger.add(path, "a", 1) for _ in range(25)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.read(path) == {"a": 200}


@pytest.fixture(scope="module")
def deploy():
    """(folder, *words) -> the finished `python -m fedjax_ht.deploy WORDS` in the folder, under a
    umask that lets everybody read."""
    before = os.umask(0o022)
    try:
        forks = Forks(Path(__file__).parents[2], dict(os.environ))
    finally:
        os.umask(before)
    yield lambda folder, *words: forks.run("fedjax_ht.deploy", *words, cwd=folder)
    forks.close()


CLIENT = [
    "client",
    "--config=quickstart:method=fedssa",
    "--client_id=0",
    "--workdir=home",
    "--data=npz:none.npz",
]
SERVER = ["server", "--config=quickstart:method=fedssa", "--workdir=run"]
HERE = "--superlink=127.0.0.1:1"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([*CLIENT, HERE, "--insecure"], "none.npz: [Errno 2] No such file"),
        (
            [*CLIENT, "--superlink=fl.example.org:1", "--insecure"],
            "--insecure is for this machine alone, 127.0.0.1",
        ),
        ([*CLIENT, HERE], "give --certificates, or --insecure to try it out on one machine"),
        (
            [*SERVER, "--host=0.0.0.0", "--insecure"],
            "--insecure is for this machine alone, 127.0.0.1, not 0.0.0.0",
        ),
        (
            [*SERVER, "--insecure", "--keys=keys"],
            "keys has no keys; the public keys of the clients belong there",
        ),
    ],
    ids=["data", "far", "certificates", "open", "keys"],
)
def test_what_cannot_be_ends_in_one_line(deploy, tmp_path, words, line):
    """Also of a method that computes where it is made."""
    pytest.importorskip("flwr")
    (tmp_path / "keys").mkdir()
    done = deploy(tmp_path, *words)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ") and line in last


def test_a_folder_is_one_clients_and_its_users(deploy, tmp_path):
    pytest.importorskip("flwr")
    with locked(tmp_path / "home", print):
        done = deploy(tmp_path, *CLIENT, HERE, "--insecure")
        assert done.returncode == 2 and "home is in use by process" in done.stderr.splitlines()[-1]
    (tmp_path / "config.py").write_text(
        "from tests.deploy.sites import small_config\n\n\ndef get_config(_=None):\n    return "
        "small_config()\n"
    )
    done = deploy(tmp_path, "split", "--config=config.py", "--workdir=sites")
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE((tmp_path / "sites").stat().st_mode) == 0o700
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "sites").iterdir()
    }
    assert modes == {f"client_{i}.npz": 0o600 for i in range(4)}
