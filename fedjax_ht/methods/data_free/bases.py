"""Bases of distilling methods, and the teachers made from their clients' models.

A base is a method whose server averages whole models, slices, or nothing:

"none":   data-free; every client trains a model of its own and uploads it, and nothing is sent
          to it; the server's model is trained by distillation alone
another:  its round; then the uploaded models teach the averaged one, from which the next round
          starts

The uploaded models form one teacher, weighted class by class:

    tau_{i,y} = c_i^y / sum_j c_j^y
    p(y)      = sum_j c_j^y / sum_{j,y'} c_j^{y'}
    u         = sum_i tau_{i,y} f_i(s)

c_i^y counts client i's labels y (DFRD's dynamic weighting and label sampling), s is an image made
for label y, u the ensemble's logits. A class that no client has is never drawn, and all teachers
have equal weights for it. Teachers normalise by batch statistics, as in the clients' training
("static" batch norm).
"""

import functools
import operator
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.check.docstrings import documented_by
from fedjax_ht.check.names import meant
from fedjax_ht.check.options import options_of
from fedjax_ht.core.aggregation import gather_received
from fedjax_ht.core.bucket import frozen_collection, init_variables
from fedjax_ht.core.context import Received
from fedjax_ht.core.executor import each
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.core.statistics import norm_moments
from fedjax_ht.core.trees import PyTree
from fedjax_ht.methods.data_free.options import FORMS
from fedjax_ht.methods.fedavg import fedavg
from fedjax_ht.methods.feddropout import feddropout
from fedjax_ht.methods.fedrolex import fedrolex
from fedjax_ht.methods.heterofl import heterofl
from fedjax_ht.methods.local import local
from fedjax_ht.methods.shared.averaging import Weighting, keep_present
from fedjax_ht.methods.shared.partial_training import partial_training, uploaded_params
from fedjax_ht.methods.shared.slicing import widest_first
from fedjax_ht.methods.shared.supervised import train_model
from fedjax_ht.methods.shared.variants import Variant


class Base(NamedTuple):
    """A base.

    Attributes:
      method: the method; its server state is the global model's parameters {"base", "head"}.
      uploaded: (uplinks with a leading axis) -> the uploaded models' parameters with that axis.
    """

    method: Method
    uploaded: Callable[[PyTree], PyTree]


def alone(training: LocalTraining) -> Method:
    """Makes the base "none": clients train alone and upload their models; no server update.

    Args:
      training: the recipe of local training.
    """

    def client_update(bucket, client, downlink, data, ctx):
        client, result = train_model(training, bucket, client, data, ctx)
        return client, client["params"], {"loss": result.loss}

    def init_server(federation, key):
        return init_variables(federation.global_model, key)["params"]

    base = local(training)
    wire = base.wire._replace(positions="own")
    return base._replace(
        name="none", init_server=init_server, client_update=client_update, wire=wire
    )


def _whole_uplink(uplink: PyTree) -> PyTree:
    return uplink


# Teachers need whole heads; the mean still uses only the rows that label_split selects.
BASES: dict[str, tuple[Callable[..., Method], Callable[[PyTree], PyTree]]] = {
    "none": (alone, _whole_uplink),
    "fedavg": (fedavg, operator.attrgetter("params")),
    "heterofl": (functools.partial(heterofl, whole_head=True), uploaded_params),
    "feddropout": (functools.partial(feddropout, whole_head=True), uploaded_params),
    "fedrolex": (functools.partial(fedrolex, whole_head=True), uploaded_params),
}
"""Name -> (factory, `Base.uploaded`)."""


@documented_by(partial_training)
def make_base(
    base: str | Base,
    training: LocalTraining,
    variant: Variant = "paper",
    *,
    weighting: Weighting | None = None,
    masked_loss: bool | None = None,
    label_split: bool | None = None,
    per_layer: bool | None = None,
) -> Base:
    """Makes a base.

    Args:
      base: the base: "none" for data-free, another key of `BASES`, or a `Base`.
      training: the recipe of local training.
      variant: the paper's form of the method or the released code's, which sets options that are
        None.
      weighting: weights of the base's mean over clients; None takes the variant's.
      masked_loss, label_split, per_layer: options of the base; None takes the base's.

    Raises:
      ValueError: there is no such base, or it has no such option. One line.
    """
    options = {
        "weighting": weighting,
        "masked_loss": masked_loss,
        "label_split": label_split,
        "per_layer": per_layer,
    }
    given = {name: value for name, value in options.items() if value is not None}
    if not isinstance(base, str):
        if given:
            raise ValueError(f"{', '.join(given)}: set this in the base object")
        return base
    if base not in BASES:
        raise ValueError(
            f"base is {base!r}" + meant(base, BASES, f"it must be one of {', '.join(BASES)}")
        )
    factory, uploaded = BASES[base]
    known = options_of(factory)
    for name in given:
        if name not in known:
            raise ValueError(f"{name} is not an option of base {base!r}; remove it")
    if "weighting" in known and FORMS[variant]["weighting"] is not None:
        given.setdefault("weighting", FORMS[variant]["weighting"])
    return Base(factory(training, **given), uploaded)


class Server(NamedTuple):
    """The server's state.

    Attributes:
      model: the global model's parameters, distilled.
      averaged: the parameters that clients start from; () if these are `model`.
      generator: {"params", "batch_stats"}; () without.
      average: the generator's moving average; () without.
      has_taught: bool, False before the first round with uploads.
    """

    model: PyTree
    averaged: PyTree
    generator: PyTree
    average: PyTree
    has_taught: jax.Array


class Teachers(NamedTuple):
    """The uploaded models of N clients, by bucket in the order of `slicing.widest_first`.

    Models that did not arrive have weight 0 and parameters of zeros.

    Attributes:
      params: bucket name -> {"base", "head"} with a leading axis [P].
      moments: bucket name -> the moments of `norm_moments` with a leading axis [P]; {} without.
      weights: float32 [N, C], tau; every column sums to 1.
      label_shares: float32 [C], p(y).
      present: bool [N], the models that arrived.
    """

    params: dict[str, PyTree]
    moments: dict[str, PyTree]
    weights: jax.Array
    label_shares: jax.Array
    present: jax.Array


class Opinions(NamedTuple):
    """The teachers' outputs for a batch.

    Attributes:
      logits: float [N, B, C], each teacher's.
      weights: float [N, B], tau at each sample's label.
      moments: bucket name -> as `norm_moments`, with a leading axis [P]; {} without.
    """

    logits: jax.Array
    weights: jax.Array
    moments: dict[str, PyTree]

    @property
    def ensemble(self) -> jax.Array:
        """The ensemble's logits u, float [B, C]."""
        return jnp.einsum("nb,nbc->bc", self.weights, self.logits)


def label_weights(counts: jax.Array, present: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Computes tau and p(y) from label counts.

    Args:
      counts: label counts c_i^y, [N, C]; those of absent clients are never read.
      present: bool [N], True for the teachers that arrived.

    Returns:
      tau float32 [N, C] and p(y) float32 [C].
    """
    counts = jnp.where(present[:, None], counts, 0).astype(jnp.float32)
    of_class = counts.sum(0)
    alike = present / jnp.maximum(present.sum(), 1)
    weights = jnp.where(of_class > 0, counts / jnp.maximum(of_class, 1), alike[:, None])
    return weights, of_class / jnp.maximum(of_class.sum(), 1)


def sent_model(server: Server) -> PyTree:
    """Returns the parameters that clients start from, and that the base's mean replaces."""
    return server.averaged or server.model


def gather_teachers(
    federation: Federation, received: dict[str, Received], uploaded: Callable[[PyTree], PyTree]
) -> Teachers:
    """Gathers the models that arrived from clients with samples.

    Args:
      federation: the clients' federation.
      received: the uplinks by bucket, `method.Uplink`.
      uploaded: the base's function of that name, see `Base.uploaded`.

    Returns:
      The teachers, sorted by client id within a bucket.
    """
    params, moments, counts, present = {}, {}, [], []
    for bucket in widest_first(federation):
        uplink, info, arrived = gather_received({bucket.name: received[bucket.name]})
        counted = arrived & (info.num_samples > 0)
        params[bucket.name] = keep_present(uploaded(uplink.model), counted)
        moments[bucket.name] = keep_present(uplink.moments, counted)
        if uplink.label_counts:
            counts.append(uplink.label_counts.value)
        else:
            counts.append(jnp.ones((len(counted), federation.num_classes)))
        present.append(counted)
    present = jnp.concatenate(present)
    weights, label_shares = label_weights(jnp.concatenate(counts), present)
    return Teachers(
        params=params, moments=moments, weights=weights, label_shares=label_shares, present=present
    )


def ask(
    federation: Federation,
    teachers: Teachers,
    x: jax.Array,
    *,
    labels: jax.Array,
    with_moments: bool = False,
    low_memory: bool = False,
) -> Opinions:
    """Runs every teacher on one batch; sequentially on CPU, elsewhere a bucket's in parallel.

    Args:
      federation: the clients' federation.
      teachers: the teachers' models.
      x: float [B, H, W, channels], normalised images.
      labels: int [B], the classes that the images were made for.
      with_moments: True also returns the moments of norms' inputs.
      low_memory: True runs teachers sequentially on any device, and again for gradients, so that
        memory holds no more than one teacher's activations.
    """
    everyone = jnp.ones(len(x), bool)
    logits, moments = [], {}
    for bucket in widest_first(federation):

        def run(params, bucket=bucket):
            rows, inputs = norm_moments(bucket, params, x, everyone)
            variables = {"params": params} | frozen_collection(bucket)
            outputs = bucket.module.apply(variables, rows, method="classify")
            return outputs, inputs if with_moments else {}

        if low_memory:  # recompute activations for the gradient instead of storing them
            run = jax.checkpoint(run)
        outputs, moments[bucket.name] = each(run, teachers.params[bucket.name], apart=low_memory)
        logits.append(outputs)
    return Opinions(jnp.concatenate(logits), teachers.weights[:, labels], moments)
