"""Options of distillation at the server, for DFRD, and for DENSE and FedFTG as DFRD runs them.

The loop is in `data_free.distil`. An option that defaults to None takes its value from `FORMS`, by
the method's `variant`; an option with a value keeps it. Options that DENSE and FedFTG share with
DFRD have either the values of DFRD's text or those of their own papers, by the variant.

Settled here, for "paper":
* The text gives no temperature; here it is 1.
* KL(a, b) is read as KL(a || b). The released code has the reverse in both equations, as PyTorch's
  `kl_div(a, b)` has. KL(u || f) is large where u is sure of a class that f rules out, KL(f || u)
  where f is sure of a class that u rules out.
* Eq. 3 multiplies each sample's KL by epsilon, 0 or 1, so that L_tran is a mean over the batch. The
  released mean over the selected samples does not shrink when the student has few of them left to
  learn.
* s = G(h) enters both sides of L_tran, and the text holds neither of them constant. With
  student_path=False, as released, only the teachers' side moves the images.
* L_div is of norms, as printed, but divided by sqrt(n). Without the division it is 0 in float32, or
  nearly so, as is its gradient.
* Labels count as often as they were trained on in this round, and Eq. 1's p_i are the clients'
  numbers of samples.

And for "released":
* L_ey = b_ey max(|E(y)| - gamma sqrt(d), 0) is in this code alone.
* Labels "seen so far" omit the code's 1 for classes that a client has never seen. A client's
  samples count once.
"""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

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
from fedjax_ht.losses.distillation import KLOrder
from fedjax_ht.methods.shared.variants import Forms

Counts = Literal["seen_so_far", "this_round", "full", "none"]
"""Labels that c_i^y counts.

seen_so_far: labels trained on in any round, at most as many as the client has.
this_round: labels trained on in this round, counting repeated samples each time.
full: all of the client's training labels.
none: nothing; teachers have equal weights, and classes are equally likely.
"""

Merge = Literal["mul", "add", "cat", "ncat", "none"]
"""How noise z and embedding E(y), both of width d, become the generator's input.

mul: z * E(y). add: z + E(y). cat: [z, E(y)]. ncat: [z, one-hot y]. none: z, without the label.
"""

Images = Literal["generator", "untrained", "real", "noise"]
"""Images that train the server's model: those of its generator, or of a control.

generator: G(z, y), trained against the model.
untrained: G(z, y) with initial weights; its norms use the statistics of its own outputs, so that it
  differs from a trained generator in the training alone.
real: a training image of class y, drawn from those of all clients.
noise: independent pixels from N(0, 1), used as normalised ones, whatever y is.

The worth of a generator's training shows between "untrained" and "real". No actual server can run
"real", which reads the clients' data (`Needs.clients_data`). It is an upper bound: if it is not far
above the method without images, no generator can be, and ablations of a generator mean nothing.
"""

StudentBatch = Literal["step", "iteration"]
Reduction = Literal["mean_classes", "sum_classes"]

T = TypeVar("T")
if TYPE_CHECKING:
    Settled = T | Any
else:
    Settled = T | None
"""An option whose None stands for the variant's value, which the factory fills in.

Type checkers see the filled-in value, as do losses and servers.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distillation:
    """Options of the server's training.

    For the five options that default to None, the methods' factories fill in the variant's value
    (see `FORMS`).

    Attributes:
      iterations: A, turns of generator and student in every round.
      generator_steps: I_g, the generator's steps per turn; for a generator that is never trained
        set images="untrained".
      student_steps: I_d, the student's steps per turn.
      batch_size: images per step.
      noise_dim: d, length of a noise vector.
      merge: combination of noise and label, see `Merge`.
      temperature: T_kd, the temperature of every KL that has one.
      temperature_squared: True multiplies these KL by T_kd^2, so that the size of their gradients
        does not depend on T_kd. False is as released: at 10 the student's gradient is some fifty
        times smaller than at 1.
      tran_order: order of the two sides of the generator's KL (see `losses.transferability`).
      student_path: True differentiates the generator's KL through the student as well.
      distil_order: order of the two sides of the student's KL.
      generator_lr: learning rate of the generator's Adam(0.5, 0.999).
      student_lr: learning rate of the student's SGD.
      weight_decay: weight decay of the student's SGD.
      reset_opt: True restarts Adam in each of the A iterations, as released; False once per round.
      alpha: weight of the student's loss on images of the moving average; 0 uses none.
      decay: lambda, the decay rate of the moving average per round.
      counts: labels that weight teachers and classes: those trained on in any round so far or in
        this one, all of the client's training labels, or none (`Counts`).
      student_batch: "step" draws new images for every student step; "iteration" draws once for all
        student steps of an iteration, as in FedFTG's own code, so that the teachers run once.
      images: images that train the student, see `Images`.
      feedback: True starts the clients' next round from the distilled model; False, as released for
        one width, from the averaged one.
      low_memory: True runs teachers one after another, and again for gradients, because their
        activations are not kept.
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


FORMS: Forms = {
    "paper": {
        "temperature": 1.0,
        "counts": "this_round",
        "weighting": "samples",
        "tran_order": "teacher_student",
        "student_path": True,
        "normaliser": "batch",
        "distil_order": "student_teacher",
        "diversity": "norms",
        "b_ey": 0.0,
        "selection": "nabla",
        "kl_reduce": "sum_classes",
    },
    "released": {
        "temperature": 10.0,
        "counts": "seen_so_far",
        "weighting": None,
        "tran_order": "student_teacher",
        "student_path": False,
        "normaliser": "selected",
        "distil_order": "teacher_student",
        "diversity": "squares",
        "b_ey": 0.25,
        "selection": "xor",
        "kl_reduce": "mean_classes",
    },
}
"""Values of options that default to None, by variant.

The losses of each method document the options that `Distillation` does not have. "weighting" is of
the base's mean over clients (Eq. 1), and its None the base's default. In either variant DENSE
counts no labels, DENSE and FedFTG have the distil_order "teacher_student", and DFRD the selection
"diamond".
"""
