"""Sends a run's rows to trackers of experiments, named in `config.track`: TensorBoard, Weights &
Biases, MLflow.

Each trial of an entry is a run of the tracker. Its id and the last round that it has are noted in
tracked.json of the entry's folder, so that a run that goes on is the same run there, without a
round twice. A tracker's package is imported where it is named, and nowhere else.
"""

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

from fedjax_ht.check.packages import needing, require
from fedjax_ht.lab.checkpoints.writers import read_runs
from fedjax_ht.lab.config.entries import folder_of
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.config.typed import to_json
from fedjax_ht.lab.runs.json_files import flatten, read_json, write_json
from fedjax_ht.simulation.rows import Row

NOTES = "tracked.json"


class TrackedRun(NamedTuple):
    """A run to be opened at a tracker: one trial of an entry.

    Attributes:
      name: label of the entry, and its trial where there are several.
      group: name of the run's folder, which all its entries and trials share.
      settings: field of the config -> value, as the entry has it.
      folder: the entry's folder.
      trial: the trial's number.
      run_id: id under which the tracker knows the run already; None for a new one.
    """

    name: str
    group: str
    settings: Mapping[str, Any]
    folder: Path
    trial: int
    run_id: str | None


class Sink(Protocol):
    """An open run of a tracker.

    Attributes:
      run_id: the id by which the tracker knows the run again.
    """

    run_id: str

    def write(self, scores: Mapping[str, float], round: int) -> None:
        """Adds the scores of a round, by the names of metrics.csv."""

    def close(self) -> None:
        """Ends the run; the tracker may be given more of it later."""


class TensorBoard:
    """Event files in the entry's folder, for `tensorboard --logdir=FOLDER`."""

    def __init__(self, run: TrackedRun):
        with needing("config.track"):
            from tensorboard.summary import Writer
        self.run_id = f"trial_{run.trial}"
        self._writer = Writer(str(run.folder / "tensorboard" / self.run_id))

    def write(self, scores: Mapping[str, float], round: int) -> None:
        for name, value in scores.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandB:
    """A run of Weights & Biases; WANDB_PROJECT, WANDB_MODE, WANDB_DIR and its others hold.

    Its files lie outside the run's folder, which holds no links.
    """

    def __init__(self, run: TrackedRun):
        with needing("config.track"):
            import wandb
        self.run_id = run.run_id or uuid4().hex[:12]
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedjax_ht"),
            id=self.run_id,
            resume="allow",
            name=run.name,
            group=run.group,
            config=dict(run.settings),
            reinit="create_new",
            # it would print thirty lines at the end of each trial, between those of the run
            settings=wandb.Settings(quiet=True),
        )

    def write(self, scores: Mapping[str, float], round: int) -> None:
        self._run.log(dict(scores), step=round)

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """A run of MLflow, where MLFLOW_TRACKING_URI says, in an experiment named as the folder."""

    def __init__(self, run: TrackedRun):
        with needing("config.track"):
            from mlflow import MlflowClient
            from mlflow.entities import Metric, Param
        self._client, self._metric = MlflowClient(), Metric
        if run.run_id is not None:
            self.run_id = run.run_id
            self._client.update_run(self.run_id, status="RUNNING")
            return
        known = self._client.get_experiment_by_name(run.group)
        where = known.experiment_id if known else self._client.create_experiment(run.group)
        self.run_id = self._client.create_run(where, run_name=run.name).info.run_id
        params = [Param(name, str(value)[:500]) for name, value in run.settings.items()]
        for first in range(0, len(params), 100):  # as many as a call takes
            self._client.log_batch(self.run_id, params=params[first : first + 100])

    def write(self, scores: Mapping[str, float], round: int) -> None:
        metrics = [self._metric(name, value, 0, round) for name, value in scores.items()]
        self._client.log_batch(self.run_id, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self.run_id)


TRACKERS: dict[str, Callable[[TrackedRun], Sink]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
}
"""Name in `config.track` -> what opens a run; the name is that of an extra of pyproject.toml."""


def check_trackers(names: Iterable[str]) -> None:
    """Raises an ImportError of one line where a tracker's package is missing."""
    for name in names:
        require("config.track", name)


class Tracking:
    """Sends rows to the trackers of a run, each trial of an entry to a run of its own.

    A tracker that fails is told of once and then left alone: the run does not depend on it.

    Args:
      config: the config of the run.
      configs: label -> the config of the entry.
      workdir: the run's folder.
      warn: called with a line about a tracker that failed.
    """

    def __init__(
        self,
        config: Config,
        configs: Mapping[str, Config],
        workdir: Path,
        warn: Callable[[str], None],
    ):
        self.config, self.configs, self.workdir, self.warn = config, configs, workdir, warn
        self.sinks: dict[tuple[str, int, str], Sink] = {}
        self.rounds: dict[tuple[str, int, str], int] = {}  # the last that each sink has
        self.failed: set[str] = set()

    def __call__(self, label: str, row: Row) -> None:
        for tracker in self.config.track:
            if tracker not in self.failed:
                with self._left_alone_if_it_fails(tracker):
                    self._send(tracker, label, row)

    def close(self) -> None:
        """Ends all runs that are open."""
        for (_, _, tracker), sink in self.sinks.items():
            with self._left_alone_if_it_fails(tracker):
                sink.close()
        self.sinks.clear()

    def _send(self, tracker: str, label: str, row: Row) -> None:
        key, folder, rows = (label, row["trial"], tracker), self.workdir / folder_of(label), [row]
        notes = folder / NOTES
        noted = read_json(notes) if notes.exists() else {}
        of_tracker = noted.setdefault(tracker, {})
        if key not in self.sinks:
            known = of_tracker.get(str(row["trial"]), {})
            run = TrackedRun(
                name=label if self.config.trials == 1 else f"{label}, trial {row['trial']}",
                group=self.workdir.name,
                settings=flatten(to_json(self.configs[label])),
                folder=folder,
                trial=row["trial"],
                run_id=known.get("run_id"),
            )
            self.sinks[key], self.rounds[key] = TRACKERS[tracker](run), known.get("round", -1)
            # what the tracker lacks, where it is named in the middle of a run
            past = dict(enumerate(read_runs(folder))).get(row["trial"], [])
            rows = [before for before in past if before["round"] < row["round"]] + rows
        sink = self.sinks[key]
        for new in rows:
            if new["round"] > self.rounds[key]:
                sink.write(scores_of(new), new["round"])
                self.rounds[key] = new["round"]
        of_tracker[str(row["trial"])] = {"run_id": sink.run_id, "round": self.rounds[key]}
        write_json(notes, noted)

    @contextlib.contextmanager
    def _left_alone_if_it_fails(self, tracker: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of any kind: they are other people's programs and servers
            self.failed.add(tracker)
            reason = " ".join(str(error).split()) or type(error).__name__
            self.warn(f"{tracker} gets no more rows of this run: {reason}")


def scores_of(row: Row) -> dict[str, float]:
    """Returns the finite numbers of a row, but its round and trial."""
    numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
    finite = {name: float(value) for name, value in numbers.items() if math.isfinite(value)}
    return {name: value for name, value in finite.items() if name not in ("round", "trial")}
