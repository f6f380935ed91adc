"""The registry of methods, by the names that configs use."""

from collections.abc import Callable

from fedjax_ht.core.bounds import checked
from fedjax_ht.core.method import Method
from fedjax_ht.core.names import unknown
from fedjax_ht.methods.apfl import apfl
from fedjax_ht.methods.dense import dense
from fedjax_ht.methods.dfrd import dfrd
from fedjax_ht.methods.ditto import ditto
from fedjax_ht.methods.fd import fd
from fedjax_ht.methods.fedala import fedala
from fedjax_ht.methods.fedapen import fedapen
from fedjax_ht.methods.fedavg import fedavg
from fedjax_ht.methods.fedbn import fedbn
from fedjax_ht.methods.fedclassavg import fedclassavg
from fedjax_ht.methods.feddropout import feddropout
from fedjax_ht.methods.feddyn import feddyn
from fedjax_ht.methods.fedftg import fedftg
from fedjax_ht.methods.fedgen import fedgen
from fedjax_ht.methods.fedgh import fedgh
from fedjax_ht.methods.fedkd import fedkd
from fedjax_ht.methods.fedktl import fedktl
from fedjax_ht.methods.fedl2g import fedl2g
from fedjax_ht.methods.fedmrl import fedmrl
from fedjax_ht.methods.fedpac import fedpac
from fedjax_ht.methods.fedper import fedper
from fedjax_ht.methods.fedproto import fedproto
from fedjax_ht.methods.fedprox import fedprox
from fedjax_ht.methods.fedral import fedral
from fedjax_ht.methods.fedre import fedre
from fedjax_ht.methods.fedrep import fedrep
from fedjax_ht.methods.fedrolex import fedrolex
from fedjax_ht.methods.fedssa import fedssa
from fedjax_ht.methods.fedtgp import fedtgp
from fedjax_ht.methods.fml import fml
from fedjax_ht.methods.heterofl import heterofl
from fedjax_ht.methods.lg_fedavg import lg_fedavg
from fedjax_ht.methods.local import local
from fedjax_ht.methods.moon import moon
from fedjax_ht.methods.scaffold import scaffold
from fedjax_ht.methods.shared.bases import BASES
from fedjax_ht.methods.shared.composition import composed

METHODS: dict[str, Callable[..., Method]] = {
    "local": local,
    "fedavg": fedavg,
    "fedproto": fedproto,
    "fedtgp": fedtgp,
    "fedktl": fedktl,
    "fedssa": fedssa,
    "fedral": fedral,
    "lg_fedavg": lg_fedavg,
    "fedper": fedper,
    "fedgen": fedgen,
    "fedgh": fedgh,
    "fd": fd,
    "fedclassavg": fedclassavg,
    "fml": fml,
    "fedkd": fedkd,
    "fedapen": fedapen,
    "fedmrl": fedmrl,
    "heterofl": heterofl,
    "feddropout": feddropout,
    "fedrolex": fedrolex,
    "dense": dense,
    "fedftg": fedftg,
    "dfrd": dfrd,
    "fedprox": fedprox,
    "scaffold": scaffold,
    "feddyn": feddyn,
    "moon": moon,
    "fedrep": fedrep,
    "fedbn": fedbn,
    "ditto": ditto,
    "apfl": apfl,
    "fedala": fedala,
    "fedpac": fedpac,
    "fedl2g": fedl2g,
    "fedre": fedre,
}

LIBRARY = dict(METHODS)
"""The library's own methods; a user registers others in METHODS, under the same names too."""

DISTILLING = ("dense", "fedftg", "dfrd")


@checked
def method_factory(name: str) -> Callable[..., Method]:
    """Returns a method's factory, (training, **options) -> Method, which checks its options.

    Args:
      name: a key of `METHODS`; or "BASE+METHOD", a distilling method on top of one that averages,
        with the options of both.

    Raises:
      ValueError: there is no such method.

    Example:
      >>> make = fl.method_factory("fedproto")
      >>> make(fl.LocalTraining(optax.sgd(0.1)), weight=-1.0)
      Traceback (most recent call last):
      ...
      ValueError: weight is -1.0; it must be a number of at least 0 or None
    """
    base, plus, top = name.partition("+")
    # data-free, a distilling method is called by its own name
    if plus and top in DISTILLING and base in BASES and base != "none":
        return composed(base, METHODS[top])
    if name not in METHODS:
        raise ValueError(unknown_method(name))
    return checked(METHODS[name])


def is_own(name: str) -> bool:
    """Returns True for a method of a user's own, one that is not registered here included."""
    parts = name.split("+") if name not in METHODS else [name]
    return any(METHODS.get(part) is not LIBRARY.get(part) or part not in METHODS for part in parts)


def unknown_method(name: str) -> str:
    """Says in one line that there is no such method, and which methods there are."""
    bases = [base for base in BASES if base != "none"]
    listed = (
        f"the methods are {', '.join(METHODS)}, and BASE+METHOD with one of {', '.join(bases)} "
        f"and one of {', '.join(DISTILLING)}"
    )
    compositions = [f"{base}+{top}" for base in bases for top in DISTILLING]
    return unknown("method", name, [*METHODS, *compositions], listed)
