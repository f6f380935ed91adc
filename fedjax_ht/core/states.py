"""The states that clients start from."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Key

from fedjax_ht.core.bucket import Bucket, put_weights
from fedjax_ht.core.compiling import compiler_options, platform_of
from fedjax_ht.core.context import Context
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.keys import Purpose, client_key
from fedjax_ht.core.mesh import REPLICATED, SHARDED
from fedjax_ht.core.method import Method
from fedjax_ht.core.trees import Array, PyTree


def any_state(
    method: Method, bucket: Bucket, key: Key[Array, ""], federation: Federation | None = None
) -> PyTree:
    """Returns a newcomer's state in its first round: by its form, or where a downlink overwrites
    it, any client's. Without the federation a client has no memory of messages."""
    return method.init_client(bucket, Context(key, jnp.int32(0), None, federation=federation))


def first_states(method: Method, federation: Federation, bucket: Bucket, mesh: Mesh) -> Callable:
    """Returns the compiled function that makes clients' first states: (client ids int32 [P],
    sharded, root seed uint32 scalar, settings, `weights_of` the bucket, on all devices) -> states
    [P], sharded."""

    def local(client_ids, seed, settings, weights):
        weighted = put_weights(bucket, weights)

        def first_state(client_id):
            key = client_key(jax.random.key(seed), Purpose.INIT_CLIENT, 0, client_id)
            ctx = Context(key, jnp.int32(0), None, federation=federation)
            return method.at(settings).init_client(weighted, ctx)

        return lax.map(first_state, client_ids)

    run = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(SHARDED, REPLICATED, REPLICATED, REPLICATED),
        out_specs=SHARDED,
        check_vma=False,
    )
    return jax.jit(run, compiler_options=compiler_options(platform_of(mesh)))
