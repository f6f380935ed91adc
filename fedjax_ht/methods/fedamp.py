"""FedAMP (Huang et al., AAAI 2021): clients are pulled to means of models like their own.

    client:  from its w_i, local epochs on CE + lam / (2 alpha) |w_i - u_i|^2; uploads w_i
    server:  keeps the newest w_i of every client; u_i = sum_j xi_ij w_j within one architecture,
             xi_ij = alpha exp(-|w_i - w_j|^2 / sigma) / sigma, xi_ii = 1 - the sum of the others
    predict: w_i
    up:      W: all parameters
    down:    W: u_i, all parameters
    fits:    one architecture or a few, tens of clients of which some are alike; the server keeps a
             model for each
    paper:   https://arxiv.org/abs/2007.03797

Settled here:
* All clients begin as one model, so that the first u_i is it. Clients that were never reached take
  their first u_i.
* alpha is the same in all rounds. alpha (n - 1) must not exceed sigma, n clients having one
  architecture: w_i would get a negative share of itself.
* Distances grow with the number of parameters, and so must sigma.
* The authors have no public code. PFLlib's pull has no gradient, so that its clients train alone.
  HeurFedAMP, which compares models by cosines, is not here.
* Batch statistics stay with each client, as in `fedavg`.
"""

import functools
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.check.options import NonNegative, Positive, SearchRange, checked, traced
from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, Needs
from fedjax_ht.core.reductions import weighted_sum
from fedjax_ht.core.trees import HostNumber, PyTree
from fedjax_ht.methods.shared.architectures import (
    groups_of,
    init_parts,
    joined,
    part_for,
    require_no_new_clients,
    sizes_of,
)
from fedjax_ht.methods.shared.averaging import client_weights
from fedjax_ht.methods.shared.corrections import pull, train_corrected
from fedjax_ht.methods.shared.personal import begin_as_received
from fedjax_ht.methods.shared.supervised import train_model


def rows_of(federation: Federation, group: list[Bucket], ids: HostNumber) -> jax.Array:
    """Returns the rows of clients within their group, whose rows are sorted by id."""
    members = np.sort(np.concatenate([federation.members(bucket) for bucket in group]))
    return jnp.searchsorted(members, ids)


def attentive_mean(models: PyTree, row: jax.Array, alpha: float, *, sigma: float) -> PyTree:
    """Computes a client's u.

    Args:
      models: all clients' parameters, stacked [n, ...].
      row: the client's row among them.
      alpha, sigma: options of `fedamp`.
    """

    def squares(stacked):
        return jnp.sum(jnp.square(stacked - stacked[row]).reshape(len(stacked), -1), 1)

    distances = sum(jax.tree.leaves(jax.tree.map(squares, models)))
    shares = (alpha / sigma * jnp.exp(-distances / sigma)).at[row].set(0)
    return weighted_sum(models, shares.at[row].set(1 - shares.sum()))


def put(rows: jax.Array, heard: jax.Array, old: jax.Array, uploaded: jax.Array) -> jax.Array:
    """Replaces the rows of the clients that were heard with their uploads."""
    # Other rows go to an index past the end, and are dropped.
    return old.at[jnp.where(heard, rows, len(old))].set(uploaded, mode="drop")


@checked
def fedamp(
    training: LocalTraining,
    *,
    lam: Annotated[NonNegative, SearchRange(0.01, 10.0)] = 1.0,
    alpha: Positive = 1.0,
    sigma: Annotated[Positive, SearchRange(100.0, 10000.0)] = 100.0,
) -> Method:
    """Makes FedAMP, described in the module's docstring.

    Args:
      training: local training.
      lam: strength of the pull, which is lam / alpha.
      alpha: step of the server towards similar models.
      sigma: squared distance at which a model's share is 1 / e of an equal model's.
    """

    def check(federation):
        require_no_new_clients("fedamp", federation)
        largest = max(sizes_of(federation))
        if not traced(alpha) and not traced(sigma) and alpha * (largest - 1) > sigma:
            raise ValueError(
                f"alpha {alpha:g} and sigma {sigma:g} give {largest} clients of one architecture "
                "negative shares of themselves; sigma must be at least alpha times "
                f"{largest - 1}"
            )

    def init_server(federation, key):
        models = zip(init_parts(federation, key), sizes_of(federation))
        return [jax.tree.map(lambda x, n=n: jnp.repeat(x[None], n, 0), w) for w, n in models]

    def broadcast(federation, bucket, server, ctx):
        (group,) = (group for group in groups_of(federation) if bucket in group)
        row = rows_of(federation, group, ctx.info.id)
        return attentive_mean(part_for(federation, bucket, server), row, alpha, sigma=sigma)

    def client_update(bucket, client, downlink, data, ctx):
        pulled = train_corrected(training, pull(lam / alpha, downlink))
        client, result = train_model(pulled, bucket, client, data, ctx)
        return client, client["params"], {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        new, groups = [], groups_of(federation)
        for models, group, uploads in zip(server, groups, joined(federation, received)):
            rows = rows_of(federation, group, uploads.info.id)
            heard = client_weights(uploads) > 0
            new.append(jax.tree.map(functools.partial(put, rows, heard), models, uploads.uplink))
        return new, {}

    return Method(
        name="fedamp",
        training=training,
        needs=Needs(classes=False),
        check=check,
        init_server=init_server,
        broadcast=broadcast,
        receive=begin_as_received,
        client_update=client_update,
        server_update=server_update,
    )
