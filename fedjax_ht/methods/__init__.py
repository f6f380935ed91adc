"""The federated methods: one file each, with a factory of the file's name.

The factories are names of `fedjax_ht` itself (`fedjax_ht.fedssa`); here `fedssa` is the module.
"""

from fedjax_ht.methods.registry import (
    DISTILLING,
    LIBRARY,
    METHODS,
    is_own,
    method_factory,
    names_user_method,
    register_method,
)

__all__ = [
    "DISTILLING",
    "LIBRARY",
    "METHODS",
    "is_own",
    "method_factory",
    "names_user_method",
    "register_method",
]
