"""What a client has at home: its samples in a file, its states, a socket, and a program that ends with it."""

import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from fedjax_ht.data.dataset import ClientIndices, Dataset
from fedjax_ht.deploy import states
from fedjax_ht.deploy.data import read_own, write_own
from fedjax_ht.deploy.envelope import Envelope
from fedjax_ht.deploy.pipe import ask, listen


@pytest.mark.parametrize("kind", ["images", "windows", "tokens"])
def test_a_clients_samples_come_back_in_their_order(kind, tmp_path):
    rng = np.random.default_rng(0)
    inputs = {
        "images": rng.integers(0, 256, (9, 4, 4, 3)).astype(np.uint8),
        "windows": rng.random((9, 5, 2), np.float32),
        "tokens": rng.integers(0, 30, (9, 6)).astype(np.int32),
    }[kind]
    labels = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2])
    whole = Dataset("own", inputs, labels, ("a", "b", "c", "d"), vocabulary=30 if kind == "tokens" else None)
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
    nothing = {"inputs": np.zeros((0, 3), np.float32), "labels": np.zeros(0, int), "official_test": np.zeros(0, bool)}
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
    file = max((f for f in (tmp_path / "4").rglob("*") if f.is_file() and f.name != "seal.json"), key=os.path.getsize)
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match="has changed since it was written"):
        states.load(tmp_path, 4, state)


def test_a_socket_answers_and_outlives_nonsense():
    path, over = Path(tempfile.mkdtemp()) / "s", threading.Event()
    with pytest.raises(OSError, match="no client listens at"):
        ask(path, Envelope({}, {}))
    double = lambda m: Envelope(m.head | {"more": 1}, {k: 2 * v for k, v in m.arrays.items()})  # noqa: E731
    thread = threading.Thread(target=listen, args=(path, double, over.is_set))
    thread.start()
    while not path.exists():
        time.sleep(0.01)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for nonsense in (b"", b"\xff" * 8, b"\x05\0\0\0\0\0\0\0[1,2]"):
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(str(path))
            other.sendall(nonsense)
    reply = ask(path, Envelope({"kind": "train"}, {"a": np.arange(4, dtype=np.int32).reshape(2, 2)}))
    assert reply.head == {"kind": "train", "more": 1} and reply.arrays["a"].tolist() == [[0, 2], [4, 6]]
    over.set()
    thread.join(5)
    assert not thread.is_alive() and not path.exists()


def test_a_tethered_program_ends_with_who_started_it(tmp_path):
    """Which is killed."""
    tethered = [sys.executable, "-m", "fedjax_ht.deploy.tether"]
    program = [
        sys.executable,
        "-c",
        f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)",
    ]
    code = f"import os, subprocess; subprocess.run({tethered!r} + [str(os.getpid())] + {program!r})"
    parent = subprocess.Popen([sys.executable, "-c", code])
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.05)
    pid = int((tmp_path / "pid").read_text())
    parent.kill()
    parent.wait()
    end = time.monotonic() + 15
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_a_client_without_its_file_ends_in_one_line(tmp_path):
    """Also of a method that computes where it is made."""
    pytest.importorskip("flwr")
    words = [sys.executable, "-m", "fedjax_ht.deploy", "client", "--config=quickstart:method=fedssa", "--client_id=0"]
    words += ["--workdir=home", "--data=npz:none.npz", "--superlink=127.0.0.1:1", "--insecure"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ") and "none.npz: [Errno 2] No such file" in last
