"""Code of a user's own by "module:function", and models that come from it."""

import sys

import pytest

from fedjax_ht.configs.base import base_config
from fedjax_ht.core.own import called, own_function
from fedjax_ht.models import model_group
from fedjax_ht.runner.build import build

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
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "of_a_user.py").write_text(MINE)
    (tmp_path / "of_a_bad_user.py").write_text("1 / 0")
    yield
    sys.modules.pop("of_a_user", None)


def test_models_of_a_file_in_the_current_folder(mine):
    config = base_config()
    config.model.group, config.partition.num_clients, config.dataset.subset = "of_a_user:models", 4, 800
    (federation,) = build(config).federations.values()
    assert [bucket.name for bucket in federation.buckets] == ["one"] and federation.feature_dim == 4


@pytest.mark.parametrize(
    ("named", "line"),
    [
        ("of_no_user:models", "of_no_user:models: importing of_no_user says ModuleNotFoundError: No module named"),
        ("of_a_bad_user:models", "of_a_bad_user:models: importing of_a_bad_user says ZeroDivisionError: division by"),
        ("of_a_user:model", "of_a_user:model: there is no function 'model'; did you mean 'models'? In "),
        ("of_a_user:", "of_a_user:: there is no function ''; in "),
        ("of_a_user:numbers", "of_a_user:numbers: 'one' is int; it must be a SplitModel, or like one"),
        ("of_a_user:nothing", "of_a_user:nothing returns dict; it must return a dict of flax modules by name"),
        ("of_a_user:broken", "of_a_user:broken says KeyError: 'feature_dim'"),
    ],
)
def test_mistakes_are_one_line(mine, named, line):
    with pytest.raises(ValueError) as raised:
        model_group(named, 10, (8, 8, 1))
    assert str(raised.value).startswith(line) and "\n" not in str(raised.value)


def test_options_that_own_models_do_not_have(mine):
    with pytest.raises(ValueError, match="norm and output_relu are for the library's own models"):
        model_group("of_a_user:models", 10, (8, 8, 1), norm="group")


def test_a_function_and_its_result(mine):
    assert called("of_a_user:nothing", own_function("of_a_user:nothing"), 1, 2) == {}
