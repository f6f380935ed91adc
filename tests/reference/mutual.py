"""Two linear models (see `linear_client`) that learn side by side: the losses of FML, FedKD, FedAPEN
and FedMRL, and SGD."""

from collections.abc import Callable

import numpy as np

from tests.reference.classification import cross_entropy, kl
from tests.reference.gradients import sgd_step
from tests.reference.linear_client import features, logits

Models = dict[str, dict[str, np.ndarray]]  # "own", "shared" and whatever else is trained
# (models, x, y) -> own's, shared's
PairLoss = Callable[[Models, np.ndarray, np.ndarray], tuple[float, float]]


def fml(alpha: float, beta: float, kl_scale: float = 1.0) -> PairLoss:
    """L_m and L_g, KL multiplied by `kl_scale`."""

    def losses(models, x, y):
        o, q = logits(models["own"], x), logits(models["shared"], x)
        private = alpha * cross_entropy(o, y) + (1 - alpha) * kl_scale * kl(q, o)
        return private, beta * cross_entropy(q, y) + (1 - beta) * kl_scale * kl(o, q)

    return losses


def fedkd(kl_scale: float = 1.0) -> PairLoss:
    """L_m and L_g with the matrix models["beside"]["projection"]."""

    def losses(models, x, y):
        o, q = logits(models["own"], x), logits(models["shared"], x)
        gap = (
            features(models["own"], x)
            - features(models["shared"], x) @ models["beside"]["projection"]
        )
        c, cg, hidden = cross_entropy(o, y), cross_entropy(q, y), np.mean(gap**2)
        private = c + (kl_scale * kl(q, o) + hidden) / (c + cg)
        return private, cg + (kl_scale * kl(o, q) + hidden) / (c + cg)

    return losses


def fedapen(weight: float) -> PairLoss:
    """L_p and L_s."""

    def losses(models, x, y):
        a, b = logits(models["own"], x), logits(models["shared"], x)
        together = cross_entropy(weight * a + (1 - weight) * b, y)
        return cross_entropy(a, y) + kl(b, a) + together, cross_entropy(b, y) + kl(a, b) + together

    return losses


def nested_logits(models: Models, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """FedMRL's logits of the own and of the shared head, with the linear layer models["beside"].

    The shared features are averaged, by neighbours, to as many as the shared head reads.
    """
    wide = features(models["shared"], x)
    window = wide.shape[1] // len(models["shared"]["head_kernel"])
    starts = range(0, wide.shape[1], window)
    shared = np.stack([wide[:, i : i + window].mean(1) for i in starts], axis=1)
    both = np.concatenate([shared, features(models["own"], x)], axis=1)
    fused = both @ models["beside"]["kernel"] + models["beside"]["bias"]

    def head(model, rows):
        return rows @ model["head_kernel"] + model["head_bias"]

    coarse = fused[:, : shared.shape[1]]
    return head(models["own"], fused), head(models["shared"], coarse)


def fedmrl(models, x, y):
    """The two terms of FedMRL's loss, on whose sum everything descends."""
    private, shared = nested_logits(models, x)
    return cross_entropy(private, y), cross_entropy(shared, y)


def train(
    losses: PairLoss, models: Models, batches, lr: float, joint: bool = False
) -> tuple[Models, float]:
    """One SGD step per batch (x, y), of all models from the same point.

    Each model goes down its own loss, everything else being constant; where `joint`, down the sum,
    as whatever is trained beside the two always does.

    Returns:
      The models, and the mean over the steps of the sum of both losses.
    """
    seen = []
    for x, y in batches:

        def loss_of(name, params, models=models, x=x, y=y):
            private, shared = losses({**models, name: params}, x, y)
            return (
                {"own": private, "shared": shared}[name]
                if name in ("own", "shared") and not joint
                else private + shared
            )

        seen.append(sum(losses(models, x, y)))
        models = {
            n: sgd_step(lambda p, n=n, f=loss_of: f(n, p), params, lr)
            for n, params in models.items()
        }
    return models, float(np.mean(seen))
