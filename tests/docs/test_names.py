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


def test_losses_models_and_generators_are_public_names():
    for package in (fedjax_ht.losses, fedjax_ht.models, fedjax_ht.data.partition):
        for name in package.__all__:
            if name not in ("check_partition", "partition_options"):  # the runner's
                assert getattr(fedjax_ht, name) is getattr(package, name), name
    assert {"Card", "Generator", "open_generator", "__version__"} <= {
        *dir(fedjax_ht),
        "__version__",
    }


def test_every_public_name_can_be_imported_alone():
    assert all(getattr(fedjax_ht, name) is not None for name in fedjax_ht.__all__)
    assert len(fedjax_ht.__all__) == len(set(fedjax_ht.__all__)) > 90
