"""Federated methods: one file a method, each a factory of pure functions of the file's name.

The factories are names of `fedjax_ht` itself (`fedjax_ht.fedssa`); here `fedssa` is the module.
"""

from fedjax_ht.methods.registry import DISTILLING, METHODS, method_factory

__all__ = ["DISTILLING", "METHODS", "method_factory"]
