"""FedGen with linear models: the generator, the client's training, and the server's."""

import numpy as np

from tests.reference import linear_client
from tests.reference.averaging import weighted_mean
from tests.reference.classification import cross_entropy, kl, log_softmax
from tests.reference.gradients import Adam, gradients, sgd_step
from tests.reference.norm import batch_norm


def generate(
    generator: dict[str, np.ndarray], noise: np.ndarray, labels, num_classes: int
) -> np.ndarray:
    """Linear-BatchNorm-ReLU-Linear on [noise; one-hot label], normalised by this batch."""
    x = np.concatenate([noise, np.eye(num_classes)[labels]], 1)
    hidden = x @ generator["fc1_kernel"] + generator["fc1_bias"]
    zeros = np.zeros(hidden.shape[1])
    everyone = np.ones(len(x), bool)
    hidden, _, _ = batch_norm(
        hidden, everyone, generator["norm_scale"], generator["norm_bias"], zeros, zeros
    )
    return np.maximum(hidden, 0) @ generator["fc2_kernel"] + generator["fc2_bias"]


def diversity(noise: np.ndarray, generated: np.ndarray) -> float:
    """exp(-mean over pairs of mean square noise difference times mean absolute feature
    difference)."""
    n = len(noise)
    products = [
        np.mean((noise[j] - noise[k]) ** 2) * np.mean(np.abs(generated[j] - generated[k]))
        for j in range(n)
        for k in range(n)
    ]
    return float(np.exp(-np.mean(products)))


def head_logits(head: dict[str, np.ndarray], representations: np.ndarray) -> np.ndarray:
    return representations @ head["head_kernel"] + head["head_bias"]


def client_train(
    params, steps, lr: float, alpha: float, beta: float
) -> tuple[dict[str, np.ndarray], float]:
    """SGD on CE + alpha CE on generated features + beta KL to the head's opinion of generated
    features.

    Args:
      params: the linear model.
      steps: per step (x, y, features generated for drawn labels, these labels, features generated
        for y).
      lr, alpha, beta: of this round.

    Returns:
      The parameters, and the mean loss before each step.
    """
    losses = []
    for x, y, generated, labels, alike in steps:
        teacher = head_logits(params, alike)  # fixed

        def loss(p, x=x, y=y, generated=generated, labels=labels, teacher=teacher):
            outputs = linear_client.logits(p, x)
            value = cross_entropy(outputs, y)
            value += alpha * cross_entropy(head_logits(p, generated), labels)
            return value + beta * kl(teacher, outputs)

        losses.append(loss(params))
        params = sgd_step(loss, params, lr)
    return params, float(np.mean(losses))


def generator_loss(
    generator, noise, labels, heads, counts, ensemble: bool, diversity_weight: float
) -> float:
    """The server's loss; counts [P, C] are the clients' samples by class."""
    generated = generate(generator, noise, labels, counts.shape[1])
    samples = counts.sum(1)
    if ensemble:
        mean = weighted_mean([head_logits(h, generated) for h in heads], list(samples))
        value = cross_entropy(mean, labels)
    else:
        each = []
        for j, y in enumerate(labels):
            losses = [-log_softmax(head_logits(h, generated)[j])[y] for h in heads]
            each.append(weighted_mean(losses, list(counts[:, y])))
        value = float(np.mean(each))
    return value + diversity_weight * diversity(noise, generated)


def server_train(
    generator, draws, lr: float, weight_decay: float, **loss_options
) -> tuple[dict, float]:
    """One Adam step per (noise, labels), weight decay added to the gradients; returns G and the
    steps' mean loss."""
    optimizer, losses = Adam(lr), []
    for noise, labels in draws:

        def loss(g, noise=noise, labels=labels):
            return generator_loss(g, noise, labels, **loss_options)

        losses.append(loss(generator))
        slopes = gradients(loss, generator)
        decayed = {name: slopes[name] + weight_decay * generator[name] for name in slopes}
        generator = optimizer.step(generator, decayed)
    return generator, float(np.mean(losses))
