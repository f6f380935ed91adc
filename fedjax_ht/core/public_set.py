"""The public set of a method that reads one: that there is one, and its bytes."""

import jax

from fedjax_ht.core.federation import Federation, PublicSet
from fedjax_ht.core.method import Method
from fedjax_ht.core.samples import Data


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


def public_bytes(public: PublicSet | None, data: Data | None) -> int | None:
    """Computes the bytes of the public set's stored samples, and of its labels where these are
    known; None for methods that read none.

    Args:
      public: the size of the public set.
      data: samples among which the public ones are.
    """
    if public is None or data is None:
        return None
    arrays = [*jax.tree.leaves(data.inputs)]
    if public.is_labelled:
        arrays.append(data.labels)
    return public.samples * sum(x.nbytes // len(x) for x in arrays)
