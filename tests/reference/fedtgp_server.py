"""FedTGP's server update: contrastive training of global prototypes on the uploaded ones."""

import numpy as np

from tests.reference.averaging import mean_by_class
from tests.reference.contrastive import adaptive_margin, margin_contrastive
from tests.reference.gradients import Params, descend_on_uploads


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
    trained: Params, uploads, orders, batch_size: int, lr: float, margin: float
) -> tuple[Params, float]:
    """SGD of embeddings and F over the uploads; arguments as of `descend_on_uploads`."""

    def loss(params, prototypes, classes):
        everyone = [True] * len(classes)
        return margin_contrastive(prototypes, classes, everyone, global_prototypes(params), margin)

    return descend_on_uploads(loss, trained, uploads, orders, batch_size, lr)
