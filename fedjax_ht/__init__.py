"""Model-heterogeneous federated learning in JAX.

The public names stand in __init__.pyi, and each is imported when it is first used: nothing slow
before."""

import lazy_loader

from fedjax_ht.check.names import unknown
from fedjax_ht.check.packages import needing

__version__ = "0.2.0"
_public_name, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str):
    """Imports a public name; one whose packages are missing says which extra brings them."""
    if not name.startswith("_") and name not in __all__:
        raise AttributeError(unknown("name in fedjax_ht", name, __all__, "see dir(fedjax_ht)"))
    with needing(f"fedjax_ht.{name}"):
        return _public_name(name)
