"""Tasks: the meaning of a head's outputs, the loss that trains them, and the sums that score them.

A task is static and hashable, and part of `Bucket` and `Federation`. Classification counts correct
predictions (`core.prediction_counts`). Other tasks compute sums over samples, which add up over
batches and clients.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_ht.check.options import check_value, checked
from fedjax_ht.core.trees import PyTree
from fedjax_ht.losses import cross_entropy, kl_divergence
from fedjax_ht.losses.classification import masked_mean

Better = Literal["higher", "lower"]


def _unchanged(outputs: jax.Array) -> jax.Array:  # pickles, unlike a lambda
    return outputs


@dataclasses.dataclass(frozen=True)
class Task:
    """A task of supervised learning.

    Attributes:
      name: "classification", "regression", "multi-label" or "per-pixel".
      loss: (outputs float [B, O], targets [B, ...], mask bool [B]) -> the scalar to descend on.
      divergence: (a teacher's outputs, outputs, mask) -> the distance of two models' outputs, in
        the loss's unit; both arguments are differentiated.
      target: the shape and dtype of one sample's target.
      predictions: (outputs [B, O]) -> predictions in the targets' unit.
      sums: (outputs, targets, mask) -> {name: sums over the samples}; None for classification.
      metrics: (those sums as NumPy, with any leading client axes, numbers of samples) -> {name:
        float64 with these axes}, including the score; NaN where undefined.
      score: the name of the score, "accuracy" in classification.
      better: whether a higher or a lower score is better.
      outputs: number of a model's outputs; None for the number of a sample's targets, or classes.
    """

    name: str
    loss: Callable
    divergence: Callable = kl_divergence
    target: tuple[tuple[int, ...], str] = ((), "int32")
    predictions: Callable = _unchanged
    sums: Callable | None = None
    metrics: Callable | None = None
    score: str = "accuracy"
    better: Better = "higher"
    outputs: int | None = None

    def __post_init__(self):
        check_value("better", self.better, Better)

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    def no_targets(self, count: int) -> np.ndarray:
        """Returns zeros in the form of `count` samples' targets."""
        shape, dtype = self.target
        return np.zeros((count, *shape), dtype)


CLASSIFICATION = Task("classification", cross_entropy)
"""The task of choosing one of C classes: targets are labels int32 [B], outputs logits [B, C]."""


@functools.cache  # equal tasks are one object, also as keys of compiled functions
def regression(centre: tuple[float, ...], scale: tuple[float, ...]) -> Task:
    """Makes the task of predicting D numbers.

    Targets are float32 [B, D]. Outputs are in standard units, (target - centre) / scale, as is the
    loss, the mean squared error. Scores are means over the D outputs.

    Args:
      centre, scale: mean and standard deviation that standardise targets, D numbers each.

    Returns:
      The task. Its score is "rmse", the root mean squared error; "mae" is the mean absolute error
      and "r2" the share of explained variance. "r2" is undefined for fewer than two samples, and if
      all targets of a column are equal.
    """
    middle, width = np.array(centre, np.float32), np.array(scale, np.float32)

    def standard(targets):
        return (targets - middle) / width

    def loss(outputs, targets, mask):
        return divergence(standard(targets), outputs, mask)

    def divergence(teacher, outputs, mask):
        # the KL divergence of two Gaussians with equal variance, times twice that variance
        return masked_mean(jnp.mean((outputs - teacher) ** 2, -1), mask)

    def sums(outputs, targets, mask):
        # In standard units: squares of large targets would not fit into float32.
        known = mask[:, None]
        target = jnp.where(known, standard(targets), 0)
        error = outputs - target
        # A diverged model's NaN is the worst prediction, not an undefined score: a mean over
        # clients would leave it out.
        error = jnp.where(known, jnp.where(jnp.isnan(error), jnp.inf, error), 0)
        rows = {"absolute": jnp.abs(error), "square": error**2}
        rows |= {"target": target, "target_square": target**2}
        return jax.tree.map(lambda x: jnp.sum(x, 0), rows)

    def metrics(sums: PyTree, count: np.ndarray) -> dict[str, np.ndarray]:
        sums = {name: np.asarray(value, np.float64) for name, value in sums.items()}
        n = np.asarray(count, np.float64)[..., None]
        with np.errstate(divide="ignore", invalid="ignore"):
            rmse = np.sqrt(sums["square"] / n) * width
            mae = sums["absolute"] / n * width
            spread = sums["target_square"] - sums["target"] ** 2 / n
            # Below this, the spread is the rounding of float32 sums.
            varies = (n > 1) & (spread > 1e-6 * sums["target_square"])
            r2 = np.where(varies, 1 - sums["square"] / spread, np.nan)
        return {"rmse": rmse.mean(-1), "mae": mae.mean(-1), "r2": r2.mean(-1)}

    return Task(
        "regression",
        loss,
        divergence,
        target=((len(centre),), "float32"),
        predictions=lambda outputs: outputs * width + middle,
        sums=sums,
        metrics=metrics,
        score="rmse",
        better="lower",
    )


@functools.cache
def multi_label(num_labels: int) -> Task:
    """Makes the task of predicting which of L labels a sample has.

    Targets are int8 [B, L] of 0 and 1. Outputs are logits; a label is predicted if its logit is
    above 0. The loss is the binary cross-entropy, a mean over samples and labels.

    Returns:
      The task. Its score is "micro_f1", over all labels together. "macro_f1" is the mean over
      labels, where labels that are neither true nor predicted count 0. "exact" is the share of
      samples with all labels right. "map" is the mean average precision over labels that some
      sample has: sum_n (R_n - R_{n-1}) P_n, with precision and recall at the edges of 512 bins of
      the logits.
    """
    # Bins of asinh(8 z): they are 0.003 wide at z = 0, and 0.35 at 16, where the last one begins.
    bins, per_unit = 512, 46

    def loss(outputs, targets, mask):
        errors = optax.sigmoid_binary_cross_entropy(outputs, targets.astype(outputs.dtype))
        return masked_mean(jnp.mean(errors, -1), mask)

    def divergence(teacher, outputs, mask):
        # the KL divergence of one Bernoulli distribution per label
        apart = 0.0
        for sign in (1, -1):
            known, said = jax.nn.log_sigmoid(sign * teacher), jax.nn.log_sigmoid(sign * outputs)
            apart += jnp.exp(known) * (known - said)
        return masked_mean(jnp.mean(apart, -1), mask)

    def sums(outputs, targets, mask):
        known = mask[:, None]
        true = (targets > 0) & known
        # a diverged model's NaN is wrong, not a "no"
        said = jnp.where(jnp.isnan(outputs), ~true, outputs > 0) & known
        rows = {"said": said, "true": true, "both": said & true}
        rows |= {"exact": jnp.all(said == true, -1) & mask}
        rows = jax.tree.map(lambda x: jnp.sum(x, 0, dtype=jnp.int32), rows)
        # The average precision is not a sum. With binned scores it is a function of counts, which
        # are sums.
        place = jnp.nan_to_num(per_unit * jnp.arcsinh(8 * outputs) + bins // 2)
        place = jnp.clip(place, 0, bins - 1).astype(jnp.int32)
        at = (targets > 0).astype(jnp.int32), jnp.arange(num_labels), place
        counts = jnp.zeros((2, num_labels, bins), jnp.int32).at[at].add(known.astype(jnp.int32))
        return rows | {"scores": counts}  # [true, label, bin]

    def average_precision(scores: np.ndarray) -> np.ndarray:
        without, having = np.moveaxis(np.cumsum(scores[..., ::-1], -1, dtype=np.float64), -3, 0)
        gained = np.diff(having, prepend=0) / having[..., -1:]
        precision = having / np.maximum(without + having, 1)
        known = having[..., -1] > 0
        return np.where(known, (gained * precision).sum(-1), 0).sum(-1) / known.sum(-1)

    def metrics(sums: PyTree, count: np.ndarray) -> dict[str, np.ndarray]:
        both, either = np.asarray(sums["both"]), np.asarray(sums["said"]) + np.asarray(sums["true"])
        count = np.asarray(count)
        with np.errstate(divide="ignore", invalid="ignore"):
            macro_f1 = np.where(either > 0, 2 * both / np.maximum(either, 1), 0).mean(-1)
            return {
                "micro_f1": 2 * both.sum(-1) / either.sum(-1),
                "macro_f1": np.where(count > 0, macro_f1, np.nan),
                "exact": np.asarray(sums["exact"]) / count,
                "map": average_precision(np.asarray(sums["scores"])),
            }

    return Task(
        "multi-label",
        loss,
        divergence,
        target=((num_labels,), "int8"),
        predictions=lambda outputs: outputs > 0,
        sums=sums,
        metrics=metrics,
        score="micro_f1",
    )


@functools.cache
def per_pixel(height: int, width: int, num_classes: int, ignored: int = 255) -> Task:
    """Makes the task of choosing one of C classes for each pixel of an image.

    Targets are uint8 [B, H, W]. Outputs are logits [B, H * W * C], with a pixel's classes adjacent.
    The loss is the mean cross-entropy over the batch's labelled pixels.

    Args:
      height, width: H and W of the targets.
      num_classes: C.
      ignored: the target of unlabelled pixels.

    Returns:
      The task. Its score is "miou", the mean over classes of the intersection over union of true
      and predicted pixels, without classes that have neither. "pixel_accuracy" is the share of
      labelled pixels that are right.
    """
    shape = height, width, num_classes

    def logits_of(outputs):
        return outputs.reshape(-1, *shape)

    def pixels_of(outputs):
        return outputs.reshape(-1, num_classes)

    def labelled(targets, mask):
        return (targets != ignored) & mask[:, None, None]

    def loss(outputs, targets, mask):
        known = labelled(targets, mask)
        classes = jnp.where(known, targets, 0).astype(jnp.int32)
        return cross_entropy(pixels_of(outputs), classes.ravel(), known.ravel())

    def divergence(teacher, outputs, mask):
        everywhere = jnp.repeat(mask, height * width)
        return kl_divergence(pixels_of(teacher), pixels_of(outputs), everywhere)

    def sums(outputs, targets, mask):
        known = labelled(targets, mask)
        true = jnp.where(known, targets, 0).astype(jnp.int32)
        scores = logits_of(outputs)
        # a diverged model's NaN is wrong, not class 0
        lost = jnp.isnan(scores).any(-1)
        said = jnp.where(lost, (true + 1) % num_classes, jnp.argmax(scores, -1))
        pairs = true * num_classes + said
        counts = jnp.zeros(num_classes**2, jnp.int32).at[pairs].add(known.astype(jnp.int32))
        return {"pixels": counts.reshape(num_classes, num_classes)}  # [true, predicted]

    def metrics(sums: PyTree, count: np.ndarray) -> dict[str, np.ndarray]:
        pixels = np.asarray(sums["pixels"], np.float64)
        both = np.diagonal(pixels, axis1=-2, axis2=-1)
        either = pixels.sum(-1) + pixels.sum(-2) - both
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.where(either > 0, both / either, 0).sum(-1)
            miou = shares / np.sum(either > 0, -1)
            return {"miou": miou, "pixel_accuracy": both.sum(-1) / pixels.sum((-2, -1))}

    return Task(
        "per-pixel",
        loss,
        divergence,
        target=((height, width), "uint8"),
        predictions=lambda outputs: jnp.argmax(logits_of(outputs), -1),
        sums=sums,
        metrics=metrics,
        score="miou",
        outputs=height * width * num_classes,
    )


@checked
def check_task(task: Task, targets: Any, num_outputs: int) -> None:
    """Checks a user-defined task on some targets and random outputs.

    The loss must be finite and ignore masked samples, sums must add up over batches, and the score
    must improve when outputs descend on the loss. The divergence must be lower between equal
    outputs than between others.

    Args:
      task: the task.
      targets: [N, ...], targets of at least four samples, not all equal.
      num_outputs: O, outputs of a model.

    Raises:
      ValueError: the first fault found. One line.

    Example:
      >>> task = fl.regression_dataset("line", np.eye(6), np.arange(6)).task
      >>> fl.check_task(task, np.arange(6, dtype=np.float32)[:, None], 1)
    """

    def require(holds: Any, fault: str) -> None:
        if not holds:
            raise ValueError(f"task {task.name!r}: {fault}")

    sums_of, values_of = task.sums, task.metrics
    if sums_of is None or values_of is None:
        raise ValueError(f"task {task.name!r}: it has no sums or no metrics, so it has no score")
    targets, count = jnp.asarray(targets), len(targets)
    outputs = jax.random.normal(jax.random.key(0), (count, num_outputs))
    everyone, first = jnp.ones(count, bool), jnp.arange(count) < count // 2
    slope_of = jax.jit(jax.value_and_grad(task.loss))
    loss, slope = slope_of(outputs, targets, first)
    require(
        np.isfinite(loss), f"the loss is {loss} for outputs within +-{jnp.abs(outputs).max():g}"
    )
    require(not slope[~first].any(), "the loss depends on masked samples")

    def metrics_of(outputs: jax.Array) -> dict[str, np.ndarray]:
        sums = [sums_of(outputs, targets, mask) for mask in (first, ~first, everyone)]
        added = jax.tree.map(jnp.add, *sums[:2])
        agree = jax.tree.map(lambda a, b: np.allclose(a, b, rtol=1e-4, atol=1e-5), added, sums[2])
        require(all(jax.tree.leaves(agree)), "sums over two halves do not add up to the whole")
        stacked = jax.tree.map(lambda *x: np.stack(x), *sums[1:])
        return values_of(stacked, np.array([count - count // 2, count]))

    before = metrics_of(outputs)
    require(task.score in before, f"the score is {task.score!r}; metrics are {', '.join(before)}")
    for name, values in before.items():
        require(np.shape(values) == (2,), f"{name} of two clients has shape {np.shape(values)}")
    step = optax.adam(0.1)
    fitted: Any = outputs
    moments = step.init(fitted)
    for _ in range(100):
        updates, moments = step.update(slope_of(fitted, targets, everyone)[1], moments)
        fitted = optax.apply_updates(fitted, updates)
    old, new = before[task.score][1], metrics_of(fitted)[task.score][1]
    gain = new - old if task.better == "higher" else old - new
    require(gain > 0, f"{task.score} goes from {old:g} to {new:g} when outputs descend the loss")
    apart = [float(task.divergence(outputs, x, everyone)) for x in (outputs, fitted)]
    require(
        apart[0] < apart[1],
        "the divergence of equal outputs is {:g}, of unequal ones {:g}".format(*apart),
    )
