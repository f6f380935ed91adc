"""The server's training of DFRD, DENSE and FedFTG: generator and global model in turn."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_ht.core.bucket import features, logits
from fedjax_ht.core.context import Context, Metrics
from fedjax_ht.core.executor import each
from fedjax_ht.core.federation import Federation
from fedjax_ht.losses.distillation import kl_divergence, ordered, transferability
from fedjax_ht.methods.data_free.bases import Opinions, Server, Teachers, ask
from fedjax_ht.methods.data_free.image_generator import (
    Generated,
    draw,
    image_source,
    make_generator,
    moving_average,
)
from fedjax_ht.methods.data_free.options import Distillation


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
        """The mask of the batch, bool [B]: all generated samples count."""
        return jnp.ones(len(self.labels), bool)


class Objective(NamedTuple):
    """A method's losses.

    Attributes:
      generator: (Synthetic) -> scalar, the loss of the generator.
      student: (Synthetic) -> scalar, the loss of the global model; only `Synthetic.student` is
        differentiated.
      with_moments: True if the generator's loss compares moments, which clients then upload.
    """

    generator: Callable[[Synthetic], jax.Array]
    student: Callable[[Synthetic], jax.Array]
    with_moments: bool = False


def distil(
    recipe: Distillation,
    objective: Objective,
    federation: Federation,
    teachers: Teachers,
    server: Server,
    ctx: Context,
) -> tuple[Server, Metrics]:
    """Trains generator and global model in turn, as one compiled loop.

    G and the teachers do not change during the model's steps. So an iteration first generates the
    images of all student steps and runs the teachers on them, batch by batch on CPU, in parallel
    elsewhere. A control has no generator steps. With alpha, its second term uses further images of
    the same kind, so that the model takes as many steps on as many images.

    Args:
      recipe, objective: the method's options and losses.
      federation: the federation; its global model is the student.
      teachers: the models of this round.
      server: the server's state, with the average of this round as its model.
      ctx: the server's context.

    Returns:
      The server's state, and mean losses of the steps: "student_loss", and "generator_loss" if the
      generator is trained.
    """
    module, bucket = make_generator(federation, recipe), federation.server_model
    trained, key = recipe.images == "generator", jax.random.fold_in(ctx.key, 1)
    new_images = image_source(recipe, federation, teachers.label_shares, ctx.data)
    adam = optax.adam(recipe.generator_lr, b1=0.5, b2=0.999)
    sgd = optax.chain(optax.add_decayed_weights(recipe.weight_decay), optax.sgd(recipe.student_lr))

    def student_logits(model, images, train: bool) -> jax.Array:
        everyone = jnp.ones(len(images), bool)
        return logits(bucket, model, features(bucket, model, {}, images, everyone, train=train)[0])

    def generator_step(number, carry, model, key):
        generator, state, total = carry
        noise, labels = draw(jax.random.fold_in(key, number), recipe, teachers.label_shares)

        def loss(params):
            variables = generator | {"params": params}
            made, changed = module.apply(variables, noise, labels, True, mutable=["batch_stats"])
            opinions = ask(
                federation,
                teachers,
                made.images,
                labels=labels,
                with_moments=objective.with_moments,
                low_memory=recipe.low_memory,
            )
            outputs = student_logits(model, made.images, train=False)
            batch = Synthetic(noise, labels, made, opinions, student=outputs, teachers=teachers)
            return objective.generator(batch), changed.get("batch_stats", {})

        (value, stats), gradients = jax.value_and_grad(loss, has_aux=True)(generator["params"])
        updates, state = adam.update(gradients, state)
        params = optax.apply_updates(generator["params"], updates)
        return {"params": params, "batch_stats": stats}, state, total + value

    def lessons(generator, keys):  # the first fields of `Synthetic`, stacked
        def lesson(key):
            noise, labels, made = new_images(generator, key)
            opinions = ask(
                federation, teachers, made.images, labels=labels, low_memory=recipe.low_memory
            )
            return noise, labels, made, opinions

        return each(lesson, keys, apart=recipe.low_memory)

    def student_step(number, carry, current, averages):
        model, state, total = carry

        def loss_on(model, stacked):
            # one batch for all steps with student_batch="iteration"
            batch = jax.tree.map(lambda x: x[jnp.minimum(number, x.shape[0] - 1)], stacked)
            outputs = student_logits(model, batch[2].images, train=True)
            return objective.student(Synthetic(*batch, student=outputs, teachers=teachers))

        def loss(model):
            value = loss_on(model, current)
            if recipe.alpha:
                value += recipe.alpha * server.has_taught * loss_on(model, averages)
            return value

        value, gradients = jax.value_and_grad(loss)(model)
        updates, state = sgd.update(gradients, state, model)
        return optax.apply_updates(model, updates), state, total + value

    def iteration(number, carry):
        (model, generator), (adam_state, sgd_state), (generator_total, student_total) = carry
        generator_key, student_key = jax.random.split(jax.random.fold_in(key, number))
        if trained:  # I_g times
            if recipe.reset_opt:
                adam_state = adam.init(generator["params"])
            step = functools.partial(generator_step, model=model, key=generator_key)
            start = generator, adam_state, generator_total
            end = lax.fori_loop(0, recipe.generator_steps, step, start)
            generator, adam_state, generator_total = end

        def keys_of(step):  # for the images of G, and for those of its average
            return jax.random.split(jax.random.fold_in(student_key, step))

        batches = max(recipe.student_steps, 1) if recipe.student_batch == "step" else 1
        keys = jax.vmap(keys_of)(jnp.arange(batches))
        current, averages = lessons(generator, keys[:, 0]), None
        if recipe.alpha:
            averages = lessons(server.average if trained else generator, keys[:, 1])
        step = functools.partial(student_step, current=current, averages=averages)  # I_d times
        start = model, sgd_state, student_total
        model, sgd_state, student_total = lax.fori_loop(0, recipe.student_steps, step, start)
        return (model, generator), (adam_state, sgd_state), (generator_total, student_total)

    adam_state = adam.init(server.generator["params"]) if trained else ()
    optimizers, totals = (adam_state, sgd.init(server.model)), (jnp.float32(0), jnp.float32(0))
    start = (server.model, server.generator), optimizers, totals
    end = lax.fori_loop(0, recipe.iterations, iteration, start)
    (model, generator), _, (generator_total, student_total) = end
    losses = {"student_loss": student_total / max(recipe.iterations * recipe.student_steps, 1)}
    if trained:
        steps = max(recipe.iterations * recipe.generator_steps, 1)
        losses["generator_loss"] = generator_total / steps
    average = server.average
    if average:  # w~, which starts as the first trained generator
        decay = jnp.where(server.has_taught, recipe.decay, 0.0)
        average = moving_average(average, generator, decay)
    return Server(model, server.averaged, generator, average, has_taught=jnp.array(True)), losses


def student_loss(batch: Synthetic, recipe: Distillation) -> jax.Array:
    """Computes the KL between the ensemble's and the student's predictions (Eq. 7)."""
    teacher = batch.opinions.ensemble / recipe.temperature
    student = batch.student / recipe.temperature
    sides = ordered(teacher, student, recipe.distil_order)
    return recipe.kl_scale * kl_divergence(*sides, batch.everyone)


def adversarial_loss(u: jax.Array, batch: Synthetic, recipe: Distillation, **options) -> jax.Array:
    """Computes L_tran (Eq. 3) at the ensemble's logits u, without `Distillation.kl_scale`.

    `options` are selection and normaliser of `losses.transferability`.
    """
    return transferability(
        u,
        batch.student,
        batch.labels,
        batch.everyone,
        temperature=recipe.temperature,
        order=recipe.tran_order,
        student_path=recipe.student_path,
        **options,
    )
