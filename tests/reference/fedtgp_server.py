"""FedTGP's server update: contrastive training of global prototypes on the uploaded ones."""

import numpy as np

from tests.reference.averaging import mean_by_class
from tests.reference.contrastive import adaptive_margin, margin_contrastive
from tests.reference.gradients import sgd_step


def global_prototypes(trained: dict[str, np.ndarray]) -> np.ndarray:
    """F(e): Linear-ReLU-Linear, or the embeddings themselves where there is no F."""
    if "w1" not in trained:
        return trained["embeddings"]
    hidden = np.maximum(trained["embeddings"] @ trained["w1"] + trained["b1"], 0)
    return hidden @ trained["w2"] + trained["b2"]


def margin_of(
    uploads: list[dict[int, np.ndarray]], num_classes: int, tau: float, rule: str
) -> float:
    """Adaptive margin of a round's uploads, one {class: prototype} per client."""
    means = mean_by_class(uploads)
    present = [c in means for c in range(num_classes)]
    dim = len(next(iter(means.values())))
    return adaptive_margin(
        [means.get(c, np.zeros(dim)) for c in range(num_classes)], present, tau, rule
    )


def server_update(
    trained: dict[str, np.ndarray],
    uploads: list[dict[int, np.ndarray]],
    orders: list[np.ndarray],
    batch_size: int,
    lr: float,
    margin: float,
) -> tuple[dict[str, np.ndarray], float]:
    """SGD over the uploaded prototypes.

    Args:
      trained: embeddings and F.
      uploads: {class: prototype} per client; the rows trained on are those of client 0 by class,
        then client 1, ...
      orders: for each epoch the order in which those rows are visited.
      batch_size, lr: of the SGD; an epoch's last batch is smaller.
      margin: delta.

    Returns:
      What was trained, and the mean loss over the last epoch's batches.
    """
    rows = [(upload[c], c) for upload in uploads for c in sorted(upload)]
    losses = []
    for order in orders:
        losses = []
        for start in range(0, len(order), batch_size):
            batch = [rows[i] for i in order[start : start + batch_size]]
            p, y = np.array([p for p, _ in batch]), [c for _, c in batch]

            def loss(params, p=p, y=y):
                return margin_contrastive(p, y, [True] * len(y), global_prototypes(params), margin)

            losses.append(loss(trained))
            trained = sgd_step(loss, trained, lr)
    return trained, float(np.mean(losses))
