"""What a run's rounds have cost in privacy: a pure function of their number, so that a resumed run
says the same."""

import functools

import numpy as np

from fedjax_ht.core.local_training import num_steps
from fedjax_ht.simulation.options import SimulationOptions, choose_participants
from fedjax_ht.simulation.program import Program
from fedjax_ht.trust.epsilon import fixed_epsilon, gaussian_epsilon, poisson_epsilon

BLOCK = 64  # rounds that are counted once


def epsilons(program: Program, rounds: int) -> list[float | None]:
    """The largest epsilon of any client after so many rounds, of each trial, at `Privacy.delta`;
    None without privacy.

    Rounds count for who took part in them, drop-outs among them. Where nobody is told who that was,
    the draw of participants hides them as well; what is less counts.
    """
    if program.options[0].privacy is None:
        return [None] * len(program.options)
    return [_epsilon(program, t, rounds) for t in range(len(program.options))]


def _epsilon(program: Program, trial: int, rounds: int) -> float:
    options, n, training = (
        program.options[trial],
        program.federation.num_clients,
        program.method.training,
    )
    privacy = options.privacy
    noise, delta = privacy.noise, privacy.delta
    if program.exposure == "nothing":
        return 0.0
    took_part = participations(options.seed, options.participation, n, rounds)
    if privacy.unit == "sample":
        counts = program.train_counts[trial]
        steps = took_part * num_steps(training, counts)
        each = set(zip(counts.tolist(), steps.tolist()))
        return max(
            poisson_epsilon(noise, min(training.batch_size, c), c, s, delta) if c else 0.0
            for c, s in each
        )
    known = gaussian_epsilon(noise, int(took_part.max()), delta)
    if privacy.unit == "client" and program.exposure == "alike":
        return min(known, fixed_epsilon(noise, options.participants(n), n, rounds, delta))
    return known


def participations(seed: int, participation: float, num_clients: int, rounds: int) -> np.ndarray:
    """In how many of so many rounds each client took part, int64 [num_clients]."""
    whole = rounds // BLOCK * BLOCK
    blocks = [
        _block(seed, participation, num_clients, first, first + BLOCK)
        for first in range(0, whole, BLOCK)
    ]
    return sum(blocks, np.zeros(num_clients, np.int64)) + _block.__wrapped__(
        seed, participation, num_clients, whole, rounds
    )


@functools.lru_cache(4096)
def _block(seed: int, participation: float, num_clients: int, first: int, last: int) -> np.ndarray:
    options, found = (
        SimulationOptions(seed=seed, participation=participation),
        np.zeros(num_clients, np.int64),
    )
    if options.participants(num_clients) == num_clients:
        return found + (last - first)
    for round in range(first, last):
        found[choose_participants(options, num_clients, round)[0]] += 1
    return found
