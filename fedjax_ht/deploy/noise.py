"""Differential privacy in a deployment: noise known only to the side that adds it, and its cost.

    unit      who adds it    what is counted                     where
    client    the server     its steps                           in the run's folder
    upload    each client    its replies to training requests    beside its states
    sample    each client    its steps of training               beside its states

A secret of `SECRET_WORDS` words is drawn for every reply and every server step. It is an argument
of compiled programs, so no cache, checkpoint or log contains it. A round that is repeated, because
the server went back to a checkpoint or a reply was lost, thus has new noise. It is also counted
again: epsilon covers everything sent, not only the run's current state. A count covers one noise
over all runs, since the server chooses a run's name.
"""

import functools
import json
import math
import secrets
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_ht.core.local_training import LocalTraining, num_steps
from fedjax_ht.core.method import Method, varied
from fedjax_ht.deploy.messages import MAX_AMOUNT
from fedjax_ht.lab.checkpoints import sealed
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.files import write_whole
from fedjax_ht.trust.defences import defended
from fedjax_ht.trust.epsilon import gaussian_epsilon, poisson_epsilon
from fedjax_ht.trust.options import Defence, Privacy
from fedjax_ht.trust.privacy import private

LEDGER_FILE = "told.json"
SECRET_WORDS = 4
"""Words of a secret: 128 bits, twice those of a JAX key."""

FAR_EPSILON = 100.0
"""Multiple of the median reported epsilon, beyond which a client's is reported."""

MOST_COUNTED = 2**53  # most that an accountant can compute with
_EPSILON_OF = "epsilon of client "

HIDDEN_SCORES = {
    "client": (),
    "upload": ("scoring.train", "evaluate.patience"),
    "sample": ("scoring.train",),
}
"""`Privacy.unit` -> config fields that need scores which clients then do not send."""


class Noise(NamedTuple):
    """The noise that one side adds.

    Attributes:
      name: name of its count in the ledger, with everything that its cost depends on.
      count_per_draw: amount that one reply, or server step, adds to the count.
      epsilon: count -> epsilon of all draws so far.
      path: the ledger, a file that only one process writes: the command locks its folder.
      max_epsilon: largest epsilon that may be reached.
    """

    name: str
    count_per_draw: int
    epsilon: Callable[[int], float]
    path: Path
    max_epsilon: float = math.inf


def fresh_secret() -> tuple[int, ...]:
    """Draws a secret from the operating system, which nobody else can know."""
    return tuple(secrets.randbits(32) for _ in range(SECRET_WORDS))


def noisy_method(method: Method, privacy: Privacy | None, defences: Sequence[Defence]) -> Method:
    """Wraps a method with privacy and defences, as `simulation.program.bind` does.

    The wrapped method's settings (see `Method.vary`) are the secret, uint32 [SECRET_WORDS], or ()
    if no noise is added. They are traced, so that no compiled program contains the secret. Without
    privacy there are no settings.
    """
    if privacy is None:
        return defended(method, defences)

    def with_secret(secret):
        return defended(private(method, privacy._replace(secret=tuple(secret))), defences)

    return varied(with_secret, ())


def check_scores(config: Config, privacy: Privacy | None) -> None:
    """Rejects a config that depends on scores which clients do not send, or adds no noise.

    Raises:
      ValueError: it does. One line.
    """
    if privacy is None:
        return
    if not privacy.noise:
        raise ValueError(
            "privacy.noise is 0, so epsilon is infinite; a deployment needs noise above 0, or "
            "privacy.unit='none'"
        )
    for field in HIDDEN_SCORES[privacy.unit]:
        section, name = field.split(".")
        if value := getattr(getattr(config, section), name):
            raise ValueError(
                f"{field} is {value!r}, but with privacy.unit={privacy.unit!r} clients do not send "
                "the scores it needs; leave it at its default"
            )


def update_noise(privacy: Privacy, sends_payload: bool, path: Path) -> Noise:
    """Returns the noise on updates or on their sum, which hides a whole client.

    Args:
      privacy: a privacy of unit "client" or "upload".
      sends_payload: True if uplinks contain numbers; otherwise epsilon is 0.
      path: the ledger.
    """

    def epsilon(count: int) -> float:
        if not sends_payload:
            return 0.0
        return gaussian_epsilon(privacy.noise, count, delta=privacy.delta)

    return Noise(
        name=f"{privacy.unit}, noise {privacy.noise!r}",
        count_per_draw=1,
        epsilon=epsilon,
        path=path,
    )


def training_noise(
    privacy: Privacy, training: LocalTraining, num_samples: int, path: Path
) -> Noise:
    """Returns the noise on a client's training steps, which hides one of its samples.

    It costs epsilon even if nothing is sent: the client's scores depend on its model.
    """
    batch_size = min(training.batch_size, num_samples)
    return Noise(
        name=f"sample, noise {privacy.noise!r}, {batch_size} of {num_samples}",
        count_per_draw=int(num_steps(training, num_samples)),
        epsilon=functools.partial(
            poisson_epsilon, privacy.noise, batch_size, num_samples, delta=privacy.delta
        ),
        path=path,
    )


def draw(noise: Noise | None) -> tuple[np.ndarray | tuple, float | None]:
    """Draws a secret for one reply or server step, after counting it on disk.

    Returns:
      The secret, uint32 [SECRET_WORDS], and epsilon with it; () and None without noise.

    Raises:
      ValueError: epsilon would exceed `max_epsilon`, and nothing is counted; or the ledger is
        damaged. One line.
    """
    if noise is None:
        return (), None
    numbers = read_ledger(noise.path)
    count = numbers.get(noise.name, 0) + noise.count_per_draw
    epsilon = noise.epsilon(count)
    # not `>`: a NaN limit allows nothing
    if not epsilon <= noise.max_epsilon:
        raise ValueError(
            f"epsilon would be {epsilon:.4g} with this answer, but --most_epsilon is "
            f"{noise.max_epsilon:g}"
        )
    # count before there is a secret: nothing that is made with it can leave uncounted
    write_whole(noise.path, json.dumps(numbers | {noise.name: count}))
    return np.array(fresh_secret(), np.uint32), epsilon


def record_epsilons(path: Path, epsilons: Mapping[int, float]) -> tuple[float, list[str]]:
    """Records clients' reported epsilons in a ledger; each client's last report counts.

    Args:
      path: the file.
      epsilons: client id -> its epsilon, for the clients of one round.

    Returns:
      The largest epsilon of all clients so far, and a message for each client whose report newly
      exceeds `FAR_EPSILON` times the median.

    Raises:
      ValueError, OSError: as for `read_ledger`, or it cannot be written.
    """
    before, last = read_ledger(path), {}
    for client, epsilon in epsilons.items():
        last[f"{_EPSILON_OF}{client}"] = float(epsilon)  # an integer from 2^53 on is no count
    after = before | last
    write_whole(path, json.dumps(after))
    reported = [value for name, value in after.items() if name.startswith(_EPSILON_OF)]
    median = statistics.median_low(reported)
    bound, lines = FAR_EPSILON * median, []
    for name, epsilon in last.items():
        if epsilon > bound >= before.get(name, 0):
            lines.append(f"{name} is {epsilon:.4g} by its own report, the median {median:.4g}")
    return max(reported), lines


def read_ledger(path: Path) -> dict[str, Any]:
    """Reads a ledger's numbers by name, {} before anything is sent.

    They outlive the program, and counts never decrease.

    Raises:
      ValueError, OSError: the file is not a ledger, or is missing beside states. One line.
    """
    if not path.exists():
        if has_states(path.parent):
            raise ValueError(
                f"{path} is missing, but {path.parent} has states, whose rounds it may have "
                "counted, so epsilon is unknown; restore it, or start in another --workdir"
            )
        return {}
    try:
        numbers = json.loads(path.read_text())
        if all(map(_may_be_told, numbers.values())):
            return numbers
    except (ValueError, AttributeError, RecursionError):
        pass
    raise ValueError(f"{path} is damaged: without its count of noisy answers, epsilon is unknown")


def _may_be_told(x: Any) -> bool:
    """Returns whether a value may be a count, or an epsilon that a client reports."""
    if isinstance(x, bool) or not isinstance(x, int | float):
        return False
    return 0 <= x <= MAX_AMOUNT and (isinstance(x, float) or x < MOST_COUNTED)


def has_states(folder: Path) -> bool:
    """Returns whether a side's folder has a client's states or a server's checkpoints."""
    parents = [path for path in folder.iterdir() if path.is_dir()] if folder.exists() else []
    return any(sealed.numbers(parent) for parent in parents)
