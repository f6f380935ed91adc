"""The rounds of a deployment: a `Simulation` whose clients train elsewhere, so that all that runs
one runs it."""

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
from fedjax_ht.deploy import ledger
from fedjax_ht.deploy.ended import Ended
from fedjax_ht.deploy.envelope import Envelope
from fedjax_ht.deploy.headers import printable, unreadable
from fedjax_ht.deploy.masks import FEWEST
from fedjax_ht.deploy.messages import most_bytes, pack, unpack
from fedjax_ht.deploy.noise import draw
from fedjax_ht.deploy.server import Heads, Server, met
from fedjax_ht.deploy.sums import uplinks_of, vector_bytes
from fedjax_ht.simulation.options import choose_participants
from fedjax_ht.simulation.profile import Profile
from fedjax_ht.simulation.report import Evaluation, RoundReport, evaluation, round_report
from fedjax_ht.simulation.simulation import Simulation
from fedjax_ht.simulation.state import SimulationState
from fedjax_ht.simulation.trials import of_trial

PAUSE_SECONDS = 1.0
"""Between two tries of a round in which nobody takes part."""
GOES_ON = "The same command goes on from the last checkpoint"


class Answered(NamedTuple):
    """What a client has sent in a round.

    Attributes:
      head: its head.
      uplink: its message as NumPy, None where it was not finite; of a secure sum the client's part,
        see `sums`.
      cost: of the downlink and of the uplink.
    """

    head: dict[str, Any]
    uplink: PyTree
    cost: tuple[WireCost, WireCost]


def as_simulation(server: Server) -> Simulation:
    """The deployment as `simulation.history.run` and checkpoints take one; client states are none
    of it."""

    def elsewhere(*_):
        raise ValueError("the clients of a deployment keep their states")

    return Simulation(
        init=lambda: first_state(server),
        run_round=lambda state, score=True: run_round(server, state),
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
    """One round: the clients that can be reached train, and what arrives is served.

    A client that does not answer was not there. A round in which no client takes part is none: it
    is tried again.

    Raises:
      Ended: nobody has taken part for as many tries as `give_up` says, or could be reached for
        `Server.patience`.
    """
    number, num_clients = state.round, server.plan.num_clients
    reachable, asked, answered = _participants(server, state)
    received = {b.name: _received(server, state, b, answered) for b in server.federation.buckets}
    rows = {name: np.arange(len(r.arrived), dtype=np.int32)[None] for name, r in received.items()}
    words, epsilon = draw(server.noise)  # from here on the step counts, whatever becomes of it
    own = (
        state.servers,
        _seeds(server),
        jax.tree.map(lambda x: jnp.asarray(x)[None], words),
        rows,
        {},
    )
    round_ = jnp.int32(number)
    servers, result = server.serve(own, (received, round_, server.pretrained, ()))
    result = fetch(of_trial(result, 0))
    last_round = state.last_round.copy()
    last_round[0, sorted(answered)] = number
    report = round_report([_results(answered)], result, 0.0, np.zeros(num_clients, bool))
    lost = num_clients - int(reachable.sum()) + len(asked) - len(answered)
    if server.plan.unit != "upload":  # there clients do not tell
        longest = max((one.head["seconds"] for one in answered.values()), default=0.0)
        report = report._replace(metrics=report.metrics | {"seconds_client": longest})
    if server.plan.unit in ("upload", "sample"):
        said = max((one.head["epsilon"] for one in answered.values()), default=0.0)
        epsilon = ledger.raise_to(server.ledger, "epsilon", said)
    report = report._replace(absent=lost or None, epsilon=epsilon)
    if server.groups is not None:  # what is made of a sum tells nobody apart
        report = report._replace(far_off=())
    return SimulationState(number + 1, servers, {}, last_round, {}), report


def _participants(
    server: Server, state: SimulationState
) -> tuple[np.ndarray, list[int], dict[int, Answered]]:
    """Tries a round until a client takes part.

    Returns:
      The clients that could be reached, bool [num_clients]; the ids of those that were asked; and
      what those of them sent that have answered, of whom there is one at least.
    """
    tries, most = 0, server.plan.config.give_up
    while True:
        reachable, asked, answered = _tried(server, state, _somebody(server, state))
        if answered:
            return reachable, asked, answered
        tries += 1
        problem = f"round {state.round + 1}: no client took part, and it does not count"
        if most and tries >= most:
            raise Ended(f"{problem}; {tries} tries are as many as give_up says. {GOES_ON}")
        server.warn(f"{problem}; it is tried again")
        time.sleep(PAUSE_SECONDS)


def _somebody(server: Server, state: SimulationState) -> Heads:
    """Waits for a client where none can be reached, and returns the headers of those that can."""
    heads = reached(server)
    if not heads:
        problem = f"round {state.round + 1}: no client can be reached"
        server.warn(f"{problem}; waiting {server.patience:g} s at most")
        late = time.monotonic() + server.patience
        while not (heads := reached(server, 1)):
            if time.monotonic() >= late:
                raise Ended(f"{problem}, after {server.patience:g} s. {GOES_ON}")
            time.sleep(PAUSE_SECONDS)
    return heads


def _tried(
    server: Server, state: SimulationState, heads: Heads
) -> tuple[np.ndarray, list[int], dict[int, Answered]]:
    """Tries a round once with the clients of `heads`; returns what `_participants` does."""
    num_clients = server.plan.num_clients
    reachable = np.isin(np.arange(num_clients), sorted(heads))
    # Who is drawn hides nobody here, and is no matter of privacy: all know the seed.
    options = dataclasses.replace(
        server.plan.options, profile=Profile(available=lambda _: reachable), privacy=None
    )
    ids, _ = choose_participants(options, num_clients, state.round)
    asked = ids.tolist()
    if server.groups is None:
        return reachable, asked, _train(server, state, asked)
    groups = _taking_part(server, state, set(asked))
    asked = [i for clients in groups.values() for i in clients]
    return reachable, asked, _train_summed(server, state, groups)


def evaluate(server: Server, state: SimulationState, only: np.ndarray | None = None) -> Evaluation:
    """Asks the clients, all or those of the ids `only`; who does not answer has no accuracy."""
    ids = range(server.plan.num_clients) if only is None else map(int, only)
    there = reached(server)
    answers = _ask(server, state, "evaluate", [i for i in ids if i in there])
    found = [(np.array([i]), _scores([head["scores"]])) for i, (head, _) in sorted(answers.items())]
    return evaluation(server.counts["train"], found, None)


def reached(server: Server, fewest: int = 0) -> Heads:
    """The clients that can be reached and are as they were when the run began; waits for `fewest`
    of them, see `Transport.meet`."""
    heads = met(server.plan, server.transport, fewest, server.warn)
    kept = {}
    for client, head in heads.items():
        before = {split: int(counts[client]) for split, counts in server.counts.items()}
        if head["counts"] == before:
            kept[client] = head
        else:
            server.warn(
                f"client {client} is left out: it began with {before} samples and has "
                f"{head['counts']}"
            )
    return kept


def _train(server: Server, state: SimulationState, ids: list[int]) -> dict[int, Answered]:
    found = {}
    for client, (head, arrays) in sorted(_ask(server, state, "train", ids).items()):
        try:
            uplink = unpack(_form(server, client), arrays, "the uplink") if head["finite"] else None
            if uplink is not None and not bool(all_finite(uplink)):
                raise ValueError("it is not finite")
        except ValueError as error:
            server.warn(
                f"client {client}, round {state.round + 1}: what it sent is left out: "
                f"{printable(str(error))}"
            )
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


def _train_summed(
    server: Server, state: SimulationState, groups: dict[str, list[int]]
) -> dict[int, Answered]:
    """As `_train`, where all that comes of uplinks is their sum, group by group."""
    letters, costs = _letters(
        server, state, "train", [i for clients in groups.values() for i in clients]
    )
    most = {client: vector_bytes(_form(server, client)) for client in letters}
    answers, totals = server.transport.add(letters, groups, most)
    words, found = f"round {state.round + 1}", {}
    good = _good(server, "train", words, sorted(answers), answers, costs)
    for name, clients in groups.items():
        total, mine = totals[name], [i for i in clients if i in good]
        try:
            if isinstance(total, str):
                raise ValueError(total)
            if any(
                i in answers and i not in good and "error" not in answers[i].head for i in clients
            ):
                raise ValueError("there are clients in it of which nothing is known")
            uplinks = uplinks_of(_form(server, clients[0]), total, mine)
        except ValueError as error:
            server.warn(f"{words}: there is no sum of {name}: {error}")
            continue
        for client in mine:
            head = good[client].head | {"finite": True}
            if "warning" in head:
                server.warn(f"client {client}, {words}: {printable(head['warning'])}")
            found[client] = Answered(
                head, uplinks[client], (head["downlink"], _cost(uplinks[client]))
            )
    return dict(sorted(found.items()))


def _ask(server: Server, state: SimulationState, kind: str, ids: list[int]) -> dict[int, Envelope]:
    """The clients' answers without those that say "error", each of which is a line."""
    letters, costs = _letters(server, state, kind, ids)
    words = (
        f"round {state.round + 1}" if kind == "train" else f"evaluation after round {state.round}"
    )
    most = {
        client: most_bytes(_form(server, client)) if kind == "train" else 0 for client in letters
    }
    return _good(server, kind, words, ids, server.transport.exchange(letters, most), costs)


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
        letters[client] = Envelope(
            head | {"last_round": int(state.last_round[0, client])}, pack(downlink)
        )
    return letters, costs


def _good(
    server: Server,
    kind: str,
    words: str,
    ids: list[int],
    answers: dict[int, Envelope],
    costs: dict[int, WireCost],
) -> dict[int, Envelope]:
    """The answers that can be read; of each other one a line."""
    good = {}
    for client in ids:
        if client not in answers:
            server.warn(f"client {client}, {words}: no answer")
        elif "error" in answers[client].head:
            server.warn(
                f"client {client}, {words}: {printable(str(answers[client].head['error']))}"
            )
        elif name := unreadable(
            answers[client].head, kind, server.plan.unit, server.plan.method.rules
        ):
            server.warn(f"client {client}, {words}: what it says of {name!r} cannot be read")
        else:
            good[client] = answers[client]._replace(
                head=answers[client].head | {"downlink": costs[client]}
            )
    return good


def _form(server: Server, client: int) -> PyTree:
    """The form of a client's uplinks."""
    return server.forms[server.federation.buckets[server.federation.assignment[client]].name]


def _info(server: Server, state: SimulationState, ids: Any) -> ClientInfo:
    counts = server.counts["train"].astype(np.int32)
    return ClientInfo(
        *(jnp.asarray(x) for x in (np.int32(ids), counts[ids], state.last_round[0, ids]))
    )


def _received(
    server: Server, state: SimulationState, bucket: Bucket, answered: Mapping[int, Answered]
) -> Received:
    """A bucket's uplinks, as many rows as clients may take part, who did not arrive with zeros."""
    members = server.federation.members(bucket)
    size = min(server.plan.options.participants(server.plan.num_clients), len(members))
    mine = [i for i in members if i in answered]
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), server.forms[bucket.name])
    uplinks = [answered[i].uplink if answered[i].uplink is not None else zeros for i in mine]
    stacked = jax.tree.map(
        lambda *xs: jnp.asarray(np.stack(xs)), *uplinks, *[zeros] * (size - len(mine))
    )
    arrived = np.array(
        [answered[i].head["finite"] for i in mine] + [False] * (size - len(mine)), bool
    )
    return Received(
        stacked,
        _info(server, state, np.array(mine + [0] * (size - len(mine)), int)),
        jnp.asarray(arrived),
    )


def _results(
    answered: Mapping[int, Answered],
) -> tuple[np.ndarray, tuple[ClientResult, dict[str, Scores]]]:
    """What `round_report` takes."""
    ids = sorted(answered)
    heads = [answered[i].head for i in ids]
    finite = np.array([head["finite"] for head in heads], bool)
    names = (
        [name for name in heads[0]["metrics"] if all(name in head["metrics"] for head in heads)]
        if heads
        else ()
    )
    metrics = {
        name: np.array([head["metrics"][name] for head in heads], np.float32) for name in names
    }
    down, up = (
        WireCost(*np.array([answered[i].cost[k] for i in ids], int).reshape(-1, 4).T)
        for k in (0, 1)
    )
    return np.array(ids, int), (
        ClientResult((), finite, finite, metrics, up, down),
        _scores([h["scores"] for h in heads]),
    )


def _scores(found: list[dict[str, Any]]) -> dict[str, Scores]:
    """Clients' scores by split, [m] each, of the splits that any of them has samples of."""
    splits = {
        split for one in found for split in one if any(other[split]["count"] for other in found)
    }
    return {
        split: Scores(
            {
                rule: np.array([one[split]["correct"][rule] for one in found])
                for rule in found[0][split]["correct"]
            },
            np.array([one[split]["count"] for one in found]),
        )
        for split in sorted(splits)
    }


def _cost(message: PyTree) -> WireCost:
    return WireCost(*(int(x) for x in wire_elements(message)))


def _seeds(server: Server) -> jax.Array:
    return jnp.asarray(np.array([server.plan.options.seed], np.uint32))
