"""The registry of methods, by the names that configs use."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from fedjax_ht.core.bounds import checked
from fedjax_ht.core.method import Method
from fedjax_ht.core.names import meant, unknown
from fedjax_ht.core.registration import check_registration
from fedjax_ht.core.user_code import names_user_function, user_function
from fedjax_ht.methods.apfl import apfl
from fedjax_ht.methods.dense import dense
from fedjax_ht.methods.depthfl import depthfl
from fedjax_ht.methods.dfrd import dfrd
from fedjax_ht.methods.ditto import ditto
from fedjax_ht.methods.dsfl import dsfl
from fedjax_ht.methods.fd import fd
from fedjax_ht.methods.fedala import fedala
from fedjax_ht.methods.fedapen import fedapen
from fedjax_ht.methods.fedavg import fedavg
from fedjax_ht.methods.fedbn import fedbn
from fedjax_ht.methods.fedbuff import fedbuff
from fedjax_ht.methods.fedclassavg import fedclassavg
from fedjax_ht.methods.feddropout import feddropout
from fedjax_ht.methods.feddyn import feddyn
from fedjax_ht.methods.fedftg import fedftg
from fedjax_ht.methods.fedgen import fedgen
from fedjax_ht.methods.fedgh import fedgh
from fedjax_ht.methods.fedhenn import fedhenn
from fedjax_ht.methods.fedit import fedit
from fedjax_ht.methods.fedkd import fedkd
from fedjax_ht.methods.fedktl import fedktl
from fedjax_ht.methods.fedl2g import fedl2g
from fedjax_ht.methods.fedmd import fedmd
from fedjax_ht.methods.fedmrl import fedmrl
from fedjax_ht.methods.fedpac import fedpac
from fedjax_ht.methods.fedper import fedper
from fedjax_ht.methods.fedproto import fedproto
from fedjax_ht.methods.fedprox import fedprox
from fedjax_ht.methods.fedral import fedral
from fedjax_ht.methods.fedre import fedre
from fedjax_ht.methods.fedrep import fedrep
from fedjax_ht.methods.fedrolex import fedrolex
from fedjax_ht.methods.fedsa_lora import fedsa_lora
from fedjax_ht.methods.fedssa import fedssa
from fedjax_ht.methods.fedtgp import fedtgp
from fedjax_ht.methods.ffa_lora import ffa_lora
from fedjax_ht.methods.fiarse import fiarse
from fedjax_ht.methods.fjord import fjord
from fedjax_ht.methods.flexlora import flexlora
from fedjax_ht.methods.flora import flora
from fedjax_ht.methods.fml import fml
from fedjax_ht.methods.heterofl import heterofl
from fedjax_ht.methods.hetlora import hetlora
from fedjax_ht.methods.ktpfl import ktpfl
from fedjax_ht.methods.lg_fedavg import lg_fedavg
from fedjax_ht.methods.local import local
from fedjax_ht.methods.moon import moon
from fedjax_ht.methods.pfedafm import pfedafm
from fedjax_ht.methods.pfedes import pfedes
from fedjax_ht.methods.pfedmoe import pfedmoe
from fedjax_ht.methods.scaffold import scaffold
from fedjax_ht.methods.shared.bases import BASES
from fedjax_ht.methods.shared.composition import composed

FACTORIES: dict[str, Callable[..., Method]] = {
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
    "fedbuff": fedbuff,
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
    "fedmd": fedmd,
    "dsfl": dsfl,
    "ktpfl": ktpfl,
    "fedhenn": fedhenn,
    "fiarse": fiarse,
    "fjord": fjord,
    "depthfl": depthfl,
    "pfedes": pfedes,
    "pfedafm": pfedafm,
    "pfedmoe": pfedmoe,
    "fedit": fedit,
    "hetlora": hetlora,
    "flexlora": flexlora,
    "flora": flora,
    "ffa_lora": ffa_lora,
    "fedsa_lora": fedsa_lora,
}

LIBRARY = tuple(FACTORIES)
"""Names of the library's own methods."""

METHODS: Mapping[str, Callable[..., Method]] = MappingProxyType(FACTORIES)
"""Name -> factory of every method, those that `register_method` added included."""

DISTILLING = ("dense", "fedftg", "dfrd")


def register_method(name: str, factory: Callable[..., Method]) -> None:
    """Registers a method of your own under a name, which configs then take as the library's.

    Args:
      name: the name, of letters, digits and underscores.
      factory: the function (training, *, options) -> Method; configs set its options, and
        annotations of these state the values that they may have.

    Raises:
      ValueError: the name is the library's, or another function is registered under it, or
        `factory` is no such function. One line. A cell or a config file may be run again.

    Example:
      >>> def fedsame(training, *, weight: fl.NonNegative = 1.0):
      ...     return fl.fedproto(training, weight=weight)._replace(name="fedsame")
      >>> fl.register_method("fedsame", fedsame)
      >>> fl.method_factory("fedsame")(fl.LocalTraining(optax.sgd(0.1))).name
      'fedsame'
      >>> fl.register_method("fedproto", fedsame)
      Traceback (most recent call last):
      ...
      ValueError: method 'fedproto' is the library's own; register yours under another name
    """
    check_registration(
        "method", name, factory, registered=METHODS, library=LIBRARY, takes=("training",)
    )
    FACTORIES[name] = factory


@checked
def method_factory(name: str) -> Callable[..., Method]:
    """Returns a method's factory, (training, **options) -> Method, which checks its options.

    Args:
      name: a key of `METHODS`; or "BASE+METHOD", a distilling method on top of one that averages,
        with the options of both; or "module:function" for a factory of yours, the module in the
        current folder, beside the config file that names it, or installed.

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
    if names_user_method(name):
        hint = meant(name, METHODS, f"the methods are {', '.join(METHODS)}")
        return checked(user_function("method", name, hint))
    if name not in METHODS:
        raise ValueError(unknown_method(name))
    return checked(METHODS[name])


def names_user_method(name: str) -> bool:
    """Returns whether a name is a "module:function" of a user's own; nothing is imported."""
    return name not in METHODS and names_user_function(name)


def is_own(name: str) -> bool:
    """Returns True for a method of a user's own, one that is not registered here included."""
    return not set(name.split("+")) <= set(LIBRARY)


def unknown_method(name: str) -> str:
    """Says in one line that there is no such method, and which methods there are."""
    bases = [base for base in BASES if base != "none"]
    listed = (
        f"the methods are {', '.join(METHODS)}, BASE+METHOD with one of {', '.join(bases)} "
        f"and one of {', '.join(DISTILLING)}, and module:function of your own"
    )
    compositions = [f"{base}+{top}" for base in bases for top in DISTILLING]
    return unknown("method", name, [*METHODS, *compositions], listed)
