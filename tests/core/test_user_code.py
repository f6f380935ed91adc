"""Code of a user's own by "module:function", and models that come from it."""

import sys

import pytest

from fedjax_ht.core.user_code import call_user_function, user_function, user_modules_in, user_place
from fedjax_ht.lab.config.base import base_config
from fedjax_ht.lab.runs.plan import plan
from fedjax_ht.models import model_group

MINE = """
import flax.linen as nn
import fedjax_ht as fl

class Perceptron(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(x.reshape(x.shape[0], -1))

def models(num_classes, input_shape, feature_dim):
    return {"one": fl.SplitModel(Perceptron(), nn.Dense(num_classes))}

def numbers(num_classes, input_shape, feature_dim):
    return {"one": num_classes}

def nothing(*task):
    return {}

def broken(*task):
    raise KeyError("feature_dim")
"""


@pytest.fixture
def user_modules(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "of_a_user.py").write_text(MINE)
    (tmp_path / "of_a_bad_user.py").write_text("1 / 0")
    yield
    sys.modules.pop("of_a_user", None)


def test_models_of_a_file_in_the_current_folder(user_modules):
    config = base_config()
    config.model.group = "of_a_user:models"
    config.partition.num_clients = 4
    config.dataset.subset = 800
    (federation,) = (run.federation for run in plan(config).runs.values())
    assert [bucket.name for bucket in federation.buckets] == ["one"] and federation.feature_dim == 4


@pytest.mark.parametrize(
    ("named", "line"),
    [
        ("of_no_user:models", "model group 'of_no_user:models': no module of_no_user in "),
        ("of_a_bad_user:models", "model group 'of_a_bad_user:models' raises ZeroDivisionError"),
        ("of_a_user:model", "has no function model; did you mean 'models'? Its functions are"),
        ("of_a_user:numbers", "model 'of_a_user:numbers: one' is a builtins.int;"),
        ("of_a_user:nothing", "'of_a_user:nothing' returns an empty dict; it must return a dict"),
        ("of_a_user:broken", "model group 'of_a_user:broken' raises KeyError: 'feature_dim'"),
        ("of_a_user:", "unknown model group 'of_a_user:'; the groups are "),
    ],
)
def test_mistakes_are_one_line(user_modules, named, line):
    with pytest.raises(ValueError) as raised:
        model_group(named, 10, (8, 8, 1))
    assert line in str(raised.value) and "\n" not in str(raised.value)


def test_options_that_own_models_do_not_have(user_modules):
    with pytest.raises(ValueError, match="norm and output_relu are for the library's own models"):
        model_group("of_a_user:models", 10, (8, 8, 1), norm="group")


def test_a_function_and_its_result(user_modules, tmp_path):
    assert call_user_function("thing", "of_a_user:nothing", 1, 2) == {}
    assert str(tmp_path) not in sys.path


def test_the_place_of_a_module_is_where_it_is_imported_from(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    (tmp_path / "placed").mkdir()
    for file in ("placed/__init__.py", "placed/inner.py", "alone.py"):
        (tmp_path / file).write_text("def make(): pass")
    with user_modules_in(str(tmp_path)):
        for name in ("placed.inner:make", "alone:make"):
            user_function("method", name)
    assert user_place("placed.inner:make") == str(tmp_path / "placed")
    assert user_place("alone:make") == str(tmp_path / "alone.py")
    assert user_place("alone") == user_place("never_imported:make") == ""
