"""Features and scores of given samples by clients' models, for inspection."""

from collections.abc import Sequence

import jax
import numpy as np

from fedjax_ht.check.names import kind_of_value, unknown
from fedjax_ht.core.federation import without_weights
from fedjax_ht.core.trees import PyTree, take
from fedjax_ht.simulation.compiled import (
    checked_indices,
    clients_info,
    participant_of,
    read_clients,
)
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
      ValueError: the method has no `View.features`, or there is no such client or sample.
    """
    if program.method.view.features is None:
        raise ValueError(f"{program.method.name} has no features to look at")
    indices, count = np.asarray(indices), len(program.placed.host[0].labels)
    checked_indices("indices", np.ravel(indices), count, least=1)
    rows = np.broadcast_to(indices, (len(ids), indices.shape[-1]))
    stored = program.placed.host[0].inputs
    return _outputs(program, state, [(i, take(stored, x)) for i, x in zip(ids, rows)])


def predict(
    program: Program, state: SimulationState, client: int, inputs: PyTree, rule: str | None = None
) -> np.ndarray:
    """Returns a client's scores of samples, float32 [n, num_classes].

    The client has the state in which an evaluation scores it.

    Args:
      program: the parts of the simulation.
      state: the newest state; it does not change.
      client: id of the client.
      inputs: samples [n, ...] as the data set stores them, such as `dataset.inputs[:10]`.
      rule: the inference rule, one of the method's `rules`; None for the first.

    Raises:
      ValueError: there is no such client or rule, or the samples have another form, or are empty.
    """
    rules, inputs = program.method.rules, jax.tree.map(np.asarray, inputs)
    rule = rule or rules[0]
    if rule not in rules:
        advice = f"the rules of {program.method.name} are {', '.join(rules)}"
        raise ValueError(unknown("rule", rule, rules, advice))
    _check_inputs(inputs, program.placed.host[0].inputs)
    (scores,) = _outputs(program, state, [(client, inputs)], rule)
    return scores


def _outputs(
    program: Program,
    state: SimulationState,
    shown: Sequence[tuple[int, PyTree]],
    rule: str | None = None,
) -> list[np.ndarray]:
    """Returns clients' scores of their (client, samples) by a rule, or with None features."""
    federation = without_weights(program.federation)  # the engine caches by bucket
    infos, server = clients_info(program, state), program.run_server(state.server)
    size, of_clients = evaluation_batch(federation, program.options), []
    for client, inputs in shown:
        if client not in range(federation.num_clients):
            raise ValueError(f"no client {client}; ids run from 0 to {federation.num_clients - 1}")
        bucket = federation.buckets[federation.assignment[client]]
        data, clients = program.data.buckets[bucket.name], program.clients[bucket.name]
        row = clients.roster.rows(np.array([client], np.int64))
        client_state = take(read_clients(program, state, bucket.name, row), 0)
        participant = participant_of(clients, infos, int(row[0]))
        run, outputs = program.engine.outputs(bucket, rule, size), []
        count = len(jax.tree.leaves(inputs)[0])
        for start in range(0, count, size):  # one batch per call: one program for any count
            rows = np.minimum(np.arange(start, start + size), count - 1)
            present = min(size, count - start)
            batch = take(inputs, rows), np.arange(size) < present
            out = run(client_state, participant, server, data, batch, np.int32(state.round))
            outputs.append(np.asarray(out, np.float32)[:present])
        of_clients.append(np.concatenate(outputs))
    return of_clients


def _check_inputs(inputs: PyTree, stored: PyTree) -> None:
    """Raises ValueError if there are no samples, or if their form differs from the data set's."""
    given, like = jax.tree.leaves(inputs), jax.tree.leaves(stored)
    alike = jax.tree.structure(inputs) == jax.tree.structure(stored)
    forms = [_form(x, "n", *x.shape[1:]) for x in like]
    if not alike or [_form(x, "n", *x.shape[1:]) for x in given] != forms:
        found = " and ".join(_form(x, *x.shape) for x in given) if alike else kind_of_value(inputs)
        is_one = [x.shape for x in given] == [x.shape[1:] for x in like]
        remedy = "; for one sample add an axis: inputs[None]" if is_one else ""
        raise ValueError(
            f"inputs are {found}; they must be {' and '.join(forms)}, like the stored samples of "
            f"the data set{remedy}"
        )
    if not len(jax.tree.leaves(inputs)[0]):
        raise ValueError("inputs have no samples")


def _form(x: np.ndarray, *shape: int | str) -> str:
    """Formats an array's type with a shape: "float32 [n, 16]"."""
    return f"{x.dtype} [{', '.join(map(str, shape))}]"
