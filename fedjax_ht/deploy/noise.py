"""Differential privacy where who adds noise is the only one to know it: its words, what it has
cost, what is not said.

    unit      who adds it    what is counted                     where
    client    the server     its steps                           in the run's folder
    upload    each client    its answers to training messages    beside its states
    sample    each client    its steps of training               beside its states

Words are drawn anew for every answer and every step, and are arguments of compiled programs: they
are in no cache, no checkpoint and no log, and a round that is repeated, because the server went
back to a checkpoint or an answer was lost, has other noise. It is counted again, too: what counts
is what was told, not where the run stands. A count is of one noise, whatever the run's name, which
is the server's choice.
"""

import functools
import math
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from fedjax_ht.core.local_training import LocalTraining, num_steps
from fedjax_ht.core.method import Method, varied
from fedjax_ht.deploy import ledger
from fedjax_ht.trust.defences import Defence, defended
from fedjax_ht.trust.epsilon import gaussian_epsilon, poisson_epsilon
from fedjax_ht.trust.privacy import Privacy, private

LEDGER = "told.json"  # the file of counts
WORDS = 4  # twice what a key of jax has room for

Entropy = Callable[[], tuple[int, ...]]
"""() -> `WORDS` words of 32 bits."""

UNSAID = {
    "client": (),
    "upload": ("evaluate.train", "evaluate.patience"),
    "sample": ("evaluate.train",),
}
"""Unit -> fields of a config that ask for scores which clients then do not tell."""


class Noise(NamedTuple):
    """What one side adds.

    Attributes:
      name: of its count in the file: what its cost hangs on.
      times: what one answer, or server step, counts.
      epsilon: count -> epsilon of all of it.
      path: the file, see `ledger`.
      entropy: where words come from.
      most: the largest epsilon that may be told.
    """

    name: str
    times: int
    epsilon: Callable[[int], float]
    path: Path
    entropy: Entropy
    most: float = math.inf


def fresh_words() -> tuple[int, ...]:
    """Words from the operating system, which nobody else can know."""
    return tuple(secrets.randbits(32) for _ in range(WORDS))


def by_words(method: Method, privacy: Privacy | None, defences: Sequence[Defence]) -> Method:
    """The method with privacy and defences, as `simulation.program.bind` has them; its settings
    (see `Method.vary`) are the words of the noise, uint32 [n], or () where none is added. Without
    privacy it has no settings."""
    if privacy is None:
        return defended(method, defences)

    def made(words):
        return defended(private(method, privacy._replace(secret=tuple(words))), defences)

    return varied(made, ())


def check_scores(config: ConfigDict, privacy: Privacy | None) -> None:
    """Refuses a config that lives on scores which nobody tells.

    Raises:
      ValueError: it does. One line.
    """
    for field in UNSAID[privacy.unit] if privacy else ():
        section, name = field.split(".")
        if value := config[section][name]:
            raise ValueError(
                f"{field} is {value!r}; with privacy.unit={privacy.unit!r} clients do not tell "
                "the scores that it needs"
            )


def noise_of_sums(privacy: Privacy, sends: bool, path: Path, entropy: Entropy) -> Noise:
    """Of updates, or of their sum; the whole of a client is behind one. `sends` False: there is
    nothing in them."""
    noise, delta = privacy.noise, privacy.delta
    cost = functools.partial(gaussian_epsilon, noise, delta=delta) if sends else lambda count: 0.0
    return Noise(f"{privacy.unit}, noise {noise!r}", 1, cost, path, entropy)


def noise_of_steps(
    privacy: Privacy, training: LocalTraining, samples: int, path: Path, entropy: Entropy
) -> Noise:
    """Of a client's training; a sample is behind a step's gradients. Scores tell of it, too, where
    nothing is sent."""
    size = min(training.batch_size, samples)
    cost = functools.partial(poisson_epsilon, privacy.noise, size, samples, delta=privacy.delta)
    name = f"sample, noise {privacy.noise!r}, {size} of {samples}"
    return Noise(name, int(num_steps(training, samples)), cost, path, entropy)


def draw(noise: Noise | None) -> tuple[np.ndarray | tuple, float | None]:
    """Words for one answer or server step, uint32 [WORDS], and epsilon with it; () and None where
    no noise is added. It is counted on the disk before there are words: what is made of them cannot
    leave uncounted.

    Raises:
      ValueError: that would be more than may be told, and is not counted; or as of `ledger`. One
        line.
    """
    if noise is None:
        return (), None
    epsilon = noise.epsilon(ledger.read(noise.path).get(noise.name, 0) + noise.times)
    if not epsilon <= noise.most:  # nothing is below a limit that is no number
        raise ValueError(
            f"epsilon would be {epsilon:.4g} with this answer, and --most_epsilon is {noise.most:g}"
        )
    ledger.add(noise.path, noise.name, noise.times)
    return np.array(noise.entropy(), np.uint32), epsilon
