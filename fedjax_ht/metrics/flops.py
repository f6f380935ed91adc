"""FLOPs of a client's round: two for every multiply-add of a matrix product or a convolution.

They are counted in the program of `receive` and `client_update`, traced once for each architecture.
How long local training is follows from the clients' numbers of samples, see `program_flops`.

Not counted: elementwise work (activations, normalisation, pooling, the optimiser's update, and
depthwise convolutions, which are sums of shifted products in `ops.patches`), sorting,
factorisations, evaluation, and what the server does. XLA's count of a training step, which has all
of that, is 2 to 5 % above this one for CNN-1..5, perceptrons and ResNets, 21 % for MobileNetV2. A
masked partial batch counts as the whole one that it is (what a prototype method collects in batches
by the device's taste, `batches.forward_batch`); lanes that wait for others count nothing.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from fedjax_ht.core.bucket import Bucket, features, init_variables, logits, traceable
from fedjax_ht.core.context import ClientInfo, Context
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.inputs import abstract, on_device
from fedjax_ht.core.method import Method
from fedjax_ht.core.samples import PUBLIC, Data
from fedjax_ht.core.states import any_state
from fedjax_ht.metrics.program_flops import program_flops


def bucket_flops(method: Method, federation: Federation, bucket: Bucket, data: Data) -> np.ndarray:
    """Counts FLOPs of `receive` and `client_update` of each of a bucket's clients.

    Args:
      method, federation, bucket: the parts that the program binds.
      data: the bucket's data, with splits stacked over its n clients.

    Returns:
      float64 [n], of a round in which the client takes part.
    """
    return work_flops(bucket_work(method, federation, bucket, data_form(data)), data)


def work_flops(work: ClosedJaxpr, data: Data) -> np.ndarray:
    """Counts FLOPs of `bucket_work` for the bucket's n clients, float64 [n]."""
    counts = {name: np.asarray(split.count) for name, split in data.splits.items()}
    if PUBLIC in counts:  # one for all clients
        counts[PUBLIC] = np.full_like(counts["train"], counts[PUBLIC])
    # Zeros give [n] where FLOPs are the same for all clients.
    return np.zeros(len(counts["train"])) + program_flops(work, jax.tree.leaves(counts))


def data_form(data: Data) -> Data:
    """Returns the form of one client's view of stacked data: shapes and dtypes."""

    def client_form(x):
        return on_device(x.shape[1:], x.dtype)

    def whole_form(x):
        return on_device(x.shape, x.dtype)

    splits = {}
    for name, split in data.splits.items():
        splits[name] = jax.tree.map(whole_form if name == PUBLIC else client_form, split)
    return jax.tree.map(whole_form, data._replace(splits={}))._replace(splits=splits)


def bucket_work(method: Method, federation: Federation, bucket: Bucket, data: Data) -> ClosedJaxpr:
    """Traces `receive` and `client_update` of a bucket's clients; `data` is a `data_form`.

    Returns:
      The program, whose first arguments are the client's numbers of samples, by the names of its
      splits.
    """
    key, number = jax.eval_shape(lambda: jax.random.key(0)), jax.ShapeDtypeStruct((), jnp.int32)

    def context(key, number, num_samples) -> Context:
        info = ClientInfo(number, num_samples, number)
        return Context(key=key, round=number, info=info, shared_key=key)

    def sent(server_key, key, number):
        server = method.init_server(federation, server_key)
        return method.broadcast(federation, bucket, server, context(key, number, number))

    def work(counts, client, downlink, data, key, number):
        splits = {name: split._replace(count=counts[name]) for name, split in data.splits.items()}
        data = data._replace(splits=splits)
        ctx = context(key, number, counts["train"])
        model = traceable(bucket)
        client = method.receive(model, client, downlink, data, ctx)
        return method.client_update(model, client, downlink, data, ctx)

    downlink = jax.eval_shape(sent, key, key, number)
    client = jax.eval_shape(lambda key: any_state(method, bucket, key, federation), key)
    counts = {name: split.count for name, split in data.splits.items()}
    # The counts come first, since `program_flops` knows a program's first arguments.
    return jax.make_jaxpr(work)(counts, client, downlink, data, key, number)


def sample_flops(bucket: Bucket) -> float:
    """Counts FLOPs of an architecture's forward pass on one sample.

    They compare the cost of architectures' training steps.
    """

    def forward(params, stats, x, mask):
        representations = features(traceable(bucket), params, stats, x, mask, train=False)[0]
        return logits(bucket, params, representations)

    model = jax.eval_shape(functools.partial(init_variables, bucket), jax.random.key(0))
    x, mask = abstract(bucket.input_shape, 1), jax.ShapeDtypeStruct((1,), bool)
    return program_flops(jax.make_jaxpr(forward)(model["params"], model["stats"], x, mask))
