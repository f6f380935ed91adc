"""FedBuff's server in NumPy: uploads one after another, with the age of each."""

import math

import numpy as np


def serve(model: np.ndarray, rounds: list, size: int, rate: float) -> tuple[np.ndarray, list]:
    """The server's models before each round and after the last, and the ages of the uploads.

    Args:
      model: the first model.
      rounds: the uploads of each round, (round in which it was sent, change) each, in order.
      size: uploads for a step.
      rate: length of a step.
    """
    versions, steps, ages = [], 0, []  # versions: steps before each round
    buffer, held, models = np.zeros_like(model), 0, [model]
    for uploads in rounds:
        versions.append(steps)
        for sent, change in uploads:
            age = steps - versions[sent]
            ages.append(age)
            buffer, held = buffer + change / math.sqrt(1 + age), held + 1
            if held == size:
                model, steps = model + rate * buffer / size, steps + 1
                buffer, held = np.zeros_like(model), 0
        models.append(model)
    return models, ages
