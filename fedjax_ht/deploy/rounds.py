"""The transport of a deployment: clients that train on their own machines.

`simulation.round` knows the order of a round; here its messages are exchanged. The loop over
rounds, checkpoints and tables are those of every simulation.
"""

import dataclasses
import functools
import time
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.contract import public_bytes
from fedjax_ht.core.federation import all_weights
from fedjax_ht.core.mesh import client_mesh, collect
from fedjax_ht.core.trees import PyTree
from fedjax_ht.deploy.contacts import ClientHeaders, contact_clients
from fedjax_ht.deploy.noise import draw, record_epsilons
from fedjax_ht.deploy.plan import DeploymentEnded
from fedjax_ht.deploy.replies import (
    ClientReply,
    ask,
    groups_in_round,
    stacked_answers,
    stacked_scores,
    train,
    train_with_sums,
)
from fedjax_ht.deploy.server import Server
from fedjax_ht.simulation import serving
from fedjax_ht.simulation.profile import Profile
from fedjax_ht.simulation.report import Evaluation, RoundReport, evaluation
from fedjax_ht.simulation.round import (
    Cohort,
    Round,
    Stage,
    add_newcomers_bytes,
    draw_cohort,
    run_round,
)
from fedjax_ht.simulation.serving import Answers, Delivery
from fedjax_ht.simulation.simulation import Rounds
from fedjax_ht.simulation.state import SimulationState

PAUSE_SECONDS = 1.0
"""Between two tries of a round in which no client takes part."""
CONTINUES = "The same command continues from the last checkpoint"


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
    return SimulationState(
        round=0,
        server=collect(client_mesh(1), server.first(_seed(server), (), weights)),
        clients={},
        last_round=np.full(server.plan.num_clients, -1, np.int32),
        changed={},
    )


def play(
    server: Server, state: SimulationState, score: bool = True
) -> tuple[SimulationState, RoundReport]:
    """Lets the clients that can be reached train, and serves their replies.

    A client that does not reply is absent. A round in which no client takes part does not count and
    is tried again. Clients always score themselves, in their own time, whatever `score` says.

    Raises:
      DeploymentEnded: no client has taken part for `give_up` tries, or none could be reached for
        `Server.patience` seconds.
    """
    drawn, replies = _play_until_replies(server, state)
    secret, epsilon = draw(server.noise)  # from here on the step counts, whatever becomes of it
    additions = ()
    if server.federation.public is not None:
        sizes = np.full(
            server.plan.num_clients, public_bytes(server.federation.public, server.public)
        )
        additions = (functools.partial(add_newcomers_bytes, "public_bytes", sizes),)
    answered = Round(
        options=server.plan.options,
        exchange=functools.partial(_exchange, server, replies),
        serve=functools.partial(_serve, server, secret),
        deliver=functools.partial(serving.deliver, client_mesh(1)),
        additions=additions,
    )
    new, report = run_round(answered, state, score)
    report = report._replace(epsilon=epsilon)
    num_absent = int(np.sum(~drawn.reachable)) + len(drawn.ids) - len(replies)
    return new, _complete(server, replies, report._replace(absent=num_absent or None))


def _exchange(
    server: Server,
    replies: Mapping[int, ClientReply],
    state: SimulationState,
    score: bool,
    stage: Stage,
) -> tuple[SimulationState, dict[str, Answers]]:
    """Hands on the clients' replies, as `simulation.round.Round.exchange`."""
    return state, stacked_answers(server, state, replies)


def _serve(
    server: Server, secret: PyTree, state: SimulationState, delivery: Delivery
) -> tuple[PyTree, serving.ServerResult]:
    """Serves a round; `secret` is that of the server's noise in this round."""
    of_round = serving.Server(
        step=server.serve,
        seed=_seed(server),
        settings=jax.tree.map(jnp.asarray, secret),
        pretrained=server.pretrained,
        data=server.public,
    )
    return serving.serve(of_round, client_mesh(1), state, delivery)


def _complete(
    server: Server, replies: Mapping[int, ClientReply], report: RoundReport
) -> RoundReport:
    """Adds the values of the clients' headers to a report."""
    headers = [reply.header for reply in replies.values()]
    if server.plan.unit != "upload":  # there clients do not report their seconds
        longest = max(header["seconds"] for header in headers)
        report = report._replace(metrics=report.metrics | {"seconds_client": longest})
    if server.plan.unit in ("upload", "sample"):
        epsilons = {client: reply.header["epsilon"] for client, reply in replies.items()}
        epsilon, lines = record_epsilons(server.ledger, epsilons)
        for line in lines:
            server.warn(line)
        report = report._replace(epsilon=epsilon)
    if server.groups is not None:  # what is made of a sum tells no client apart
        report = report._replace(far_off=())
    return report


def _play_until_replies(
    server: Server, state: SimulationState
) -> tuple[Cohort, dict[int, ClientReply]]:
    """Tries a round until a client takes part.

    Returns:
      The clients that were asked, and {client id: reply}, of at least one client.
    """
    tries, give_up = 0, server.plan.config.give_up
    while True:
        drawn, replies = _try_round(server, state, _await_clients(server, state))
        if replies:
            return drawn, replies
        tries += 1
        problem = f"round {state.round + 1}: no client took part, so the round does not count"
        if give_up and tries >= give_up:
            raise DeploymentEnded(
                f"{problem}; given up after {tries} tries, as config.give_up says. {CONTINUES}"
            )
        server.warn(f"{problem} and is tried again")
        time.sleep(PAUSE_SECONDS)


def _await_clients(server: Server, state: SimulationState) -> ClientHeaders:
    """Waits for a client where none can be reached; returns the clients that can."""
    headers = reachable_clients(server)
    if not headers:
        problem = f"round {state.round + 1}: no client can be reached"
        server.warn(f"{problem}; waiting {server.patience:g} s at most")
        end = time.monotonic() + server.patience
        while not (headers := reachable_clients(server, 1)):
            if time.monotonic() >= end:
                raise DeploymentEnded(f"{problem} in {server.patience:g} s. {CONTINUES}")
            time.sleep(PAUSE_SECONDS)
    return headers


def _try_round(
    server: Server, state: SimulationState, headers: ClientHeaders
) -> tuple[Cohort, dict[int, ClientReply]]:
    """Tries a round once with the clients of `headers`; returns as `_play_until_replies`."""
    num_clients = server.plan.num_clients
    reachable = np.isin(np.arange(num_clients), sorted(headers))
    # the draw of participants hides no client here, and is no matter of privacy: all know the seed
    options = dataclasses.replace(
        server.plan.options,
        devices_profile=Profile(available=lambda _: reachable),
        privacy=None,
    )
    drawn = draw_cohort(options, num_clients, state)
    if server.groups is None:
        return drawn, train(server, state, drawn.ids.tolist())
    groups = groups_in_round(server, state, set(drawn.ids.tolist()))
    ids = [i for clients in groups.values() for i in clients]
    return drawn._replace(ids=np.array(ids, int)), train_with_sums(server, state, groups)


def evaluate(server: Server, state: SimulationState, only: np.ndarray | None = None) -> Evaluation:
    """Asks clients, all or those of the ids `only`; one that does not reply has no accuracy."""
    ids = range(server.plan.num_clients) if only is None else map(int, only)
    reachable = reachable_clients(server)
    replies = ask(server, state, "evaluate", [i for i in ids if i in reachable])
    scores = [
        (np.array([i]), stacked_scores([reply.header["scores"]]))
        for i, reply in sorted(replies.items())
    ]
    return evaluation(server.counts["train"], scores, None)


def reachable_clients(server: Server, min_clients: int = 0) -> ClientHeaders:
    """Returns the clients that can be reached and have as many samples as when the run began.

    Waits for `min_clients` of them, see `Transport.meet`.
    """
    headers = contact_clients(
        server.plan,
        server.transport,
        min_clients,
        warn=server.warn,
        most_samples=server.most_samples,
        audit=server.audit,
    )
    unchanged = {}
    for client, header in headers.items():
        before = {split: int(counts[client]) for split, counts in server.counts.items()}
        if header["counts"] == before:
            unchanged[client] = header
        else:
            reason = f"it began with {before} samples and has {header['counts']}"
            server.warn(f"client {client} is left out: {reason}")
            server.audit("left_out", client=client, reason=reason)
    return unchanged


def _seed(server: Server) -> jax.Array:
    return jnp.asarray(np.uint32(server.plan.options.seed))
