"""DFRD (Luo et al., NeurIPS 2023): data-free distillation of the clients' models into a global one.

    client:  trains and uploads as the base says, see `data_free.bases`, and its label counts
    server:  averages as the base says, by samples; then, with tau_{i,y} and p(y) from the labels
             that clients trained on in this round and u = sum_i tau_{i,y} f_i(s), A times:
             I_g times  z ~ N(0, I), y ~ p, s, h = G(z, y); w, the parameters of G, descends on
                        CE(u, y) - b_tran mean_b eps_b KL(u || f)
                        + b_div exp(-mean_{jk} |s_j - s_k| |h_j - h_k|),
                        eps = 1 where u is right and f wrong, else 0
             I_d times  f descends on KL(f || u) on new images of G + alpha KL(f || u) on images of
                        its moving average w~, as of the last round
             and then w~ <- lambda w~ + (1 - lambda) w, once per round
    predict: the client's model; the server's in a column of its own
    up:      W_R: the client's model, all of it
    down:    0, on a base W_R: nothing, or what the base sends
    paper:   https://arxiv.org/abs/2309.13546

This is variant="paper". variant="released" is the authors' code: both KL at temperature 10 and in
the other order, L_tran through the teachers alone and over the selected samples, squared distances
in L_div, a term L_ey, labels seen in any round, and the base's own weights. `data_free.options`
lists both by option, and what the text leaves open.

Settled here, for both:
* G normalises by batch while it is trained, and by its running statistics while it teaches.
* w~ starts at w, and teaches from the second round on. The released one starts at (1 - lambda) w.
* An empty set of selected samples has loss 0; the released code divides 0 by 0.
"""

import functools

import jax

from fedjax_ht.check.docstrings import documented_by
from fedjax_ht.check.options import NonNegative, checked
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.losses import distillation
from fedjax_ht.losses.classification import cross_entropy
from fedjax_ht.methods.data_free.bases import Base, make_base
from fedjax_ht.methods.data_free.distil import (
    Objective,
    Synthetic,
    adversarial_loss,
    student_loss,
)
from fedjax_ht.methods.data_free.image_generator import EMBEDDED
from fedjax_ht.methods.data_free.method import distilling
from fedjax_ht.methods.data_free.options import Distillation, Settled
from fedjax_ht.methods.shared.variants import Variant


def losses(
    recipe: Distillation,
    *,
    b_tran: NonNegative = 1.0,
    b_div: NonNegative = 1.0,
    b_ey: Settled[NonNegative] = None,
    gamma: NonNegative = 1.0,
    selection: distillation.Selection = "diamond",
    normaliser: Settled[distillation.Normaliser] = None,
    diversity: Settled[distillation.DiversityForm] = None,
) -> Objective:
    """Makes DFRD's losses.

    Args:
      recipe: options of the server's training; merge is varied in Table 4, alpha=0 is ablation
        "-EMA" of Table 5.
      b_tran, b_div, b_ey: weights of the generator's terms; 0 are ablations of Table 5.
      gamma: largest length of an embedding without penalty, in units of sqrt(d).
      selection: samples of L_tran, the rows of Table 3.
      normaliser: divisor of L_tran, see `losses.distillation.Normaliser`.
      diversity: distances of L_div, see `losses.image_diversity`.
    """
    chosen = {"selection": selection, "normaliser": normaliser}

    def generator_loss(batch: Synthetic) -> jax.Array:
        u, made, mask = batch.opinions.ensemble, batch.generated, batch.everyone
        value = cross_entropy(u, batch.labels, mask)
        value += b_tran * recipe.kl_scale * adversarial_loss(u, batch, recipe, **chosen)
        value += b_div * distillation.image_diversity(made.images, made.merged, mask, diversity)
        if recipe.merge in EMBEDDED:
            value += b_ey * distillation.embedding_excess(made.embedding, mask, gamma)
        return value

    student = functools.partial(student_loss, recipe=recipe)
    return Objective(generator_loss, student)


@checked
@documented_by(losses, Distillation, make_base)
def dfrd(
    training: LocalTraining,
    base: str | Base = "none",
    variant: Variant = "paper",
    *,
    alpha: NonNegative = 0.5,
    **options,
) -> Method:
    """Makes DFRD, described in the module's docstring.

    Args:
      training: local training.
      **options: options of `losses`, of `Distillation` and, with a base, of `make_base`. Those that
        are None take the variant's value (`options.FORMS`), or the base's.
    """
    return distilling(
        "dfrd",
        losses,
        training,
        base,
        variant,
        alpha=alpha,
        **options,
    )
