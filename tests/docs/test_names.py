"""A module's name means the module, and public names are those of docs/stability.md."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import fedjax_ht

ROOT = Path(fedjax_ht.__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "stability.md"
PACKAGES = ("generators", "losses", "models", "trust")


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


@pytest.mark.parametrize("place", ["fedjax_ht", *PACKAGES])
def test_the_page_has_every_public_name_and_no_other(place):
    """`fedjax_ht` is one place, and each package that is a public name itself."""
    namespace = fedjax_ht if place == "fedjax_ht" else getattr(fedjax_ht, place)
    heading = "## Names of fedjax_ht\n" if place == "fedjax_ht" else f"### fl.{place}\n"
    _, _, rest = PAGE.read_text().partition(heading)
    section, _, _ = rest.partition("\n##")
    listed = re.findall(r"`(\w+)`[,.]", section)
    assert sorted(listed) == sorted(namespace.__all__)
    assert all(getattr(namespace, name) is not None for name in listed)


def test_pages_and_notebooks_use_public_names_alone():
    """A host such as fl.example.org is no name."""
    private = []
    for path in (*ROOT.glob("docs/*.md"), *ROOT.glob("notebooks/*.ipynb"), ROOT / "README.md"):
        for first, second in re.findall(r"\bfl\.(?!example\.)(\w+)(?:\.(\w+))?", path.read_text()):
            namespace = getattr(fedjax_ht, first, None) if first in PACKAGES else None
            is_public = first in fedjax_ht.__all__
            if namespace is not None and second:
                is_public = second in namespace.__all__
            if not is_public:
                private.append(f"{path.name}: fl.{first}.{second}")
    assert private == []
