"""The rounds of a deployment, whose clients train on their own machines.

`simulation.round` defines the order of a round; this module exchanges its messages. The loop over
rounds, checkpoints and tables are those of every simulation.
"""

import dataclasses
import functools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.federation import all_weights
from fedjax_ht.core.mesh import client_mesh, collect
from fedjax_ht.core.round import RunServer
from fedjax_ht.core.trees import PyTree
from fedjax_ht.deploy.client import MAX_STATES
from fedjax_ht.deploy.messages import printable
from fedjax_ht.deploy.noise import draw, record_epsilons
from fedjax_ht.deploy.plan import DeploymentEnded, Plan
from fedjax_ht.deploy.replies import (
    ClientReply,
    ask,
    groups_in_round,
    stacked_answers,
    stacked_scores,
    train,
    train_with_sums,
)
from fedjax_ht.deploy.server import (
    ClientHeaders,
    Server,
    Transport,
    contact_clients,
    make_server,
    run_name,
)
from fedjax_ht.lab.checkpoints.checkpoint import Checkpointer
from fedjax_ht.lab.checkpoints.writers import write_runs
from fedjax_ht.lab.files import atomic_open
from fedjax_ht.lab.report.bad_clients import Notes, why_silent
from fedjax_ht.lab.report.results import run_results
from fedjax_ht.lab.runs.folder import remember_fields
from fedjax_ht.lab.runs.identity import check_rounds
from fedjax_ht.lab.runs.method import ending_of, evaluated_clients
from fedjax_ht.lab.runs.play import stop_if_signalled
from fedjax_ht.lab.runs.signals import Interrupted, catch_signals
from fedjax_ht.simulation import serving
from fedjax_ht.simulation.divergence import Divergence
from fedjax_ht.simulation.profile import Profile
from fedjax_ht.simulation.report import Evaluation, RoundReport, evaluation
from fedjax_ht.simulation.round import (
    Cohort,
    Round,
    draw_cohort,
    run_round,
)
from fedjax_ht.simulation.rows import Row
from fedjax_ht.simulation.runs import run_each
from fedjax_ht.simulation.selection import first_reports
from fedjax_ht.simulation.serving import Delivery
from fedjax_ht.simulation.simulation import Rounds
from fedjax_ht.simulation.state import SimulationState

MOST_FAILURES = 10
"""Consecutive failures to write a round's files after which a run ends."""
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
"""Columns of a round that enter the audit log."""
RETRY_SECONDS = 1.0
"""Between two tries after the last round."""
PAUSE_SECONDS = 1.0
"""Between two tries of a round in which no client takes part."""
CONTINUES = "The same command continues from the last checkpoint"


def serve(plan: Plan, workdir: Path, transport: Transport) -> list[Row]:
    """Runs a plan's rounds with the clients that a transport reaches; returns the history.

    A second call resumes from the newest checkpoint; what was sent under noise stays counted.

    Args:
      plan: the config.
      workdir: receives config.json, run.json, metrics.csv and the like, checkpoints, and
        summary.md; no other program may write there.
      transport: the functions by which messages reach clients.

    Raises:
      ValueError, OSError: `workdir` cannot be used, or a client cannot be reached. One line.
      DeploymentEnded: no client takes part any more, or nothing arrives. Finished rounds are saved,
        but summary.md is not written.
      Interrupted: the same after a signal, once the round in progress has ended.
    """
    config, keep = plan.config, plan.config.checkpoint.keep
    every = min(config.checkpoint.every, config.rounds)
    if every * keep >= MAX_STATES:
        raise ValueError(
            f"checkpoint.every of {every} rounds times {keep} checkpoints are {every * keep} "
            f"states, but a client keeps fewer than {MAX_STATES}; lower checkpoint.every"
        )
    remember_fields(plan.fields, workdir)
    check_rounds(plan.label, workdir, config.rounds)
    name = run_name(workdir)
    made = make_server(plan, transport, name, folder=workdir, keep=keep)
    with catch_signals() as caught:
        history = _play_rounds(made._replace(caught=caught), workdir, keep)
    if config.give_up and (silence := why_silent(plan.label, [history], config.give_up)):
        raise DeploymentEnded(silence)
    with atomic_open(workdir / "summary.md") as file:
        file.write(run_results({plan.label: [history]}).markdown() + "\n")
    return history


def _play_rounds(server: Server, workdir: Path, keep: int) -> list[Row]:
    """Runs the rounds that are left, and saves the last one however they end."""
    plan, transport, config = server.plan, server.transport, server.plan.config
    rounds: Any = as_rounds(server)  # lacks functions that read clients' states: none is here
    checkpointer = Checkpointer(workdir / "checkpoints", rounds, keep)
    state, history = checkpointer.restore(transport.tell) or (None, [])
    if state is not None and history:
        transport.tell(f"{plan.label}: continues after round {state.round}")
    divergence = Divergence(server.federation.num_classes, history)
    saved = -1 if state is None else int(state.round)
    records = _Records(server, checkpointer, workdir, divergence, saved)
    last = []  # the newest state, and the rows up to it

    def after_round(states: list[SimulationState], histories: list[list[Row]]) -> None:
        last[:] = states[0], histories[0]
        records.after_round(*last)

    try:
        (state,), (history,) = run_each(
            [rounds],
            config.rounds,
            [state],
            histories=[history],
            eval_every=config.evaluate.every,
            progress_fn=records.show,
            after_round=after_round,
            only=evaluated_clients(config),
            ending=ending_of(config),
        )
    except (DeploymentEnded, Interrupted):
        if last:
            records.finish(*last)
        raise
    records.finish(state, history)
    return history


@dataclasses.dataclass
class _Records:
    """A run's checkpoints, tables and messages.

    A file that cannot be written is retried after the next round, so a temporary shortage of
    descriptors or disk space ends no run.

    Attributes:
      server: the server of the run.
      checkpointer: writes checkpoints.
      workdir: folder of the tables.
      divergence: makes the notes on diverging training.
      saved: round of the newest checkpoint, -1 without one.
      notes: the notes on clients that were already reported.
      num_written: number of rows in the tables.
      is_due: True if a checkpoint must be written.
      failures: number of consecutive rounds after which something could not be written.
    """

    server: Server
    checkpointer: Checkpointer
    workdir: Path
    divergence: Divergence
    saved: int
    notes: Notes = dataclasses.field(default_factory=Notes)
    num_written: int = 0
    is_due: bool = False
    failures: int = 0

    def show(self, row: Row) -> None:
        """Reports training that diverges."""
        for line in self.divergence.notes(row):
            self.server.transport.tell(f"round {row['round']}: {line}")

    def after_round(self, state: SimulationState, history: list[Row]) -> None:
        """Reports a round and writes the files that are due."""
        config, row = self.server.plan.config, history[-1]
        self.server.transport.tell(_round_line(row, config.rounds))
        for line in self.notes.of(self.server.plan.label, row):
            self.server.transport.tell(f"round {row['round']}: {line}")
        self.server.transport.audit("round", **{name: row[name] for name in AUDITED if name in row})
        self.is_due |= state.round % config.checkpoint.every == 0
        self._written(state, history)

    def finish(self, state: SimulationState, history: list[Row]) -> None:
        """Saves the last state, also of a run that ended before its last round."""
        self.is_due = int(state.round) != self.saved
        while not self._written(state, history):
            time.sleep(RETRY_SECONDS)

    def _written(self, state: SimulationState, history: list[Row]) -> bool:
        """Writes the due files; returns whether it succeeded, and raises after `MOST_FAILURES`."""
        try:
            if self.is_due:
                self.checkpointer.save(state, history)
                self.server.transport.audit("saved", round=state.round)
                self.server.saved.append(state.last_round)
                self.is_due, self.saved = False, int(state.round)
            self.num_written = write_runs([history], self.workdir, self.num_written)
        except OSError as error:
            self.num_written = 0  # some tables may have the rows already: all are written again
            self.failures += 1
            if self.failures >= MOST_FAILURES:
                raise
            reason = printable(str(error))
            self.server.transport.tell(f"round {state.round}: {reason}; it is tried again")
            self.server.transport.audit("not_saved", round=state.round, reason=reason)
            return False
        self.failures = 0
        return True


def _round_line(row: Row, rounds: int) -> str:
    parts = [f"{row['arrived']} of {row['participants']} arrived"]
    if "accuracy" in row:
        scores = row["clients"]  # None where there is no answer, or no test sample
        scored = len(scores) - scores.count(None)
        some = "" if scored == len(scores) else f" ({scored} of {len(scores)} clients)"
        parts.append(f"accuracy {100 * row['accuracy']:.2f} %{some}")
    if "epsilon" in row:
        parts.append(f"epsilon {row['epsilon']:.4g}")
    parts.append(f"{row['seconds_round'] + row['seconds_evaluation']:.1f} s")
    return f"round {row['round']} of {rounds}: {', '.join(parts)}"


def as_rounds(server: Server) -> Rounds:
    """Returns the rounds of a deployment; its `SimulationState` has no clients' states."""
    return Rounds(
        init=functools.partial(first_state, server),
        run_round=functools.partial(play, server),
        evaluate=functools.partial(evaluate, server),
        client_flops=lambda: server.flops,
        rules=tuple(server.plan.method.rules),
        num_classes=server.federation.num_classes,
    )


def first_state(server: Server) -> SimulationState:
    """Returns the server's state before the first round."""
    weights = collect(client_mesh(1), all_weights(server.federation))
    reports = None
    if server.plan.options.select is not None:
        reports = first_reports(np.array(server.counts["train"]))
    return SimulationState(
        round=0,
        server=collect(client_mesh(1), server.first(_seed(server), (), weights)),
        clients={},
        last_round=np.full(server.plan.num_clients, -1, np.int32),
        changed={},
        reports=reports,
    )


def play(
    server: Server, state: SimulationState, score: bool = True
) -> tuple[SimulationState, RoundReport]:
    """Lets the reachable clients train, and serves their replies.

    A client that does not reply is absent. A round in which no client takes part does not count and
    is retried. Clients always score themselves, in their own time, whatever `score` is.

    Raises:
      DeploymentEnded: no client has taken part for `give_up` tries, or none could be reached for
        `Transport.patience` seconds.
      Interrupted: a signal was caught before the round began.
    """
    drawn, replies = _play_until_replies(server, state)
    secret, epsilon = draw(server.noise)  # from here on the step counts, whatever its outcome

    def exchange(state, score, stage):
        return state, stacked_answers(server, state, replies)

    answered = Round(
        options=server.plan.options,
        exchange=exchange,
        serve=functools.partial(_serve, server, secret),
        deliver=functools.partial(serving.deliver, client_mesh(1)),
        additions=server.additions,
    )
    new, report = run_round(answered, state, score)
    report = report._replace(epsilon=epsilon)
    num_absent = int(np.sum(~drawn.reachable)) + len(drawn.ids) - len(replies)
    return new, _complete(server, replies, report._replace(absent=num_absent or None))


def _serve(
    server: Server, secret: PyTree, state: SimulationState, delivery: Delivery
) -> tuple[PyTree, serving.ServerResult]:
    """Serves a round with the secret of the server's noise in it."""
    of_round = RunServer(state.server, _seed(server), jax.tree.map(jnp.asarray, secret))
    inputs = jnp.int32(state.round), server.pretrained, server.public
    return server.serve(of_round, delivery, *inputs)


def _complete(
    server: Server, replies: Mapping[int, ClientReply], report: RoundReport
) -> RoundReport:
    """Adds the values of the clients' headers to a report."""
    headers = [reply.header for reply in replies.values()]
    if server.plan.unit != "upload":  # with it, clients do not report their seconds
        longest = max(header["seconds"] for header in headers)
        report = report._replace(metrics=report.metrics | {"seconds_client": longest})
    if server.plan.unit in ("upload", "sample"):
        epsilons = {client: reply.header["epsilon"] for client, reply in replies.items()}
        epsilon, lines = record_epsilons(server.ledger, epsilons)
        for line in lines:
            server.transport.tell(line)
        report = report._replace(epsilon=epsilon)
    if server.groups is not None:  # a sum does not tell clients apart
        report = report._replace(far_off=())
    return report


def _play_until_replies(
    server: Server, state: SimulationState
) -> tuple[Cohort, dict[int, ClientReply]]:
    """Retries a round until a client takes part.

    Within a round the draw depends on the reachable clients alone, so a retry leaves out the
    clients that failed before. If too few others remain to ask any, it asks all again.

    Returns:
      The clients that were asked, and {client id: reply} with at least one client.
    """
    tries, give_up, failed = 0, server.plan.config.give_up, set()
    while True:
        reachable = _await_clients(server, state)
        others = {i: header for i, header in reachable.items() if i not in failed}
        drawn, replies = _try_round(server, state, others or reachable)
        if replies:
            return drawn, replies
        failed = failed | set(drawn.ids.tolist()) if len(drawn.ids) else set()
        tries += 1
        problem = f"round {state.round + 1}: no client took part, so the round does not count"
        if give_up and tries >= give_up:
            raise DeploymentEnded(
                f"{problem}; gave up after {tries} tries, as config.give_up says. {CONTINUES}"
            )
        server.transport.tell(f"{problem} and is tried again")
        time.sleep(PAUSE_SECONDS)


def _await_clients(server: Server, state: SimulationState) -> ClientHeaders:
    """Waits for a client if none can be reached; returns the reachable clients."""
    stop_if_signalled(server.caught)
    headers = reachable_clients(server)
    if not headers:
        problem = f"round {state.round + 1}: no client can be reached"
        server.transport.tell(f"{problem}; waiting {server.transport.patience:g} s at most")
        end = time.monotonic() + server.transport.patience
        while not (headers := reachable_clients(server)):
            stop_if_signalled(server.caught)
            if time.monotonic() >= end:
                raise DeploymentEnded(f"{problem} in {server.transport.patience:g} s. {CONTINUES}")
            time.sleep(PAUSE_SECONDS)
    return headers


def _try_round(
    server: Server, state: SimulationState, headers: ClientHeaders
) -> tuple[Cohort, dict[int, ClientReply]]:
    """Tries a round once with the clients in `headers`; returns as `_play_until_replies`."""
    num_clients = server.plan.num_clients
    reachable = np.isin(np.arange(num_clients), sorted(headers))
    # the draw of participants hides no client here, and needs no privacy: all know the seed
    options = dataclasses.replace(
        server.plan.options,
        devices_profile=Profile(available=lambda _: reachable),
        privacy=None,
    )
    drawn = draw_cohort(options, np.zeros(num_clients, bool), state)
    if server.groups is None:
        return drawn, train(server, state, drawn.ids.tolist())
    groups = groups_in_round(server, state, set(drawn.ids.tolist()))
    ids = [i for clients in groups.values() for i in clients]
    return drawn._replace(ids=np.array(ids, int)), train_with_sums(server, state, groups)


def evaluate(server: Server, state: SimulationState, only: np.ndarray | None = None) -> Evaluation:
    """Asks all clients, or those with ids `only`; one that does not reply has no accuracy."""
    ids = range(server.plan.num_clients) if only is None else map(int, only)
    reachable = reachable_clients(server)
    replies = ask(server, state, "evaluate", [i for i in ids if i in reachable])
    scored, blocks = sorted(replies), []
    if scored:  # one block: a split that some clients lack is a split of all
        blocks = [(np.array(scored), stacked_scores([replies[i].header["scores"] for i in scored]))]
    return evaluation(server.counts["train"], blocks, None)


def reachable_clients(server: Server) -> ClientHeaders:
    """Returns the reachable clients whose samples are the same as when the run began.

    Their number, shape, classes and columns are compared.
    """
    headers = contact_clients(server.plan, server.transport, 0)
    unchanged = {}
    for client, header in headers.items():
        before = server.headers[client]
        if changed := [x for x in ("counts", "task", "meaning") if header[x] != before[x]]:
            reason = f"it started with {before['counts']} samples and now has {header['counts']}"
            if changed[0] != "counts":
                reason = f"the {changed[0]} of its samples has changed since the run began"
            server.transport.tell(f"client {client} is left out: {reason}")
            server.transport.audit("left_out", client=client, reason=reason)
        else:
            unchanged[client] = header
    return unchanged


def _seed(server: Server) -> jax.Array:
    return jnp.asarray(np.uint32(server.plan.options.seed))
