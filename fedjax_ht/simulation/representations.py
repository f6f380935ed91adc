"""Features that clients make of the same samples, or each of its own, to be looked at."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_ht.core.batches import take_batch
from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.compiling import compiler_options
from fedjax_ht.core.evaluation import make_scored_state
from fedjax_ht.core.round import Participant, TrialServers, view
from fedjax_ht.core.samples import Data, Split
from fedjax_ht.core.trees import take
from fedjax_ht.simulation.compiled import participant_of, read_clients
from fedjax_ht.simulation.program import Program, evaluation_batch
from fedjax_ht.simulation.state import SimulationState, clients_info


def client_features(
    program: Program, state: SimulationState, ids: Sequence[int], indices: np.ndarray
) -> list[np.ndarray]:
    """`View.features` of the first trial's clients `ids`, in the state in which an evaluation
    scores them, of the samples `indices`: float32 [n, K] each. Every process of a run makes the
    call; the state stays.

    Args:
      program: the parts of the simulation.
      state: the newest state.
      ids: ids of the clients.
      indices: int [n], the same samples for all; or int [len(ids), n], samples of each.

    Raises:
      ValueError: the method has no features to look at.
    """
    if program.method.view.features is None:
        raise ValueError(f"{program.method.name} has no features to look at")
    indices = np.asarray(indices)
    infos = clients_info(program.train_counts, state)
    servers = TrialServers(state.servers, program.server.seeds, program.server.settings)
    order = Split(np.arange(indices.shape[-1], dtype=np.int32), np.int32(indices.shape[-1]))
    rows_of = dict(zip(ids, np.broadcast_to(indices, (len(ids), indices.shape[-1]))))
    features = {}
    for bucket in program.federation.buckets:
        run, data = _features_of(program, bucket), program.data.buckets[bucket.name]
        clients = program.clients[bucket.name]
        members = [i for i in clients.roster.members.tolist() if i in ids]
        rows = clients.roster.rows(0, np.array(members, np.int64))
        states = read_clients(program, state, bucket.name, rows) if members else ()
        for place, (client, row) in enumerate(zip(members, rows.tolist())):
            participant = participant_of(clients, infos, row)
            client_state = take(states, place)
            inputs, labels = take((data.inputs, data.labels), rows_of[client])
            shown = data._replace(inputs=inputs, labels=labels, splits={"shown": order})
            out = run(client_state, participant, servers, data, shown, np.int32(state.round))
            features[client] = np.asarray(out, np.float32)
    return [features[i] for i in ids]


def _features_of(program: Program, bucket: Bucket):
    """Compiles (client, Participant, servers, the bucket's data, what is shown, round) -> float
    [n, K]."""
    method, options = program.method, program.options[0]
    size = evaluation_batch(program.federation, options)
    prepare = make_scored_state(method, program.federation, bucket, program.engine.channel)

    def run(
        client, participant: Participant, servers: TrialServers, data: Data, shown: Data, round
    ):
        of_client = view(data, participant)
        received = options.evaluate == "received"
        trial_method, client, _ = prepare(client, participant, servers, of_client, round, received)
        order = shown.splits["shown"]

        def of_batch(start):
            batch = take_batch(shown, order.indices, order.count, start, size)
            return trial_method.view.features(bucket, client, batch.x, batch.mask)

        count = order.indices.shape[0]
        features = lax.map(of_batch, jnp.arange(0, count, size))
        return features.reshape(-1, features.shape[-1])[:count]

    return jax.jit(run, compiler_options=compiler_options(jax.default_backend()))
