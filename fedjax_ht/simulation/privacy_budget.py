"""The privacy cost (epsilon) of a run's rounds.

It is a pure function of their number, so that a resumed run reports the same.
"""

import functools

import numpy as np

from fedjax_ht.core.local_training import num_steps
from fedjax_ht.simulation.options import SimulationOptions, choose_participants
from fedjax_ht.simulation.program import Program
from fedjax_ht.simulation.report import RoundReport
from fedjax_ht.simulation.serving import Answers
from fedjax_ht.simulation.state import SimulationState
from fedjax_ht.trust.epsilon import fixed_epsilon, gaussian_epsilon, poisson_epsilon

BLOCK = 64  # rounds per cached count


def with_epsilon(
    program: Program, state: SimulationState, answers: dict[str, Answers], report: RoundReport
) -> RoundReport:
    """Adds `epsilon_spent` to a round's report."""
    return report._replace(epsilon=epsilon_spent(program, state.round + 1))


def epsilon_spent(program: Program, rounds: int) -> float:
    """Computes the largest epsilon of any client after `rounds` rounds, at `Privacy.delta`.

    A round counts for its participants, including dropped ones. If participation is secret, the
    draw of participants amplifies privacy; the smaller epsilon counts.
    """
    options, federation = program.options, program.federation
    n, privacy = federation.num_clients, program.options.privacy
    assert privacy is not None  # otherwise there is nothing to count
    noise, delta = privacy.noise, privacy.delta
    if program.engine.exposure == "nothing":
        return 0.0
    took_part = participations(options.seed, options.participation, n, rounds)
    if privacy.unit == "sample":
        # (samples of a batch, of the client, steps); clients with equal values are computed once
        draws: set[tuple[int, int, int]] = set()
        for bucket in federation.buckets:
            training, members = program.method.training_of(bucket.name), federation.members(bucket)
            counts = program.data.counts["train"][list(members)]
            batches = np.minimum(training.batch_size, counts)
            steps = took_part[list(members)] * num_steps(training, counts)
            draws |= set(zip(batches.tolist(), counts.tolist(), steps.tolist()))
        epsilon = 0.0
        for batch, count, done in draws:
            if count:
                epsilon = max(epsilon, poisson_epsilon(noise, batch, count, done, delta))
        return epsilon
    known = gaussian_epsilon(noise, int(took_part.max()), delta)
    if privacy.unit == "client" and program.engine.exposure == "alike":
        return min(known, fixed_epsilon(noise, options.participants(n), n, rounds, delta))
    return known


def participations(seed: int, participation: float, num_clients: int, rounds: int) -> np.ndarray:
    """Counts each client's participations in the first `rounds` rounds, int64 [num_clients]."""
    whole = rounds // BLOCK * BLOCK
    # Rounds of an incomplete block are recounted at each call, and not cached.
    count = _block.__wrapped__(seed, participation, num_clients, whole, rounds)
    for first in range(0, whole, BLOCK):
        count = count + _block(seed, participation, num_clients, first, first + BLOCK)
    return count


@functools.lru_cache(4096)
def _block(seed: int, participation: float, num_clients: int, first: int, last: int) -> np.ndarray:
    options = SimulationOptions(seed=seed, participation=participation)
    count = np.zeros(num_clients, np.int64)
    if options.participants(num_clients) == num_clients:
        return count + (last - first)
    for round in range(first, last):
        count[choose_participants(options, num_clients, round)[0]] += 1
    return count
