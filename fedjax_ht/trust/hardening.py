"""The order in which attacks, noise and defences stand around a method, in one place.

From the inside: the contract's checks, then what attackers do instead, then what hides a client,
whose clipping attackers cannot avoid, and last, by `trust.defences.defended`, the defences, which
compare what the server gets.
"""

from fedjax_ht.core.method import Method
from fedjax_ht.trust.attacks import attacked
from fedjax_ht.trust.options import Attack, Privacy
from fedjax_ht.trust.privacy import private


def concealed(method: Method, attack: Attack, privacy: Privacy | None, num_clients: int) -> Method:
    """Returns the method, `contract.guarded` already, as its clients run it, before any defence; an
    attack of no kind, and privacy that is None, are left out."""
    return private(attacked(method, attack, num_clients), privacy)
