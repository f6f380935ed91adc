"""A deployment's run in a folder: metrics, checkpoints and a table as of a simulation."""

import json
import uuid
from collections.abc import Callable
from pathlib import Path

from fedjax_ht.checkpoints.checkpoint import make_checkpointer
from fedjax_ht.checkpoints.writers import write_history
from fedjax_ht.core.files import atomic_open
from fedjax_ht.deploy import states
from fedjax_ht.deploy.ended import Ended
from fedjax_ht.deploy.noise import Entropy, fresh_words
from fedjax_ht.deploy.plan import Plan
from fedjax_ht.deploy.rounds import as_simulation
from fedjax_ht.deploy.server import Transport, make_server
from fedjax_ht.experiment.build import evaluated_clients
from fedjax_ht.experiment.run_folder import read_json, remember_fields
from fedjax_ht.experiment.run_lock import locked
from fedjax_ht.report.bad_clients import why_silent
from fedjax_ht.report.results import run_results
from fedjax_ht.simulation.history import Row, run_rounds

DONE = "summary.md"
"""What a run's folder has once all its rounds are done."""


def serve(
    plan: Plan,
    workdir: Path,
    transport: Transport,
    tell: Callable[[str], None],
    entropy: Entropy = fresh_words,
    patience: float = 0.0,
) -> list[Row]:
    """Runs the rounds of a plan with the clients that `transport` reaches; returns the history.

    `workdir` gets config.json, run.json with the name that clients keep their states by,
    metrics.csv and the like, and checkpoints. A second call goes on from the newest of these, and
    the clients with it; what has been told, which with privacy is in told.json, stays told.
    `entropy` is where the words of the server's noise come from, `patience` the seconds to wait for
    a client where none can be reached.

    Raises:
      ValueError, OSError: `workdir` holds another run, cannot be used, or not all clients are
        there. One line.
      Ended: nobody takes part any more, or nothing has arrived for `give_up` rounds; no table is
        written.
    """
    config = plan.config
    every, kept = min(config.checkpoint.every, config.rounds), config.checkpoint.keep
    if every * kept >= states.MOST:
        raise ValueError(
            f"checkpoint.every of {every} rounds by {kept} checkpoints are {every * kept} states, "
            "and "
            f"a client keeps fewer than {states.MOST}; set checkpoint.every lower"
        )
    with locked(workdir, tell):
        remember_fields(plan.fields, workdir)
        name, keep = run_name(workdir), config.checkpoint.keep
        server = make_server(plan, transport, name, tell, workdir, entropy, keep, patience)
        simulation = as_simulation(server)
        checkpointer = make_checkpointer(workdir / "checkpoints", simulation, keep)
        state, history = checkpointer.restore(tell) or (None, [])
        if history:
            tell(f"{plan.label}: goes on after round {state.round}")
        written = 0

        def after_round(state, history) -> bool:
            nonlocal written
            tell(line(history[-1], config.rounds))
            if state.round % config.checkpoint.every == 0 or state.round == config.rounds:
                checkpointer.save(state, history)
                server.saved.append(state.last_round[0])
            written = write_history(history, workdir, written)
            return False

        ends = {"patience": config.evaluate.patience or None, "give_up": config.give_up or None}
        only, every = evaluated_clients(config), config.evaluate.every
        state, history = run_rounds(
            simulation,
            config.rounds,
            state,
            history,
            every,
            after_round=after_round,
            only=only,
            **ends,
        )
        write_history(history, workdir, written)
        if config.give_up and (silence := why_silent(plan.label, history, config.give_up)):
            raise Ended(silence)
        with atomic_open(workdir / DONE) as file:
            file.write(run_results({plan.label: history}).markdown() + "\n")
        return history


def run_name(workdir: Path) -> str:
    """The name of the run in a folder, made at its first start."""
    path = workdir / "run.json"
    if not path.exists():
        with atomic_open(path) as file:
            json.dump({"run": uuid.uuid4().hex}, file)
    return read_json(path)["run"]


def line(row: Row, rounds: int) -> str:
    """A round in a line."""
    accuracy = f", accuracy {100 * row['accuracy']:.2f} %" if "accuracy" in row else ""
    epsilon = f", epsilon {row['epsilon']:.4g}" if "epsilon" in row else ""
    seconds = row["seconds_round"] + row["seconds_evaluation"]
    arrived = f"{row['arrived']} of {row['participants']} arrived"
    return f"round {row['round']} of {rounds}: {arrived}{accuracy}{epsilon}, {seconds:.1f} s"
