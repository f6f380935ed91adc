"""Types of a method's functions: what each takes, by position, and what it returns.

`core.method` says what they are for and in which order they are called. States, messages and
downlinks are pytrees of the method's own: `PyTree` says that nothing else knows their form.
"""

from typing import Protocol

from jaxtyping import Bool, Float, Key

from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.context import Context, Metrics, Received
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.samples import Data
from fedjax_ht.core.trees import Array, PyTree


class InitServer(Protocol):
    """(federation, key) -> the server's first state."""

    def __call__(self, federation: Federation, key: Key[Array, ""], /) -> PyTree: ...


class InitClient(Protocol):
    """(bucket, ctx) -> a client's first state."""

    def __call__(self, bucket: Bucket, ctx: Context, /) -> PyTree: ...


class Broadcast(Protocol):
    """(federation, bucket, server, ctx) -> the downlink of one client."""

    def __call__(
        self, federation: Federation, bucket: Bucket, server: PyTree, ctx: Context, /
    ) -> PyTree: ...


class Receive(Protocol):
    """(bucket, client, downlink, data, ctx) -> the client's state before training."""

    def __call__(
        self, bucket: Bucket, client: PyTree, downlink: PyTree, data: Data, ctx: Context, /
    ) -> PyTree: ...


class ClientUpdate(Protocol):
    """(bucket, client, downlink, data, ctx) -> (the client's state, its uplink, metrics)."""

    def __call__(
        self, bucket: Bucket, client: PyTree, downlink: PyTree, data: Data, ctx: Context, /
    ) -> tuple[PyTree, PyTree, Metrics]: ...


class ServerUpdate(Protocol):
    """(federation, server, {bucket name: uplinks}, ctx) -> (the server's state, metrics)."""

    def __call__(
        self,
        federation: Federation,
        server: PyTree,
        received: dict[str, Received],
        ctx: Context,
        /,
    ) -> tuple[PyTree, Metrics]: ...


class Predict(Protocol):
    """(bucket, client, downlink, inputs, mask) -> {rule: scores [B, num_classes]}."""

    def __call__(
        self,
        bucket: Bucket,
        client: PyTree,
        downlink: PyTree,
        x: PyTree,
        mask: Bool[Array, " B"],
        /,
    ) -> dict[str, Float[Array, "B C"]]: ...


class Check(Protocol):
    """(federation) -> None, or a one-line ValueError."""

    def __call__(self, federation: Federation, /) -> None: ...
