"""FedKTL: both sides' losses, the clients' and the server's training, the latter with derivatives
by hand."""

from typing import NamedTuple

import numpy as np

from tests.reference.classification import cross_entropy
from tests.reference.gradients import Adam, gradients
from tests.reference.linear_client import features, logits

EPSILON = 1e-5  # of the batch norm
CLIP_NORM = 100.0  # of the released code


def angles(rows: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Angle of every row [B, K] with every column [K, C]."""
    cosine = [
        [row @ v / np.linalg.norm(row) / np.linalg.norm(v) for v in vectors.T] for row in rows
    ]
    return np.arccos(np.clip(cosine, -1 + 1e-7, 1 - 1e-7))


def arcface(angle: np.ndarray, labels, mask, scale: float, margin: float) -> float:
    """Cross-entropy over scaled cosines, the margin added to the true class's angle."""
    widened = np.array(
        [[t + margin * (c == y) for c, t in enumerate(row)] for row, y in zip(angle, labels)]
    )
    return cross_entropy(scale * np.cos(widened), labels, mask)


def mmd(x: np.ndarray, y: np.ndarray, bandwidths) -> float:
    """Mean over all pairs of k(x, x') + k(y, y') - 2 k(x, y), the kernels added up."""

    def mean_kernel(a, b):
        return np.mean(
            [
                [sum(np.exp(-((p - q) @ (p - q)) / (2 * s)) for s in bandwidths) for q in b]
                for p in a
            ]
        )

    return float(mean_kernel(x, x) + mean_kernel(y, y) - 2 * mean_kernel(x, y))


def mmd_slope(x: np.ndarray, y: np.ndarray, bandwidths) -> np.ndarray:
    """Computes the gradient of `mmd` by x."""
    slope = np.zeros_like(x)
    for j, point in enumerate(x):
        for samples, factor in ((x, 2.0), (y, -2.0)):
            for other in samples:
                apart = point - other
                kernels = sum(np.exp(-(apart @ apart) / (2 * s)) / s for s in bandwidths)
                slope[j] -= factor * kernels * apart / len(x) / len(samples)
    return slope


def class_spread(latents: np.ndarray, labels: np.ndarray) -> float:
    """Mean over classes of the mean square between a class's latents and their mean."""
    by_class = [latents[labels == c] for c in np.unique(labels)]
    return float(np.mean([np.mean((rows - rows.mean(0)) ** 2) for rows in by_class]))


def class_spread_slope(latents: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Computes the gradient of `class_spread` by the latents; the part through the means
    cancels."""
    slope = np.zeros_like(latents)
    for c in np.unique(labels):
        rows = latents[labels == c]
        slope[labels == c] = 2 * (rows - rows.mean(0)) / rows.size / len(np.unique(labels))
    return slope


def transform(p: dict, x: np.ndarray) -> np.ndarray:
    """F: linear w1 [K, K] without bias; batch norm by x's own statistics, scale, bias; ReLU; linear
    w2 [K, H], b2."""
    return forward(p, x)[0]


def forward(p: dict, x: np.ndarray) -> tuple[np.ndarray, dict]:
    """F(x), and what `backward` needs."""
    first = x @ p["w1"]
    deviation = np.sqrt(first.var(0) + EPSILON)
    normal = (first - first.mean(0)) / deviation
    active = np.maximum(normal * p["scale"] + p["bias"], 0)
    return active @ p["w2"] + p["b2"], {
        "x": x,
        "deviation": deviation,
        "normal": normal,
        "active": active,
    }


def backward(p: dict, kept: dict, slope: np.ndarray) -> dict[str, np.ndarray]:
    """The slopes by F's parameters from those by its outputs [B, H]."""
    normal = kept["normal"]
    inner = slope @ p["w2"].T * (kept["active"] > 0)
    scaled = inner * p["scale"]
    first = (scaled - scaled.mean(0) - normal * (scaled * normal).mean(0)) / kept["deviation"]
    return {
        "w1": kept["x"].T @ first,
        "scale": (inner * normal).sum(0),
        "bias": inner.sum(0),
        "w2": kept["active"].T @ slope,
        "b2": slope.sum(0),
    }


def into(ball, rows: np.ndarray) -> np.ndarray:
    """Rows outside the ball (centre, radius) on its surface; all as they are without one."""
    if ball is None:
        return rows
    away = [row - ball[0] for row in rows]
    return np.array([ball[0] + v * min(1, ball[1] / np.linalg.norm(v)) for v in away])


def into_slope(ball, rows: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """The slopes by rows from those by `into` of them: outside, what points away from the centre is
    lost."""
    if ball is None:
        return slope
    out = slope.copy()
    for i, row in enumerate(rows):
        length = np.linalg.norm(row - ball[0])
        if length > ball[1]:
            direction = (row - ball[0]) / length
            out[i] = ball[1] / length * (slope[i] - slope[i] @ direction * direction)
    return out


def clipped(slopes: dict, norm: float = CLIP_NORM) -> dict:
    """Scales slopes down together to the length `norm` where their joint length exceeds it."""
    length = np.sqrt(sum(np.sum(g**2) for g in slopes.values()))
    return {name: g * min(1, norm / length) if length else g for name, g in slopes.items()}


def mean_latents(
    p: dict, x: np.ndarray, labels: np.ndarray, old: np.ndarray, ball=None
) -> np.ndarray:
    """Class means of F(x); `old` rows where a class has none."""
    latents, means = into(ball, transform(p, x)), old.copy()
    for c in np.unique(labels):
        means[c] = latents[labels == c].mean(0)
    return means


def align(
    p, x, labels, batches, rate, bandwidths, mmd_weight=1.0, mse_weight=1.0, ball=None
) -> dict:
    """The server's training of F (Eqs. 2 and 3).

    Args:
      p: F's parameters before it.
      x, labels: the uploaded prototypes [M, K] and their classes.
      batches: (rows of a step, valid latents drawn for it), for each step.
      rate: of Adam.
      bandwidths, mmd_weight, mse_weight: of the loss.
      ball: (centre, radius) that F's outputs are moved into, or None.
    """
    optimizer = Adam(rate)
    for rows, valid in batches:
        free, kept = forward(p, x)
        latents = into(ball, free)
        slope = mse_weight * class_spread_slope(latents, labels)
        slope[rows] += mmd_weight * mmd_slope(latents[rows], valid, bandwidths)
        p = optimizer.step(p, backward(p, kept, into_slope(ball, free, slope)))
    return p


def align_released(
    p,
    x,
    labels,
    batches,
    table,
    rate,
    bandwidths=(10, 15, 20, 50),
    mmd_weight=1.0,
    mse_weight=1.0,
    ball=None,
) -> tuple[dict, np.ndarray]:
    """Trains F as the authors' code does: both losses of a batch, L_MSE against a trainable table.

    F and the table have an Adam each, whose gradients are clipped apart. Nothing else sets the
    table: the code's assignments of class means reach copies.

    Args:
      p: F's parameters. Their bias in front of the batch norm changes nothing, and is left out.
      table: [C, H], of the round before.
      x, labels, batches, rate, bandwidths, mmd_weight, mse_weight, ball: as in `align`.

    Returns:
      F's parameters and the table, which the server sends.
    """
    optimizer, table_optimizer = Adam(rate), Adam(rate)
    for rows, valid in batches:
        free, kept = forward(p, x[rows])
        latents = into(ball, free)
        apart = latents - table[labels[rows]]
        slope = (
            mmd_weight * mmd_slope(latents, valid, bandwidths) + mse_weight * 2 * apart / apart.size
        )
        table_slope = np.zeros_like(table)
        for c, row in zip(labels[rows], apart):
            table_slope[c] -= mse_weight * 2 * row / apart.size
        p = optimizer.step(p, clipped(backward(p, kept, into_slope(ball, free, slope))))
        table = table_optimizer.step({"table": table}, clipped({"table": table_slope}))["table"]
    return p, table


class Recipe(NamedTuple):
    """A client's loss.

    Attributes:
      vectors: [K, C]; without them (None) the head gives logits, as in ablation "-ETF".
      mu: weight of the regression on pairs.
      scale, margin: of ArcFace.
      mixed: if not 0, the images are classified with this weight instead, as in ablation "-Qbar".
    """

    vectors: np.ndarray | None
    mu: float = 50.0
    scale: float = 64.0
    margin: float = 0.5
    mixed: float = 0.0


def classification(params: dict, x, y, recipe: Recipe) -> float:
    """ArcFace on the cosines, or cross-entropy on the logits."""
    everyone = [True] * len(y)
    if recipe.vectors is None:
        return cross_entropy(logits(params, x), y)
    return arcface(
        angles(logits(params, x), recipe.vectors), y, everyone, recipe.scale, recipe.margin
    )


def regression(params: dict, images: np.ndarray, vectors: np.ndarray) -> float:
    """Mean square of h'(f(I)) - Q over pairs and entries; 0 without pairs."""
    if not len(images):
        return 0.0
    guesses = features(params, images) @ params["projection_kernel"] + params["projection_bias"]
    return float(np.mean((guesses - vectors) ** 2))


def client_loss(params: dict, x, y, images, classes, vectors, recipe: Recipe) -> float:
    """Computes the loss of a batch x [B, D], y and a mini-batch of pairs: images [n, D] of classes
    [n] and vectors [n, H]."""
    value = classification(params, x, y, recipe)
    if recipe.mixed and len(images):
        return value + recipe.mixed * classification(params, images, classes, recipe)
    return value + recipe.mu * regression(params, images, vectors)


def train_client(
    params: dict, batches, rate: float, recipe: Recipe, clip: bool = True
) -> tuple[dict, float]:
    """One SGD step for each (x, y, images, classes, vectors), clipping the model and h', each on
    its own.

    Returns:
      The parameters, and the mean of the losses before each step.
    """
    losses = []
    for batch in batches:
        losses.append(client_loss(params, *batch, recipe))
        slopes = gradients(lambda p, batch=batch: client_loss(p, *batch, recipe), params)
        if clip:
            of_projection = {k: g for k, g in slopes.items() if k.startswith("projection")}
            of_model = {k: g for k, g in slopes.items() if k not in of_projection}
            slopes = clipped(of_model) | clipped(of_projection)
        params = {name: value - rate * slopes[name] for name, value in params.items()}
    return params, float(np.mean(losses))


def prototypes(
    params: dict, x: np.ndarray, labels: np.ndarray, of=logits, released: bool = False
) -> dict:
    """Class -> mean of the outputs; released: of unit vectors, made one itself."""

    def unit(rows):
        return rows / np.linalg.norm(rows, axis=-1, keepdims=True)

    rows = unit(of(params, x)) if released else of(params, x)
    means = {int(c): rows[labels == c].mean(0) for c in np.unique(labels)}
    return {c: unit(mean) for c, mean in means.items()} if released else means
