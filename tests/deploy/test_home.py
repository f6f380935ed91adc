"""A client's own files: its samples, its states, and its folder."""

import importlib.util
import json
import os
import re
import signal
import stat
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import jax
import numpy as np
import pytest
from absl.flags import FlagHolder

from fedjax_ht.data.dataset import ClientIndices, Dataset
from fedjax_ht.deploy import command
from fedjax_ht.deploy.client import bind_to_client, delete_states, load_state, save_state
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
    "bracket": ("client", {"superlink": "[::1:80"}, "--superlink is '[::1:80'; it must be HOST:"),
    "lines": ("client", {"superlink": "a\nb:80"}, "--superlink is 'a\\nb:80'; it must be HOST:"),
    "path": ("client", {"superlink": "a/b:80"}, "--superlink is 'a/b:80'; it must be HOST:"),
    "fields": (
        "client",
        OPEN | {"data": "csv:x.csv"},
        "dataset.label is 'y', which a client does not read by; write its samples with",
    ),
    "range": ("server", OPEN | {"sum_range": 4.0}, "--sum_range bounds the numbers of a sum"),
    "both": ("server", OPEN | {"certificates": "x"}, "--certificates and --insecure exclude"),
    "open": ("server", OPEN | {"host": "0.0.0.0"}, "--insecure is only for this machine"),
    "keys": ("server", OPEN | {"keys": "keys"}, "keys has no keys; put the clients' public"),
}


def give_flags(monkeypatch, given):
    """Sets flags of the command, with those of a client by default."""
    given = {"client_id": 0, "data": "npz:none.npz", "superlink": "127.0.0.1:1"} | given
    for name, flag in list(vars(command).items()):
        if isinstance(flag, FlagHolder):
            value = given.get(flag.name, flag.default)
            changed = SimpleNamespace(name=flag.name, default=flag.default, value=value)
            monkeypatch.setattr(command, name, changed)


@pytest.mark.parametrize("kind", WRONG_FLAGS)
def test_wrong_flags_are_refused(monkeypatch, tmp_path, kind):
    pytest.importorskip("flwr")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keys").mkdir()
    side, given, line = WRONG_FLAGS[kind]
    give_flags(monkeypatch, given)
    config = small_config("local")
    config.dataset.label = "y"  # which npz files need not be read by
    with pytest.raises((ValueError, OSError), match=re.escape(line)) as error:
        getattr(command, side)(make_plan(config), tmp_path / "run")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("side", "flag", "readers"),
    [
        ("server", "most_epsilon", "client"),
        ("server", "key", "client"),
        ("client", "keys", "server"),
        ("client", "timeout", "server"),
        ("client", "host", "server"),
        ("keys", "insecure", "server and client"),
        ("split", "client_id", "keys and client"),
    ],
)
def test_a_flag_of_another_command_is_refused(monkeypatch, side, flag, readers):
    monkeypatch.setattr(command.flags.FLAGS[flag], "present", 1)
    message = f"--{flag} is a flag of {readers}, not of {side}; remove it"
    with pytest.raises(SystemExit) as ended, mock.patch.object(command, "fail") as fail:
        fail.side_effect = SystemExit(2)
        command.main(["deploy", side])
    assert str(fail.call_args.args[0]) == message and ended.value.code == 2


@pytest.mark.parametrize("flag", ["--timeout=0", "--timeout=-1", "--timeout=nan", "--patience=nan"])
def test_times_are_numbers_of_seconds(deploy, tmp_path, flag):
    done = deploy(tmp_path, "server", flag)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    name, _, value = flag.partition("=")
    assert done.stderr.startswith(f"error: flag {name}={float(value)}: it must be "), done.stderr


def test_a_signal_ends_a_client_with_its_exit_code(monkeypatch, tmp_path, capsys):
    """And its log says so."""
    pytest.importorskip("flwr")
    from fedjax_ht.deploy import flower, node

    def run_node(*_, stop, **__):
        assert not stop()
        signal.raise_signal(signal.SIGTERM)
        assert stop()

    give_flags(monkeypatch, OPEN | {"workdir": str(tmp_path / "home")})
    for variable in ("FLWR_HOME", "FLWR_TELEMETRY_ENABLED"):  # the command sets them
        monkeypatch.setenv(variable, "")
    monkeypatch.setattr(command, "configured", lambda: (small_config("local"), None))
    for name in ("use_all_cores", "enable_compilation_cache"):
        monkeypatch.setattr(command, name, lambda: None)
    samples = SimpleNamespace(lines=[]), ClientIndices([0], [], [])
    for name, value in (("read_samples", samples), ("make_client", None), ("request_bytes", 0)):
        monkeypatch.setattr(command, name, lambda *_, value=value, **__: value)
    monkeypatch.setattr(command, "describe", lambda dataset: dataset)
    monkeypatch.setattr(flower, "log_to", lambda path: None)
    monkeypatch.setattr(node, "run_node", run_node)
    before = os.umask(0o077)
    try:
        with pytest.raises(SystemExit) as ended:
            command.main(["deploy", "client"])
    finally:
        os.umask(before)
    assert ended.value.code == 128 + signal.SIGTERM
    assert "stopped by SIGTERM; finished work is saved in" in capsys.readouterr().err
    *_, last = (tmp_path / "home" / "audit.jsonl").read_text().splitlines()
    assert json.loads(last)["reason"] == "stopped by SIGTERM"


def test_a_folder_of_states_is_one_clients(tmp_path):
    """A copied command with another --client_id would load and overwrite its model."""
    bind_to_client(tmp_path / "states", 3)
    bind_to_client(tmp_path / "states", 0)  # nothing is there yet
    save_state(tmp_path / "states" / "run", 1, {"params": jax.numpy.arange(3.0)})
    bind_to_client(tmp_path / "states", 0)
    message = r"states has states of client 0, but --client_id is 3; give each client its own"
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            bind_to_client(tmp_path / "states", 3)


def test_a_client_looks_whose_folder_it_is_before_anything_else(monkeypatch, tmp_path):
    pytest.importorskip("flwr")
    give_flags(monkeypatch, {"client_id": 3})
    save_state(tmp_path / "states" / "run", 1, {"params": jax.numpy.arange(3.0)})
    (tmp_path / "states" / "client.json").write_text('{"client_id": 0}')
    with pytest.raises(ValueError, match="states of client 0, but --client_id is 3"):
        command.client(make_plan(small_config("local")), tmp_path)


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
