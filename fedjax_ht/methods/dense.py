"""DENSE (Zhang et al., NeurIPS 2022), as DFRD runs it: in every round, with DFRD's generator and
loop.

    server:  u = mean_i f_i(s), y uniform
             G:  CE(u, y) + b_adv L_adv + b_bn L_bn
                 L_adv = -mean_b eps_b KL(u || f), eps = 1 where u and f predict different classes,
                 else 0 L_bn  = mean over clients and layers of |mean - mean_i| + |var - var_i| of
                 batch norms' inputs
             f:  KL(u || f) at temperature T
    clients, averaging:  those of the base, see `methods.bases`

Settled here:
* variant="released" is the code of DFRD's comparison: temperature 10, and L_adv = -KL(f || u)
  through the teachers alone, over samples of which just one of u and f is right (see `variants`).
  variant="paper" is how DFRD's text describes DENSE, which is DENSE's own L_adv: adversarial="own"
  is that in either form. Its one-shot round, its pool of images and its generator are not here.
* KL at temperature T are not scaled by T^2, as in DFRD's code; temperature_squared=True does, as
  DENSE's own.
* b_bn is 0, as in the code behind DFRD's comparison. Norms keep no running statistics there: with
  b_bn above 0 clients upload mean_i and var_i of their trained model on up to 256 of their own
  samples, before the scaler. Released are averages over local steps behind it, which the server
  compares with values before it.
* The generator is not conditional (merge="none"), as DENSE's own is not; of the two released
  configs of DFRD's comparison one says so, too, the other says "mul", DFRD's embedding of the
  label. Labels are drawn anew in every step, so that without them CE(u, y) only asks for images
  that the ensemble is unsure of: a comparison should give it the label, merge="mul", as the configs
  of DFRD's setting do. In DENSE's own code noise is trained together with a fixed label. State
  which one a comparison used.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_ht.core.bounds import NonNegative
from fedjax_ht.losses import cross_entropy, disagreement, masked_mean, moment_distance
from fedjax_ht.losses.adversarial import Normaliser, Selection
from fedjax_ht.methods.dfrd import adversarial_loss, student_loss
from fedjax_ht.methods.shared.composition import distilling
from fedjax_ht.methods.shared.distillation import Distillation, Objective, Synthetic

Adversarial = Literal["dfrd", "own"]


def batch_norm_loss(batch: Synthetic) -> jax.Array:
    """L_bn, over the clients present; 0 where the models have no batch norm."""
    seen, target = batch.opinions.moments, batch.teachers.moments
    distances = [
        jnp.stack(
            jax.tree.leaves(jax.tree.map(moment_distance, seen[bucket], target[bucket]))
        ).mean(0)
        for bucket in seen
    ]
    return masked_mean(jnp.concatenate(distances), batch.teachers.present)


@distilling(merge="none", counts="none", distil_order="teacher_student")
def dense(
    recipe: Distillation,
    b_adv: NonNegative = 1.0,
    b_bn: NonNegative = 0.0,
    adversarial: Adversarial = "dfrd",
    selection: Selection | None = None,
    normaliser: Normaliser | None = None,
) -> Objective:
    """DENSE as a `Method`, see above. None is the variant's value (see `variants`).

    Args:
      recipe: counts="none" is the plain mean and uniform labels; others weigh as DFRD does.
      b_adv, b_bn: weights of the generator's terms.
      adversarial, selection: see the module's text.
      normaliser: see `losses.adversarial.Normaliser`.
    """

    def generator_loss(batch: Synthetic) -> jax.Array:
        u, mask = batch.opinions.ensemble, batch.everyone
        if adversarial == "own":
            apart = disagreement(u, batch.student, mask)
        else:
            apart = recipe.kl_scale * adversarial_loss(u, batch, recipe, selection, normaliser)
        value = cross_entropy(u, batch.labels, mask) + b_adv * apart
        return value + b_bn * batch_norm_loss(batch) if b_bn else value

    return Objective(
        generator_loss, lambda batch: student_loss(batch, recipe), with_moments=b_bn > 0
    )
