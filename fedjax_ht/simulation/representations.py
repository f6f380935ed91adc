"""Features and scores of given samples by clients' models, for inspection."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_ht.check.names import unknown
from fedjax_ht.core.batches import Batch, take_batch
from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.compiling import compiler_options
from fedjax_ht.core.evaluation import EvaluationRequest, make_scored_state
from fedjax_ht.core.method import Method
from fedjax_ht.core.round import Participant, RunServer, view
from fedjax_ht.core.samples import Data, Split
from fedjax_ht.core.trees import PyTree, take
from fedjax_ht.simulation.compiled import clients_info, participant_of, read_clients
from fedjax_ht.simulation.program import Program, evaluation_batch
from fedjax_ht.simulation.state import SimulationState


def client_features(
    program: Program, state: SimulationState, ids: Sequence[int], indices: np.ndarray
) -> list[np.ndarray]:
    """Returns `View.features` of samples for each client, float32 [n, K] each.

    Clients have the state in which an evaluation scores them. Every process of a run must make the
    call. The state does not change.

    Args:
      program: the parts of the simulation.
      state: the newest state.
      ids: ids of the clients.
      indices: int [n], the same samples for all clients, or int [len(ids), n], samples per client.

    Raises:
      ValueError: the method has no `View.features`.
    """
    if program.method.view.features is None:
        raise ValueError(f"{program.method.name} has no features to look at")
    indices = np.asarray(indices)
    infos = clients_info(program, state)
    server = program.run_server(state.server)
    order = Split(np.arange(indices.shape[-1], dtype=np.int32), np.int32(indices.shape[-1]))
    rows_of = dict(zip(ids, np.broadcast_to(indices, (len(ids), indices.shape[-1]))))
    features = {}
    for bucket in program.federation.buckets:
        data = program.data.buckets[bucket.name]
        run = _outputs_of(program, bucket, _features)
        clients = program.clients[bucket.name]
        members = [i for i in clients.roster.members.tolist() if i in ids]
        rows = clients.roster.rows(np.array(members, np.int64))
        states = read_clients(program, state, bucket.name, rows) if members else ()
        for place, (client, row) in enumerate(zip(members, rows.tolist())):
            participant = participant_of(clients, infos, row)
            client_state = take(states, place)
            inputs, labels = take((data.inputs, data.labels), rows_of[client])
            shown = data._replace(inputs=inputs, labels=labels, splits={"shown": order})
            out = run(client_state, participant, server, data, shown, np.int32(state.round))
            features[client] = np.asarray(out, np.float32)
    return [features[i] for i in ids]


def predict(
    program: Program,
    compiled: dict[tuple[str, str], Callable],
    state: SimulationState,
    client: int,
    inputs: PyTree,
    rule: str | None = None,
) -> np.ndarray:
    """Returns a client's scores of samples, float32 [n, num_classes].

    The client has the state in which an evaluation scores it.

    Args:
      program: the parts of the simulation.
      compiled: programs of earlier calls, (architecture, rule) -> program; a new one is added.
      state: the newest state; it does not change.
      client: id of the client.
      inputs: samples [n, ...] as the data set stores them, such as `dataset.inputs[:10]`.
      rule: the inference rule, one of the method's `rules`; None for the first.

    Raises:
      ValueError: there is no such client or rule, or the samples have another form, or are empty.
    """
    rules = program.method.rules
    federation, rule = program.federation, rule or rules[0]
    if client not in range(federation.num_clients):
        raise ValueError(f"no client {client}; ids run from 0 to {federation.num_clients - 1}")
    if rule not in rules:
        advice = f"the rules of {program.method.name} are {', '.join(rules)}"
        raise ValueError(unknown("rule", rule, rules, advice))
    bucket = federation.buckets[federation.assignment[client]]
    data, clients = program.data.buckets[bucket.name], program.clients[bucket.name]
    inputs = jax.tree.map(np.asarray, inputs)
    count = _count_of(inputs, data.inputs)
    if (bucket.name, rule) not in compiled:
        compiled[bucket.name, rule] = _outputs_of(program, bucket, _scores_by(rule))
    row = clients.roster.rows(np.array([client], np.int64))
    states = read_clients(program, state, bucket.name, row)
    infos = clients_info(program, state)
    participant = participant_of(clients, infos, int(row[0]))
    server = program.run_server(state.server)
    size = evaluation_batch(federation, program.options)
    scores = []
    for start in range(0, count, size):  # one batch per call: one program for any sample count
        rows = np.minimum(np.arange(start, start + size), count - 1)
        present = np.int32(min(size, count - start))
        shown = data._replace(
            inputs=take(inputs, rows),
            labels=bucket.task.no_targets(size),
            splits={"shown": Split(np.arange(size, dtype=np.int32), present)},
        )
        out = compiled[bucket.name, rule](
            take(states, 0), participant, server, data, shown, np.int32(state.round)
        )
        scores.append(np.asarray(out, np.float32)[:present])
    return np.concatenate(scores)


def _count_of(inputs: PyTree, stored: PyTree) -> int:
    """Returns the number of samples.

    Raises:
      ValueError: there are none, or their form differs from the data set's.
    """
    forms = []
    for tree in (inputs, stored):
        leaves = jax.tree.leaves(tree)
        forms.append([f"{x.dtype} [n, {', '.join(map(str, x.shape[1:]))}]" for x in leaves])
    if forms[0] != forms[1]:
        raise ValueError(
            f"inputs are {' and '.join(forms[0])}; they must be {' and '.join(forms[1])}, like "
            "the stored samples of the data set"
        )
    count = len(jax.tree.leaves(inputs)[0])
    if not count:
        raise ValueError("inputs have no samples")
    return count


def _features(method: Method, bucket: Bucket, client, downlink, batch: Batch) -> jax.Array:
    assert method.view.features is not None  # `client_features` rejects such methods
    return method.view.features(bucket, client, batch.x, batch.mask)


def _scores_by(rule: str) -> Callable:
    def scores(method: Method, bucket: Bucket, client, downlink, batch: Batch) -> jax.Array:
        return method.predict(bucket, client, downlink, batch.x, batch.mask)[rule]

    return scores


def _outputs_of(program: Program, bucket: Bucket, output: Callable) -> Callable:
    """Compiles (client, Participant, RunServer, the bucket's data, shown data, round) -> [n, K].

    `output` is (method, bucket, client, downlink, Batch) -> float [B, K].
    """
    method, options = program.method, program.options
    size = evaluation_batch(program.federation, options)
    prepare = make_scored_state(method, program.federation, bucket, program.engine.channel)

    def run(client, participant: Participant, server: RunServer, data: Data, shown: Data, round):
        of_client = view(data, participant)
        scoring = options.scoring
        request = EvaluationRequest(scoring.state != "trained", {}, scoring.adapt_epochs)
        bound, client, downlink = prepare(
            client, participant, server, data=of_client, round=round, request=request
        )
        order, model = shown.splits["shown"], server.with_frozen(bucket)

        def of_batch(start):
            batch = take_batch(shown, order.indices, order.count, start, size)
            return output(bound, model, client, downlink, batch)

        count = order.indices.shape[0]
        outputs = lax.map(of_batch, jnp.arange(0, count, size))
        return outputs.reshape(-1, outputs.shape[-1])[:count]

    return jax.jit(run, compiler_options=compiler_options(jax.default_backend()))
