"""The server's part of a round: outliers are refused, the rest is served, and the state stays
finite."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from fedjax_ht.core.federation import Federation
from fedjax_ht.core.method import Method, Metrics, Received
from fedjax_ht.core.round import all_finite, select, server_step
from fedjax_ht.trust.outliers import outlier_scores, summaries, without_outliers


class ServerResult(NamedTuple):
    """What a server's round says, beside its state.

    Attributes:
      metrics: the method's.
      finite: bool, False where what the method made was not finite: the server stays as it was.
      far: float32 [num_clients], see `outliers.outlier_scores`.
      refused: bool [num_clients], see `outliers.without_outliers`.
    """

    metrics: Metrics
    finite: jax.Array
    far: jax.Array
    refused: jax.Array


def server_round(method: Method, federation: Federation, refuse_outliers: float = 0.0) -> Callable:
    """`server_step` with a state that stays finite: (...) -> (server, ServerResult). Outliers do
    not arrive, see `outliers.without_outliers`."""
    step = server_step(method, federation)

    def run(server, received: dict[str, Received], *others):
        summarised = summaries(received)
        accepted, refused = without_outliers(
            federation.num_clients, received, summarised, refuse_outliers
        )
        new, metrics = step(server, accepted, *others)
        finite = all_finite(new)
        far = outlier_scores(method, federation.num_clients, summarised)
        return select(finite, new, server), ServerResult(metrics, finite, far, refused)

    return run
