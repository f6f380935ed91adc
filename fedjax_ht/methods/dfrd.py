"""DFRD (Luo et al., NeurIPS 2023): data-free distillation of the clients' models into a global one.

    client:  trains and uploads as the base says, see `shared.bases`, and its label counts
    server:  averages as the base says, by samples; then, with tau_{i,y} and p(y) from the labels
             that clients trained on in this round and u = sum_i tau_{i,y} f_i(s),
             G:  CE(u, y) - b_tran mean_b eps_b KL(u || f)
                 + b_div exp(-mean_{jk} |s_j - s_k| |h_j - h_k|),
                 eps = 1 where u is right and f wrong, else 0
             f:  KL(f || u) on images of G + alpha KL(f || u) on images of its moving average w~,
                 as of the last round
             w~ <- lambda w~ + (1 - lambda) w, once per round
    predict: the client's model; the server's in a column of its own
    up:      W_R: the client's model, all of it
    down:    0, on a base W_R: nothing, or what the base sends
    paper:   https://arxiv.org/abs/2309.13546

That is variant="paper". variant="released" is the authors' code: both KL at temperature 10 and in
the other order, L_tran through the teachers alone and over the selected samples, squared distances
in L_div, a term L_ey, labels seen in any round, and the weights that the base has by itself.
`shared.variants` has both, option by option, and what the text leaves open.

Settled here, for both:
* KL at a temperature are not scaled by T^2; temperature_squared=True scales them. At T = 10 that is
  a hundred times more: without it the student's slope is some fifty times smaller than at T = 1.
  DENSE's own code scales them.
* Order of L_tran (Eq. 3): tran_order. The text prints KL(u, f); the released code computes KL(f ||
  u). The first is large where u is sure of a class that f rules out, the second where f is sure of
  a class that u rules out.
* Path of L_tran: s = G(h) enters u and f. With student_path=False, as released, f's side is a
  constant, and images move by what they change in the teachers alone.
* Mean of L_tran: normaliser="batch" as eps has it; the released mean over the selected samples does
  not become smaller where the student has few of them left to learn.
* Order of Eq. 7: distil_order. The text prints KL(f, u); the released code computes KL(u || f), as
  most distillation does.
* L_ey = b_ey max(|E(y)| - gamma sqrt(d), 0) is in the released code alone.
* Labels "seen so far" are the released code's, but without its 1 for classes that a client has
  never seen. A client's samples count once.
* selection "nabla" is the paper's set for DENSE; the released one is "xor".
* w~ starts at w, and teaches from the second round on. The released one starts at (1 - lambda) w.
* An empty set of selected samples has loss 0; the released code divides 0 by 0.
"""

import jax

from fedjax_ht.core.annotations import NonNegative
from fedjax_ht.losses import (
    cross_entropy,
    embedding_excess,
    image_diversity,
    kl_divergence,
    transferability,
)
from fedjax_ht.losses.adversarial import Normaliser, Selection
from fedjax_ht.losses.distillation import ordered
from fedjax_ht.losses.generator import DiversityForm
from fedjax_ht.methods.shared.composition import distilling
from fedjax_ht.methods.shared.distillation import Distillation, Objective, Settled, Synthetic
from fedjax_ht.models.conditional import EMBEDDED


def student_loss(batch: Synthetic, recipe: Distillation) -> jax.Array:
    """Computes the KL of the ensemble's and the student's predictions (Eq. 7), in the recipe's
    order."""
    teacher = batch.opinions.ensemble / recipe.temperature
    student = batch.student / recipe.temperature
    sides = ordered(teacher, student, recipe.distil_order)
    return recipe.kl_scale * kl_divergence(*sides, batch.everyone)


def adversarial_loss(
    u: jax.Array,
    batch: Synthetic,
    recipe: Distillation,
    selection: Selection,
    normaliser: Normaliser,
) -> jax.Array:
    """Computes L_tran (Eq. 3) as the recipe has it, without `Distillation.kl_scale`.

    Args:
      u: float [B, C], the ensemble's logits.
      batch: a generated batch, with its labels and the student's logits.
      recipe, selection, normaliser: options, see `losses.transferability`.
    """
    return transferability(
        u,
        batch.student,
        batch.labels,
        batch.everyone,
        selection,
        recipe.temperature,
        recipe.tran_order,
        recipe.student_path,
        normaliser,
    )


@distilling(alpha=0.5)
def dfrd(
    recipe: Distillation,
    *,
    b_tran: NonNegative = 1.0,
    b_div: NonNegative = 1.0,
    b_ey: Settled[NonNegative] = None,
    gamma: NonNegative = 1.0,
    selection: Selection = "diamond",
    normaliser: Settled[Normaliser] = None,
    diversity: Settled[DiversityForm] = None,
) -> Objective:
    """Makes DFRD's losses, and by `distilling` the method.

    An option that is None takes the variant's value, see `shared.variants`.

    Args:
      recipe: options of the server's training; merge is varied in Table 4, alpha=0 is ablation
        "-EMA" of Table 5.
      b_tran, b_div, b_ey: weights of the generator's terms; 0 are ablations of Table 5.
      gamma: greatest length of an embedding without penalty, in units of sqrt(d).
      selection: samples of L_tran, the rows of Table 3.
      normaliser: divisor of L_tran, see `losses.adversarial.Normaliser`.
      diversity: distances of L_div, see `losses.image_diversity`.
    """

    def generator_loss(batch: Synthetic) -> jax.Array:
        u, made, mask = batch.opinions.ensemble, batch.generated, batch.everyone
        value = cross_entropy(u, batch.labels, mask)
        value += (
            b_tran * recipe.kl_scale * adversarial_loss(u, batch, recipe, selection, normaliser)
        )
        value += b_div * image_diversity(made.images, made.merged, mask, diversity)
        if recipe.merge in EMBEDDED:
            value += b_ey * embedding_excess(made.embedding, mask, gamma)
        return value

    def student(batch: Synthetic) -> jax.Array:
        return student_loss(batch, recipe)

    return Objective(generator_loss, student)
