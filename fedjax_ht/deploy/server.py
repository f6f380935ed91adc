"""The server of real clients: a `Simulation` whose clients train elsewhere, so that all that runs one runs it."""

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.evaluation import Scores
from fedjax_ht.core.federation import Bucket, Federation, all_weights
from fedjax_ht.core.mesh import client_mesh, collect, fetch
from fedjax_ht.core.method import ClientInfo, PyTree, Received
from fedjax_ht.core.round import ClientResult, all_finite, send
from fedjax_ht.core.wire import WireCost, wire_elements
from fedjax_ht.data.dataset import ClientIndices
from fedjax_ht.deploy.envelope import Envelope
from fedjax_ht.deploy.forms import uplink_forms
from fedjax_ht.deploy.masks import FEWEST
from fedjax_ht.deploy.messages import pack, unpack
from fedjax_ht.deploy.plan import Plan, about, make_models, task_of_json
from fedjax_ht.deploy.sums import summed_clients, uplinks_of
from fedjax_ht.simulation import trials as per_trial
from fedjax_ht.simulation.options import choose_participants
from fedjax_ht.simulation.profile import Profile
from fedjax_ht.simulation.report import Evaluation, RoundReport, evaluation, round_report
from fedjax_ht.simulation.simulation import Simulation
from fedjax_ht.simulation.steps import SimulationState
from fedjax_ht.simulation.trials import of_trial

Heads = dict[int, dict[str, Any]]  # client id -> what it said


class Transport(NamedTuple):
    """How messages reach clients.

    Attributes:
      meet: (hello, wanted) -> the heads of the clients that can be reached now, by id; it waits until `wanted` of them
        can, or its patience ends.
      exchange: {client: Envelope} -> {client: Envelope}, of those that answer in time.
      add: ({client: Envelope}, {group: its clients}) -> ({client: Envelope}, {group: sum}), by a secure sum of each
        group's vectors, see `sums.as_vector`: what the clients said besides, or "error" of one that is not in the sum;
        and the float64 vector, or in words why there is none.
    """

    meet: Callable[[Envelope, int], Heads]
    exchange: Callable[[dict[int, Envelope]], dict[int, Envelope]]
    add: Callable[[dict[int, Envelope], dict[str, list[int]]], tuple[dict[int, Envelope], dict[str, np.ndarray | str]]]


class Answered(NamedTuple):
    """What a client has sent in a round.

    Attributes:
      head: its head.
      uplink: its message as NumPy, None where it was not finite; of a secure sum the client's part, see `sums`.
      cost: of the downlink and of the uplink.
    """

    head: dict[str, Any]
    uplink: PyTree
    cost: tuple[WireCost, WireCost]


class Server(NamedTuple):
    """What a deployment's server runs.

    Attributes:
      plan, federation: what is bound.
      counts: split -> int64 [num_clients], samples.
      flops: float64 [num_clients], of a round of each.
      run: the name of this run for the clients' folders.
      forms: bucket name -> the form of its uplinks.
      groups: name -> clients whose uplinks are summed together; None where uplinks come one by one.
      send: bucket name -> compiled (server, round, info) -> downlink.
      serve, first, charge: as of `simulation.trials`.
      frozen: `Method.frozen`, on its device.
      saved: for each checkpoint that may be gone back to, `last_round` of it, int32 [num_clients].
      transport: how messages reach clients.
      warn: takes a line for whoever watches.
    """

    plan: Plan
    federation: Federation
    counts: dict[str, np.ndarray]
    flops: np.ndarray
    run: str
    forms: dict[str, PyTree]
    groups: dict[str, tuple[int, ...]] | None
    send: dict[str, Callable]
    serve: Callable
    first: Callable
    charge: Callable
    frozen: PyTree
    saved: deque
    transport: Transport
    warn: Callable[[str], None]


def make_server(plan: Plan, transport: Transport, run: str, warn: Callable[[str], None], keep: int = 2) -> Server:
    """Waits until all clients can be reached, and makes the models for what they say their samples are.

    Args:
      plan: the config.
      transport: how messages reach clients.
      run: a name for this run, letters and digits.
      warn: takes a line for whoever watches.
      keep: how many checkpoints a run keeps.

    Raises:
      ValueError: a client is missing, or two of them have different tasks. One line.
    """
    heads = transport.meet(hello(plan), plan.num_clients)
    if lost := sorted(set(range(plan.num_clients)) - set(heads)):
        raise ValueError(f"of {plan.num_clients} clients {len(lost)} are not there: {', '.join(map(str, lost))}")
    task = heads[0]["task"]
    for client, head in heads.items():
        if head["task"] != task:
            raise ValueError(f"client {client} has samples of {head['task']}, client 0 of {task}")
    federation = make_models(plan, task_of_json(task))
    counts = {
        split: np.array([heads[i]["counts"][split] for i in range(plan.num_clients)], np.int64)
        for split in ClientIndices._fields
    }
    method, forms = plan.method, uplink_forms(plan, federation)
    groups = summed_clients(method, federation, forms) if plan.secure_sums else None
    if groups and (idle := np.flatnonzero(counts["train"] == 0)).size:
        warn(f"clients without training samples are not asked to train, by --secure_sums: {', '.join(map(str, idle))}")
    return Server(
        plan,
        federation,
        counts,
        np.array([heads[i]["flops"] for i in range(plan.num_clients)]),
        run,
        forms,
        groups,
        {b.name: _sender(plan, federation, b) for b in federation.buckets},
        per_trial.serve(method, federation),
        per_trial.first_server(method, federation),
        per_trial.charge_all(method, federation, plan.channel),
        collect(client_mesh(1), method.frozen),
        deque(maxlen=keep),
        transport,
        warn,
    )


def hello(plan: Plan) -> Envelope:
    """The first message to a client."""
    return Envelope({"kind": "hello", "about": about(plan)}, {})


def _sender(plan: Plan, federation: Federation, bucket: Bucket) -> Callable:
    def one(server, round, info):
        root = jax.random.key(plan.options.seed)
        return send(plan.method, federation, bucket, plan.channel, server, root, round, info)

    return jax.jit(one)


def as_simulation(server: Server) -> Simulation:
    """The deployment as `simulation.history.run` and checkpoints take one; client states are none of it."""

    def elsewhere(*_):
        raise ValueError("the clients of a deployment keep their states")

    return Simulation(
        init=lambda: first_state(server),
        run_round=lambda state: run_round(server, state),
        evaluate=lambda state, only=None: evaluate(server, state, only),
        read_clients=elsewhere,
        write_clients=elsewhere,
        trials=None,
        client_flops=lambda: server.flops,
        lanes={},
        find_fault=elsewhere,
        of_trials=elsewhere,
        features=elsewhere,
        rules=tuple(server.plan.method.rules),
    )


def first_state(server: Server) -> SimulationState:
    """Before the first round."""
    seeds = np.array([server.plan.options.seed], np.uint32)
    weights = collect(client_mesh(1), all_weights(server.federation))
    servers = collect(client_mesh(1), server.first((jnp.asarray(seeds), ()), weights))
    return SimulationState(0, servers, {}, np.full((1, server.plan.num_clients), -1, np.int32), {})


def run_round(server: Server, state: SimulationState) -> tuple[SimulationState, RoundReport]:
    """One round: who can be reached trains, and what arrives is served. Who does not answer was not there."""
    number, num_clients = state.round, server.plan.num_clients
    there = np.isin(np.arange(num_clients), sorted(reached(server)))
    options = dataclasses.replace(server.plan.options, profile=Profile(available=lambda _: there))
    ids, _ = choose_participants(options, num_clients, number)
    asked = ids.tolist()
    if server.groups is None:
        answered = _train(server, state, asked)
    else:
        groups = _taking_part(server, state, set(asked))
        asked = [i for clients in groups.values() for i in clients]
        answered = _train_summed(server, state, groups)
    received = {b.name: _received(server, state, b, answered) for b in server.federation.buckets}
    rows = {name: np.arange(len(r.arrived), dtype=np.int32)[None] for name, r in received.items()}
    own = (state.servers, _seeds(server), (), rows, {})
    round_ = jnp.int32(number)
    everyone = None
    if server.plan.method.recipients == "all":
        infos = jax.tree.map(lambda x: x[None], _info(server, state, np.arange(num_clients)))
        everyone = server.charge((state.servers, _seeds(server), (), infos), round_)
        order = np.concatenate([server.federation.members(b) for b in server.federation.buckets])
        everyone = jax.tree.map(lambda x: x[:, there[order]], everyone)
    servers, result = server.serve(own, (received, round_, server.frozen, ()))
    result, everyone = fetch((of_trial(result, 0), everyone if everyone is None else of_trial(everyone, 0)))
    last_round = state.last_round.copy()
    last_round[0, sorted(answered) if everyone is None else there] = number
    report = round_report([_results(answered)], result, everyone, 0.0, np.zeros(num_clients, bool))
    lost = num_clients - int(there.sum()) + len(asked) - len(answered)
    longest = max((one.head["seconds"] for one in answered.values()), default=0.0)
    report = report._replace(absent=lost or None, metrics=report.metrics | {"seconds_client": longest})
    if server.groups is not None:  # what is made of a sum tells nobody apart
        report = report._replace(far_off=())
    return SimulationState(number + 1, servers, {}, last_round, {}), report


def evaluate(server: Server, state: SimulationState, only: np.ndarray | None = None) -> Evaluation:
    """Asks the clients, all or those of the ids `only`; who does not answer has no accuracy."""
    ids = range(server.plan.num_clients) if only is None else map(int, only)
    there = reached(server)
    answers = _ask(server, state, "evaluate", [i for i in ids if i in there])
    found = [(np.array([i]), _scores([head["scores"]])) for i, (head, _) in sorted(answers.items())]
    return evaluation(server.counts["train"], found, None)


def reached(server: Server) -> Heads:
    """The clients that can be reached now and are as they were when the run began."""
    heads = server.transport.meet(hello(server.plan), 0)
    kept = {}
    for client, head in heads.items():
        before = {split: int(counts[client]) for split, counts in server.counts.items()}
        if head["counts"] == before:
            kept[client] = head
        else:
            server.warn(f"client {client} is left out: it began with {before} samples and has {head['counts']}")
    return kept


def _train(server: Server, state: SimulationState, ids: list[int]) -> dict[int, Answered]:
    found = {}
    for client, (head, arrays) in sorted(_ask(server, state, "train", ids).items()):
        name = server.federation.buckets[server.federation.assignment[client]].name
        form = server.forms[name]
        try:
            uplink = unpack(form, arrays, "the uplink") if head["finite"] else None
            if uplink is not None and not bool(all_finite(uplink)):
                raise ValueError("it is not finite")
        except ValueError as error:
            server.warn(f"client {client}, round {state.round + 1}: what it sent is left out: {error}")
            head, uplink = head | {"finite": False}, None
        up = WireCost(0, 0, 0, 0) if uplink is None else _cost(uplink)
        found[client] = Answered(head, uplink, (head["downlink"], up))
    return found


def _taking_part(server: Server, state: SimulationState, ids: set[int]) -> dict[str, list[int]]:
    """Who of these clients is summed with whom; of who has no samples there is nothing to add."""
    groups = {}
    for name, clients in server.groups.items():
        there = [i for i in clients if i in ids and server.counts["train"][i]]
        if len(there) >= FEWEST:
            groups[name] = there
        elif there:
            who = f"{len(there)} of the clients of {name} take part, and a sum takes {FEWEST}"
            server.warn(f"round {state.round + 1}: {who}; it goes on without them")
    return groups


def _train_summed(server: Server, state: SimulationState, groups: dict[str, list[int]]) -> dict[int, Answered]:
    """As `_train`, where all that comes of uplinks is their sum, group by group."""
    letters, costs = _letters(server, state, "train", [i for clients in groups.values() for i in clients])
    answers, totals = server.transport.add(letters, groups)
    words, found = f"round {state.round + 1}", {}
    good = _good(server, words, sorted(answers), answers, costs)
    for name, clients in groups.items():
        total, mine = totals[name], [i for i in clients if i in good]
        try:
            if isinstance(total, str):
                raise ValueError(total)
            form = server.forms[server.federation.buckets[server.federation.assignment[clients[0]]].name]
            uplinks = uplinks_of(form, total, mine)
        except ValueError as error:
            server.warn(f"{words}: there is no sum of {name}: {error}")
            continue
        for client in mine:
            head = good[client].head | {"finite": True}
            if "warning" in head:
                server.warn(f"client {client}, {words}: {head['warning']}")
            found[client] = Answered(head, uplinks[client], (head["downlink"], _cost(uplinks[client])))
    return dict(sorted(found.items()))


def _ask(server: Server, state: SimulationState, kind: str, ids: list[int]) -> dict[int, Envelope]:
    """The clients' answers without those that say "error", each of which is a line."""
    letters, costs = _letters(server, state, kind, ids)
    words = f"round {state.round + 1}" if kind == "train" else f"evaluation after round {state.round}"
    return _good(server, words, ids, server.transport.exchange(letters), costs)


def _letters(
    server: Server, state: SimulationState, kind: str, ids: list[int]
) -> tuple[dict[int, Envelope], dict[int, WireCost]]:
    """What clients are asked, and what the downlinks in it cost."""
    one = of_trial(state.servers, 0)
    letters, costs = {}, {}
    for client in ids:
        bucket = server.federation.buckets[server.federation.assignment[client]]
        info = _info(server, state, client)
        downlink = fetch(server.send[bucket.name](one, jnp.int32(state.round), info))
        costs[client] = _cost(downlink)
        oldest = int(server.saved[0][client]) + 1 if len(server.saved) == server.saved.maxlen else 0
        head = {"kind": kind, "run": server.run, "round": state.round, "oldest": oldest}
        letters[client] = Envelope(head | {"last_round": int(state.last_round[0, client])}, pack(downlink))
    return letters, costs


def _good(
    server: Server, words: str, ids: list[int], answers: dict[int, Envelope], costs: dict[int, WireCost]
) -> dict[int, Envelope]:
    good = {}
    for client in ids:
        if client not in answers:
            server.warn(f"client {client}, {words}: no answer")
        elif "error" in answers[client].head:
            server.warn(f"client {client}, {words}: {answers[client].head['error']}")
        else:
            good[client] = answers[client]._replace(head=answers[client].head | {"downlink": costs[client]})
    return good


def _info(server: Server, state: SimulationState, ids: Any) -> ClientInfo:
    counts = server.counts["train"].astype(np.int32)
    return ClientInfo(*(jnp.asarray(x) for x in (np.int32(ids), counts[ids], state.last_round[0, ids])))


def _received(server: Server, state: SimulationState, bucket: Bucket, answered: Mapping[int, Answered]) -> Received:
    """A bucket's uplinks, as many rows as clients may take part, who did not arrive with zeros."""
    members = server.federation.members(bucket)
    size = min(server.plan.options.participants(server.plan.num_clients), len(members))
    mine = [i for i in members if i in answered]
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), server.forms[bucket.name])
    uplinks = [answered[i].uplink if answered[i].uplink is not None else zeros for i in mine]
    stacked = jax.tree.map(lambda *xs: jnp.asarray(np.stack(xs)), *uplinks, *[zeros] * (size - len(mine)))
    arrived = np.array([answered[i].head["finite"] for i in mine] + [False] * (size - len(mine)), bool)
    return Received(stacked, _info(server, state, np.array(mine + [0] * (size - len(mine)), int)), jnp.asarray(arrived))


def _results(answered: Mapping[int, Answered]) -> tuple[np.ndarray, tuple[ClientResult, dict[str, Scores]]]:
    """What `round_report` takes."""
    ids = sorted(answered)
    heads = [answered[i].head for i in ids]
    finite = np.array([head["finite"] for head in heads], bool)
    names = heads[0]["metrics"] if heads else ()
    metrics = {name: np.array([head["metrics"][name] for head in heads], np.float32) for name in names}
    down, up = (WireCost(*np.array([answered[i].cost[k] for i in ids], int).reshape(-1, 4).T) for k in (0, 1))
    return np.array(ids, int), (
        ClientResult((), finite, finite, metrics, up, down),
        _scores([h["scores"] for h in heads]),
    )


def _scores(found: list[dict[str, Any]]) -> dict[str, Scores]:
    """Clients' scores by split, [m] each, of the splits that any of them has samples of."""
    splits = {split for one in found for split in one if any(other[split]["count"] for other in found)}
    return {
        split: Scores(
            {rule: np.array([one[split]["correct"][rule] for one in found]) for rule in found[0][split]["correct"]},
            np.array([one[split]["count"] for one in found]),
        )
        for split in sorted(splits)
    }


def _cost(message: PyTree) -> WireCost:
    return WireCost(*(int(x) for x in wire_elements(message)))


def _seeds(server: Server) -> jax.Array:
    return jnp.asarray(np.array([server.plan.options.seed], np.uint32))
