"""FedFTG (Zhang et al., CVPR 2022): data-free distillation from every client's model by itself.

    client:  trains and uploads as the base says, see `data_free.bases`, and its label counts
    server:  averages as the base says; then, with tau_{i,y} and p(y) as DFRD's, q_i = softmax(f_i)
             and p = softmax(f),
             G:  sum_i mean tau_{i,y} (CE(f_i, y) - b_md KL(q_i || p))
                 + b_div exp(-mean_{jk} |s_j - s_k| |z_j - z_k|)
             f:  sum_i mean tau_{i,y} KL(q_i || p)
    predict: the client's model; the server's in a column of its own
    up:      W_R: the client's model, all of it
    down:    0, on a base W_R: nothing, or what the base sends
    paper:   https://arxiv.org/abs/2203.09249

The student follows each teacher separately, not their ensemble, and all samples count.

Settled here, after DFRD, which runs FedFTG with DFRD's generator, optimisers and loop:
* variant="released" is the code of DFRD's comparison: temperature 10; divergences that are means
  over the C classes, so C times weaker than DFRD's and DENSE's sums; -KL(p || q_i) in L_md, through
  the teachers alone; squared distances (see `data_free.options`). FedFTG's own code differentiates
  L_md through the student, with L1 distances of logits.
* In variant="paper" the generator ascends and the student descends on the same KL(q_i || p),
  differentiated through both. FedFTG's text was not available for the order of the two sides; set
  it with tran_order and distil_order.
* The divergences are not scaled by T^2; temperature_squared=True scales them.
"""

import jax
from jax import lax

from fedjax_ht.check.docstrings import documented_by
from fedjax_ht.check.options import NonNegative, checked
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.losses import distillation
from fedjax_ht.methods.data_free.bases import Base, make_base
from fedjax_ht.methods.data_free.distil import Objective, Synthetic
from fedjax_ht.methods.data_free.method import distilling
from fedjax_ht.methods.data_free.options import Distillation, Merge, Reduction, Settled
from fedjax_ht.methods.shared.variants import Variant


def losses(
    recipe: Distillation,
    *,
    b_md: NonNegative = 1.0,
    b_div: NonNegative = 1.0,
    kl_reduce: Settled[Reduction] = None,
    diversity: Settled[distillation.DiversityForm] = None,
) -> Objective:
    """Makes FedFTG's losses.

    Args:
      recipe: options of the server's training.
      b_md, b_div: weights of the generator's terms.
      kl_reduce: sum or mean over classes in the divergences.
      diversity: distances of the diversity term, see `losses.image_diversity`.
    """

    def divergence(student: jax.Array, batch: Synthetic, order: distillation.KLOrder) -> jax.Array:
        teachers = batch.opinions.logits / recipe.temperature
        sides = distillation.ordered(teachers, student / recipe.temperature, order)
        value = recipe.kl_scale * distillation.weighted_kl(
            *sides, batch.opinions.weights, batch.everyone
        )
        if kl_reduce == "mean_classes":
            value = value / student.shape[-1]
        return value

    def generator_loss(batch: Synthetic) -> jax.Array:
        logits, weights, _ = batch.opinions
        value = distillation.weighted_cross_entropy(logits, batch.labels, weights, batch.everyone)
        student = batch.student if recipe.student_path else lax.stop_gradient(batch.student)
        value -= b_md * divergence(student, batch, recipe.tran_order)
        images, mask = batch.generated.images, batch.everyone
        return value + b_div * distillation.image_diversity(images, batch.noise, mask, diversity)

    def student_loss(batch: Synthetic) -> jax.Array:
        return divergence(batch.student, batch, recipe.distil_order)

    return Objective(generator_loss, student_loss)


@checked
@documented_by(losses, Distillation, make_base)
def fedftg(
    training: LocalTraining,
    base: str | Base = "none",
    variant: Variant = "paper",
    *,
    merge: Merge = "cat",
    distil_order: Settled[distillation.KLOrder] = "teacher_student",
    **options,
) -> Method:
    """Makes FedFTG, described in the module's docstring.

    Args:
      training: local training.
      **options: options of `losses`, of `Distillation` and, with a base, of `make_base`. Those that
        are None take the variant's value (`options.FORMS`), or the base's.
    """
    return distilling(
        "fedftg",
        losses,
        training,
        base,
        variant,
        merge=merge,
        distil_order=distil_order,
        **options,
    )
