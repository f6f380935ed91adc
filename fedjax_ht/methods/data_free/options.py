"""Options of distillation at the server, for DFRD, and for DENSE and FedFTG as DFRD runs them.

The loop is in `data_free.distil`. An option that defaults to None takes its value from `FORMS`, by
the method's `variant`; an option with a value keeps it. For DENSE and FedFTG a form holds the
values of DFRD's text, or theirs, for the options that all three share.

Settled here, for "paper":
* The text prints no temperature, so 1.
* KL(a, b) is read as KL(a || b). The released code has the reverse in both equations, as PyTorch's
  `kl_div(a, b)` has. KL(u || f) is large where u is sure of a class that f rules out, KL(f || u)
  where f is sure of a class that u rules out.
* Eq. 3 multiplies each sample's KL by epsilon, 0 or 1, so that L_tran is a mean over the batch. The
  released mean over the selected samples does not become smaller where the student has few of them
  left to learn.
* s = G(h) enters both sides of L_tran, and the text holds neither of them constant. With
  student_path=False, as released, images move by what they change in the teachers alone.
* L_div is of norms, but of norms divided by sqrt(n): as printed it is 0 in float32, or next to it,
  and so is its slope.
* Labels count as often as they were trained on in this round, and Eq. 1's p_i are the clients'
  numbers of samples.

And for "released":
* L_ey = b_ey max(|E(y)| - gamma sqrt(d), 0) is in this code alone.
* Labels "seen so far" are without the code's 1 for classes that a client has never seen. A client's
  samples count once.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar

from fedjax_ht.check.options import (
    Count,
    NonNegative,
    Positive,
    SearchRange,
    Share,
    Whole,
    Within,
    check_fields,
)
from fedjax_ht.losses.distillation import DiversityForm, KLOrder, Normaliser, Selection
from fedjax_ht.methods.shared.averaging import Weighting
from fedjax_ht.methods.shared.variants import Variant

Counts = Literal["seen_so_far", "this_round", "full", "none"]
"""Labels that c_i^y counts.

seen_so_far: labels trained on in any round, as many as the client has at most.
this_round: labels trained on in this round, repeated samples repeatedly.
full: all of the client's training labels.
none: nothing; teachers weigh alike, and classes are drawn alike.
"""

Merge = Literal["mul", "add", "cat", "ncat", "none"]
"""How noise z and embedding E(y), both of width d, become the generator's input.

mul: z * E(y). add: z + E(y). cat: [z, E(y)]. ncat: [z, one-hot y]. none: z, the label is left out.
"""

Images = Literal["generator", "untrained", "real", "noise"]
"""Images that the server's model is taught on: those of its generator, or a control's.

generator: G(z, y), trained against the model.
untrained: G(z, y) as first drawn; its norms go by the statistics of its own outputs, so that it is
  a generator like the trained one in all but the training.
real: a training image of class y, drawn from those of all clients.
noise: independent pixels from N(0, 1), as normalised ones, whatever y is.

The worth of a generator's training shows between "untrained" and "real". No server could run
"real": it reads the clients' data (`Needs.clients_data`). It is the ceiling of a table: where it is
not far above the method without images, no generator can be, and ablations of one mean nothing.
"""

StudentBatch = Literal["step", "iteration"]
Reduction = Literal["mean_classes", "sum_classes"]

T = TypeVar("T")
if TYPE_CHECKING:
    Settled = T | Any
else:
    Settled = T | None
"""An option whose None stands for the variant's value, which the factory fills in. Type checkers
take it for filled in, as it is wherever losses and servers read it.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distillation:
    """Options of the server's training.

    For the five options that default to None, the methods' factories fill in the variant's value
    (see `FORMS`).

    Attributes:
      iterations: A, turns of generator and student in every round.
      generator_steps: I_g, generator's steps of a turn; a generator that is never trained is
        images="untrained".
      student_steps: I_d, student's steps of a turn.
      batch_size: images per step.
      noise_dim: d, numbers of a noise vector.
      merge: combination of noise and label, see `Merge`.
      temperature: the temperature T_kd of every KL that a method takes at a temperature.
      temperature_squared: True multiplies these KL by T_kd^2, which keeps the size of their
        gradients whatever T_kd is; as released they are not. At 10 the student's gradient is then
        some fifty times smaller than at 1.
      tran_order: order of the two sides of the generator's KL (see `losses.transferability`).
      student_path: the generator's KL is differentiated through the student, too.
      distil_order: order of the two sides of the student's KL.
      generator_lr: learning rate of the generator's Adam(0.5, 0.999).
      student_lr: learning rate of the student's SGD.
      weight_decay: weight decay of the student's SGD.
      reset_opt: Adam starts anew in each of the A iterations, as released; else once per round.
      alpha: weight of the student's loss on images of the moving average; with 0 there is none.
      decay: lambda, the share that the moving average keeps in a round.
      counts: labels by which teachers and classes are weighed: trained on in any round so far or in
        this one, all of the client's training labels, or none (`Counts`).
      student_batch: the student sees images drawn anew in every "step", or for an "iteration" those
        of one draw in all its student steps, as in FedFTG's own code; the teachers then run once.
      images: images that the student is taught on, see `Images`.
      feedback: clients start the next round from the distilled model; else, as released for one
        width, from the averaged one.
      low_memory: teachers run one after another, and in a gradient each is run a second time,
        for its activations are not kept.
    """

    iterations: Whole = 10
    generator_steps: Count = 2
    student_steps: Whole = 5
    batch_size: Annotated[int, Within(2)] = 64
    noise_dim: Count = 100
    merge: Merge = "mul"
    temperature: Settled[Positive] = None
    temperature_squared: bool = False
    tran_order: Settled[KLOrder] = None
    student_path: Settled[bool] = None
    distil_order: Settled[KLOrder] = None
    generator_lr: Annotated[Positive, SearchRange(2e-5, 2e-3)] = 2e-4
    student_lr: Annotated[NonNegative, SearchRange(0.001, 0.1)] = 0.01
    weight_decay: NonNegative = 1e-4
    reset_opt: bool = True
    alpha: NonNegative = 0.0
    decay: Share = 0.5
    counts: Settled[Counts] = None
    student_batch: StudentBatch = "step"
    images: Images = "generator"
    feedback: bool = True
    low_memory: bool = False

    def __post_init__(self):
        check_fields(self)

    @property
    def kl_scale(self) -> float:
        """The factor on every KL at `temperature`."""
        return self.temperature**2 if self.temperature_squared else 1.0


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
