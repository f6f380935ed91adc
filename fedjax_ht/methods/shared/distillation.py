"""Distillation on the server without data: a generator and the global model learn in turn.

Their teachers are the clients' models.

    A times:  I_g times  z ~ N(0, I), y ~ p, s, h = G(z, y);
                         w descends on the method's generator loss
              I_d times  the same with G fixed;
                         theta descends on the method's student loss of s and, from the second round
                         on, on alpha times that of images of G's moving average

p, the teachers and their weights are those of `shared.ensemble`. G normalises by batch while it is
trained, and by its running statistics while it teaches. DFRD, DENSE and FedFTG differ in the two
losses and in their numbers.

The loop is in `shared.distillation_loop`; this module holds its options and the types that it and
the methods share.
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from fedjax_ht.core.annotations import (
    Count,
    NonNegative,
    Positive,
    SearchRange,
    Share,
    Whole,
    Within,
)
from fedjax_ht.core.bounds import check_fields
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.trees import PyTree
from fedjax_ht.losses.distillation import KLOrder
from fedjax_ht.methods.shared.ensemble import Opinions, Teachers
from fedjax_ht.methods.shared.image_source import Images
from fedjax_ht.models.conditional import ConditionalGenerator, Generated, Merge

Counts = Literal["seen_so_far", "this_round", "full", "none"]
"""Labels that c_i^y counts.

seen_so_far: labels trained on in any round, as many as the client has at most.
this_round: labels trained on in this round, repeated samples repeatedly.
full: all of the client's training labels.
none: nothing; teachers weigh alike, and classes are drawn alike.
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


@dataclasses.dataclass(frozen=True)
class Distillation:
    """Options of the server's training.

    For the five options that default to None, the methods' factories fill in the variant's value
    (see `shared.variants`).

    Attributes:
      iterations: A, turns of generator and student in every round.
      generator_steps: I_g, generator's steps of a turn; a generator that is never trained is
        images="untrained".
      student_steps: I_d, student's steps of a turn.
      batch_size: images per step.
      noise_dim: d, numbers of a noise vector.
      merge: combination of noise and label, see `models.conditional`.
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
      images: images that the student is taught on, see `shared.image_source`.
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


class Synthetic(NamedTuple):
    """A generated batch, with the teachers' and the student's outputs.

    Attributes:
      noise: float [B, d], z.
      labels: int [B], y.
      generated: the images, and the generator's intermediate values.
      opinions: the teachers' outputs.
      student: float [B, C], the global model's logits.
      teachers: the teachers.
    """

    noise: jax.Array
    labels: jax.Array
    generated: Generated
    opinions: Opinions
    student: jax.Array
    teachers: Teachers

    @property
    def everyone(self) -> jax.Array:
        """The mask of the batch, bool [B]: every generated sample counts."""
        return jnp.ones(len(self.labels), bool)


class Objective(NamedTuple):
    """A method's losses.

    Attributes:
      generator: (Synthetic) -> scalar, the loss of the generator.
      student: (Synthetic) -> scalar, the loss of the global model; only `Synthetic.student` is
        differentiated.
      with_moments: the generator's loss compares moments of norms' inputs; clients then upload
        theirs.
    """

    generator: Callable[[Synthetic], jax.Array]
    student: Callable[[Synthetic], jax.Array]
    with_moments: bool = False


class Learner(NamedTuple):
    """The models that the server trains.

    Attributes:
      model: the global model's parameters.
      generator: the generator's {"params", "batch_stats"}; () without a generator.
    """

    model: PyTree
    generator: PyTree


def make_generator(federation: Federation, recipe: Distillation) -> ConditionalGenerator:
    """Makes the generator's module for a federation's images and classes."""
    shape = federation.server_model.input_shape
    return ConditionalGenerator(federation.num_classes, recipe.noise_dim, shape, recipe.merge)


def init_generator(module: ConditionalGenerator, key: jax.Array) -> PyTree:
    """Draws a first {"params", "batch_stats"}; images of up to 8 pixels need no norm."""
    variables = module.init(key, jnp.zeros((2, module.noise_dim)), jnp.zeros(2, jnp.int32), False)
    return {"params": variables["params"], "batch_stats": variables.get("batch_stats", {})}


def moving_average(average: PyTree, generator: PyTree, decay: jax.Array | float) -> PyTree:
    """Moves an average towards the generator: decay * average + (1 - decay) * generator.

    Weights and running statistics are averaged alike (DFRD Eq. 6).
    """
    return jax.tree.map(lambda a, g: decay * a + (1 - decay) * g, average, generator)


def draw(
    key: jax.Array, recipe: Distillation, label_shares: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Draws noise float [B, d], standard normal, and labels int [B] from p(y), float [C]."""
    noise_key, label_key = jax.random.split(key)
    size = recipe.batch_size
    noise = jax.random.normal(noise_key, (size, recipe.noise_dim))
    labels = jax.random.categorical(label_key, jnp.log(label_shares), shape=(size,))
    return noise, labels
