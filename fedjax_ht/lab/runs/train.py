"""Trains and evaluates the entries of a config, from the start or from where a run stopped.

Sends their rows to trackers: TensorBoard, Weights & Biases, MLflow.
"""

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

import jax
import numpy as np

from fedjax_ht.check.names import printable
from fedjax_ht.check.options import checked
from fedjax_ht.check.packages import needing, require
from fedjax_ht.core.numerics import standard_numerics
from fedjax_ht.data.partition.notes import split_notes
from fedjax_ht.lab.checkpoints.writers import FILES, read_runs
from fedjax_ht.lab.config.base import AnyConfig, typed_config
from fedjax_ht.lab.config.entries import folder_of
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.config.typed import to_json
from fedjax_ht.lab.files import write_whole
from fedjax_ht.lab.readers.description import describe
from fedjax_ht.lab.report import plots
from fedjax_ht.lab.report.bad_clients import why_silent
from fedjax_ht.lab.report.compared import Compared, Page, compared, write_page
from fedjax_ht.lab.report.document import Document
from fedjax_ht.lab.report.maps import write_maps
from fedjax_ht.lab.report.report import repeat, setting, text_of, write_report
from fedjax_ht.lab.report.results import Aim, check_aim
from fedjax_ht.lab.report.rows import score_of_task
from fedjax_ht.lab.runs.folder import flatten, is_primary, locked, read_json, write_json
from fedjax_ht.lab.runs.identity import begin
from fedjax_ht.lab.runs.own_methods import noted
from fedjax_ht.lab.runs.plan import Plan, plan
from fedjax_ht.lab.runs.play import Notify, play
from fedjax_ht.lab.runs.signals import catch_signals
from fedjax_ht.lab.runs.tasks import Tasks, train_on
from fedjax_ht.simulation.rows import Row
from fedjax_ht.simulation.simulation import attack_notes, batch_notes

NOTES = "tracked.json"


class TrackedRun(NamedTuple):
    """A run to open at a tracker: one trial of an entry.

    Attributes:
      name: label of the entry, with its trial if there are several.
      group: name of the run's folder, shared by all its entries and trials.
      settings: field of the config -> the entry's value.
      folder: the entry's folder.
      trial: the trial's number.
      run_id: id of the tracker's existing run; None for a new one.
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
      run_id: the id by which the tracker finds the run again.
    """

    run_id: str

    def write(self, scores: Mapping[str, float], round: int) -> None:
        """Adds the scores of a round, by the names of metrics.csv."""

    def close(self) -> None:
        """Closes the run, which may be reopened later."""


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
    """A run of Weights & Biases; its variables WANDB_PROJECT, WANDB_MODE, WANDB_DIR etc. apply.

    Its files lie outside the run's folder, which must not contain links.
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
            # otherwise it prints thirty lines after each trial, between those of the run
            settings=wandb.Settings(quiet=True),
        )

    def write(self, scores: Mapping[str, float], round: int) -> None:
        self._run.log(dict(scores), step=round)

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """A run of MLflow at MLFLOW_TRACKING_URI, in an experiment named after the folder."""

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
        for first in range(0, len(params), 100):  # the limit of a call
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
"""Name in `config.track`, and of an extra of pyproject.toml -> function that opens a run."""


class Tracking:
    """Sends rows to the trackers of a run, with one tracker run per trial of an entry.

    tracked.json in the entry's folder records the tracker's run id and its last round. A resumed
    run thus continues the same tracker run, and sends no round twice.

    Reports a tracker that raises once, and then disables it. The run continues.

    Args:
      config: the config of the run.
      configs: label -> the config of the entry.
      workdir: the run's folder.
      warn: called with a message when a tracker fails.
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
        known = noted.setdefault(tracker, {}).setdefault(str(row["trial"]), {})
        if key not in self.sinks:
            run = TrackedRun(
                name=label if self.config.trials == 1 else f"{label}, trial {row['trial']}",
                group=self.workdir.name,
                settings=flatten(to_json(self.configs[label])),
                folder=folder,
                trial=row["trial"],
                run_id=known.get("run_id"),
            )
            self.sinks[key] = TRACKERS[tracker](run)
            # earlier rows, for a tracker that was added in the middle of a run
            past = {run[0]["trial"]: run for run in read_runs(folder)}.get(row["trial"], [])
            rows = [before for before in past if before["round"] < row["round"]] + rows
        sink = self.sinks[key]
        known["run_id"] = sink.run_id
        for new in rows:
            if new["round"] > known.get("round", -1):
                sink.write(scores_of(new), new["round"])
                known["round"] = new["round"]
        write_json(notes, noted)

    @contextlib.contextmanager
    def _left_alone_if_it_fails(self, tracker: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of any type: trackers are third-party programs and servers
            self.failed.add(tracker)
            reason = " ".join(str(error).split()) or type(error).__name__
            self.warn(f"{tracker} gets no more rows of this run: {reason}")


def scores_of(row: Row) -> dict[str, float]:
    """Returns the finite numbers of a row, except its round and trial."""
    numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
    finite = {name: float(value) for name, value in numbers.items() if math.isfinite(value)}
    return {name: value for name, value in finite.items() if name not in ("round", "trial")}


def notes(experiment: Plan) -> list[str]:
    """Returns notes on a run's splits and batches, without duplicates.

    With several splits, the notes on a split begin with its trial.
    """
    lines = []
    splits = {id(partition): trial for trial, partition in enumerate(experiment.partitions)}
    for trial in sorted(splits.values()):
        place = f"split of trial {trial}: " if len(splits) > 1 else "split: "
        for note in split_notes(experiment.dataset, experiment.partitions[trial]):
            lines.append(f"{place}{note}")
    public, runs = experiment.dataset.public_set, experiment.runs.values()
    if public is not None and not any(run.method.needs.public_samples for run in runs):
        lines.append(
            f"{public.samples} samples are public (dataset.public), but no method of this run "
            "reads them: clients have that many fewer samples"
        )
    counts = np.array([[len(c.train) for c in clients] for clients in experiment.partitions])
    for run in runs:
        lines += batch_notes(run.federation, run.method, counts)
        lines += attack_notes(run.options.attack, run.federation.num_clients)
    rounds = experiment.config.rounds
    for label, run in experiment.runs.items():
        warmup = run.entry.options.get("warmup") or 0
        if warmup >= rounds:
            lines.append(
                f"{label}: clients do not change in its first {warmup} rounds (warmup), but the "
                f"run has {rounds}; lower warmup, such as {label}:warmup={rounds // 5}"
            )
    return list(dict.fromkeys(lines))  # entries with the same recipe have the same notes


class Unwritable(OSError):
    """A file could not be written after the start of the run. One line."""


@contextlib.contextmanager
def once_started() -> Iterator[None]:
    """Turns an OSError into `Unwritable`, after the start of a run or a search."""
    try:
        yield
    except OSError as error:
        raise Unwritable(
            f"{error}; earlier saves are intact, and the same command continues from there"
        ) from error


class Result(NamedTuple):
    """The result of a run.

    Attributes:
      histories: label -> the rows of each run, see `simulation.history`.
      summary: the result in a sentence, warnings and tables, as Markdown.
      files: the files written; none for a finished run in a read-only folder.
      experiment: the objects of the run.
    """

    histories: dict[str, list[list[Row]]]
    summary: str
    files: list[Path]
    experiment: Plan


class GaveUp(Exception):
    """An entry received no more uploads; the results are saved and written. One line.

    Attributes:
      result: the result of all entries.
    """

    def __init__(self, message: str, result: Result):
        super().__init__(message)
        self.result = result


@checked
@standard_numerics()
def train_and_evaluate(
    experiment: AnyConfig | Plan,
    workdir: Path | str,
    progress_fn: Callable[[str, Row], None] | None = None,
    warn: Callable[[str], None] = print,
    stage: Callable[[str], None] = lambda line: None,
    aim: Aim | None = None,
    show_result: Callable[[Document], None] = lambda text: None,
    config_file: str | None = None,
    tasks: Tasks | None = None,
) -> Result:
    """Runs every entry of an experiment, and writes its results to `workdir`.

    These are metrics, checkpoints, tables, plots and a report.

    Trials share a split, or have one each with `partition.per_trial`. Under `jax.distributed` every
    process makes the same call, and the first one writes; all must see `workdir`. A second call
    with the same config or objects resumes the run, in any process. SIGINT and SIGTERM finish the
    round, save, and raise `Interrupted`. A finished run in a read-only folder only shows its
    result.

    Args:
      experiment: the config of the run, such as `fedjax_ht.base_config()`, or the result of
        `make_experiment`.
      workdir: the folder to write to.
      progress_fn: called with an entry's label and its new row.
      warn: called with each warning.
      stage: called with two lines on the data, and with one line each at the start of the run, of
        every unfinished entry and of the pictures.
      aim: the target accuracy of a comparison, whose costs the first table shows; None for the
        table of a run.
      show_result: called with the summary before the pictures, which may take minutes.
      config_file: "FILE[:ARGUMENT]" that registers your own methods, so that `report` and
        `evaluate` find them.
      tasks: trains the runs as tasks of a cluster, and the rest here. None trains all here.

    Raises:
      ValueError, OSError: the config is invalid, another process uses `workdir`, or it has a run of
        another config or on other data. One line each.
      ImportError: the package of a tracker is missing. One line.
      Unwritable: a file cannot be written after the start, e.g. on a full disk; the last checkpoint
        is whole. One line.
      GaveUp: an entry received no upload for `give_up` consecutive rounds; the others have
        finished.
    """
    workdir = Path(workdir)
    is_made = isinstance(experiment, Plan)
    config = experiment.config if is_made else typed_config(experiment)
    for tracker in config.track:
        require("config.track", tracker)
    if not is_made:
        experiment = plan(config, begun=(workdir / "config.json").exists())
    if aim is not None:
        check_aim(aim, score_of_task(experiment.dataset.task))
    with locked(workdir, warn) as writable:
        hears = {"row": progress_fn, "warn": warn, "stage": stage} if is_primary() else {}

        def notify(kind: str, *what: Any) -> None:
            hear = hears.get(kind)
            if hear is not None:
                hear(*what)

        page, writes = Page(tuple(experiment.runs), aim, repeat()), writable and is_primary()
        noted_now = noted(experiment, config_file)
        identities = begin(experiment, workdir, noted_now, writes=writes)
        if writes:
            write_page(page, workdir)
        _announce(experiment, workdir, notify, writable)
        pictures = []
        with once_started():
            histories = _play_all(experiment, workdir, notify, tasks=tasks, writable=writable)
            shown = compared(
                config, experiment.entries, identities, histories=histories, workdir=workdir
            )
            summary = text_of(shown, aim)
            if is_primary():
                show_result(summary)
            if writes:
                also = " and maps (--config.report.maps=none skips maps)"  # they may take minutes
                notify("stage", f"drawing plots{'' if config.report.maps == 'none' else also}")
                warn_of_map = functools.partial(notify, "warn")
                pictures = write_results(experiment, shown, page, workdir, warn_of_map)
    files = [workdir / "config.json", workdir / "summary.md"]
    for entry in experiment.entries:
        files += [workdir / entry.folder / name for name in (*FILES, "checkpoints")]
    files = [*files, *pictures] if writable else []
    result = Result(histories, summary.markdown(), files, experiment)
    silences = [why_silent(label, runs, config.give_up) for label, runs in histories.items()]
    if any(silences):
        raise GaveUp(". ".join(filter(None, silences)), result)
    return result


def _play_all(
    experiment: Plan, workdir: Path, notify: Notify, *, tasks: Tasks | None, writable: bool
) -> dict[str, list[list[Row]]]:
    """Plays the runs, first as tasks and then one after another, and sends rows to the trackers.

    Returns label -> the rows of each trial.
    """
    config, configs = experiment.config, {k: run.config for k, run in experiment.runs.items()}
    tracking = Tracking(config, configs, workdir, functools.partial(notify, "warn"))

    def hear(kind: str, *what: Any) -> None:
        notify(kind, *what)
        if kind == "row":
            tracking(*what)

    histories, precision = {}, jax.default_matmul_precision(config.precision)
    with catch_signals() as caught, precision, contextlib.closing(tracking):
        if tasks is not None and writable:
            train_on(tasks, experiment, workdir, hear, caught)
        for label, run in experiment.runs.items():
            histories[label] = play(run, workdir / run.entry.folder, hear, caught, writable)
    return histories


def _announce(experiment: Plan, workdir: Path, notify: Notify, writable: bool) -> None:
    """Notifies about the data, the run and its folder, and warns of unusual splits."""
    for line in describe(experiment.dataset).lines:
        notify("stage", line)
    doing = "Writing" if writable else "Nothing is written"
    notify("stage", f"{setting(experiment)} {doing} to {workdir}.")
    for note in notes(experiment):
        notify("warn", note)


def write_results(
    experiment: Plan,
    shown: Compared,
    page: Page,
    workdir: Path,
    warn: Callable[[str], None],
) -> list[Path]:
    """Writes the summary, plots and report of a run.

    Args:
      experiment: the experiment.
      shown: the run's entries and their rows.
      page: the contents of the first table and of the report's header.
      workdir: the run's folder.
      warn: called with a message for each map that cannot be drawn.

    Returns:
      The paths of the pictures and of the report.
    """
    write_whole(workdir / "summary.md", printable(text_of(shown, aim=None).markdown()) + "\n")
    pictures = plots.write_plots(shown, experiment.dataset, experiment.partitions[0], workdir)
    if experiment.config.report.maps != "none":
        folders = {entry.label: workdir / entry.folder for entry in shown.entries}
        pictures += write_maps(folders, experiment, warn)
    return [*pictures, write_report(experiment, shown, page, workdir)]
