"""Places of arrays before a run: samples, pretrained variables and frozen weights."""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from fedjax_ht.core.bucket import frozen_of
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.mesh import collect, server_copy, share
from fedjax_ht.core.method import Method
from fedjax_ht.core.samples import Data, Split
from fedjax_ht.core.trees import PyTree
from fedjax_ht.data.client_data import FederationData


def frozen_weights(federation: Federation) -> PyTree:
    """Returns bucket name -> `bucket.frozen_of` it; () where no model has frozen weights."""
    if not any(bucket.freezes for bucket in federation.buckets):
        return ()
    return {bucket.name: frozen_of(bucket) for bucket in federation.buckets}


def shown_to_server(
    method: Method, on_server: Data, samples: Data, pooled: dict[str, Split]
) -> Data | None:
    """Returns the samples that a server reads: the public set, and those of all clients where the
    method `sees_data`; None without any.

    Args:
      method: the method.
      on_server: the data without splits, on the server's device.
      samples: the data with the public set as a split, if there is one, on all devices.
      pooled: all clients' samples as one split.
    """
    if not (method.sees_data or samples.splits):
        return None
    splits = server_copy(samples.splits)
    if method.sees_data:
        splits = splits | {"train": pooled["train"]}
    return on_server._replace(splits=splits)


class Placed(NamedTuple):
    """Arrays that runs of the same data share.

    Attributes:
      host: the samples without splits, the `frozen_weights` and `Pretrained.variables`, as they
        were given.
      mesh: the devices.
      samples: the samples on all devices.
      frozen: the frozen weights on all devices.
      on_server: the samples on the server's device.
      pretrained: the variables on the server's device.
    """

    host: tuple[Data, PyTree, PyTree]
    mesh: Mesh
    samples: Data
    frozen: PyTree
    on_server: Data
    pretrained: PyTree


def place(
    mesh: Mesh, method: Method, federation: Federation, data: FederationData, beside: Placed | None
) -> Placed:
    """Places samples, frozen weights and pretrained variables; arrays that lie on the devices for
    another run, `beside`, are not placed again."""
    of_any = next(iter(data.buckets.values()))  # all have the same inputs and labels
    host = of_any._replace(splits={}), frozen_weights(federation), method.pretrained.variables
    known = {}
    if beside is not None and beside.mesh == mesh:
        on_devices = beside.samples, beside.frozen, beside.pretrained
        known = dict(zip(map(id, jax.tree.leaves(beside.host)), jax.tree.leaves(on_devices)))

    def once(put: Callable, tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: known[id(x)] if id(x) in known else put(mesh, x), tree)

    samples, frozen, pretrained = once(share, host[0]), once(share, host[1]), once(collect, host[2])
    on_server = server_copy(samples)
    if beside is not None and jax.tree.leaves(samples)[0] is jax.tree.leaves(beside.samples)[0]:
        on_server = beside.on_server._replace(preprocess=on_server.preprocess)
    return Placed(host, mesh, samples, frozen=frozen, on_server=on_server, pretrained=pretrained)
