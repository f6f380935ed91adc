"""FedGH's server update: SGD of a linear head on the uploaded prototypes."""

import numpy as np

from tests.reference.classification import cross_entropy
from tests.reference.gradients import sgd_step


def server_update(
    head: dict[str, np.ndarray],
    uploads: list[dict[int, np.ndarray]],
    orders: list[np.ndarray],
    batch_size: int,
    lr: float,
) -> tuple[dict[str, np.ndarray], float]:
    """Trains {"kernel", "bias"}.

    Args:
      head: the global head.
      uploads: {class: prototype} per client; the rows trained on are those of client 0 by class,
        then client 1, ...
      orders: for each epoch the order in which those rows are visited.
      batch_size, lr: of the SGD; an epoch's last batch is smaller.

    Returns:
      The head, and the mean loss over the last epoch's batches.
    """
    rows = [(upload[c], c) for upload in uploads for c in sorted(upload)]
    losses = []
    for order in orders:
        losses = []
        for start in range(0, len(order), batch_size):
            batch = [rows[i] for i in order[start : start + batch_size]]
            p, y = np.array([p for p, _ in batch], np.float64), [c for _, c in batch]

            def loss(head, p=p, y=y):
                return cross_entropy(p @ head["kernel"] + head["bias"], y, [True] * len(y))

            losses.append(loss(head))
            head = sgd_step(loss, head, lr)
    return head, float(np.mean(losses))
