"""The server's part of a round: false counts and outliers are refused, the rest is served, and the
state stays finite."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedjax_ht.core.aggregation import server_step
from fedjax_ht.core.context import Metrics, Received
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.mesh import collect
from fedjax_ht.core.method import Method
from fedjax_ht.core.round import Call, call_directly
from fedjax_ht.core.samples import Data, Split
from fedjax_ht.core.trees import Array, PyTree, select, take
from fedjax_ht.core.wire import all_finite
from fedjax_ht.simulation.state import SimulationState
from fedjax_ht.simulation.trials import over_trials
from fedjax_ht.simulation.uploads import Delivery
from fedjax_ht.trust.counts import without_miscounted
from fedjax_ht.trust.outliers import screened


class ServerResult(NamedTuple):
    """The results of a server's round, beside its state.

    Attributes:
      metrics: metrics that the method's server computed.
      finite: bool, False where the method's new state was not finite: the server stays as it was.
      far: float32 [num_clients], outlier scores, see `outliers.outlier_scores`.
      refused: bool [num_clients], uploads left out as outliers, see `outliers.without_outliers`.
      miscounted: bool [num_clients], uploads left out for their counts, see
        `counts.without_miscounted`.
    """

    metrics: Metrics
    finite: jax.Array
    far: jax.Array
    refused: jax.Array
    miscounted: jax.Array


class Server(NamedTuple):
    """The servers of all trials, as a round serves them.

    Attributes:
      step: `serve_trials`, compiled.
      seeds: root seed of each trial, uint32 [trials].
      settings: the values that `Method.at` takes, stacked over trials; () where nothing varies.
      pretrained: `Pretrained.variables` of the method.
      shown: {"train": Split [trials, ...]} of a method that sees data, else {}.
      samples: `Data` of such a method without that split, or of one that reads the public set; else
        ().
    """

    step: Callable
    seeds: Array
    settings: PyTree
    pretrained: PyTree
    shown: dict[str, Split]
    samples: Data | tuple


def server_round(
    method: Method,
    federation: Federation,
    refuse_outliers: float = 0.0,
    call: Call = call_directly,
) -> Callable:
    """Returns `server_step` with a state that stays finite: (...) -> (server, ServerResult).

    Args:
      method: the method whose server takes the step.
      federation: the buckets.
      refuse_outliers: the bound of `outliers.without_outliers`; outliers do not arrive, nor do
        uploads with counts that their clients' samples do not allow.
      call: makes the call of the stage "server_update".
    """
    step = server_step(method, federation)

    def run(server, received: dict[str, Received], *inputs):
        counted, miscounted = without_miscounted(method, federation.num_clients, received)
        accepted, far, refused = screened(method, federation.num_clients, counted, refuse_outliers)
        new, metrics = call("server_update", step, server, accepted, *inputs)
        finite = all_finite(new)
        result = ServerResult(
            metrics=metrics, finite=finite, far=far, refused=refused, miscounted=miscounted
        )
        return select(finite, new, server), result

    return run


def serve_trials(method: Method, federation: Federation, refuse_outliers: float = 0.0) -> Callable:
    """Returns ((server, seeds, settings, rows, splits), ({bucket: Received}, round,
    Pretrained.variables, samples)) -> (server, ServerResult), over trials.

    `rows` are {bucket: int32 [m]}, a trial's rows in what was received, negative for padding; a
    bucket that is missing there is received as it is. `samples`, a `Data`, and `splits` make up
    `Context.data`; () and {} of methods that do not see it.
    """

    def serve_one(of_trial, shared):
        server, seed, settings, rows, splits = of_trial
        received, round, pretrained, samples = shared
        step = server_round(method.at(settings), federation, refuse_outliers)
        inputs = server_inputs(received, rows, splits, samples)
        return step(server, inputs[0], jax.random.key(seed), round, pretrained, inputs[1])

    return over_trials(serve_one, method.pretrained.host)


def server_inputs(
    received: dict[str, Received],
    rows: dict[str, jax.Array],
    splits: dict[str, Split],
    samples: PyTree,
) -> tuple[dict[str, Received], Data | None]:
    """Returns one trial's part of the received uploads, and its `Context.data`."""
    taken = dict(received)
    for name, of_bucket in rows.items():
        taken[name] = pick(received[name], of_bucket)
    if not samples:
        return taken, None
    return taken, samples._replace(splits=samples.splits | splits)


def serve(
    server: Server, mesh: Mesh, state: SimulationState, delivery: Delivery
) -> tuple[PyTree, ServerResult]:
    """Serves a round of all trials, see `round.Round.serve`."""
    received, rows = delivery
    round, rows = collect(mesh, (np.int32(state.round), rows))
    of_trials = (state.servers, server.seeds, server.settings, rows, server.shown)
    return server.step(of_trials, (received, round, server.pretrained, server.samples))


def pick(received: Received, rows: jax.Array) -> Received:
    """Takes some rows; a negative one has not arrived."""
    taken = take(received, jnp.maximum(rows, 0))
    return taken._replace(arrived=taken.arrived & (rows >= 0))
