"""The registry of methods, by the names that configs use."""

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType

from fedjax_ht.check.names import meant, unknown
from fedjax_ht.check.options import checked
from fedjax_ht.check.registration import Registry, check_registration
from fedjax_ht.core.method import Method
from fedjax_ht.core.user_code import names_user_function, user_function

LIBRARY = (
    "local",
    "fedavg",
    "fedproto",
    "fedtgp",
    "fedktl",
    "fedssa",
    "fedral",
    "lg_fedavg",
    "fedper",
    "fedgen",
    "fedgh",
    "fd",
    "fedclassavg",
    "fml",
    "fedkd",
    "fedapen",
    "fedmrl",
    "heterofl",
    "feddropout",
    "fedrolex",
    "dense",
    "fedftg",
    "dfrd",
    "fedprox",
    "fedbuff",
    "scaffold",
    "feddyn",
    "moon",
    "fedrep",
    "fedbn",
    "ditto",
    "apfl",
    "fedala",
    "fedpac",
    "fedl2g",
    "fedre",
    "fedmd",
    "dsfl",
    "ktpfl",
    "fedhenn",
    "fiarse",
    "fjord",
    "depthfl",
    "pfedes",
    "pfedafm",
    "pfedmoe",
    "fedit",
    "hetlora",
    "flexlora",
    "flora",
    "ffa_lora",
    "fedsa_lora",
    "feddbe",
    "fedorgp",
    "afl",
    "fedcgs",
    "fedrod",
    "gpfl",
    "fedcp",
    "pfedme",
    "fedbabu",
    "fedamp",
    "fedsa_anchors",
    "raflora",
    "fedspu",
    "perfedavg",
    "qfedavg",
    "agnostic",
    "fedpft",
)
"""Names of the library's own methods. Each is a function in the module of the same name."""

DISTILLING = ("dense", "fedftg", "dfrd")
AVERAGING = ("fedavg", "heterofl", "feddropout", "fedrolex")
"""Bases of the distilling methods; a name puts one before the method, as in "fedrolex+dfrd"."""

OPTIMIZERS = ("fedavgm", "fedadagrad", "fedadam", "fedyogi")
MEANS = (
    *("fedavg", "fedprox", "moon", "fedper", "fedrep", "fedbn", "ditto", "apfl", "fedala"),
    *("fedrod", "gpfl", "lg_fedavg", "fedclassavg", "fml", "fedmrl", "pfedes", "pfedafm"),
    *("fedcp", "pfedme", "perfedavg", "pfedmoe", "fedit", "fedsa_lora"),
    *("heterofl", "feddropout", "fedrolex"),
)
"""Methods whose server state is parameters, updated to the mean of the uploads. A name may append a
server optimizer, as in "fedprox+fedadam"."""


def _place(name: str) -> str:
    folder = "data_free." if name in DISTILLING else ""
    return f"{__package__}.{folder}{name}:{name}"


FACTORIES = Registry({name: _place(name) for name in LIBRARY})

METHODS: Mapping[str, Callable[..., Method]] = MappingProxyType(FACTORIES)
"""Name -> factory of every method, including those that `register_method` added. Looking up a
library method's factory imports its module."""


# by name, because that module imports this one
_AROUND = Registry({"optimizer": f"{__package__}.shared.server_optimizers:optimized_factory"})


def register_method(name: str, factory: Callable[..., Method]) -> None:
    """Registers a method of your own under a name, so that configs can use it.

    Args:
      name: the name, of letters, digits and underscores.
      factory: the function (training, *, options) -> Method; configs set its options, whose
        annotations state the allowed values.

    Raises:
      ValueError: the name is the library's, another function is registered under it, or `factory`
        is not such a function. One line. Running a cell or a config file again is allowed.

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
      name: a key of `METHODS`; or "BASE+METHOD", a distilling method with `base` set, or a server
        optimizer around a method that averages, with the options of both; or "module:function" for
        a factory of yours, whose module is in the current folder, next to the config file that
        names it, or installed.

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
    if plus and top in DISTILLING and base in AVERAGING:
        return functools.partial(METHODS[top], base=base)
    if plus and top in OPTIMIZERS and base in MEANS:
        return checked(_AROUND["optimizer"](METHODS[base], top))
    if names_user_method(name):
        hint = meant(name, METHODS, f"the methods are {', '.join(METHODS)}")
        return checked(user_function("method", name, hint))
    if name not in METHODS:
        raise ValueError(unknown_method(name))
    return checked(METHODS[name])


def names_user_method(name: str) -> bool:
    """Returns whether a name is a user's "module:function", without importing it."""
    return name not in METHODS and names_user_function(name)


def is_own(name: str) -> bool:
    """Returns True for a user's own method, even if it is not registered here."""
    base, *tops = name.split("+")
    return base not in LIBRARY or not set(tops) <= {*LIBRARY, *OPTIMIZERS}


def unknown_method(name: str) -> str:
    """Returns a one-line message about an unknown method, which lists the known ones."""
    base, _, top = name.partition("+")
    if base in METHODS and top in OPTIMIZERS:
        return not_averaging(base)
    listed = (
        f"the methods are {', '.join(METHODS)}, BASE+METHOD with one of {', '.join(AVERAGING)} "
        f"and one of {', '.join(DISTILLING)}, or one that averages and one of "
        f"{', '.join(OPTIMIZERS)}, and module:function of your own"
    )
    compositions = [f"{base}+{top}" for base in AVERAGING for top in DISTILLING]
    compositions += [f"{base}+{top}" for base in MEANS for top in OPTIMIZERS]
    return unknown("method", name, [*METHODS, *compositions], listed)


def not_averaging(name: str) -> str:
    """Returns a one-line message that a method's server does not average parameters."""
    return (
        f"the server of {name} does not only average parameters; a server optimizer needs one of "
        f"{', '.join(MEANS)}"
    )
