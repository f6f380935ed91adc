"""The loop of `shared.distillation`: generator and global model take their steps in turn.

G and the teachers do not change during the model's steps. So the images of all student steps of an
iteration are made first, and the teachers run on all of them, one batch after another on CPU and
side by side elsewhere.

Controls teach on other images, see `shared.image_source`. They have no generator step; with alpha,
the second term is on further images of the same kind, so that the model takes as many steps on as
many images.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_ht.core.bucket import Bucket, features, logits
from fedjax_ht.core.executor import each
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.samples import Data
from fedjax_ht.core.trees import PyTree
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
    """One batch for the student, the first fields of `Synthetic`."""

    noise: jax.Array
    labels: jax.Array
    generated: Generated
    opinions: Opinions


def distil(
    recipe: Distillation,
    objective: Objective,
    federation: Federation,
    *,
    buckets: Sequence[Bucket],
    teachers: Teachers,
    learner: Learner,
    average: PyTree,
    round: jax.Array,
    key: jax.Array,
    data: Data | None = None,
) -> tuple[Learner, dict[str, jax.Array]]:
    """Runs all of a round's iterations, as one compiled loop.

    Args:
      recipe, objective: the method's options and losses.
      federation: the federation; its global model is the student.
      buckets: the teachers' buckets, in the order of their weights.
      teachers: the models of this round.
      learner: the models to train.
      average: the generator's moving average up to the last round; () without.
      round: the number of the round, an int32 scalar, from 0; the moving average teaches from round
        1 on.
      key: the key of all draws.
      data: the training samples of all clients, split "train", where `Distillation.images` is
        "real"; else None.

    Returns:
      The learner, and the mean losses of the steps, "student_loss" and, where it is trained,
      "generator_loss".
    """
    trained = recipe.images == "generator"
    prepare = lessons_of(recipe, federation, buckets, teachers, data)
    adam = optax.adam(recipe.generator_lr, b1=0.5, b2=0.999)
    sgd = optax.chain(optax.add_decayed_weights(recipe.weight_decay), optax.sgd(recipe.student_lr))
    generator_step = generator_steps(
        recipe, objective, federation, buckets=buckets, teachers=teachers, adam=adam
    )

    def student_loss(model, lesson: Lesson) -> jax.Array:
        images = lesson.generated.images
        outputs = student_logits(federation.server_model, model, images, train=True)
        return objective.student(Synthetic(*lesson, outputs, teachers))

    def student_step(carry, number, lessons: Lesson, further: Lesson | None):
        model, state, total = carry

        def lesson_of(stacked):  # one lesson for all steps with student_batch="iteration"
            return jax.tree.map(lambda x: x[jnp.minimum(number, x.shape[0] - 1)], stacked)

        def loss(model):
            value = student_loss(model, lesson_of(lessons))
            if further is not None:
                value += recipe.alpha * (round > 0) * student_loss(model, lesson_of(further))
            return value

        value, gradients = jax.value_and_grad(loss)(model)
        updates, state = sgd.update(gradients, state, model)
        return optax.apply_updates(model, updates), state, total + value

    def iteration(number, carry):
        (model, generator), adam_state, sgd_state, generator_total, student_total = carry
        generator_key, student_key = jax.random.split(jax.random.fold_in(key, number))
        if trained and recipe.reset_opt:
            adam_state = adam.init(generator["params"])

        def train_generator(i, carry):
            return generator_step(carry, model, jax.random.fold_in(generator_key, i))

        if trained:
            start = generator, adam_state, generator_total
            end = lax.fori_loop(0, recipe.generator_steps, train_generator, start)
            generator, adam_state, generator_total = end
        batches = max(recipe.student_steps, 1) if recipe.student_batch == "step" else 1
        keys = jax.vmap(keys_of_lesson, (None, 0))(student_key, jnp.arange(batches))
        lessons = prepare(generator, keys[:, 0])
        further = None
        if recipe.alpha:
            further = prepare(average if trained else generator, keys[:, 1])

        def train_student(i, carry):
            return student_step(carry, i, lessons, further)

        start = model, sgd_state, student_total
        end = lax.fori_loop(0, recipe.student_steps, train_student, start)
        model, sgd_state, student_total = end
        return Learner(model, generator), adam_state, sgd_state, generator_total, student_total

    adam_state = adam.init(learner.generator["params"]) if trained else ()
    start = (learner, adam_state, sgd.init(learner.model), jnp.float32(0), jnp.float32(0))
    learner, _, _, generator_total, student_total = lax.fori_loop(
        0, recipe.iterations, iteration, start
    )
    losses = {"student_loss": student_total / max(recipe.iterations * recipe.student_steps, 1)}
    if trained:
        steps = max(recipe.iterations * recipe.generator_steps, 1)
        losses["generator_loss"] = generator_total / steps
    return learner, losses


def keys_of_lesson(key: jax.Array, number: jax.Array) -> jax.Array:
    """Returns the two keys of a student step: of its images, and of those of the average."""
    return jax.random.split(jax.random.fold_in(key, number))


def generator_steps(
    recipe: Distillation,
    objective: Objective,
    federation: Federation,
    *,
    buckets: Sequence[Bucket],
    teachers: Teachers,
    adam: optax.GradientTransformation,
) -> Callable:
    """Makes a step of the generator; arguments as of `distil`.

    Returns:
      ((generator, Adam's state, sum of losses), model, key) -> the same triple after one step.
    """
    module, bucket = make_generator(federation, recipe), federation.server_model

    def step(carry, model, key):
        generator, state, total = carry
        noise, labels = draw(key, recipe, teachers.label_shares)

        def loss(params):
            variables = generator | {"params": params}
            made, changed = module.apply(variables, noise, labels, True, mutable=["batch_stats"])
            opinions = ask(
                buckets,
                teachers,
                made.images,
                labels=labels,
                with_moments=objective.with_moments,
                low_memory=recipe.low_memory,
            )
            batch = Synthetic(
                noise=noise,
                labels=labels,
                generated=made,
                opinions=opinions,
                student=student_logits(bucket, model, made.images, train=False),
                teachers=teachers,
            )
            return objective.generator(batch), changed

        (value, changed), gradients = jax.value_and_grad(loss, has_aux=True)(generator["params"])
        updates, state = adam.update(gradients, state)
        params = optax.apply_updates(generator["params"], updates)
        generator = {"params": params, "batch_stats": changed.get("batch_stats", {})}
        return generator, state, total + value

    return step


def lessons_of(
    recipe: Distillation,
    federation: Federation,
    buckets: Sequence[Bucket],
    teachers: Teachers,
    data: PyTree,
) -> Callable:
    """Makes the source of lessons, a generator or a control; arguments as of `distil`.

    Returns:
      (generator, keys [S]) -> Lesson with leading axes [S].
    """
    module, shares = make_generator(federation, recipe), teachers.label_shares
    pool: PyTree = ()
    if recipe.images == "real":
        pool = make_pool(data, federation.num_classes)
        # counts="none" draws classes that no client has
        shares = jnp.where(pool.count > 0, shares, 0)

    def show(generator, noise, labels, key) -> PyTree:
        if recipe.images == "real":
            return Generated(draw_real(jax.random.fold_in(key, 1), data, pool, labels), noise, ())
        if recipe.images == "noise":
            shape = (recipe.batch_size, *federation.server_model.input_shape)
            return Generated(jax.random.normal(jax.random.fold_in(key, 1), shape), noise, ())
        return module.apply(generator, noise, labels, False)

    def lesson(generator, key) -> Lesson:
        noise, labels = draw(key, recipe, shares)
        made = show(generator, noise, labels, key)
        opinions = ask(buckets, teachers, made.images, labels=labels)
        return Lesson(noise=noise, labels=labels, generated=made, opinions=opinions)

    def prepare(generator, keys) -> Lesson:
        return each(lambda key: lesson(generator, key), keys, apart=recipe.low_memory)

    return prepare


def student_logits(bucket: Bucket, model: PyTree, x: jax.Array, train: bool) -> jax.Array:
    """Computes the global model's logits of images, float [B, C]."""
    rows, _ = features(bucket, model, {}, x, jnp.ones(len(x), bool), train)
    return logits(bucket, model, rows)
