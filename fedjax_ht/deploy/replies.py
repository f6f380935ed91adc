"""Requests to clients, their replies, and the replies stacked for the server."""

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.context import ClientInfo
from fedjax_ht.core.mesh import fetch
from fedjax_ht.core.prediction_counts import Scores
from fedjax_ht.core.round import ClientResult
from fedjax_ht.core.trees import PyTree, join_trees
from fedjax_ht.core.wire import WireCost, all_finite, wire_elements
from fedjax_ht.deploy.messages import (
    Envelope,
    Expected,
    admitted_metrics,
    invalid_entry,
    max_bytes,
    pack,
    printable,
    unpack,
)
from fedjax_ht.deploy.secure_sums import MIN_CLIENTS, split_sum, vector_length
from fedjax_ht.deploy.server import Server, expected_entries, leave_out
from fedjax_ht.simulation.roster import PADDING
from fedjax_ht.simulation.serving import Answers
from fedjax_ht.simulation.state import SimulationState

NO_COST = WireCost(0, 0, 0, 0)


class ClientReply(NamedTuple):
    """A client's reply in a round.

    Attributes:
      header: the header of the reply.
      uplink: the method's message as NumPy arrays; None if it was not finite; in a secure sum the
        client's share, see `secure_sums`.
      cost: costs of the downlink and of the uplink on the wire.
    """

    header: dict[str, Any]
    uplink: PyTree
    cost: tuple[WireCost, WireCost]


def train(server: Server, state: SimulationState, ids: list[int]) -> dict[int, ClientReply]:
    """Lets clients train; returns {client id: reply} for the clients that reply."""
    replies = {}
    for client, (header, arrays) in sorted(ask(server, state, "train", ids).items()):
        uplink, up = None, NO_COST
        try:
            if header["finite"]:
                message = unpack(server.form_of(client).message, arrays, "the uplink")
                uplink, up = _uplink(server, state, client, message), _cost(message)
        except ValueError as error:
            reason = f"its uplink is left out: {printable(str(error))}"
            leave_out(server, client, f"round {state.round + 1}", reason)
            header = dict(header, finite=False)
        replies[client] = ClientReply(header, uplink, (header["downlink"], up))
    return replies


def groups_in_round(server: Server, state: SimulationState, ids: set[int]) -> dict[str, list[int]]:
    """Groups the clients for secure sums, without those that have no training samples."""
    groups = {}
    assert server.groups is not None  # uplinks arrive as sums
    for name, clients in server.groups.items():
        present = [i for i in clients if i in ids and server.counts["train"][i]]
        if len(present) >= MIN_CLIENTS:
            groups[name] = present
        elif present:
            server.transport.tell(
                f"round {state.round + 1}: {len(present)} of the clients of {name} take part, but "
                f"a sum needs {MIN_CLIENTS}; the round continues without them"
            )
    return groups


def train_with_sums(
    server: Server, state: SimulationState, groups: dict[str, list[int]]
) -> dict[int, ClientReply]:
    """Lets clients train like `train`, but their uplinks arrive only as each group's sum."""
    asked_ids = list(itertools.chain.from_iterable(groups.values()))
    requests, costs = _requests(server, state, "train", asked_ids)
    lengths = {name: vector_length(server.form_of(ids[0]).uplink) for name, ids in groups.items()}

    def problem_of(client: int, header: dict[str, Any]) -> str:
        return _problem_of(header, "train", expected_entries(server, client))

    all_replies, totals = server.transport.add(requests, groups, lengths, problem_of)
    when, replies = f"round {state.round + 1}", {}
    valid = _valid_replies(
        server, "train", when, ids=sorted(all_replies), replies=all_replies, costs=costs
    )
    for name, clients in groups.items():
        total, summed = totals[name], [i for i in clients if i in valid]
        try:
            if isinstance(total, str):
                raise ValueError(total)
            uplinks = split_sum(server.form_of(clients[0]).uplink, total, summed)
        except ValueError as error:
            server.transport.tell(f"{when}: no sum of {name}: {error}")
            continue
        for client in summed:
            header = dict(valid[client].header, finite=True)
            if "warning" in header:
                server.transport.tell(f"client {client}, {when}: {printable(header['warning'])}")
            cost = header["downlink"], _cost(uplinks[client])
            replies[client] = ClientReply(header, uplinks[client], cost)
    return dict(sorted(replies.items()))


def ask(server: Server, state: SimulationState, kind: str, ids: list[int]) -> dict[int, Envelope]:
    """Sends requests to clients; returns the valid replies, and reports all other clients."""
    requests, costs = _requests(server, state, kind, ids)
    when, sizes = f"evaluation after round {state.round}", dict.fromkeys(requests, 0)
    if kind == "train":
        when = f"round {state.round + 1}"
        sizes = {client: max_bytes(server.form_of(client).message) for client in requests}
    replies = server.transport.exchange(requests, sizes)
    return _valid_replies(server, kind, when, ids=ids, replies=replies, costs=costs)


def _requests(
    server: Server, state: SimulationState, kind: str, ids: list[int]
) -> tuple[dict[int, Envelope], dict[int, WireCost]]:
    """Makes the requests to clients, and counts the bytes of their downlinks."""
    requests, costs, shared = {}, {}, {}
    for client in ids:
        info, name = _info(server, state, client), server.bucket_of(client).name
        downlink = fetch(server.send[name](state.server, jnp.int32(state.round), info))
        costs[client] = _cost(downlink)
        oldest = 0
        if len(server.saved) == server.saved.maxlen:
            # no kept checkpoint goes back further
            oldest = int(server.saved[0][client]) + 1
        header = {
            "kind": kind,
            "run": server.run,
            "round": state.round,
            "oldest": oldest,
            "last_round": int(state.last_round[client]),
        }
        shared[name] = _sharing(pack(downlink), shared.get(name, {}))
        requests[client] = Envelope(header, shared[name])
    return requests, costs


def _sharing(
    arrays: dict[str, np.ndarray], earlier: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns arrays, with the earlier one in place of an equal one.

    The requests of a round wait in memory together, and most methods send all clients one model.
    """
    kept = {}
    for name, array in arrays.items():
        # by bytes, since -0.0 equals 0.0
        is_same = name in earlier and earlier[name].tobytes() == array.tobytes()
        kept[name] = earlier[name] if is_same else array
    return kept


def _valid_replies(
    server: Server,
    kind: str,
    when: str,
    ids: list[int],
    replies: dict[int, Envelope],
    costs: dict[int, WireCost],
) -> dict[int, Envelope]:
    """Returns the replies with valid headers, and reports all other clients."""
    valid = {}
    for client in ids:
        if client not in replies:
            leave_out(server, client, when, "no answer")
            continue
        header, expected = replies[client].header, expected_entries(server, client)
        if "error" in header:
            leave_out(server, client, when, printable(str(header["error"])))
            continue
        if problem := _problem_of(header, kind, expected):
            leave_out(server, client, when, problem)
            continue
        entries: dict[str, Any] = {"downlink": costs[client]}
        if kind == "train":
            entries["metrics"], refused = admitted_metrics(header["metrics"], expected.metrics)
            if refused:
                names = printable(", ".join(map(repr, refused)))
                server.transport.tell(
                    f"client {client}, {when}: it reports unknown metrics: {names}"
                )
        valid[client] = replies[client]._replace(header=header | entries)
    return valid


def _problem_of(header: dict[str, Any], kind: str, expected: Expected) -> str:
    """Returns what is wrong with a reply's header; "" if nothing is."""
    name = invalid_entry(header, kind, expected)
    return f"{name!r} in its header is missing or invalid" if name else ""


def _uplink(server: Server, state: SimulationState, client: int, message: PyTree) -> PyTree:
    """Returns the upload in a client's message; raises ValueError if it is not finite."""
    uplink = message
    if server.plan.method.wire.code is not None:
        decode = server.decode[server.bucket_of(client).name]
        info = _info(server, state, client)
        uplink = fetch(decode(message, state.server, jnp.int32(state.round), info))
    if not bool(all_finite(uplink)):
        raise ValueError("it is not finite")
    return uplink


def _info(server: Server, state: SimulationState, ids: Any) -> ClientInfo:
    counts = server.counts["train"].astype(np.int32)
    return ClientInfo(
        jnp.asarray(np.int32(ids)),
        jnp.asarray(counts[ids]),
        jnp.asarray(state.last_round[ids]),
    )


def stacked_answers(
    server: Server, state: SimulationState, replies: Mapping[int, ClientReply]
) -> dict[str, Answers]:
    """Stacks the replies by bucket: a row for each client that may take part, padded at the end.

    The number of rows is that of a simulation, so that the server's program is the same.
    """
    scored_ids = sorted(replies)
    headers = [replies[i].header for i in scored_ids]
    names = list(headers[0]["metrics"])  # the same in all replies, see `admitted_metrics`
    scores = stacked_scores([header["scores"] for header in headers])
    answers = {}
    for bucket in server.federation.buckets:
        members = server.federation.members(bucket)
        size = min(server.plan.options.participants(server.plan.num_clients), len(members))
        ids = [i for i in members if i in replies]
        of_bucket = [replies[i] for i in ids]
        uplinks = _stacked_uplinks(server, bucket, of_bucket, size)
        answers[bucket.name] = Answers(
            ids=np.array(ids, np.int64),
            padded_rows=_padded(np.arange(len(ids)), size, np.int32, PADDING),
            in_order=True,
            info=_info(server, state, _padded(ids, size, np.int64)),
            results=_result(of_bucket, names, size)._replace(uplink=uplinks),
            scores=scores,  # one block for all clients
            score_rows=np.searchsorted(scored_ids, np.array(ids, np.int64)),
            idle=np.zeros(2),
        )
    return answers


def _stacked_uplinks(
    server: Server, bucket: Bucket, replies: list[ClientReply], size: int
) -> PyTree:
    """Stacks the replies' uplinks, [size, ...]; missing and rejected ones are zeros."""

    def zeros(x):
        return np.zeros(x.shape, x.dtype)

    uplinks = [jax.tree.map(zeros, server.forms[bucket.name].uplink)] * size
    for row, reply in enumerate(replies):
        if reply.uplink is not None:
            uplinks[row] = reply.uplink
    return jax.tree.map(jnp.asarray, join_trees(np.stack, uplinks))


def _result(replies: list[ClientReply], metrics: list[str], size: int) -> ClientResult:
    """Stacks the results in the replies' headers, [size], without the uplinks."""
    headers = [reply.header for reply in replies]
    finite = _padded([header["finite"] for header in headers], size, bool)
    values = {}
    for name in metrics:
        reported = [header["metrics"][name] for header in headers]
        values[name] = _padded(reported, size, np.float32)
    costs = np.zeros((size, 2, 4), int)
    for row, reply in zip(costs, replies):
        row[:] = reply.cost
    return ClientResult(
        uplink=(),
        arrived=finite,
        finite=finite,
        metrics=values,
        uplink_cost=WireCost(*costs[:, 1].T),
        downlink_cost=WireCost(*costs[:, 0].T),
    )


def _padded(values: Any, size: int, dtype: Any, padding: int = 0) -> np.ndarray:
    """Returns values as an array [size], padded at the end."""
    padded = np.full(size, padding, dtype)
    padded[: len(values)] = values
    return padded


def stacked_scores(client_scores: list[dict[str, Any]]) -> dict[str, Scores]:
    """Stacks clients' scores by split, [m] each, for splits in which any of them has samples."""
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
    return WireCost(*map(int, wire_elements(message)))
