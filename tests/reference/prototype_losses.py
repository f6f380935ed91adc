"""The two readings of FedProto's and FedTGP's regulariser."""

import numpy as np


def class_prototype_distance(features, labels, mask, prototypes, available) -> float:
    """Mean over the batch's classes that have a global prototype of ||mean feature -
    prototype||."""
    distances = []
    for c in range(len(prototypes)):
        of_class = [f for f, y, real in zip(features, labels, mask) if real and y == c]
        if of_class and available[c]:
            distances.append(np.linalg.norm(np.mean(of_class, axis=0) - prototypes[c]))
    return float(np.mean(distances)) if distances else 0.0


def sample_prototype_mse(features, labels, mask, prototypes, available) -> float:
    """Mean over samples of the mean square to the class's prototype; 0 for a sample whose class has
    none."""
    losses = []
    for feature, label, real in zip(features, labels, mask):
        if real:
            losses.append(np.mean((feature - prototypes[label]) ** 2) if available[label] else 0.0)
    return float(np.mean(losses)) if losses else 0.0
