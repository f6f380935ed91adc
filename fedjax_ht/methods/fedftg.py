"""FedFTG (Zhang et al., CVPR 2022), as DFRD runs it: with DFRD's generator, optimisers and loop.

    server:  tau_{i,y}, p(y) as DFRD's; q_i = softmax(f_i / T), p = softmax(f / T)
             G:  sum_i mean tau_{i,y} (CE(f_i, y) - b_md KL(p || q_i) / C)
                 + b_div exp(-mean_{jk} d(s_j, s_k) d(z_j, z_k))
             f:  sum_i mean tau_{i,y} KL(q_i || p) / C
    clients, averaging:  those of the base, see `methods.bases`

Every teacher is followed by itself, not their ensemble, and all samples count. Settled here:
* The divergences are means over the C classes, as released with DFRD, so that they are C times weaker than DFRD's and
  DENSE's sums; kl_reduce="sum_classes" sums them.
* They are not scaled by T^2, as released; temperature_squared=True does.
* In L_md the generator is led through the teachers and p is given, as released with DFRD; FedFTG's own code leads it
  through the student, with L1 distances of logits.
"""

from typing import Literal

import jax
from jax import lax

from fedjax_ht.core.bounds import NonNegative
from fedjax_ht.losses import image_diversity, weighted_cross_entropy, weighted_kl
from fedjax_ht.losses.generator import DiversityForm
from fedjax_ht.methods.composition import distilling
from fedjax_ht.methods.distillation import Distillation, Objective, Synthetic

Reduction = Literal["mean_classes", "sum_classes"]


@distilling(merge="cat")
def fedftg(
    recipe: Distillation,
    b_md: NonNegative = 1.0,
    b_div: NonNegative = 1.0,
    kl_reduce: Reduction = "mean_classes",
    diversity: DiversityForm = "squares",
) -> Objective:
    """FedFTG as a `Method`, see above.

    Args:
      recipe: how the server trains.
      b_md, b_div: weights of the generator's terms.
      kl_reduce: see the module's text.
      diversity: see `losses.image_diversity`.
    """

    def divergence(given: jax.Array, logits: jax.Array, batch: Synthetic) -> jax.Array:
        given, logits = given / recipe.temperature, logits / recipe.temperature
        value = recipe.kl_scale * weighted_kl(given, logits, batch.opinions.weights, batch.everyone)
        return value / given.shape[-1] if kl_reduce == "mean_classes" else value

    def generator_loss(batch: Synthetic) -> jax.Array:
        logits, weights, _ = batch.opinions
        value = weighted_cross_entropy(logits, batch.labels, weights, batch.everyone)
        value -= b_md * divergence(lax.stop_gradient(batch.student), logits, batch)
        return value + b_div * image_diversity(batch.generated.images, batch.noise, batch.everyone, diversity)

    return Objective(generator_loss, lambda batch: divergence(batch.opinions.logits, batch.student, batch))
