"""Model-heterogeneous federated learning in JAX.

The public names stand in __init__.pyi, and each is imported when it is first used: nothing slow
before."""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
