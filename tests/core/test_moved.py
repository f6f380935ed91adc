"""Names that the documentation had at another place."""

import importlib

import pytest

import fedjax_ht as fl
from fedjax_ht.core.method import init_model
from fedjax_ht.data.files.torch_files import load_state_dict

MOVED = [
    ("fedjax_ht.core.bounds", "NonNegative", fl.NonNegative),
    ("fedjax_ht.core.round", "gather_received", fl.gather_received),
    ("fedjax_ht.io.torch_files", "load_state_dict", load_state_dict),
    ("fedjax_ht.methods.prototypes", "collect", fl.class_sums),
    ("fedjax_ht.methods.prototypes", "mean_by_class", fl.mean_by_class),
    ("fedjax_ht.methods.supervised", "head_scores", fl.head_scores),
    ("fedjax_ht.methods.supervised", "init_model", init_model),
    ("fedjax_ht.methods.supervised", "own_features", fl.own_features),
    ("fedjax_ht.methods.supervised", "train_model", fl.train_model),
]


@pytest.mark.parametrize("module, name, now", MOVED)
def test_a_documented_name_that_moved_is_found_with_a_warning(module, name, now):
    with pytest.warns(DeprecationWarning, match=rf"^{module}\.{name} is fedjax_ht\.\S+ now$"):
        assert getattr(importlib.import_module(module), name) is now


@pytest.mark.parametrize("module", sorted({module for module, _, _ in MOVED}))
def test_other_names_are_not_found(module):
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'foo'"):
        importlib.import_module(module).__getattr__("foo")


def test_the_warning_is_of_the_line_that_reads_the_name():
    with pytest.warns(DeprecationWarning) as warnings:
        exec(compile("from fedjax_ht.methods.prototypes import collect", "user.py", "exec"), {})
    assert {warning.filename for warning in warnings} == {"user.py"}
