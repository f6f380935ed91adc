"""Flax modules, each a feature extractor and a head, and the papers' groups of client models.

The public names are in __init__.pyi.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
