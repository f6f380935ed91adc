"""What clients make of the same samples, to be looked at."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_ht.core.compiling import compiler_options
from fedjax_ht.core.evaluation import as_scored
from fedjax_ht.core.federation import Bucket
from fedjax_ht.core.local_training import take_batch
from fedjax_ht.core.method import Data, Split
from fedjax_ht.core.round import Participant, TrialServers, view
from fedjax_ht.simulation.program import Program, evaluation_batch
from fedjax_ht.simulation.steps import SimulationState, clients_info, read_clients
from fedjax_ht.simulation.trials import of_trial


def client_features(
    program: Program, state: SimulationState, ids: Sequence[int], indices: np.ndarray
) -> list[np.ndarray]:
    """`View.features` of the first trial's clients `ids`, in the state in which an evaluation
    scores them, of the samples `indices`: float32 [n, K] each. Every process of a run makes the
    call; the state stays.

    Raises:
      ValueError: the method has no features to look at.
    """
    if program.method.view.features is None:
        raise ValueError(f"{program.method.name} has no features to look at")
    infos, found = of_trial(clients_info(program, state), 0), {}
    servers = TrialServers(state.servers, program.server.seeds, program.server.settings)
    for bucket in program.federation.buckets:
        run, data = _features_of(program, bucket), program.data.buckets[bucket.name]
        order = Split(np.arange(len(indices), dtype=np.int32), np.int32(len(indices)))
        inputs = jax.tree.map(lambda x: x[indices], data.inputs)
        shown = data._replace(inputs=inputs, labels=data.labels[indices], splits={"shown": order})
        roster = program.clients[bucket.name].roster
        members = [i for i in roster.members.tolist() if i in ids]
        rows = roster.rows(0, np.array(members, np.int64))
        states = read_clients(program, state, bucket.name, rows) if members else ()
        for at, (client, row) in enumerate(zip(members, rows)):
            info = jax.tree.map(lambda x, i=client: x[i], infos)
            who = Participant(np.int32(row), np.int32(0), info, np.True_, np.False_)
            own = jax.tree.map(lambda x, at=at: x[at], states)
            found[client] = np.asarray(
                run(own, who, servers, data, shown, np.int32(state.round)), np.float32
            )
    return [found[i] for i in ids]


def _features_of(program: Program, bucket: Bucket):
    """Compiled: (client, Participant, servers, the bucket's data, what is shown, round) -> float
    [n, K]."""
    method, options = program.method, program.options[0]
    size = evaluation_batch(program.federation, options)
    prepare = as_scored(method, program.federation, bucket, program.channel)

    def run(client, who: Participant, servers: TrialServers, data: Data, shown: Data, round):
        mine, client, _ = prepare(
            client, who, servers, view(data, who), round, options.evaluate == "received"
        )
        order = shown.splits["shown"]

        def one(start):
            batch = take_batch(shown, order.indices, order.count, start, size)
            return mine.view.features(bucket, client, batch.x, batch.mask)

        count = order.indices.shape[0]
        found = lax.map(one, jnp.arange(0, count, size))
        return found.reshape(-1, found.shape[-1])[:count]

    return jax.jit(run, compiler_options=compiler_options(jax.default_backend()))
