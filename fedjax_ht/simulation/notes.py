"""Lines on a simulation that runs, but whose clients cannot learn as their models are meant to."""

import numpy as np

from fedjax_ht.core.federation import Federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.core.names import listed_clients


def smallest_batch(training: LocalTraining, num_samples: np.ndarray) -> np.ndarray:
    """Returns the real samples in the smallest batch that a client trains on; 0 without samples.

    Args:
      training: the recipe.
      num_samples: training samples of the clients, int [...].
    """
    size = training.batch_size
    rest = num_samples % size
    last = np.full_like(num_samples, size)
    if not training.drop_remainder:
        last = np.where(rest > 0, rest, size)
    # A client below one batch takes one masked step.
    return np.where(num_samples < size, num_samples, last)


def batch_notes(federation: Federation, method: Method, train_counts: np.ndarray) -> list[str]:
    """Returns a line for each architecture whose batch norms see a single value per channel: their
    output is then their shift, whatever the sample, and nothing before them learns.

    Args:
      federation: the buckets.
      method: the method, whose recipes the clients train by.
      train_counts: training samples, int [..., num_clients]; several splits stand for all of them.
    """
    counts, notes = np.asarray(train_counts), []
    for bucket in federation.buckets:
        training = method.training_of(bucket.name)
        batches = smallest_batch(training, counts)
        is_alone = (batches == 1).reshape(-1, batches.shape[-1]).any(0)
        clients = [i for i in federation.members(bucket) if is_alone[i]]
        if not bucket.flat_norms or not clients:
            continue
        remedy = "give each client two training samples or more (min_samples=3)"
        if training.batch_size == 1:
            remedy = "set batch_size to 2 or more"
        elif not training.drop_remainder:
            remedy = "leave out the last, partial batch (drop_remainder=True)"
        notes.append(
            f"{listed_clients(clients)} of model {bucket.name!r} with training batches of a single "
            f"sample, of which batch norm ({bucket.flat_norms[0]}) makes the same whatever the "
            f"sample is: {remedy}, or norm by group or layer"
        )
    return notes
