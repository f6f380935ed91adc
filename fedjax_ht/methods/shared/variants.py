"""Variants of DFRD, and of DENSE and FedFTG as DFRD runs them: the paper's and the released code's.

An option that defaults to None takes its value from `FORMS`, by the method's `variant`; an option
with a value keeps it. For DENSE and FedFTG a form holds the values of DFRD's text, or theirs, for
the options that all three share.

Settled here, for "paper":
* The text prints no temperature, so 1.
* KL(a, b) is read as KL(a || b). The released code has the reverse in both equations, as PyTorch's
  `kl_div(a, b)` has.
* Eq. 3 multiplies each sample's KL by epsilon, 0 or 1, so that L_tran is a mean over the batch.
* s = G(h) enters both sides of L_tran, and the text holds neither of them constant.
* L_div is of norms, but of norms divided by sqrt(n): as printed it is 0 in float32, or next to it,
  and so is its slope.
* Labels count as often as they were trained on in this round, and Eq. 1's p_i are the clients'
  numbers of samples.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedjax_ht.losses.adversarial import Normaliser, Selection
from fedjax_ht.losses.distillation import KLOrder
from fedjax_ht.losses.generator import DiversityForm
from fedjax_ht.methods.shared.averaging import Weighting
from fedjax_ht.methods.shared.distillation import Counts, Reduction
from fedjax_ht.methods.shared.prototypes import Variant


class Form(NamedTuple):
    """The values of a variant, by the names of options.

    Attributes:
      temperature: temperature of every KL.
      counts: the labels that clients count; DENSE counts none in either form.
      weighting: weights of the base's mean over clients (Eq. 1); None is the base's default.
      tran_order: order of the two sides of the generator's KL (Eq. 3).
      student_path: True differentiates the generator's KL through the student, too.
      normaliser: divisor of the generator's KL.
      distil_order: order of the two sides of the student's KL (Eq. 7); DENSE and FedFTG have
        "teacher_student" in either form.
      diversity: the distances of L_div (Eq. 4).
      b_ey: the weight of L_ey, which the text does not have.
      selection: the samples of DENSE's generator loss; DFRD has "diamond" in either form.
      kl_reduce: the sum or the mean over classes in FedFTG's KL.
    """

    temperature: float
    counts: Counts
    weighting: Weighting | None
    tran_order: KLOrder
    student_path: bool
    normaliser: Normaliser
    distil_order: KLOrder
    diversity: DiversityForm
    b_ey: float
    selection: Selection
    kl_reduce: Reduction


FORMS: Mapping[Variant, Form] = {
    "paper": Form(
        temperature=1.0,
        counts="this_round",
        weighting="samples",
        tran_order="teacher_student",
        student_path=True,
        normaliser="batch",
        distil_order="student_teacher",
        diversity="norms",
        b_ey=0.0,
        selection="nabla",
        kl_reduce="sum_classes",
    ),
    "released": Form(
        temperature=10.0,
        counts="seen_so_far",
        weighting=None,
        tran_order="student_teacher",
        student_path=False,
        normaliser="selected",
        distil_order="teacher_student",
        diversity="squares",
        b_ey=0.25,
        selection="xor",
        kl_reduce="mean_classes",
    ),
}


def settled(
    variant: Variant, options: Mapping[str, Any], forms: Mapping[Variant, Any] = FORMS
) -> dict[str, Any]:
    """Gives options that are None the values of a variant.

    Args:
      variant: a key of `forms`.
      options: name -> value.
      forms: variant -> NamedTuple of values by option.
    """
    form, values = forms[variant], dict(options)
    for name, value in options.items():
        if value is None:
            values[name] = getattr(form, name)
    return values
