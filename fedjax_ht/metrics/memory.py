"""Bytes that a client needs to train a model, counted in the traced program and not compiled."""

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from fedjax_ht.core.federation import Bucket, PyTree, features, init_variables, logits
from fedjax_ht.core.inputs import abstract
from fedjax_ht.core.local_training import LocalTraining


def training_memory(bucket: Bucket, training: LocalTraining) -> int:
    """Bytes of a bucket's model while it trains: parameters, their gradients, the optimiser's
    state, batch statistics, and the activations of one step, which are what the backward pass of a
    batch keeps of the forward pass.

    It is of the model alone, whatever a method trains beside it. The data, the program and what an
    operation needs for itself are not in it, nor is what a compiler saves or wastes: beside what
    XLA asks for on a CPU for a step of SGD it is 0.8 to 1.2 times as much for CNN-1..5 (batches of
    10 and 64), 1.8 for ResNet-18 and 1.6 for MobileNetV2 (of 10).
    """
    model = jax.eval_shape(lambda key: init_variables(bucket, key), jax.random.key(0))
    optimizer = jax.eval_shape(training.optimizer.init, model["params"])
    held = jax.tree.leaves((model["params"], model["params"], optimizer, model["stats"]))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in held) + activations(
        bucket, model, training.batch_size
    )


def activations(bucket: Bucket, model: PyTree, batch_size: int) -> int:
    """Bytes that the backward pass reads and the forward pass has made; `model` are the shapes of
    its variables."""

    def backward(params, stats, x, mask):
        def loss(params):
            return jnp.square(
                logits(bucket, params, features(bucket, params, stats, x, mask, train=True)[0])
            ).sum()

        return jax.vjp(loss, params)[1]

    batch = abstract(bucket.input_shape, batch_size), jax.ShapeDtypeStruct((batch_size,), bool)
    program = jax.make_jaxpr(backward)(model["params"], model["stats"], *batch).jaxpr
    made = {id(v): v.aval for v in program.outvars if not isinstance(v, Literal)}
    # parameters and the batch are counted where they are held
    given = set(map(id, program.invars))
    return sum(aval.size * aval.dtype.itemsize for name, aval in made.items() if name not in given)
