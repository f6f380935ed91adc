"""From the answers of a round's participants to the server's new state.

Uploads are moved to the server's device, those with false counts and outliers are rejected, and the
server's step uses the rest. Its state stays finite.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedjax_ht.core.aggregation import server_step
from fedjax_ht.core.compiling import compiled
from fedjax_ht.core.context import ClientInfo, Metrics, Received
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.mesh import collect, fetch_rows, in_one_memory
from fedjax_ht.core.method import Method
from fedjax_ht.core.prediction_counts import Scores
from fedjax_ht.core.round import Call, ClientResult, RunServer, call_directly
from fedjax_ht.core.trees import select, take
from fedjax_ht.core.wire import all_finite
from fedjax_ht.simulation.state import SimulationState
from fedjax_ht.trust.counts import without_miscounted
from fedjax_ht.trust.outliers import size_ratios, without_outliers


class Answers(NamedTuple):
    """Answers of a bucket's participants: [P], in the transport's order.

    Attributes:
      ids: int64 [m], the participants, ascending.
      padded_rows: int32 [..], their indices among the P, padded with PADDING to the same length in
        every round.
      in_order: True if the server gets the P rows unchanged.
      info: `ClientInfo` of the P participants.
      results: the results of the P participants; `deliver` removes the uplinks.
      scores: {"test": Scores}, of the trained models.
      score_rows: int [m], the participants' indices in `scores`.
      idle: float64 [2], see `roster.idle_lane_steps`.
      seconds: float64 [P], simulated seconds of a participant's round; None if nothing takes time.
      late: bool [P], uploads that missed the deadline; False if a participant sent nothing.
    """

    ids: np.ndarray
    padded_rows: np.ndarray
    in_order: bool
    info: ClientInfo
    results: ClientResult
    scores: dict[str, Scores]
    score_rows: np.ndarray
    idle: np.ndarray
    seconds: np.ndarray | None = None
    late: np.ndarray | None = None

    @property
    def rows(self) -> np.ndarray:
        """Rows of the participants among the P, int32 [m]."""
        return self.padded_rows[: len(self.ids)]


Delivery = tuple[dict[str, Received], dict[str, np.ndarray]]
"""Uplinks that the server gets, {bucket name: Received}, and which of their rows it reads.

The rows are {bucket name: int32 [m], by client id, negative for padding}. A bucket whose uplinks
are in order has no entry.
"""


def deliver(
    mesh: Mesh, state: SimulationState, answers: dict[str, Answers], picks: bool = True
) -> tuple[Delivery, dict[str, Answers], None]:
    """Brings the uplinks of a round's participants to the server's device.

    Args:
      mesh: the devices.
      state: the state before the round.
      answers: the answers of the round's participants.
      picks: True selects the participants' rows during the transfer, if all devices share one
        memory.

    Returns:
      The delivery, the answers without uplinks, and None, since no upload is late.
    """
    received, rows, without_uplinks = {}, {}, {}
    for name, part in answers.items():
        result = part.results
        uplinks = Received(result.uplink, part.info, result.arrived)
        if part.in_order:
            received[name] = collect(mesh, uplinks)
        elif picks and in_one_memory(mesh):
            received[name] = collect(mesh, fetch_rows(uplinks, part.padded_rows))
        else:
            received[name], rows[name] = collect(mesh, uplinks), part.padded_rows
        without_uplinks[name] = part._replace(results=result._replace(uplink=()))
    return (received, rows), without_uplinks, None


class ServerResult(NamedTuple):
    """The results of a server's round, besides its state.

    Attributes:
      metrics: metrics that the method's server computed.
      finite: bool, False if the method's new state was not finite, and the old one was kept.
      sizes: float32 [num_clients], sizes of the uploads, see `outliers.size_ratios`.
      refused: bool [num_clients], uploads rejected as outliers, see `outliers.without_outliers`.
      miscounted: bool [num_clients], uploads rejected for their counts, see
        `counts.without_miscounted`.
    """

    metrics: Metrics
    finite: jax.Array
    sizes: jax.Array
    refused: jax.Array
    miscounted: jax.Array


def server_round(
    method: Method,
    federation: Federation,
    refuse_outliers: float = 0.0,
    call: Call = call_directly,
) -> Callable:
    """Returns `server_step` with a state that stays finite: (...) -> (server, ServerResult).

    It rejects outliers, and uploads with counts that do not fit their clients' samples.

    Args:
      method: the method whose server takes the step.
      federation: the buckets.
      refuse_outliers: the bound of `outliers.without_outliers`.
      call: makes the call of the stage "server_update".
    """
    step, num_clients = server_step(method, federation), federation.num_clients

    def run(server, received: dict[str, Received], *inputs):
        counted, miscounted = without_miscounted(method, num_clients, received)
        sizes = size_ratios(num_clients, counted)
        accepted, refused = without_outliers(counted, sizes, refuse_outliers)
        new, metrics = call("server_update", step, server, accepted, *inputs)
        finite = all_finite(new)
        result = ServerResult(
            metrics=metrics, finite=finite, sizes=sizes, refused=refused, miscounted=miscounted
        )
        return select(finite, new, server), result

    return run


def run_server(method: Method, federation: Federation, refuse_outliers: float = 0.0) -> Callable:
    """Returns the server's step, compiled unless the method's server runs on the host.

    It is (RunServer, Delivery, round, Pretrained.variables, `Context.data`) -> (server state,
    ServerResult).
    """

    def run(server: RunServer, delivery: Delivery, round, pretrained, data):
        step = server_round(method.at(server.settings), federation, refuse_outliers)
        root = jax.random.key(server.seed)
        return step(server.state, picked(delivery), root, round, pretrained, data)

    return run if method.needs.pretrained.host else compiled(run)


def picked(delivery: Delivery) -> dict[str, Received]:
    """Returns the uploads of a delivery by client id; negative rows have not arrived."""
    received, rows = delivery
    uploads = dict(received)
    for name, of_bucket in rows.items():
        taken = take(received[name], jnp.maximum(of_bucket, 0))
        uploads[name] = taken._replace(arrived=taken.arrived & (of_bucket >= 0))
    return uploads
