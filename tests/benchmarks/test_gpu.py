"""The measurements for a GPU, in their small form on a CPU."""

import json
import math
import shlex

import pytest

from benchmarks import gpu


def call(monkeypatch, *arguments: str) -> None:
    monkeypatch.setattr("sys.argv", ["gpu", *arguments])
    gpu.main()


@pytest.mark.slow
def test_steps_are_measured_in_every_precision(monkeypatch, tmp_path):
    call(monkeypatch, "--tiny", "--only=steps", f"--out={tmp_path}")
    (results,) = json.loads((tmp_path / "gpu.json").read_text()).values()
    (measured,) = results.values()
    assert measured.keys() == {*gpu.PRECISIONS, "peak"} and measured["peak"] > 0
    assert all(0 < measured[name]["ms"] < math.inf for name in gpu.PRECISIONS)


def test_a_second_call_measures_what_is_missing(monkeypatch, tmp_path):
    """Of three jobs one is done, and one has failed before."""
    started = []
    monkeypatch.setattr(gpu, "measure", lambda part, name, options: started.append((part, name)))
    jobs = {"steps": {"done": None, "failed": None, "new": None}}
    monkeypatch.setattr(gpu, "jobs_of", lambda tiny: jobs)
    gpu.keep(tmp_path, "steps", "done", {"peak": 1.0})
    gpu.keep(tmp_path, "steps", "failed", {"seconds": 1.0, "error": "exit code 1: why"})
    call(monkeypatch, "--tiny", "--only=steps", f"--out={tmp_path}")
    assert started == [("steps", "failed"), ("steps", "new")]
    assert json.loads((tmp_path / "gpu.json").read_text())["steps"]["done"] == {"peak": 1.0}


def test_a_process_that_fails_leaves_an_error(tmp_path):
    result = gpu.in_process(["bash", "-c", "echo why >&2; exit 3"], tmp_path / "log")
    assert result["error"] == "exit code 3: why"


def test_rows_of_the_queue_have_a_process_an_entry():
    commands = gpu.queue_commands()
    assert commands and not any("$(" in command for command in commands.values())
    for command in commands.values():
        kind, *flags = shlex.split(command)
        assert kind in ("compare", "sweep")
        entries = [flag for flag in flags if flag.startswith(("--methods=", "--entry="))]
        assert len(entries) == 1 and "," not in entries[0]
