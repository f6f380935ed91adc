"""DENSE (Zhang et al., NeurIPS 2022): a generator against teachers and student, distillation.

    client:  trains and uploads as the base says, see `data_free.bases`
    server:  averages as the base says; then, with u = mean_i f_i(s) and y uniform,
             G:  CE(u, y) + b_adv L_adv + b_bn L_bn, where
                 L_adv = -mean_b eps_b KL(u || f), eps = 1 where u and f predict different
                         classes, else 0
                 L_bn  = mean over clients and layers of |mean - mean_i| + |var - var_i| of the
                         batch norms' inputs
             f:  KL(u || f) at temperature T
    predict: the client's model; the server's in a column of its own
    up:      W_R: the client's model, all of it
    down:    0, on a base W_R: nothing, or what the base sends
    paper:   https://arxiv.org/abs/2112.12371

Settled here, after DFRD, which runs DENSE in every round, with DFRD's generator and loop:
* variant="released" is the code of DFRD's comparison: temperature 10, and L_adv = -KL(f || u)
  through the teachers alone, over samples of which just one of u and f is right (see
  `data_free.options`). variant="paper" is how DFRD's text describes DENSE, which is DENSE's own
  L_adv: adversarial="own" is that in either form. Its one-shot round, its pool of images and its
  generator are not here.
* KL at temperature T are not scaled by T^2, as in DFRD's code; temperature_squared=True scales
  them, as DENSE's own code does.
* b_bn is 0, as in the code behind DFRD's comparison. Norms keep no running statistics there. With
  b_bn above 0, clients upload mean_i and var_i of their trained model on up to 256 of their
  samples, before the scaler. The released code takes averages over local steps after the scaler,
  and the server compares them with values before it.
* The generator is not conditional (merge="none"), like DENSE's own. Of the two released configs of
  DFRD's comparison, one has the same; the other has "mul", DFRD's embedding of the label. Labels
  are drawn anew in every step. Without them, CE(u, y) therefore only asks for images that the
  ensemble is unsure of. A comparison should pass the label, merge="mul", as the configs of DFRD's
  setting do, and state which one it used. DENSE's own code trains noise together with a fixed
  label.
"""

import functools
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_ht.check.docstrings import documented_by
from fedjax_ht.check.options import NonNegative, checked
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.losses import distillation
from fedjax_ht.losses.classification import cross_entropy, masked_mean
from fedjax_ht.methods.data_free.bases import Base, make_base
from fedjax_ht.methods.data_free.distil import (
    Objective,
    Synthetic,
    adversarial_loss,
    student_loss,
)
from fedjax_ht.methods.data_free.method import distilling
from fedjax_ht.methods.data_free.options import Counts, Distillation, Merge, Settled
from fedjax_ht.methods.shared.variants import Variant

Adversarial = Literal["dfrd", "own"]


def batch_norm_loss(batch: Synthetic) -> jax.Array:
    """Computes L_bn over the clients present."""
    seen, target = batch.opinions.moments, batch.teachers.moments
    distances = []
    for bucket in seen:
        by_layer = jax.tree.leaves(
            jax.tree.map(distillation.moment_distance, seen[bucket], target[bucket])
        )
        distances.append(jnp.stack(by_layer).mean(0))  # [P], the bucket's clients
    return masked_mean(jnp.concatenate(distances), batch.teachers.present)


def losses(
    recipe: Distillation,
    *,
    b_adv: NonNegative = 1.0,
    b_bn: NonNegative = 0.0,
    adversarial: Adversarial = "dfrd",
    selection: Settled[distillation.Selection] = None,
    normaliser: Settled[distillation.Normaliser] = None,
) -> Objective:
    """Makes DENSE's losses.

    Args:
      recipe: options of the server's training; counts="none" is the plain mean and uniform labels,
        other counts weigh as DFRD does.
      b_adv, b_bn: weights of the generator's terms L_adv and L_bn.
      adversarial: L_adv of DFRD's code ("dfrd") or of DENSE's ("own"), which has no temperature,
        order, student's path, selection and normaliser.
      selection: samples of L_adv, see `losses.distillation.Selection`.
      normaliser: divisor of L_adv, see `losses.distillation.Normaliser`.
    """
    chosen = {"selection": selection, "normaliser": normaliser}

    def generator_loss(batch: Synthetic) -> jax.Array:
        u, mask = batch.opinions.ensemble, batch.everyone
        if adversarial == "own":
            apart = distillation.disagreement(u, batch.student, mask)
        else:
            apart = recipe.kl_scale * adversarial_loss(u, batch, recipe, **chosen)
        value = cross_entropy(u, batch.labels, mask) + b_adv * apart
        if b_bn:  # without it the clients upload no moments to compare with
            value = value + b_bn * batch_norm_loss(batch)
        return value

    student = functools.partial(student_loss, recipe=recipe)
    return Objective(generator_loss, student, with_moments=b_bn > 0)


@checked
@documented_by(losses, Distillation, make_base)
def dense(
    training: LocalTraining,
    base: str | Base = "none",
    variant: Variant = "paper",
    *,
    merge: Merge = "none",
    counts: Settled[Counts] = "none",
    distil_order: Settled[distillation.KLOrder] = "teacher_student",
    **options,
) -> Method:
    """Makes DENSE, described in the module's docstring.

    Args:
      training: local training.
      **options: options of `losses`, of `Distillation` and, with a base, of `make_base`. Those that
        are None take the variant's value (`options.FORMS`), or the base's.
    """
    return distilling(
        "dense",
        losses,
        training,
        base,
        variant,
        merge=merge,
        counts=counts,
        distil_order=distil_order,
        **options,
    )
