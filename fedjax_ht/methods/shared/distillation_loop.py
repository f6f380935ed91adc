"""A round of `methods.distillation`: generator and global model take their steps in turn, as one
compiled loop.

Nothing that the model is taught on changes while it takes its steps: G and the teachers stand
still. So the images of all student steps of an iteration are made first, and the teachers asked
about all of them, one batch after another on CPU and side by side elsewhere.

Controls teach on other images, see `methods.image_source`. They have no generator step; with alpha,
the second term is on further images of the same kind, so that the model takes as many steps on as
many images.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_ht.core.executor import each
from fedjax_ht.core.federation import Bucket, Federation, features, logits
from fedjax_ht.core.method import Data, PyTree
from fedjax_ht.methods.shared.distillation import (
    Distillation,
    Learner,
    Objective,
    Synthetic,
    draw,
    make_generator,
)
from fedjax_ht.methods.shared.ensemble import Opinions, Teachers, ask
from fedjax_ht.methods.shared.image_source import draw_real, make_pool
from fedjax_ht.models.conditional import Generated


class Lesson(NamedTuple):
    """One batch for the student: as the fields of `Synthetic`."""

    noise: jax.Array
    labels: jax.Array
    generated: Generated
    opinions: Opinions


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
    """All of a round's iterations.

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
      The learner, and the mean losses of the steps, "student_loss" and, where it is trained,
      "generator_loss".
    """
    trained = recipe.images == "generator"
    prepare = lessons_of(recipe, federation, buckets, teachers, data)
    adam = optax.adam(recipe.generator_lr, b1=0.5, b2=0.999)
    sgd = optax.chain(optax.add_decayed_weights(recipe.weight_decay), optax.sgd(recipe.student_lr))
    generator_step = generator_steps(recipe, objective, federation, buckets, teachers, adam)

    def student_loss(model, lesson: Lesson) -> jax.Array:
        own = student_logits(federation.global_model, model, lesson.generated.images, train=True)
        return objective.student(Synthetic(*lesson, own, teachers))

    def student_step(carry, number, lessons: Lesson, further: Lesson | None):
        model, state, total = carry

        def at(stacked):
            return jax.tree.map(lambda x: x[jnp.minimum(number, x.shape[0] - 1)], stacked)

        def loss(model):
            value = student_loss(model, at(lessons))
            if further is not None:
                value += recipe.alpha * (round > 0) * student_loss(model, at(further))
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
                lambda i, carry: generator_step(carry, model, jax.random.fold_in(generator_key, i)),
                (generator, adam_state, generator_total),
            )
        batches = max(recipe.student_steps, 1) if recipe.student_batch == "step" else 1
        keys = jax.vmap(lambda i: jax.random.split(jax.random.fold_in(student_key, i)))(
            jnp.arange(batches)
        )
        lessons = prepare(generator, keys[:, 0])
        further = prepare(average if trained else generator, keys[:, 1]) if recipe.alpha else None
        model, sgd_state, student_total = lax.fori_loop(
            0,
            recipe.student_steps,
            lambda i, carry: student_step(carry, i, lessons, further),
            (model, sgd_state, student_total),
        )
        return Learner(model, generator), adam_state, sgd_state, generator_total, student_total

    adam_state = adam.init(learner.generator["params"]) if trained else ()
    start = (learner, adam_state, sgd.init(learner.model), jnp.float32(0), jnp.float32(0))
    learner, _, _, generator_total, student_total = lax.fori_loop(
        0, recipe.iterations, iteration, start
    )
    losses = {"student_loss": student_total / max(recipe.iterations * recipe.student_steps, 1)}
    if trained:
        losses["generator_loss"] = generator_total / max(
            recipe.iterations * recipe.generator_steps, 1
        )
    return learner, losses


def generator_steps(
    recipe: Distillation,
    objective: Objective,
    federation: Federation,
    buckets: Sequence[Bucket],
    teachers: Teachers,
    adam: optax.GradientTransformation,
) -> Callable:
    """((generator, Adam's state, sum of losses), model, key) -> the same after one step."""
    module, bucket = make_generator(federation, recipe), federation.global_model

    def step(carry, model, key):
        generator, state, total = carry
        noise, labels = draw(key, recipe, teachers.label_shares)

        def loss(params):
            variables = generator | {"params": params}
            made, changed = module.apply(variables, noise, labels, True, mutable=["batch_stats"])
            opinions = ask(
                buckets, teachers, made.images, labels, objective.with_moments, recipe.low_memory
            )
            own = student_logits(bucket, model, made.images, train=False)
            return objective.generator(
                Synthetic(noise, labels, made, opinions, own, teachers)
            ), changed

        (value, changed), gradients = jax.value_and_grad(loss, has_aux=True)(generator["params"])
        updates, state = adam.update(gradients, state)
        params = optax.apply_updates(generator["params"], updates)
        return (
            {"params": params, "batch_stats": changed.get("batch_stats", {})},
            state,
            total + value,
        )

    return step


def lessons_of(
    recipe: Distillation,
    federation: Federation,
    buckets: Sequence[Bucket],
    teachers: Teachers,
    data: Data | None,
) -> Callable:
    """(generator, keys [S]) -> Lesson with leading axes [S], of a generator or of a control."""
    module, shares = make_generator(federation, recipe), teachers.label_shares
    if recipe.images == "real":
        pool = make_pool(data, federation.num_classes)
        # counts="none" draws classes that nobody has
        shares = jnp.where(pool.count > 0, shares, 0)

    def show(generator, noise, labels, key) -> Generated:
        if recipe.images == "real":
            return Generated(draw_real(jax.random.fold_in(key, 1), data, pool, labels), noise, ())
        if recipe.images == "noise":
            shape = (recipe.batch_size, *federation.global_model.input_shape)
            return Generated(jax.random.normal(jax.random.fold_in(key, 1), shape), noise, ())
        return module.apply(generator, noise, labels, False)

    def lesson(generator, key) -> Lesson:
        noise, labels = draw(key, recipe, shares)
        made = show(generator, noise, labels, key)
        return Lesson(noise, labels, made, ask(buckets, teachers, made.images, labels))

    def prepare(generator, keys) -> Lesson:
        return each(lambda key: lesson(generator, key), keys, apart=recipe.low_memory)

    return prepare


def student_logits(bucket: Bucket, model: PyTree, x: jax.Array, train: bool) -> jax.Array:
    """The global model's, float [B, C]."""
    found, _ = features(bucket, model, {}, x, jnp.ones(len(x), bool), train)
    return logits(bucket, model, found)
