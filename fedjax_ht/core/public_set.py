"""Checks that a method which reads a public set has one."""

from fedjax_ht.core.federation import Federation
from fedjax_ht.core.method import Method


def lacks_public_set(method: Method) -> str:
    """Says in one line that a method needs a public set, and how to give one."""
    return (
        f"{method.name} needs a public set, which server and clients have: set dataset.public to "
        "hold_out:0.1, a share of the samples, or to the name of a data set; from Python give "
        "fl.Dataset(public=indices)"
    )


def require_public_set(method: Method, federation: Federation) -> None:
    """Checks that a method which reads a public set has one that is large enough.

    Raises:
      ValueError: there is none, or it has fewer samples than a round uses. One line.
    """
    if not method.public_samples:
        return
    if federation.public is None:
        raise ValueError(lacks_public_set(method))
    if method.public_samples > federation.public.samples:
        raise ValueError(
            f"{method.name} uses {method.public_samples} public samples a round, and the public "
            f"set has {federation.public.samples}; set public_per_round to at most that, or "
            "enlarge dataset.public"
        )
