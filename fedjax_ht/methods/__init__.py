"""Federated methods: one file a method, each a factory of pure functions, by the names that configs use."""

from collections.abc import Callable

from fedjax_ht.core.method import Method
from fedjax_ht.methods.fedavg import fedavg
from fedjax_ht.methods.fedproto import fedproto
from fedjax_ht.methods.fedtgp import fedtgp
from fedjax_ht.methods.local import local

METHODS: dict[str, Callable[..., Method]] = {"local": local, "fedavg": fedavg, "fedproto": fedproto, "fedtgp": fedtgp}

__all__ = ["METHODS", "fedavg", "fedproto", "fedtgp", "local"]
