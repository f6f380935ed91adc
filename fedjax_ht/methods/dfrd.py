"""DFRD (NeurIPS 2023): data-free robust distillation of heterogeneous clients' models into a global one.

    server:  tau_{i,y}, p(y) from the labels that clients have trained on; u = sum_i tau_{i,y} f_i(s)
             G:  CE(u, y) - b_tran KL(f || u) over samples that u gets right and f wrong
                 + b_div exp(-mean_{jk} d(s_j, s_k) d(h_j, h_k)) + b_ey max(|E(y)| - gamma sqrt(d), 0)
             f:  KL(u || f) on images of G + alpha KL(u || f) on images of its moving average w~, as of the last round
             w~ <- lambda w~ + (1 - lambda) w, once a round
    clients, averaging:  those of the base, see `methods.bases`

Both KL are at temperature T. Settled here:
* They are not scaled by T^2, as released; temperature_squared=True does. At T = 10 that is a hundred times more.
* The mean squared differences of L_div and the term L_ey are the released code's; the printed L_div, norms of whole
  images, is 0 in float32 (diversity="norms" is it, safely). b_ey=0 leaves L_ey out, as printed.
* Labels count as "seen so far", as released, but without its 1 for classes that a client has never seen; the paper
  counts those of the round. A client's samples count once.
* selection "nabla" is the paper's set for DENSE; the released one is "xor".
* w~ starts at w, and teaches from the second round on. The released one starts at (1 - lambda) w.
* An empty set of selected samples has loss 0; the released code divides 0 by 0.
"""

import jax

from fedjax_ht.core.bounds import NonNegative
from fedjax_ht.losses import cross_entropy, embedding_excess, image_diversity, kl_divergence, transferability
from fedjax_ht.losses.adversarial import Selection
from fedjax_ht.losses.generator import DiversityForm
from fedjax_ht.methods.composition import distilling
from fedjax_ht.methods.distillation import Distillation, Objective, Synthetic
from fedjax_ht.models.conditional import EMBEDDED


def student_loss(batch: Synthetic, recipe: Distillation) -> jax.Array:
    """KL of the ensemble's prediction to the student's (Eq. 7)."""
    given, own = batch.opinions.ensemble / recipe.temperature, batch.student / recipe.temperature
    return recipe.kl_scale * kl_divergence(given, own, batch.everyone)


@distilling(alpha=0.5)
def dfrd(
    recipe: Distillation,
    b_tran: NonNegative = 1.0,
    b_div: NonNegative = 1.0,
    b_ey: NonNegative = 0.25,
    gamma: NonNegative = 1.0,
    selection: Selection = "diamond",
    diversity: DiversityForm = "squares",
) -> Objective:
    """DFRD as a `Method`, see above.

    Args:
      recipe: of its fields merge is varied in Table 4; alpha=0 is ablation "-EMA" of Table 5.
      b_tran, b_div, b_ey: weights of the generator's terms; 0 are ablations of Table 5.
      gamma: how long an embedding may be, in sqrt(d).
      selection: rows of Table 3.
      diversity: see `losses.image_diversity`.
    """

    def generator_loss(batch: Synthetic) -> jax.Array:
        u, made, mask = batch.opinions.ensemble, batch.generated, batch.everyone
        value = cross_entropy(u, batch.labels, mask)
        apart = transferability(u, batch.student, batch.labels, mask, selection, recipe.temperature)
        value += b_tran * recipe.kl_scale * apart
        value += b_div * image_diversity(made.images, made.merged, mask, diversity)
        return value + b_ey * embedding_excess(made.embedding, mask, gamma) if recipe.merge in EMBEDDED else value

    return Objective(generator_loss, lambda batch: student_loss(batch, recipe))
