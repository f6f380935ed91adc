"""The rounds of a deployment: `Rounds` whose clients train on their own machines.

The loop over rounds, checkpoints and tables are those of every simulation.
"""

import dataclasses
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.evaluation import Scores
from fedjax_ht.core.federation import Bucket, all_weights
from fedjax_ht.core.mesh import client_mesh, collect, fetch
from fedjax_ht.core.method import ClientInfo, PyTree, Received
from fedjax_ht.core.round import ClientResult, all_finite
from fedjax_ht.core.wire import WireCost, wire_elements
from fedjax_ht.deploy.messages import Envelope, invalid_entry, max_bytes, pack, printable, unpack
from fedjax_ht.deploy.noise import draw, raise_in_ledger
from fedjax_ht.deploy.plan import DeploymentEnded
from fedjax_ht.deploy.secure_sums import MIN_CLIENTS, split_sum, vector_bytes
from fedjax_ht.deploy.server import ClientHeaders, Server, contact_clients
from fedjax_ht.simulation.options import choose_participants
from fedjax_ht.simulation.profile import Profile
from fedjax_ht.simulation.report import Evaluation, RoundReport, evaluation, round_report
from fedjax_ht.simulation.simulation import Rounds
from fedjax_ht.simulation.state import SimulationState
from fedjax_ht.simulation.trials import of_trial

PAUSE_SECONDS = 1.0
"""Between two tries of a round in which no client takes part."""
CONTINUES = "The same command continues from the last checkpoint"


class ClientReply(NamedTuple):
    """A client's reply in a round.

    Attributes:
      header: of the reply.
      uplink: the method's message as NumPy arrays, None where it was not finite; in a secure sum
        the client's share, see `secure_sums`.
      cost: of the downlink and of the uplink.
    """

    header: dict[str, Any]
    uplink: PyTree
    cost: tuple[WireCost, WireCost]


def as_rounds(server: Server) -> Rounds:
    """Returns the deployment as `simulation.history.run` and checkpoints take it; clients keep
    their states themselves."""
    return Rounds(
        init=lambda: first_state(server),
        run_round=lambda state, score=True: run_round(server, state),
        evaluate=lambda state, only=None: evaluate(server, state, only),
        trials=None,
        client_flops=lambda: server.flops,
        rules=tuple(server.plan.method.rules),
    )


def first_state(server: Server) -> SimulationState:
    """Returns the server's state before the first round."""
    seeds = np.array([server.plan.options.seed], np.uint32)
    weights = collect(client_mesh(1), all_weights(server.federation))
    servers = collect(client_mesh(1), server.first((jnp.asarray(seeds), ()), weights))
    return SimulationState(0, servers, {}, np.full((1, server.plan.num_clients), -1, np.int32), {})


def run_round(server: Server, state: SimulationState) -> tuple[SimulationState, RoundReport]:
    """Plays a round: the clients that can be reached train, and the server reads their uplinks.

    A client that does not reply is absent. A round in which no client takes part does not count and
    is tried again.

    Raises:
      DeploymentEnded: no client has taken part for `give_up` tries, or none could be reached for
        `Server.patience` seconds.
    """
    number, num_clients = state.round, server.plan.num_clients
    reachable, asked_ids, replies = _play_until_replies(server, state)
    received = {b.name: _received(server, state, b, replies) for b in server.federation.buckets}
    rows = {name: np.arange(len(r.arrived), dtype=np.int32)[None] for name, r in received.items()}
    secret, epsilon = draw(server.noise)  # from here on the step counts, whatever becomes of it
    per_trial = (
        state.servers,
        _seeds(server),
        jax.tree.map(lambda x: jnp.asarray(x)[None], secret),
        rows,
        {},
    )
    round_ = jnp.int32(number)
    servers, result = server.serve(per_trial, (received, round_, server.pretrained, ()))
    result = fetch(of_trial(result, 0))
    last_round = state.last_round.copy()
    last_round[0, sorted(replies)] = number
    report = round_report([_results(replies)], result, 0.0, np.zeros(num_clients, bool))
    num_absent = num_clients - int(reachable.sum()) + len(asked_ids) - len(replies)
    if server.plan.unit != "upload":  # there clients do not report their seconds
        longest = max((reply.header["seconds"] for reply in replies.values()), default=0.0)
        report = report._replace(metrics=report.metrics | {"seconds_client": longest})
    if server.plan.unit in ("upload", "sample"):
        largest = max((reply.header["epsilon"] for reply in replies.values()), default=0.0)
        epsilon = raise_in_ledger(server.ledger, "epsilon", largest)
    report = report._replace(absent=num_absent or None, epsilon=epsilon)
    if server.groups is not None:  # what is made of a sum tells no client apart
        report = report._replace(far_off=())
    return SimulationState(number + 1, servers, {}, last_round, {}), report


def _play_until_replies(
    server: Server, state: SimulationState
) -> tuple[np.ndarray, list[int], dict[int, ClientReply]]:
    """Tries a round until a client takes part.

    Returns:
      The clients that could be reached, bool [num_clients]; ids of the clients that were asked; and
      {client id: reply}, of at least one client.
    """
    tries, give_up = 0, server.plan.config.give_up
    while True:
        reachable, asked_ids, replies = _try_round(server, state, _await_clients(server, state))
        if replies:
            return reachable, asked_ids, replies
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
) -> tuple[np.ndarray, list[int], dict[int, ClientReply]]:
    """Tries a round once with the clients of `headers`; returns as `_play_until_replies`."""
    num_clients = server.plan.num_clients
    reachable = np.isin(np.arange(num_clients), sorted(headers))
    # the draw of participants hides no client here, and is no matter of privacy: all know the seed
    options = dataclasses.replace(
        server.plan.options, profile=Profile(available=lambda _: reachable), privacy=None
    )
    ids, _ = choose_participants(options, num_clients, state.round)
    asked_ids = ids.tolist()
    if server.groups is None:
        return reachable, asked_ids, _train(server, state, asked_ids)
    groups = _groups_in_round(server, state, set(asked_ids))
    asked_ids = [i for clients in groups.values() for i in clients]
    return reachable, asked_ids, _train_with_sums(server, state, groups)


def evaluate(server: Server, state: SimulationState, only: np.ndarray | None = None) -> Evaluation:
    """Asks clients, all or those of the ids `only`; one that does not reply has no accuracy."""
    ids = range(server.plan.num_clients) if only is None else map(int, only)
    reachable = reachable_clients(server)
    replies = _ask(server, state, "evaluate", [i for i in ids if i in reachable])
    scores = [
        (np.array([i]), _scores([reply.header["scores"]])) for i, reply in sorted(replies.items())
    ]
    return evaluation(server.counts["train"], scores, None)


def reachable_clients(server: Server, min_clients: int = 0) -> ClientHeaders:
    """Returns the clients that can be reached and have as many samples as when the run began.

    Waits for `min_clients` of them, see `Transport.meet`.
    """
    headers = contact_clients(server.plan, server.transport, min_clients, server.warn)
    unchanged = {}
    for client, header in headers.items():
        before = {split: int(counts[client]) for split, counts in server.counts.items()}
        if header["counts"] == before:
            unchanged[client] = header
        else:
            server.warn(
                f"client {client} is left out: it began with {before} samples and has "
                f"{header['counts']}"
            )
    return unchanged


def _train(server: Server, state: SimulationState, ids: list[int]) -> dict[int, ClientReply]:
    """Lets clients train; {client id: reply}, of the clients that have replied."""
    replies = {}
    for client, (header, arrays) in sorted(_ask(server, state, "train", ids).items()):
        uplink = None
        try:
            if header["finite"]:
                uplink = unpack(_form(server, client), arrays, "the uplink")
                if not bool(all_finite(uplink)):
                    raise ValueError("it is not finite")
        except ValueError as error:
            server.warn(
                f"client {client}, round {state.round + 1}: its uplink is left out: "
                f"{printable(str(error))}"
            )
            header, uplink = header | {"finite": False}, None
        up = WireCost(0, 0, 0, 0) if uplink is None else _cost(uplink)
        replies[client] = ClientReply(header, uplink, (header["downlink"], up))
    return replies


def _groups_in_round(server: Server, state: SimulationState, ids: set[int]) -> dict[str, list[int]]:
    """Groups the clients for secure sums; clients without training samples are left out."""
    groups = {}
    for name, clients in server.groups.items():
        present = [i for i in clients if i in ids and server.counts["train"][i]]
        if len(present) >= MIN_CLIENTS:
            groups[name] = present
        elif present:
            server.warn(
                f"round {state.round + 1}: {len(present)} of the clients of {name} take part, and "
                f"a sum needs {MIN_CLIENTS}; the round goes on without them"
            )
    return groups


def _train_with_sums(
    server: Server, state: SimulationState, groups: dict[str, list[int]]
) -> dict[int, ClientReply]:
    """Lets clients train as `_train`, where their uplinks arrive as each group's sum alone."""
    asked_ids = [i for clients in groups.values() for i in clients]
    requests, costs = _requests(server, state, "train", asked_ids)
    sizes = {client: vector_bytes(_form(server, client)) for client in requests}
    all_replies, totals = server.transport.add(requests, groups, sizes)
    when, replies = f"round {state.round + 1}", {}
    valid = _valid_replies(server, "train", when, sorted(all_replies), all_replies, costs)
    for name, clients in groups.items():
        total, summed = totals[name], [i for i in clients if i in valid]
        try:
            if isinstance(total, str):
                raise ValueError(total)
            for i in clients:
                # it is in the sum, which must not be divided by too few
                if i in all_replies and i not in valid and "error" not in all_replies[i].header:
                    raise ValueError("the header of a client in it is invalid")
            uplinks = split_sum(_form(server, clients[0]), total, summed)
        except ValueError as error:
            server.warn(f"{when}: there is no sum of {name}: {error}")
            continue
        for client in summed:
            header = valid[client].header | {"finite": True}
            if "warning" in header:
                server.warn(f"client {client}, {when}: {printable(header['warning'])}")
            cost = header["downlink"], _cost(uplinks[client])
            replies[client] = ClientReply(header, uplinks[client], cost)
    return dict(sorted(replies.items()))


def _ask(server: Server, state: SimulationState, kind: str, ids: list[int]) -> dict[int, Envelope]:
    """Sends requests to clients; returns the valid replies, and warns of each other one."""
    requests, costs = _requests(server, state, kind, ids)
    when, sizes = f"evaluation after round {state.round}", dict.fromkeys(requests, 0)
    if kind == "train":
        when = f"round {state.round + 1}"
        sizes = {client: max_bytes(_form(server, client)) for client in requests}
    replies = server.transport.exchange(requests, sizes)
    return _valid_replies(server, kind, when, ids, replies, costs)


def _requests(
    server: Server, state: SimulationState, kind: str, ids: list[int]
) -> tuple[dict[int, Envelope], dict[int, WireCost]]:
    """Makes the requests to clients, and counts the bytes of the downlinks in them."""
    server_state = of_trial(state.servers, 0)
    requests, costs = {}, {}
    for client in ids:
        bucket = server.federation.buckets[server.federation.assignment[client]]
        info = _info(server, state, client)
        downlink = fetch(server.send[bucket.name](server_state, jnp.int32(state.round), info))
        costs[client] = _cost(downlink)
        oldest = 0
        if len(server.saved) == server.saved.maxlen:
            # no checkpoint that is kept goes back further
            oldest = int(server.saved[0][client]) + 1
        header = {
            "kind": kind,
            "run": server.run,
            "round": state.round,
            "oldest": oldest,
            "last_round": int(state.last_round[0, client]),
        }
        requests[client] = Envelope(header, pack(downlink))
    return requests, costs


def _valid_replies(
    server: Server,
    kind: str,
    when: str,
    ids: list[int],
    replies: dict[int, Envelope],
    costs: dict[int, WireCost],
) -> dict[int, Envelope]:
    """Returns the replies whose headers are valid, and warns of each other client."""
    valid = {}
    for client in ids:
        if client not in replies:
            server.warn(f"client {client}, {when}: no answer")
            continue
        header = replies[client].header
        if "error" in header:
            server.warn(f"client {client}, {when}: {printable(str(header['error']))}")
        elif name := invalid_entry(header, kind, server.plan.unit, server.plan.method.rules):
            server.warn(f"client {client}, {when}: {name!r} in its header is missing or invalid")
        else:
            valid[client] = replies[client]._replace(header=header | {"downlink": costs[client]})
    return valid


def _form(server: Server, client: int) -> PyTree:
    """Returns shapes and dtypes of a client's uplink."""
    return server.forms[server.federation.buckets[server.federation.assignment[client]].name]


def _info(server: Server, state: SimulationState, ids: Any) -> ClientInfo:
    counts = server.counts["train"].astype(np.int32)
    return ClientInfo(
        *(jnp.asarray(x) for x in (np.int32(ids), counts[ids], state.last_round[0, ids]))
    )


def _received(
    server: Server, state: SimulationState, bucket: Bucket, replies: Mapping[int, ClientReply]
) -> Received:
    """Stacks a bucket's uplinks, one row per client that may take part, zeros where none came.

    The number of rows is that of a simulation, so that the server's program is the same.
    """
    members = server.federation.members(bucket)
    size = min(server.plan.options.participants(server.plan.num_clients), len(members))
    ids = [i for i in members if i in replies]
    num_empty = size - len(ids)
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), server.forms[bucket.name])
    uplinks = [zeros if replies[i].uplink is None else replies[i].uplink for i in ids]
    stacked = jax.tree.map(lambda *xs: jnp.asarray(np.stack(xs)), *uplinks, *[zeros] * num_empty)
    arrived = [replies[i].header["finite"] for i in ids] + [False] * num_empty
    info = _info(server, state, np.array(ids + [0] * num_empty, int))
    return Received(stacked, info, jnp.asarray(np.array(arrived, bool)))


def _results(
    replies: Mapping[int, ClientReply],
) -> tuple[np.ndarray, tuple[ClientResult, dict[str, Scores]]]:
    """Returns the participants' ids and results as `round_report` takes them."""
    ids = sorted(replies)
    headers = [replies[i].header for i in ids]
    finite = np.array([header["finite"] for header in headers], bool)
    names = [] if not headers else list(headers[0]["metrics"])
    metrics = {}
    for name in names:
        if all(name in header["metrics"] for header in headers):
            values = [header["metrics"][name] for header in headers]
            metrics[name] = np.array(values, np.float32)
    costs = np.array([replies[i].cost for i in ids], int).reshape(-1, 2, 4)
    down, up = (WireCost(*costs[:, k].T) for k in (0, 1))
    result = ClientResult((), finite, finite, metrics, up, down)
    return np.array(ids, int), (result, _scores([header["scores"] for header in headers]))


def _scores(client_scores: list[dict[str, Any]]) -> dict[str, Scores]:
    """Stacks clients' scores by split, [m] each, of the splits that any of them has samples of."""
    stacked = {}
    for split in sorted(set().union(*client_scores)):
        counts = np.array([scores[split]["count"] for scores in client_scores])
        if not counts.any():
            continue
        correct = {}
        for rule in client_scores[0][split]["correct"]:
            correct[rule] = np.array([scores[split]["correct"][rule] for scores in client_scores])
        stacked[split] = Scores(correct, counts)
    return stacked


def _cost(message: PyTree) -> WireCost:
    return WireCost(*(int(x) for x in wire_elements(message)))


def _seeds(server: Server) -> jax.Array:
    return jnp.asarray(np.array([server.plan.options.seed], np.uint32))
