"""Federated methods: one file a method, each a factory of pure functions, by the names that configs use."""

from collections.abc import Callable

from fedjax_ht.core.method import Method
from fedjax_ht.methods.fd import fd
from fedjax_ht.methods.fedapen import fedapen
from fedjax_ht.methods.fedavg import fedavg
from fedjax_ht.methods.fedclassavg import fedclassavg
from fedjax_ht.methods.fedgen import fedgen
from fedjax_ht.methods.fedgh import fedgh
from fedjax_ht.methods.fedkd import fedkd
from fedjax_ht.methods.fedproto import fedproto
from fedjax_ht.methods.fedral import fedral
from fedjax_ht.methods.fedssa import fedssa
from fedjax_ht.methods.fedtgp import fedtgp
from fedjax_ht.methods.fml import fml
from fedjax_ht.methods.lg_fedavg import lg_fedavg
from fedjax_ht.methods.local import local

METHODS: dict[str, Callable[..., Method]] = {
    "local": local,
    "fedavg": fedavg,
    "fedproto": fedproto,
    "fedtgp": fedtgp,
    "fedssa": fedssa,
    "fedral": fedral,
    "lg_fedavg": lg_fedavg,
    "fedgen": fedgen,
    "fedgh": fedgh,
    "fd": fd,
    "fedclassavg": fedclassavg,
    "fml": fml,
    "fedkd": fedkd,
    "fedapen": fedapen,
}

__all__ = [
    "METHODS",
    "fd",
    "fedapen",
    "fedavg",
    "fedclassavg",
    "fedgen",
    "fedgh",
    "fedkd",
    "fedproto",
    "fedral",
    "fedssa",
    "fedtgp",
    "fml",
    "lg_fedavg",
    "local",
]
