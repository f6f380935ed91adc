"""Distillation on the server, without data: a generator and the global model learn from the clients' models in turn.

    A times:  I_g times  z ~ N(0, I), y ~ p, s, h = G(z, y);   w     descends on the method's generator loss
              I_d times  the same, G fixed;                    theta descends on the method's student loss of s
                         and, from the second round on, on alpha times that of images of G's moving average

p, the teachers and their weights are those of `methods.ensemble`. G normalises by batch while it is trained, and by its
running statistics while it teaches. DFRD, DENSE and FedFTG differ in the two losses and in their numbers.

Controls teach on other images, see `methods.image_source`. They have no generator step; with alpha, the second term is
on further images of the same kind, so that the model takes as many steps on as many images.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_ht.core.federation import Bucket, Federation, features, logits
from fedjax_ht.core.method import Data, PyTree
from fedjax_ht.methods.ensemble import Opinions, Teachers, ask
from fedjax_ht.methods.image_source import Images, draw_real, make_pool
from fedjax_ht.models.conditional import ConditionalGenerator, Generated, Merge, check_merge

Counts = Literal["seen_so_far", "this_round", "full", "none"]
"""What counts as c_i^y.

seen_so_far: labels trained on in any round, as many as the client has at most.
this_round: labels trained on in this round, repeated samples repeatedly.
full: all of the client's training labels.
none: nothing; teachers weigh alike, and classes are drawn alike.
"""


@dataclasses.dataclass(frozen=True)
class Distillation:
    """How the server trains.

    Attributes:
      iterations: A, of generator and student in turn, in every round.
      generator_steps, student_steps: I_g and I_d.
      batch_size: images a step.
      noise_dim: d.
      merge: of noise and label, see `models.conditional`.
      temperature: T_kd, of every KL that a method takes at a temperature.
      temperature_squared: multiply these KL by T_kd^2, which keeps the size of their gradients whatever T_kd is; as
        released they are not.
      generator_lr: of Adam(0.5, 0.999).
      student_lr, weight_decay: of SGD.
      reset_opt: Adam starts anew in each of the A iterations, as released; else once a round.
      alpha: weight of the student's loss on images of the moving average; with 0 there is none.
      decay: lambda, the share that the moving average keeps in a round.
      counts: see `Counts`.
      images: what the student is taught on, see `methods.image_source`.
      feedback: clients go on from the distilled model; else, as released for one width, from the one averaged.
      low_memory: see `ensemble.ask`.
    """

    iterations: int = 10
    generator_steps: int = 2
    student_steps: int = 5
    batch_size: int = 64
    noise_dim: int = 100
    merge: Merge = "mul"
    temperature: float = 10.0
    temperature_squared: bool = False
    generator_lr: float = 2e-4
    student_lr: float = 0.01
    weight_decay: float = 1e-4
    reset_opt: bool = True
    alpha: float = 0.0
    decay: float = 0.5
    counts: Counts = "seen_so_far"
    images: Images = "generator"
    feedback: bool = True
    low_memory: bool = False

    def __post_init__(self):
        least = {"iterations": 0, "generator_steps": 1, "student_steps": 0, "batch_size": 2, "noise_dim": 1}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                hint = "; images='untrained' never trains it" if name == "generator_steps" else ""
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {bound}{hint}")
        if self.temperature <= 0:
            raise ValueError(f"temperature is {self.temperature}; it must be above 0")
        if not 0 <= self.decay <= 1:
            raise ValueError(f"decay is {self.decay}; it must be in [0, 1]")
        for name, kinds in (("counts", Counts), ("images", Images)):
            if getattr(self, name) not in get_args(kinds):
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(get_args(kinds))}")
        check_merge(self.merge)

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
      with_moments: the generator's loss compares moments of norms' inputs; clients then upload theirs.
    """

    generator: Callable[[Synthetic], jax.Array]
    student: Callable[[Synthetic], jax.Array]
    with_moments: bool = False


class Learner(NamedTuple):
    """What the server trains: the global model's parameters, and the generator's {"params", "batch_stats"}; () without
    a generator."""

    model: PyTree
    generator: PyTree


def make_generator(federation: Federation, recipe: Distillation) -> ConditionalGenerator:
    """The generator for a federation's images and classes."""
    bucket = federation.global_model
    return ConditionalGenerator(federation.num_classes, recipe.noise_dim, bucket.input_shape, recipe.merge)


def init_generator(module: ConditionalGenerator, key: jax.Array) -> PyTree:
    """A first {"params", "batch_stats"}; images of up to 8 pixels need no norm."""
    variables = module.init(key, jnp.zeros((2, module.noise_dim)), jnp.zeros(2, jnp.int32), False)
    return {"params": variables["params"], "batch_stats": variables.get("batch_stats", {})}


def moving_average(average: PyTree, generator: PyTree, decay: jax.Array | float) -> PyTree:
    """decay * average + (1 - decay) * generator, of weights and running statistics alike (DFRD Eq. 6)."""
    return jax.tree.map(lambda a, g: decay * a + (1 - decay) * g, average, generator)


def draw(key: jax.Array, recipe: Distillation, label_shares: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Noise float [B, d], standard normal, and labels int [B] from p(y)."""
    noise_key, label_key = jax.random.split(key)
    noise = jax.random.normal(noise_key, (recipe.batch_size, recipe.noise_dim))
    return noise, jax.random.categorical(label_key, jnp.log(label_shares), shape=(recipe.batch_size,))


def student_logits(bucket: Bucket, model: PyTree, x: jax.Array, train: bool) -> jax.Array:
    """The global model's, float [B, C]."""
    found, _ = features(bucket, model, {}, x, jnp.ones(len(x), bool), train)
    return logits(bucket, model, found)


def distil(
    recipe: Distillation,
    objective: Objective,
    federation: Federation,
    buckets: Sequence[Bucket],
    teachers: Teachers,
    learner: Learner,
    average: PyTree,
    round: jax.Array,
    key: jax.Array,
    data: Data | None = None,
) -> tuple[Learner, dict[str, jax.Array]]:
    """All of a round's iterations, as one loop.

    Args:
      recipe, objective: what the method is.
      federation: whose global model is the student.
      buckets: those of the teachers, in the order of their weights.
      teachers: of this round.
      learner: what is trained.
      average: the generator's moving average up to the last round; () without.
      round: int32 scalar, from 0; the moving average teaches from round 1 on.
      key: of all draws.
      data: all clients' training samples, split "train"; only of `recipe.images` "real".

    Returns:
      The learner, and the mean losses of the steps, "student_loss" and, where it is trained, "generator_loss".
    """
    module, bucket, shares = make_generator(federation, recipe), federation.global_model, teachers.label_shares
    trained = recipe.images == "generator"
    if recipe.images == "real":
        pool = make_pool(data, federation.num_classes)
        shares = jnp.where(pool.count > 0, shares, 0)  # counts="none" draws classes that nobody has
    adam = optax.adam(recipe.generator_lr, b1=0.5, b2=0.999)
    sgd = optax.chain(optax.add_decayed_weights(recipe.weight_decay), optax.sgd(recipe.student_lr))

    def generator_step(number, carry, model, key):
        generator, state, total = carry
        noise, labels = draw(jax.random.fold_in(key, number), recipe, shares)

        def loss(params):
            variables = generator | {"params": params}
            made, changed = module.apply(variables, noise, labels, True, mutable=["batch_stats"])
            opinions = ask(buckets, teachers, made.images, labels, objective.with_moments, recipe.low_memory)
            own = student_logits(bucket, model, made.images, train=False)
            return objective.generator(Synthetic(noise, labels, made, opinions, own, teachers)), changed

        (value, changed), gradients = jax.value_and_grad(loss, has_aux=True)(generator["params"])
        updates, state = adam.update(gradients, state)
        params = optax.apply_updates(generator["params"], updates)
        return {"params": params, "batch_stats": changed.get("batch_stats", {})}, state, total + value

    def show(generator, noise, labels, key) -> Generated:
        if recipe.images == "real":
            return Generated(draw_real(jax.random.fold_in(key, 1), data, pool, labels), noise, ())
        if recipe.images == "noise":
            shape = (recipe.batch_size, *bucket.input_shape)
            return Generated(jax.random.normal(jax.random.fold_in(key, 1), shape), noise, ())
        return module.apply(generator, noise, labels, False)

    def taught(model, generator, key):
        """The student's loss on images of a generator, or of a control."""
        noise, labels = draw(key, recipe, shares)
        made = jax.tree.map(lax.stop_gradient, show(generator, noise, labels, key))
        opinions = jax.tree.map(lax.stop_gradient, ask(buckets, teachers, made.images, labels, False))
        own = student_logits(bucket, model, made.images, train=True)
        return objective.student(Synthetic(noise, labels, made, opinions, own, teachers))

    def student_step(number, carry, generator, key):
        model, state, total = carry
        key, average_key = jax.random.split(jax.random.fold_in(key, number))

        def loss(model):
            value = taught(model, generator, key)
            if recipe.alpha:
                value += recipe.alpha * (round > 0) * taught(model, average if trained else generator, average_key)
            return value

        value, gradients = jax.value_and_grad(loss)(model)
        updates, state = sgd.update(gradients, state, model)
        return optax.apply_updates(model, updates), state, total + value

    def iteration(number, carry):
        (model, generator), adam_state, sgd_state, generator_total, student_total = carry
        generator_key, student_key = jax.random.split(jax.random.fold_in(key, number))
        if trained and recipe.reset_opt:
            adam_state = adam.init(generator["params"])
        if trained:
            generator, adam_state, generator_total = lax.fori_loop(
                0,
                recipe.generator_steps,
                lambda i, carry: generator_step(i, carry, model, generator_key),
                (generator, adam_state, generator_total),
            )
        model, sgd_state, student_total = lax.fori_loop(
            0,
            recipe.student_steps,
            lambda i, carry: student_step(i, carry, generator, student_key),
            (model, sgd_state, student_total),
        )
        return Learner(model, generator), adam_state, sgd_state, generator_total, student_total

    adam_state = adam.init(learner.generator["params"]) if trained else ()
    start = (learner, adam_state, sgd.init(learner.model), jnp.float32(0), jnp.float32(0))
    learner, _, _, generator_total, student_total = lax.fori_loop(0, recipe.iterations, iteration, start)
    losses = {"student_loss": student_total / max(recipe.iterations * recipe.student_steps, 1)}
    if trained:
        losses["generator_loss"] = generator_total / max(recipe.iterations * recipe.generator_steps, 1)
    return learner, losses
