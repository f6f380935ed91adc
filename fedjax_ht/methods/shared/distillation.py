"""Distillation on the server, without data: a generator and the global model learn from the
clients' models in turn.

    A times:  I_g times  z ~ N(0, I), y ~ p, s, h = G(z, y);   w     descends on the method's
    generator loss
              I_d times  the same, G fixed;                    theta descends on the method's
              student loss of s
                         and, from the second round on, on alpha times that of images of G's moving
                         average

p, the teachers and their weights are those of `methods.ensemble`. G normalises by batch while it is
trained, and by its running statistics while it teaches. DFRD, DENSE and FedFTG differ in the two
losses and in their numbers.

The loop is in `methods.distillation_loop`; here are the words that it and the methods share.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.core.bounds import (
    Count,
    NonNegative,
    Positive,
    SearchRange,
    Share,
    Whole,
    Within,
    check_fields,
)
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.method import PyTree
from fedjax_ht.losses.distillation import KLOrder
from fedjax_ht.methods.shared.ensemble import Opinions, Teachers
from fedjax_ht.methods.shared.image_source import Images
from fedjax_ht.models.conditional import ConditionalGenerator, Generated, Merge

Counts = Literal["seen_so_far", "this_round", "full", "none"]
"""What counts as c_i^y.

seen_so_far: labels trained on in any round, as many as the client has at most.
this_round: labels trained on in this round, repeated samples repeatedly.
full: all of the client's training labels.
none: nothing; teachers weigh alike, and classes are drawn alike.
"""

StudentBatch = Literal["step", "iteration"]
Reduction = Literal["mean_classes", "sum_classes"]


@dataclasses.dataclass(frozen=True)
class Distillation:
    """How the server trains. None, of five of these, is the variant's value, which the methods'
    factories fill in (see `methods.variants`).

    Attributes:
      iterations: A, of generator and student in turn, in every round.
      generator_steps, student_steps: I_g and I_d; a generator that is never trained is
        images="untrained".
      batch_size: images a step.
      noise_dim: d.
      merge: of noise and label, see `models.conditional`.
      temperature: T_kd, of every KL that a method takes at a temperature.
      temperature_squared: multiply these KL by T_kd^2, which keeps the size of their gradients
        whatever T_kd is; as released they are not. At 10 the student's gradient is then some fifty
        times smaller than at 1.
      tran_order, student_path: of the generator's KL, which side comes first, and whether it is
        differentiated through the student, too (see `losses.transferability`).
      distil_order: of the student's KL, which side comes first.
      generator_lr: of Adam(0.5, 0.999).
      student_lr, weight_decay: of SGD.
      reset_opt: Adam starts anew in each of the A iterations, as released; else once a round.
      alpha: weight of the student's loss on images of the moving average; with 0 there is none.
      decay: lambda, the share that the moving average keeps in a round.
      counts: see `Counts`.
      student_batch: the student sees images drawn anew in every "step", or for an "iteration" those
        of one draw in all its student steps, as in FedFTG's own code; the teachers are then asked
        once.
      images: what the student is taught on, see `methods.image_source`.
      feedback: clients go on from the distilled model; else, as released for one width, from the
        one averaged.
      low_memory: see `ensemble.ask`.
    """

    iterations: Whole = 10
    generator_steps: Count = 2
    student_steps: Whole = 5
    batch_size: Annotated[int, Within(2)] = 64
    noise_dim: Count = 100
    merge: Merge = "mul"
    temperature: Positive | None = None
    temperature_squared: bool = False
    tran_order: KLOrder | None = None
    student_path: bool | None = None
    distil_order: KLOrder | None = None
    generator_lr: Annotated[Positive, SearchRange(2e-5, 2e-3)] = 2e-4
    student_lr: Annotated[NonNegative, SearchRange(0.001, 0.1)] = 0.01
    weight_decay: NonNegative = 1e-4
    reset_opt: bool = True
    alpha: NonNegative = 0.0
    decay: Share = 0.5
    counts: Counts | None = None
    student_batch: StudentBatch = "step"
    images: Images = "generator"
    feedback: bool = True
    low_memory: bool = False

    def __post_init__(self):
        check_fields(self)

    @property
    def kl_scale(self) -> float:
        """What every KL at `temperature` is multiplied by."""
        return self.temperature**2 if self.temperature_squared else 1.0


class Synthetic(NamedTuple):
    """A generated batch, and what everybody says of it.

    Attributes:
      noise: float [B, d], z.
      labels: int [B], y.
      generated: images and what they were made of.
      opinions: of the teachers.
      student: float [B, C], the global model's logits.
      teachers: whose opinions these are.
    """

    noise: jax.Array
    labels: jax.Array
    generated: Generated
    opinions: Opinions
    student: jax.Array
    teachers: Teachers

    @property
    def everyone(self) -> jax.Array:
        """bool [B]: of what is generated, every sample is a real one."""
        return jnp.ones(len(self.labels), bool)


class Objective(NamedTuple):
    """What a method descends on.

    Attributes:
      generator: (Synthetic) -> scalar.
      student: (Synthetic) -> scalar; only `student` is differentiated.
      with_moments: the generator's loss compares moments of norms' inputs; clients then upload
        theirs.
    """

    generator: Callable[[Synthetic], jax.Array]
    student: Callable[[Synthetic], jax.Array]
    with_moments: bool = False


class Learner(NamedTuple):
    """What the server trains: the global model's parameters, and the generator's {"params",
    "batch_stats"}; () without a generator."""

    model: PyTree
    generator: PyTree


def make_generator(federation: Federation, recipe: Distillation) -> ConditionalGenerator:
    """The generator for a federation's images and classes."""
    bucket = federation.global_model
    return ConditionalGenerator(
        federation.num_classes, recipe.noise_dim, bucket.input_shape, recipe.merge
    )


def init_generator(module: ConditionalGenerator, key: jax.Array) -> PyTree:
    """A first {"params", "batch_stats"}; images of up to 8 pixels need no norm."""
    variables = module.init(key, jnp.zeros((2, module.noise_dim)), jnp.zeros(2, jnp.int32), False)
    return {"params": variables["params"], "batch_stats": variables.get("batch_stats", {})}


def moving_average(average: PyTree, generator: PyTree, decay: jax.Array | float) -> PyTree:
    """decay * average + (1 - decay) * generator, of weights and running statistics alike (DFRD Eq.
    6)."""
    return jax.tree.map(lambda a, g: decay * a + (1 - decay) * g, average, generator)


def draw(
    key: jax.Array, recipe: Distillation, label_shares: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Noise float [B, d], standard normal, and labels int [B] from p(y)."""
    noise_key, label_key = jax.random.split(key)
    noise = jax.random.normal(noise_key, (recipe.batch_size, recipe.noise_dim))
    return noise, jax.random.categorical(
        label_key, jnp.log(label_shares), shape=(recipe.batch_size,)
    )
