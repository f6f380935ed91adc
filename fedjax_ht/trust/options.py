"""Options of attacks, defences and privacy.

`attacks`, `defences` and `privacy` implement them; a plain simulation does not import them.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

from fedjax_ht.check.options import (
    MAX_SEED,
    NonNegative,
    NotGiven,
    Positive,
    Seed,
    Share,
    Within,
)

Kind = Literal["label_flip", "sign_flip", "scaled", "noise", "shift", "counts"]


@dataclasses.dataclass(frozen=True)
class Attack:
    """An attack by a share of the clients; all trials of a run have the same attackers.

    It is also the section `attack` of a config.

    Attributes:
      kind: Manipulation of labels, uploads or counts by the attackers (docs/bad_clients.md); None
        ("none" in a config): no attack.
      share: Share of the clients that attack, rounded to the nearest number of clients; 0: none.
        They are drawn among all clients, also those that never train (`new_share`).
      strength: Strength s of the attack, a factor on its change.
      seed: Seed of the choice of attackers, and of the direction of a shift.
    """

    kind: Annotated[Kind | None, NotGiven("none")] = None
    share: Share = 0.0
    strength: NonNegative = 1.0
    seed: Seed = 0


class Defence(NamedTuple):
    """A function of a round's vectors.

    Attributes:
      name: the defence's name in a config.
      apply: (`vectors.Vectors`, same_entries) -> Vectors. `same_entries` is False if the meaning of
        a position differs between clients' vectors.
      by_entry: True if the defence needs positions with the same meaning.
      most_weight: bound on a client's counts, in units of the round's median.
    """

    name: str
    apply: Callable[[Any, bool], Any]
    by_entry: bool = True
    most_weight: float = 2.0


Unit = Literal["client", "upload", "sample"]
Delta = Annotated[float, Within(above=0, below=1)]
Word = Annotated[int, Within(0, MAX_SEED)]


class Privacy(NamedTuple):
    """The unit that noise hides, and how well.

    Attributes:
      unit: the hidden unit, see `trust.privacy`.
      clip: bound on the L2 norm of an update or a sample's gradient, over all its arrays.
      noise: standard deviation of the noise on the sum, in units of `clip`; 0 adds none, and hides
        nothing.
      delta: the delta for which epsilon is computed.
      secret: words that are folded into the key of the noise, in addition to the seed. Anyone who
        knows seed and secret can remove the noise, so a recorded seed alone hides nothing. They are
        constants of compiled programs, which must then not be cached on disk, unless they are
        traced, as in `fedjax_ht.deploy`.
    """

    unit: Unit
    clip: Positive = 1.0
    noise: NonNegative = 1.0
    delta: Delta = 1e-5
    secret: tuple[Word, ...] = ()


Exposure = Literal["nothing", "alike", "apart"]
"""Exposure of clients by uploads, besides their numbers; see `disclosure.exposure`."""
