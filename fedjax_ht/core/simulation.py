"""A whole federation on one machine: the compiled rounds bound to its data, and the state that they move."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core import wire
from fedjax_ht.core.executor import Schedule, capacity_for, choose_lanes, longest_first
from fedjax_ht.core.federation import Bucket, Federation
from fedjax_ht.core.keys import Purpose, client_key, round_key
from fedjax_ht.core.local_training import LocalTraining, num_steps
from fedjax_ht.core.method import ClientInfo, Context, Method, PyTree, Received, no_global_model
from fedjax_ht.core.options import SimulationOptions, choose_participants
from fedjax_ht.core.report import Evaluation, RoundReport, evaluation, round_report
from fedjax_ht.core.round import Channel, Row, bucket_evaluation, bucket_round, downlink_costs, score, server_round
from fedjax_ht.core.store import STORES
from fedjax_ht.data.client_data import FederationData


class SimulationState(NamedTuple):
    """Everything a run needs to go on.

    Attributes:
      round: rounds done.
      server: the method's server state.
      clients: bucket name -> stored states, stacked over the bucket's clients by ascending id.
      last_round: int32 [num_clients], the last round in which the server reached each; -1 for never.
    """

    round: int
    server: PyTree
    clients: dict[str, PyTree]
    last_round: np.ndarray


class Simulation(NamedTuple):
    """A federation ready to run; every function is compiled at its first call.

    Attributes:
      init: () -> SimulationState.
      run_round: (SimulationState) -> (SimulationState, RoundReport). The old state's buffers are donated.
      evaluate: (SimulationState, ids or None) -> Evaluation of those clients, or of all.
    """

    init: Callable[[], SimulationState]
    run_round: Callable[[SimulationState], tuple[SimulationState, RoundReport]]
    evaluate: Callable[..., Evaluation]


class Roster(NamedTuple):
    """A bucket's ids, ascending, how many rows a round provides for them, and how many run side by side."""

    members: np.ndarray
    capacity: int
    lanes: int

    def plan(self, info: ClientInfo, ids: np.ndarray, dropped: np.ndarray, size: int) -> Schedule:
        """A schedule on the host: clients `ids` in this order, padded to `size`. Slots are bucket-local positions."""
        padded = np.resize(ids, size) if len(ids) else np.full(size, self.members[0])
        valid = np.arange(size) < len(ids)
        local = np.searchsorted(self.members, padded).astype(np.int32)
        lost = np.concatenate([dropped, np.zeros(size - len(ids), bool)])
        rows = Row(local, jax.tree.map(lambda x: x[padded], info), valid, lost)
        return Schedule(local, rows, np.int32(len(ids)))


def make_simulation(
    method: Method,
    federation: Federation,
    data: FederationData,
    training: LocalTraining,
    options: SimulationOptions | None = None,
    extra: PyTree = (),
) -> Simulation:
    """Binds a method to a federation and its data.

    Args:
      method: a factory's result; its hyper-parameters, local training among them, are bound already.
      federation: the buckets.
      data: the clients' data.
      training: the same recipe the method trains by; here it only tells how many steps each client takes.
      options: how the federation runs.
      extra: per-client settings of the method (`ClientInfo.extra`), arrays with a leading axis [num_clients].

    Raises:
      ValueError: the method cannot run on this federation.
    """
    options = options or SimulationOptions()
    method.check(federation)
    n = federation.num_clients
    root = jax.random.key(options.seed)
    channel = Channel(wire.chain(options.uplink), wire.chain(options.downlink))
    store = STORES[options.client_store]()
    steps = num_steps(training, data.counts["train"])
    rosters: dict[str, Roster] = {}
    trainers, evaluators = {}, {}
    for b in federation.buckets:
        members = np.array(federation.members(b))
        capacity = capacity_for(options.participants(n), len(members), options.lanes)
        rosters[b.name] = Roster(members, capacity, choose_lanes(options.lanes, capacity))
        bound = (method, federation, b, channel, rosters[b.name].lanes)
        trainers[b.name] = jax.jit(bucket_round(*bound), donate_argnums=0)
        splits = tuple(s for s in ("test", "val") if data.counts[s].any())
        received = options.evaluate == "received"
        evaluators[b.name] = jax.jit(bucket_evaluation(*bound, received, options.eval_batch_size, splits))
    serve = server_round(method, federation)
    serve = serve if method.host_server else jax.jit(serve)
    charge_all = jax.jit(downlink_costs(method, federation, channel))
    score_pooled = jax.jit(
        lambda server, images, split: score(
            lambda x, mask: method.global_predict(federation, server, x, mask), images, split, options.eval_batch_size
        )
    )

    def infos(last_round: np.ndarray) -> ClientInfo:
        ids = np.arange(n, dtype=np.int32)
        settings = jax.tree.map(np.asarray, extra)
        return ClientInfo(ids, data.counts["train"].astype(np.int32), last_round.astype(np.int32), settings)

    def load(stored: PyTree, plan: Schedule) -> tuple[PyTree, Schedule]:
        states, slots = store.load(stored, plan.slots)
        slots = np.where(plan.rows.valid, slots, np.iinfo(np.int32).max)  # out of range: padding is never written
        return states, jax.device_put(plan._replace(slots=slots.astype(np.int32)))

    def init_states(bucket: Bucket) -> PyTree:
        roster = rosters[bucket.name]

        def one(client_id):
            # With shared_init the bucket's first client stands for all of them.
            source = jnp.int32(roster.members[0]) if options.shared_init else client_id
            ctx = Context(client_key(root, Purpose.INIT_CLIENT, 0, source), jnp.int32(0), None)
            return method.init_client(bucket, ctx)

        return jax.jit(lambda ids: jax.lax.map(one, ids))(jax.device_put(roster.members.astype(np.int32)))

    def init() -> SimulationState:
        server = jax.jit(lambda: method.init_server(federation, round_key(root, Purpose.INIT_SERVER, 0)))()
        clients = {b.name: store.put(init_states(b)) for b in federation.buckets}
        return SimulationState(0, server, clients, np.full(n, -1, np.int32))

    def run_round(state: SimulationState) -> tuple[SimulationState, RoundReport]:
        ids, dropped = choose_participants(options, n, state.round)
        info, number = infos(state.last_round), jax.device_put(np.int32(state.round))
        clients, received, results, order = {}, {}, [], []
        for b in federation.buckets:
            roster = rosters[b.name]
            mine = np.flatnonzero(np.isin(ids, roster.members))
            mine = mine[longest_first(steps[ids[mine]])]
            states, plan = load(state.clients[b.name], roster.plan(info, ids[mine], dropped[mine], roster.capacity))
            states, out = trainers[b.name](states, plan, state.server, data.buckets[b.name], root, number)
            local = np.searchsorted(roster.members, ids[mine])
            clients[b.name] = store.save(state.clients[b.name], states, local, len(mine))
            received[b.name] = Received(out.uplink, plan.rows.info, out.arrived)
            results.append(out._replace(uplink=()))
            order.append(ids[mine])
        reached, everyone = ids, None
        if method.recipients == "all":
            reached, everyone = np.arange(n), charge_all(state.server, jax.device_put(info), root, number)
        server, server_metrics = serve(state.server, received, root, number)
        # The one transfer of a round.
        report = round_report(order, *jax.device_get((results, server_metrics, everyone)))
        last_round = state.last_round.copy()
        last_round[reached] = state.round
        return SimulationState(state.round + 1, server, clients, last_round), report

    def evaluate(state: SimulationState, only: np.ndarray | None = None) -> Evaluation:
        # After k rounds the newest downlink is the one that round k (counted from 0) starts with.
        info, number = infos(state.last_round), jax.device_put(np.int32(state.round))
        scored = []
        for b in federation.buckets:
            roster = rosters[b.name]
            chosen = roster.members if only is None else np.intersect1d(roster.members, only)
            size = store.block(roster.capacity, -(-len(roster.members) // roster.lanes) * roster.lanes)
            for start in range(0, len(chosen), size):
                ids = chosen[start : start + size]
                states, plan = load(state.clients[b.name], roster.plan(info, ids, np.zeros(len(ids), bool), size))
                scores = evaluators[b.name](states, plan, state.server, data.buckets[b.name], root, number)
                scored.append((ids, scores))
        pooled = None
        if method.global_predict is not no_global_model:
            pooled = score_pooled(state.server, data.buckets[federation.buckets[0].name], data.pooled_test)
        return evaluation(n, *jax.device_get((scored, pooled)))

    return Simulation(init, run_round, evaluate)
