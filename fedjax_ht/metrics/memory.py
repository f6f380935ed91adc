"""Memory for training a model, counted in the traced program; nothing is compiled."""

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
    """Counts the bytes of a bucket's model during training.

    They comprise its parameters, their gradients, the optimiser's state, batch statistics, frozen
    variables, and the activations of one step, i.e. what the forward pass of a batch keeps for the
    backward pass.

    The count covers the model only, not other models that a method trains. It excludes the data,
    the program and temporary buffers, and ignores savings and waste by the compiler. For a step of
    SGD on a CPU, its ratio to XLA's memory is 0.8 to 1.2 for CNN-1..5 (batches of 10 and 64), 1.8
    for ResNet-18 and 1.6 for MobileNetV2 (batches of 10).
    """
    model = model_form(bucket)
    optimizer = jax.eval_shape(training.optimizer.init, model["params"])
    gradients = model["params"]  # the same shapes
    frozen = frozen_form(bucket)
    arrays = jax.tree.leaves((model["params"], gradients, optimizer, model["stats"], frozen))
    return _nbytes(arrays) + activations(bucket, model, training.batch_size)


def activations(bucket: Bucket, model: PyTree, batch_size: int) -> int:
    """Counts the bytes of the forward pass's results that the backward pass reads.

    Args:
      bucket: the architecture.
      model: shapes of its variables, {"params", "stats"}.
      batch_size: number of samples per batch.
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
    # The residuals of the backward pass, each counted once, however many operations read it.
    residuals = {id(v): v.aval for v in program.outvars if not isinstance(v, Literal)}
    # Parameters are counted elsewhere, and the batch is data.
    inputs = set(map(id, program.invars))
    return _nbytes(aval for name, aval in residuals.items() if name not in inputs)


def _nbytes(forms: Iterable) -> int:
    """Returns the total bytes of arrays or their forms."""
    return sum(form.size * form.dtype.itemsize for form in forms)
