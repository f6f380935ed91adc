"""A signal ends a run in a line: before training, while a round compiles, between rounds."""

import signal
import subprocess
import sys
import time

import pytest

from tests.runs import ROOT, command, environment

BUSY = """
import hashlib, os, signal, sys, threading, time
from fedjax_ht.lab.runs.signals import catch_signals, end_on_signals
end_on_signals()
def compile():  # one call outside Python, which runs no handler meanwhile
    print("busy", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", {rounds})
{body}
print("over")
"""


def busy_process(body, rounds):
    code = BUSY.format(body=body, rounds=rounds)
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "busy\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_before_training_a_signal_ends_at_once_with_a_line(number):
    process = busy_process("compile()", 10**9)
    process.send_signal(number)
    out, errors = process.communicate(timeout=10)
    assert (process.returncode, errors) == (128 + number, f"stopped by {number.name}\n")
    assert "over" not in out


def test_a_signal_ends_a_program_whose_reader_is_gone():
    """As in `fedjax-ht run 2>&1 | tee log`, where Ctrl-C ends tee as well."""
    process = busy_process("compile()", 10**9)
    process.stderr.close()
    process.send_signal(signal.SIGINT)
    try:
        assert process.wait(timeout=10) == 128 + signal.SIGINT
    finally:
        process.kill()


def test_while_it_compiles_the_first_signal_waits_and_the_second_ends_at_once():
    number = signal.SIGTERM
    body = "with catch_signals() as caught: compile()\nprint(len(caught))"
    waiting = busy_process(body, 10**6)
    waiting.send_signal(number)
    waiting.send_signal(number)  # as `timeout` does
    out, errors = waiting.communicate(timeout=60)
    assert waiting.returncode == 0 and "over" in out and out.startswith(("1", "2"))
    assert "a second one stops immediately" in errors
    process = busy_process(body, 10**9)
    process.send_signal(number)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(number)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 128 + number
    assert errors.splitlines()[1:] == [f"stopped by {number.name}"]


def test_between_two_computations_the_first_signal_is_left_to_the_run():
    """Here the main thread may be told before the thread that watches."""
    body = "with catch_signals() as caught:\n  print('busy', flush=True)\n  while not caught: pass\ntime.sleep(0.3)"
    process = busy_process(body, 1)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "over\n")


@pytest.mark.parametrize("seconds", [0.4, 1.5])
def test_a_signal_at_any_moment_of_the_start_ends_with_a_line(
    run_module, tiny_config, tmp_path, seconds
):
    """How far the program is by then depends on the machine: it may import, read or train."""
    arguments = command("main", f"--config={tiny_config}", f"--workdir={tmp_path / 'run'}")
    process = subprocess.Popen(
        arguments, cwd=ROOT, env=environment(run_module.home), stderr=subprocess.PIPE, text=True
    )
    time.sleep(seconds)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert errors.splitlines()[-1].startswith("stopped by SIGTERM")
    assert "Traceback" not in errors and (seconds > 1 or errors == "stopped by SIGTERM\n")
