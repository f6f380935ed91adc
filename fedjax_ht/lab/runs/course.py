"""The work of an arm between its rounds: rows are written, states saved, and trouble is told."""

import contextlib
import dataclasses
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from fedjax_ht.lab.checkpoints.trials import TrialCheckpoints
from fedjax_ht.lab.checkpoints.writers import write_runs
from fedjax_ht.lab.files import PASSING, is_caused_by
from fedjax_ht.lab.report.bad_clients import place_of
from fedjax_ht.lab.report.document import Document
from fedjax_ht.lab.report.figures import save
from fedjax_ht.lab.report.plots import image_grid
from fedjax_ht.lab.runs.arm import Arm
from fedjax_ht.lab.runs.identity import remember_rounds
from fedjax_ht.lab.runs.run_lock import agreed, is_primary
from fedjax_ht.lab.runs.signals import Interrupted
from fedjax_ht.simulation.divergence import Divergence
from fedjax_ht.simulation.rows import Row
from fedjax_ht.simulation.simulation import SimulationState

ProgressFn = Callable[[str, Row], None]  # (label of an entry, new row)


class Listeners(NamedTuple):
    """Functions that a run calls as it goes on.

    Attributes:
      progress: called with the entry's label and each new row, or None.
      warn: called with each line about trouble.
      stage: called with a line when something begins that takes time.
      result: called with the result, before anything is drawn.
    """

    progress: ProgressFn | None
    warn: Callable[[str], None]
    stage: Callable[[str], None]
    result: Callable[[Document], None] = lambda result: None


@dataclasses.dataclass
class Course:
    """The work of an arm between its rounds: it writes rows, saves and reports, and remembers how
    far each has come."""

    arm: Arm
    folder: Path
    checkpointer: TrialCheckpoints
    listeners: Listeners
    caught: Sequence[int]
    writes: bool
    numbers: Sequence[int]  # of its runs among the arm's trials
    programs: Mapping[str, str] = dataclasses.field(default_factory=dict)  # that train it
    saved: int = -1  # round of the newest checkpoint
    written: int = 0  # rows in the files
    warned: set[tuple[int, str]] = dataclasses.field(default_factory=set)  # trial and warning
    divergence: dict[int, Divergence] = dataclasses.field(default_factory=dict)  # by trial
    is_late: bool = False  # what an earlier round left unwritten is to be written

    def write(self, histories: list[list[Row]]) -> None:
        if self.writes:
            self.written = write_runs(histories, self.folder, self.written)

    def save(self, states: list[SimulationState], histories: list[list[Row]]) -> None:
        self.checkpointer.save(states, histories)
        if is_primary() and 0 in self.numbers:
            show_server(self.arm, states[0], self.folder)
            if self.writes:
                remember_rounds(self.folder, rounds_done(states), self.programs)
        self.saved = rounds_done(states)

    def show(self, row: Row) -> None:
        if self.listeners.progress is not None and is_primary():
            self.listeners.progress(self.arm.label, row)
        warn_of = self.arm.method.view.warn
        warning = warn_of(row) if warn_of and row["round"] else None
        if warning and (row["trial"], warning) not in self.warned:
            self.warned.add((row["trial"], warning))
            self._warn(row, warning)
        for line in self.divergence[row["trial"]].notes(row):
            self._warn(row, line)
        if row["round"] == 0 and row["trial"] == self.numbers[-1]:
            # the untrained federation is evaluated; the first round may compile for long
            stop_if_signalled(self.caught)

    def _warn(self, row: Row, line: str) -> None:
        self.listeners.warn(f"{place_of(self.arm.label, row, self.arm.config.trials)}: {line}")

    def after_round(self, states: list[SimulationState], histories: list[list[Row]]) -> bool:
        """Returns True to stop."""
        stop, round = agreed(bool(self.caught)), rounds_done(states)
        if any(state.round > round for state in states):
            return stop  # what a killed process had saved of some runs already stays as it is
        with self.put_off(round, stop):
            self.write(histories)
            self.checkpointer.check()
        if round % self.arm.config.checkpoint.every == 0 or stop or self.is_late:
            with self.put_off(round, stop):
                self.is_late = False
                self.save(states, histories)
        return stop

    @contextlib.contextmanager
    def put_off(self, round: int, is_last: bool) -> Iterator[None]:
        """Puts off to the next round a file that cannot be written now because too much is open."""
        try:
            yield
        except OSError as error:
            # other processes wait for the first one at a checkpoint, which it would not reach
            is_alone = jax.process_count() == 1
            if is_last or not is_alone or not is_caused_by(error, PASSING):
                raise
            self.is_late = True
            self.listeners.warn(
                f"{self.arm.label}: round {round} is not saved yet ({error}); it is tried again "
                "after the next round"
            )


def rounds_done(states: Sequence[SimulationState | None]) -> int:
    """Returns the rounds that all runs of an entry have done; -1 where one has no state."""
    return min(-1 if state is None else state.round for state in states)


def stop_if_signalled(caught: Sequence[int]) -> None:
    """Raises `Interrupted` in every process of a run, if any has caught a signal."""
    if agreed(bool(caught)):
        raise Interrupted(caught[0] if caught else signal.SIGTERM)


def show_server(arm: Arm, state: SimulationState, folder: Path) -> None:
    """Writes the pictures that a method's server makes of its state to images/<round>.png, if it
    makes any."""
    view = arm.method.view
    if view.pictures is None:
        return
    pictures = view.pictures(arm.federation, state.server)
    blocks = jax.tree.map(np.asarray, pictures)
    picture = image_grid(blocks, arm.dataset.class_names)
    save(picture, folder / "images" / f"{state.round:05d}.png")
