"""Memory that training a model needs, counted in the traced program; nothing is compiled."""

import dataclasses
from collections.abc import Iterable

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from fedjax_ht.core.bucket import (
    Bucket,
    counting_key,
    features,
    frozen_form,
    logits,
    model_form,
    put_frozen,
)
from fedjax_ht.core.inputs import abstract
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.trees import PyTree


def training_memory(bucket: Bucket, training: LocalTraining) -> int:
    """Counts the bytes of a bucket's model while it trains.

    They are its parameters, their gradients, the optimiser's state, batch statistics, frozen
    variables, and the activations of one step, which are what the backward pass of a batch keeps of
    the forward pass.

    It is of the model alone, whatever a method trains beside it. The data, the program and what an
    operation needs for itself are not in it, nor is what a compiler saves or wastes: beside what
    XLA asks for on a CPU for a step of SGD it is 0.8 to 1.2 times as much for CNN-1..5 (batches of
    10 and 64), 1.8 for ResNet-18 and 1.6 for MobileNetV2 (of 10).
    """
    model = model_form(bucket)
    optimizer = jax.eval_shape(training.optimizer.init, model["params"])
    gradients = model["params"]  # of the same shapes
    frozen = frozen_form(bucket)
    arrays = jax.tree.leaves((model["params"], gradients, optimizer, model["stats"], frozen))
    return _nbytes(arrays) + activations(bucket, model, training.batch_size)


def activations(bucket: Bucket, model: PyTree, batch_size: int) -> int:
    """Counts the bytes that the backward pass reads and the forward pass has made.

    Args:
      bucket: the architecture.
      model: shapes of its variables, {"params", "stats"}.
      batch_size: number of samples of a batch.
    """

    def backward(params, stats, frozen, x, mask):
        weighted = put_frozen(dataclasses.replace(bucket, shared=None), (frozen, None))

        def loss(params):
            key = counting_key(bucket)
            hidden = features(weighted, params, stats, x, mask, train=True, key=key)[0]
            return jnp.square(logits(bucket, params, hidden)).sum()

        return jax.vjp(loss, params)[1]

    batch = abstract(bucket.input_shape, batch_size), jax.ShapeDtypeStruct((batch_size,), bool)
    arguments = model["params"], model["stats"], frozen_form(bucket), *batch
    program = jax.make_jaxpr(backward)(*arguments).jaxpr
    # The residuals of the backward pass, each once, whatever number of operations reads it.
    residuals = {id(v): v.aval for v in program.outvars if not isinstance(v, Literal)}
    # Parameters and the batch are counted where they are kept.
    inputs = set(map(id, program.invars))
    return _nbytes(aval for name, aval in residuals.items() if name not in inputs)


def _nbytes(forms: Iterable) -> int:
    """Sums the bytes of arrays or their shapes."""
    return sum(form.size * form.dtype.itemsize for form in forms)
