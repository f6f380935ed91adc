"""Trackers get each round of each trial once, whatever happens to the run or to them."""

import json
import math
import sys
from types import SimpleNamespace

import pytest

from fedjax_ht.lab.checkpoints.writers import write_runs
from fedjax_ht.lab.config.base import base_config, typed_config
from fedjax_ht.lab.config.entries import entries_of
from fedjax_ht.lab.runs import train
from fedjax_ht.lab.runs.train import train_and_evaluate
from tests.experiments.folders import history


class Recorder:
    """A sink that keeps what it gets, and fails in a round."""

    opened: list = []  # noqa: RUF012

    def __init__(self, run, fails_in=None):
        self.run, self.fails_in, self.rows, self.closed = run, fails_in, [], 0
        self.run_id = run.run_id or f"new {run.trial}"
        self.opened.append(self)

    def write(self, scores, round):
        if round == self.fails_in:
            raise ConnectionError("no\nanswer")
        self.rows.append((round, scores))

    def close(self):
        self.closed += 1


@pytest.fixture
def tracking(tmp_path, monkeypatch):
    """Returns a function that makes the tracking of a run, as a new process does, and lines."""
    Recorder.opened, lines = [], []
    monkeypatch.setitem(train.TRACKERS, "wandb", Recorder)
    monkeypatch.setitem(train.TRACKERS, "mlflow", lambda run: Recorder(run, fails_in=1))
    config = base_config()
    config.trials = 2

    def make(*names):
        config.track = names
        typed = typed_config(config)
        entries = {entry.label: entry for entry in entries_of(typed)}
        (label,) = entries
        folder = tmp_path / entries[label].folder
        folder.mkdir(exist_ok=True)
        return train.Tracking(typed, {label: typed}, tmp_path, lines.append), label, folder

    return make, lines


def played(track, label, rows):
    for row in rows:
        track(label, row)


def test_each_trial_is_a_run_with_the_finite_numbers_of_its_rounds(tracking, tmp_path):
    make, lines = tracking
    track, label, _ = make("wandb")
    for trial in (0, 1):
        played(track, label, history(0.1, 0.2, trial=trial, loss=math.nan, clients=[0.1]))
    track.close()
    first, second = Recorder.opened
    assert (first.run.name, first.run.group) == (f"{label}, trial 0", tmp_path.name)
    assert first.run.settings["training.learning_rate"] == 0.01 and first.run.run_id is None
    assert [round for round, _ in second.rows] == [0, 1] and first.closed == second.closed == 1
    assert first.rows[1][1]["accuracy"] == 0.2
    assert not {"loss", "clients", "round", "trial"} & set(first.rows[1][1])
    assert lines == []


def test_a_run_that_goes_on_is_the_same_run_without_a_round_twice(tracking):
    make, _ = tracking
    rows = history(0.1, 0.2, 0.3, 0.4)
    track, label, folder = make("wandb")
    played(track, label, rows[:3])  # killed here; its last checkpoint is of round 1
    write_runs([rows[:2]], folder)
    track, label, _ = make("wandb")
    played(track, label, rows[2:])
    _, again = Recorder.opened
    assert again.run.run_id == "new 0" and [round for round, _ in again.rows] == [3]
    noted = json.loads((folder / "tracked.json").read_text())
    assert noted == {"wandb": {"0": {"run_id": "new 0", "round": 3}}}


def test_a_tracker_named_in_the_middle_gets_the_rounds_before(tracking):
    make, _ = tracking
    track, label, folder = make("wandb")
    write_runs([history(0.1, 0.2), history(0.3, 0.4, trial=1)], folder)
    played(track, label, history(0.1, 0.2, 0.3)[2:])
    (sink,) = Recorder.opened
    write_runs([[], history(0.3, 0.4, trial=1)], folder)  # a task has trained it alone
    played(make("wandb")[0], label, history(0.3, 0.4, 0.5, trial=1)[2:])
    assert [round for round, _ in Recorder.opened[1].rows] == [0, 1, 2]
    rounds = [(round, scores["accuracy"]) for round, scores in sink.rows]
    assert rounds == [(0, 0.1), (1, 0.2), (2, 0.3)]


def test_a_tracker_that_fails_is_told_of_once_and_nothing_else_suffers(tracking):
    make, lines = tracking
    track, label, _ = make("mlflow", "wandb")
    played(track, label, history(0.1, 0.2, 0.3))
    track.close()
    failing, well = Recorder.opened
    assert lines == ["mlflow gets no more rows of this run: no answer"]
    assert [round for round, _ in failing.rows] == [0] and len(well.rows) == 3


def test_wandb_prints_no_summary_between_the_lines_of_a_run(tracking, monkeypatch):
    opened = []
    package = SimpleNamespace(init=lambda **options: opened.append(options), Settings=dict)
    monkeypatch.setitem(sys.modules, "wandb", package)
    train.WandB(train.TrackedRun("a", "b", {}, None, 0, None))
    assert opened[0]["settings"] == {"quiet": True}


def test_a_missing_package_is_one_line_before_anything_is_read(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    config = base_config()
    config.track, config.dataset.name = ("wandb",), "npz:nowhere.npz"
    with pytest.raises(ImportError) as error:
        train_and_evaluate(config, tmp_path / "run")
    message = "config.track needs wandb; run pip install 'fedjax_ht[wandb]'"
    assert str(error.value) == message and not (tmp_path / "run").exists()


def test_an_unknown_tracker_is_one_line():
    config = base_config()
    with pytest.raises(ValueError, match=r"track.*tensorbord.*tensorboard.*wandb.*mlflow"):
        config.track = ("tensorbord",)


def test_tensorboards_files_hold_the_scores(tracking):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from tensorboard.util.tensor_util import make_ndarray

    make, lines = tracking
    for rows in (history(0.1, 0.2, 0.3)[:2], history(0.1, 0.2, 0.3)[2:]):
        track, label, folder = make("tensorboard")
        played(track, label, rows)
        track.close()
    files = reading.EventAccumulator(str(folder / "tensorboard" / "trial_0"))
    files.Reload()
    events = files.Tensors("accuracy")
    values = [make_ndarray(event.tensor_proto).item() for event in events]
    assert [event.step for event in events] == [0, 1, 2] and lines == []
    assert values == pytest.approx([0.1, 0.2, 0.3])
