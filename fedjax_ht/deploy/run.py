"""A deployment's run: the rounds of a plan, with checkpoints and tables as of a simulation."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedjax_ht.deploy.answers import MAX_STATES
from fedjax_ht.deploy.audit import Audit, no_audit
from fedjax_ht.deploy.contacts import MOST_SAMPLES, Transport
from fedjax_ht.deploy.headers import printable
from fedjax_ht.deploy.noise import Entropy, fresh_secret
from fedjax_ht.deploy.plan import DeploymentEnded, Plan
from fedjax_ht.deploy.rounds import as_rounds
from fedjax_ht.deploy.server import Server, make_server, run_name
from fedjax_ht.lab.checkpoints.checkpoint import Checkpointer, make_checkpointer
from fedjax_ht.lab.checkpoints.writers import write_runs
from fedjax_ht.lab.files import atomic_open
from fedjax_ht.lab.report.bad_clients import Notes, why_silent
from fedjax_ht.lab.report.results import run_results
from fedjax_ht.lab.runs.folder import remember_fields
from fedjax_ht.lab.runs.options import ending_of, evaluated_clients
from fedjax_ht.simulation.divergence import Divergence
from fedjax_ht.simulation.history import run_rounds
from fedjax_ht.simulation.rows import Row
from fedjax_ht.simulation.state import SimulationState

MOST_FAILURES = 10
"""Tries in a row to write a round's files after which a run ends."""
AUDITED = (
    "round",
    "participants",
    "arrived",
    "not_finite",
    "far_off",
    "refused",
    "miscounted",
    "server_finite",
    "epsilon",
)
"""Columns of a round that are in the audit log."""
RETRY_SECONDS = 1.0
"""Between two tries after the last round."""


def serve(
    plan: Plan,
    workdir: Path,
    transport: Transport,
    tell: Callable[[str], None],
    entropy: Entropy = fresh_secret,
    patience: float = 0.0,
    most_samples: int = MOST_SAMPLES,
    audit: Audit = no_audit,
) -> list[Row]:
    """Runs a plan's rounds with the clients that a transport reaches; returns the history.

    A second call continues from the newest checkpoint; what was sent under noise stays counted.

    Args:
      plan: the config.
      workdir: gets config.json, run.json, metrics.csv and the like, checkpoints, and summary.md; no
        other program may write there.
      transport: the functions by which messages reach clients.
      tell: takes a line for whoever watches the server.
      entropy: draws the secrets of the server's noise.
      patience: seconds to wait for a client where none can be reached.
      most_samples: most samples that a client may say it has.
      audit: the log of the server.

    Raises:
      ValueError, OSError: `workdir` cannot be used, or a client cannot be reached. One line.
      DeploymentEnded: no client takes part any more, or nothing arrives; there is no summary.md.
    """
    config, keep = plan.config, plan.config.checkpoint.keep
    every = min(config.checkpoint.every, config.rounds)
    if every * keep >= MAX_STATES:
        raise ValueError(
            f"checkpoint.every of {every} rounds by {keep} checkpoints are {every * keep} states, "
            f"and a client keeps fewer than {MAX_STATES}; set checkpoint.every lower"
        )
    remember_fields(plan.fields, workdir)
    run = run_name(workdir)
    made = make_server(
        plan,
        transport,
        run,
        warn=tell,
        folder=workdir,
        entropy=entropy,
        keep=keep,
        patience=patience,
        most_samples=most_samples,
        audit=audit,
    )
    rounds: Any = as_rounds(made)  # lacks functions that read clients' states: none is here
    checkpointer = make_checkpointer(workdir / "checkpoints", rounds, keep)
    state, history = checkpointer.restore(tell) or (None, [])
    if state is not None and history:
        tell(f"{plan.label}: continues after round {state.round}")
    divergence = Divergence(made.federation.num_classes, history)
    records = _Records(made, checkpointer, workdir, tell, divergence)
    state, history = run_rounds(
        rounds,
        config.rounds,
        state,
        history=history,
        eval_every=config.evaluate.every,
        progress_fn=records.show,
        after_round=records.after_round,
        only=evaluated_clients(config),
        ending=ending_of(config),
    )
    write_runs([history], workdir)
    if config.give_up and (silence := why_silent(plan.label, [history], config.give_up)):
        raise DeploymentEnded(silence)
    with atomic_open(workdir / "summary.md") as file:
        file.write(run_results({plan.label: [history]}).markdown() + "\n")
    return history


@dataclasses.dataclass
class _Records:
    """A run's checkpoints, tables and lines.

    A file that cannot be written is tried again after the next round, so that a shortage of
    descriptors or of room ends no run that it passes by.

    Attributes:
      server: the server of the run.
      checkpointer: writes checkpoints.
      workdir: the folder of the tables.
      tell: takes a line for whoever watches the server.
      divergence: the notes on training that diverges.
      notes: the notes on clients that have been told.
      num_written: rows that the tables have.
      is_due: True if a checkpoint is to be written.
      failures: number of rounds in a row after which something could not be written.
    """

    server: Server
    checkpointer: Checkpointer
    workdir: Path
    tell: Callable[[str], None]
    divergence: Divergence
    notes: Notes = dataclasses.field(default_factory=Notes)
    num_written: int = 0
    is_due: bool = False
    failures: int = 0

    def show(self, row: Row) -> None:
        """Tells of training that diverges."""
        for line in self.divergence.notes(row):
            self.tell(f"round {row['round']}: {line}")

    def after_round(self, state: SimulationState, history: list[Row]) -> bool:
        """Tells of a round and writes the files that are due, see `run_rounds`."""
        config, row = self.server.plan.config, history[-1]
        self.tell(_round_line(row, config.rounds))
        for line in self.notes.of(self.server.plan.label, row):
            self.tell(f"round {row['round']}: {line}")
        self.server.audit("round", **{name: row[name] for name in AUDITED if name in row})
        is_last = state.round == config.rounds
        self.is_due |= is_last or state.round % config.checkpoint.every == 0
        while not self._written(state, history) and is_last:
            time.sleep(RETRY_SECONDS)
        return False

    def _written(self, state: SimulationState, history: list[Row]) -> bool:
        """Writes the due files; returns whether it could, and raises after `MOST_FAILURES`."""
        try:
            if self.is_due:
                self.checkpointer.save(state, history)
                self.server.audit("saved", round=state.round)
                self.server.saved.append(state.last_round)
                self.is_due = False
            self.num_written = write_runs([history], self.workdir, self.num_written)
        except OSError as error:
            self.num_written = 0  # some of the tables may have the rows: they are written anew
            self.failures += 1
            if self.failures >= MOST_FAILURES:
                raise
            reason = printable(str(error))
            self.tell(f"round {state.round}: {reason}; it is tried again")
            self.server.audit("not_saved", round=state.round, reason=reason)
            return False
        self.failures = 0
        return True


def _round_line(row: Row, rounds: int) -> str:
    parts = [f"{row['arrived']} of {row['participants']} arrived"]
    if "accuracy" in row:
        parts.append(f"accuracy {100 * row['accuracy']:.2f} %")
    if "epsilon" in row:
        parts.append(f"epsilon {row['epsilon']:.4g}")
    parts.append(f"{row['seconds_round'] + row['seconds_evaluation']:.1f} s")
    return f"round {row['round']} of {rounds}: {', '.join(parts)}"
