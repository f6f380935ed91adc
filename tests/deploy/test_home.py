"""A client's own files: its samples, its states, and its folder."""

import importlib.util
import os
import re
import stat
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from absl.flags import FlagHolder

from fedjax_ht.data.dataset import ClientIndices, Dataset
from fedjax_ht.deploy import command
from fedjax_ht.deploy.client import delete_states, load_state, save_state
from fedjax_ht.deploy.plan import make_plan
from fedjax_ht.deploy.samples import read_samples, write_samples
from fedjax_ht.deploy.server import run_name
from fedjax_ht.lab.runs.folder import locked
from tests.deploy.sites import small_config
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
    vocabulary = 30 if kind == "tokens" else None
    whole = Dataset("own", inputs, labels, ("a", "b", "c", "d"), vocabulary=vocabulary)
    indices = ClientIndices(np.array([5, 2, 0]), np.array([7]), np.array([8, 3]))
    write_samples(tmp_path / "one.npz", whole, indices)
    read, parts = read_samples(f"npz:{tmp_path / 'one.npz'}", "")
    for name in indices._fields:
        after, before = getattr(parts, name), getattr(indices, name)
        np.testing.assert_array_equal(read.inputs[after], inputs[before])
        np.testing.assert_array_equal(read.labels[after], labels[before])
    assert read.class_names == whole.class_names and read.vocabulary == whole.vocabulary
    assert read.input_shape == whole.input_shape and len(read.labels) == 6


def test_samples_that_do_not_say_what_tests_are_refused(tmp_path):
    np.savez(tmp_path / "one.npz", inputs=np.zeros((4, 3), np.float32), labels=np.arange(4))
    with pytest.raises(ValueError, match="does not say which samples train and which test; add"):
        read_samples(f"npz:{tmp_path / 'one.npz'}", "")
    sets = {"official_test": [True, False], "official_val": [True, False]}
    np.savez(tmp_path / "two.npz", inputs=np.zeros((2, 3), "f4"), labels=np.arange(2), **sets)
    with pytest.raises(ValueError, match="name a sample twice"):
        read_samples(f"npz:{tmp_path / 'two.npz'}", "")
    empty = np.zeros((0, 3), np.float32)
    nothing = {"inputs": empty, "labels": np.zeros(0, int), "official_test": np.zeros(0, bool)}
    np.savez(tmp_path / "none.npz", **nothing, class_names=["a", "b"])
    with pytest.raises(ValueError, match=r"none.npz has no samples"):
        read_samples(f"npz:{tmp_path / 'none.npz'}", "")


def test_states_are_kept_by_round_and_a_changed_one_is_refused(tmp_path):
    state = {"params": jax.numpy.arange(3.0), "key": jax.random.key(3)}
    for number in (1, 2, 4):
        save_state(tmp_path, number, state | {"params": state["params"] + number})
    assert load_state(tmp_path, 2, state)["params"].tolist() == [2, 3, 4]
    with pytest.raises(FileNotFoundError, match="has no state after 3 rounds; it has 1, 2, 4"):
        load_state(tmp_path, 3, state)
    save_state(tmp_path, 2, state)
    assert load_state(tmp_path, 2, state)["params"].tolist() == [0, 1, 2]
    delete_states(tmp_path, 4)
    with pytest.raises(FileNotFoundError, match="it has 4"):
        load_state(tmp_path, 2, state)
    files = [f for f in (tmp_path / "4").rglob("*") if f.is_file() and f.name != "seal.json"]
    file = max(files, key=os.path.getsize)
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match="has changed since it was written"):
        load_state(tmp_path, 4, state)


@pytest.fixture(scope="module")
def deploy():
    """Returns a function that runs `fedjax-ht deploy` in a folder, with flags and a lax umask."""
    before = os.umask(0o022)
    has_flower = importlib.util.find_spec("flwr") is not None
    shared = ["fedjax_ht.deploy.link", "fedjax_ht.deploy.node"] if has_flower else []
    try:
        forks = Forks(Path(__file__).parents[2], dict(os.environ), shared)
    finally:
        os.umask(before)

    def run(folder, *arguments):
        return forks.run("fedjax_ht", "deploy", *arguments, cwd=folder)

    yield run
    forks.close()


CONFIG = "--config=quickstart:method=fedssa,runlocal"
CLIENT = ["client", CONFIG, "--client_id=0", "--workdir=home", "--data=npz:none.npz"]
SERVER = ["server", CONFIG, "--workdir=run"]
HERE = "--superlink=127.0.0.1:1"


def test_a_wrong_flag_ends_in_one_line(deploy, tmp_path):
    """The method computes where it is made, before it could fail."""
    pytest.importorskip("flwr")
    done = deploy(tmp_path, *CLIENT, HERE, "--insecure")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ") and "none.npz: no such file" in last


OPEN = {"insecure": True}
WRONG_FLAGS = {
    "far": ("client", OPEN | {"superlink": "fl.org:1"}, "--insecure is only for this machine"),
    "certificates": ("client", {}, "give --certificates, or --insecure to try it out on one"),
    "address": ("client", {"superlink": "::1:8000"}, "--superlink is '::1:8000'; it must be HOST:"),
    "fields": (
        "client",
        OPEN | {"data": "csv:x.csv"},
        "dataset.label is 'y', which a client does not read by; write its samples with",
    ),
    "epsilon": ("server", OPEN | {"most_epsilon": 1.0}, "--most_epsilon is a limit of clients"),
    "range": ("server", OPEN | {"sum_range": 4.0}, "--sum_range bounds the numbers of a sum"),
    "both": ("server", OPEN | {"certificates": "x"}, "--certificates and --insecure exclude"),
    "open": ("server", OPEN | {"host": "0.0.0.0"}, "--insecure is only for this machine"),
    "keys": ("server", OPEN | {"keys": "keys"}, "keys has no keys; put the clients' public"),
}


@pytest.mark.parametrize("kind", WRONG_FLAGS)
def test_wrong_flags_are_refused(monkeypatch, tmp_path, kind):
    pytest.importorskip("flwr")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keys").mkdir()
    side, given, line = WRONG_FLAGS[kind]
    given = {"client_id": 0, "data": "npz:none.npz", "superlink": "127.0.0.1:1"} | given
    for name, flag in list(vars(command).items()):
        if isinstance(flag, FlagHolder):
            value = given.get(flag.name, flag.default)
            changed = SimpleNamespace(name=flag.name, default=flag.default, value=value)
            monkeypatch.setattr(command, name, changed)
    config = small_config("local")
    config.dataset.label = "y"  # which npz files need not be read by
    with pytest.raises((ValueError, OSError), match=re.escape(line)) as error:
        getattr(command, side)(make_plan(config), tmp_path / "run")
    assert "\n" not in str(error.value)


def test_a_folder_is_one_clients_and_its_users(deploy, tmp_path):
    pytest.importorskip("flwr")
    with locked(tmp_path / "home", print):
        done = deploy(tmp_path, *CLIENT, HERE, "--insecure")
        assert done.returncode == 2 and "home is in use by process" in done.stderr.splitlines()[-1]
    lines = "from tests.deploy.sites import small_config", "def get_config(_=None):"
    (tmp_path / "config.py").write_text("\n".join([*lines, "    return small_config()"]))
    done = deploy(tmp_path, "split", "--config=config.py", "--workdir=sites")
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE((tmp_path / "sites").stat().st_mode) == 0o700
    files = (tmp_path / "sites").iterdir()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in files}
    assert modes == {f"client_{i}.npz": 0o600 for i in range(4)}


@pytest.mark.parametrize(("name", "kind"), [("flower.log", "link"), ("audit.jsonl", "pipe")])
def test_a_server_writes_through_no_link_and_waits_for_no_pipe(deploy, tmp_path, name, kind):
    """The logs are opened first, in a folder that may come from elsewhere."""
    pytest.importorskip("flwr")
    (tmp_path / "run").mkdir()
    (tmp_path / "precious").write_text("my only copy")
    path = tmp_path / "run" / name
    os.mkfifo(path) if kind == "pipe" else path.symlink_to(tmp_path / "precious")
    done = deploy(tmp_path, *SERVER, "--insecure", "--port=0")
    line = done.stderr.splitlines()[-1]
    assert done.returncode == 2 and line.startswith(f"error: {path} is "), done.stderr
    assert (tmp_path / "precious").read_text() == "my only copy"


@pytest.mark.parametrize("content", ["{}", '{"run": 5}', '{"run": "../elsewhere"}'])
def test_a_damaged_name_of_a_run_is_one_line(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(ValueError, match=r"run\.json is damaged: run must be up to 64 letters"):
        run_name(tmp_path)
