"""A module's name means the module: no function or class that a package exports hides one."""

import importlib
import pkgutil

import fedjax_ht


def test_no_module_is_shadowed():
    names = [m.name for m in pkgutil.walk_packages(fedjax_ht.__path__, "fedjax_ht.")]
    modules = {name: importlib.import_module(name) for name in names}
    hidden = []
    for name, module in modules.items():
        parent, _, last = name.rpartition(".")
        if getattr(importlib.import_module(parent), last) is not module:
            hidden.append(name)
    assert not hidden, hidden


def test_all_methods_are_public_names():
    assert {name: getattr(fedjax_ht, name) for name in fedjax_ht.METHODS} == fedjax_ht.METHODS
