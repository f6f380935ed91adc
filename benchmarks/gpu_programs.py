"""Makes the functions that `benchmarks.gpu_aot` compiles: a round's training or scoring."""

import contextlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from fedjax_ht.core import wire
from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.context import ClientInfo
from fedjax_ht.core.evaluation import EvaluationRequest, bucket_evaluation, client_evaluation
from fedjax_ht.core.executor import Schedule
from fedjax_ht.core.federation import Federation, make_federation, make_sliced_federation
from fedjax_ht.core.forms import keeps_state
from fedjax_ht.core.inputs import Pixels
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.core.round import Channel, Participant, RunServer, bucket_round
from fedjax_ht.core.samples import Data, Split
from fedjax_ht.core.states import any_state
from fedjax_ht.core.trees import PyTree
from fedjax_ht.methods import METHODS
from fedjax_ht.models import SLICED, model_group, sliced_network

SHAPE, CLASSES, BATCH, IMAGES, SCORED = (32, 32, 3), 10, 10, 50_000, 64
SMALL = ("cnn4", "conv4")  # methods run on the first of them that they fit


def arguments(method: Method, bucket: Bucket, lanes: int, keeps: bool):
    """Returns the shapes of a bucket's (states, schedule, data), of two chunks of clients.

    Of clients that keep nothing the states are ().
    """
    shape, clients = jax.ShapeDtypeStruct, 2 * lanes
    key = jax.eval_shape(lambda: jax.random.key(0))
    state = jax.eval_shape(lambda k: any_state(method, bucket, k), key) if keeps else ()
    states = jax.tree.map(lambda x: shape((clients, *x.shape), x.dtype), state)
    ids, flags = shape((clients,), jnp.int32), shape((clients,), bool)
    schedule = Schedule(
        slots=shape((2, lanes), jnp.int32),
        arguments=Participant(ids, ClientInfo(ids, ids, ids), flags, flags),
        count=shape((1,), jnp.int32),
    )
    split = Split(shape((clients, 2000), jnp.int32), ids)
    splits = {"train": split, "test": split}
    channels = shape((SHAPE[-1],), jnp.float32)
    data = Data(
        shape((IMAGES, *SHAPE), jnp.uint8),
        shape((IMAGES,), jnp.int32),
        Pixels(channels, channels),
        splits,
    )
    return states, schedule, data


def federation_of(group: str, lanes: int) -> Federation:
    """Makes a federation with two chunks of clients for each architecture."""
    if group in SLICED:
        return make_sliced_federation(
            sliced_network(group, CLASSES, SHAPE), (1.0, 0.5) * 2 * lanes, SHAPE, CLASSES
        )
    modules = model_group(group, CLASSES, SHAPE)
    return make_federation(modules, SHAPE, CLASSES, num_clients=2 * lanes * len(modules))


def method_of(name: str) -> Method:
    return METHODS[name](LocalTraining(optax.sgd(0.01), batch_size=BATCH))


def small_group(name: str) -> str:
    """Returns the first of `SMALL` that a method runs on."""
    for group in SMALL:
        with contextlib.suppress(ValueError):
            method_of(name).check(federation_of(group, 1))
            return group
    raise ValueError(f"method {name!r} runs on none of {', '.join(SMALL)}")


def program(
    method: Method, federation: Federation, lanes: int, what: str
) -> tuple[dict[str, Callable], tuple[PyTree, ...]]:
    """Makes the buckets' functions of the "training" or "scoring" of a round.

    As `simulation.engine.make_engine` does.

    Returns:
      bucket name -> function of (states, schedule, servers, data, when), and the shapes of these
      five, the first two and the data by bucket.
    """
    channel = Channel(wire.chain(()), wire.chain(()))
    runs, each = {}, {}
    for bucket in federation.buckets:
        bound = method, federation, bucket, channel
        keeps = keeps_state(*bound)
        # Clients that keep nothing are scored in the program that trains them.
        train = bucket_round(*bound, None if keeps else client_evaluation(*bound, SCORED))
        runs[bucket.name] = (
            train if what == "training" else bucket_evaluation(*bound, SCORED, keeps)
        )
        each[bucket.name] = arguments(method, bucket, lanes, keeps)
    states, schedules, data = ({name: x[i] for name, x in each.items()} for i in range(3))
    key = jax.eval_shape(lambda: jax.random.key(0))
    server = jax.eval_shape(lambda k: method.init_server(federation, k), key)
    server = RunServer(server, jax.ShapeDtypeStruct((), jnp.uint32))
    round, flag = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((), bool)
    return runs, (
        states,
        schedules,
        server,
        data,
        (round, EvaluationRequest(flag, {"test": flag})),
    )
